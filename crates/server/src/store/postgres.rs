//! PostgreSQL: the store that several gateways share.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use bytes::BytesMut;
use postgres::config::SslMode;
use postgres::types::{FromSql, IsNull, ToSql, Type};
use postgres::{Client, Config, NoTls, Statement};

use super::database::{Database, Failure, Row, Value, Words};
use super::tls::{Encryption, ServerAddress, Tls};
use crate::config::Speaks;
use crate::upstream::io::trust;

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long a server may leave unacknowledged what it was sent, before it counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// How long a statement may run before the server gives it up, in milliseconds: a year of usage is
/// read in far less, and a lock that is never let go must not hold the store for ever.
const STATEMENT_MS_MAX: u32 = 60_000;

/// The number by which processes agree who may change the tables' shape: `tollgate` in ASCII.
const SHAPE_LOCK: i64 = 0x746f_6c6c_6761_7465;

/// A connection to a server.
pub(super) struct Postgres {
    /// Until it is dropped.
    client: Option<Client>,
    statements: HashMap<String, Statement>,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive()
    }
}

impl Postgres {
    /// Connects to the server that `url` names.
    pub(super) fn open(url: &str) -> Result<Self, Failure> {
        let address = ServerAddress::read(url).map_err(Failure::told)?;
        let mut config: Config = address.url.parse().map_err(|error| Failure::from(&error))?;
        config.application_name("tollgate");
        config.connect_timeout(CONNECT_MAX);
        config.keepalives_idle(Duration::from_secs(30));
        config.tcp_user_timeout(SILENCE_MAX);
        let mut client = match address.encryption {
            Encryption::No => config.connect(NoTls)?,
            Encryption::Yes(root) => {
                // No HTTP, so nothing is agreed on beside the encryption.
                let trusted = trust(root.as_deref(), Speaks::Http1);
                let trusted = trusted.map_err(|error| Failure::told(error.to_string()))?;
                config.ssl_mode(SslMode::Require);
                config.connect(Tls::new(trusted))?
            }
        };
        client.batch_execute(&format!(
            "SET search_path TO tollgate; SET statement_timeout TO {STATEMENT_MS_MAX}; \
             SET client_min_messages TO warning"
        ))?;
        Ok(Self {
            client: Some(client),
            statements: HashMap::new(),
        })
    }

    fn client(&mut self) -> Result<&mut Client, Failure> {
        let client = self.client.as_mut();
        client.ok_or_else(|| Failure::told("the connection is closed"))
    }

    fn statement(&mut self, sql: &str) -> Result<Statement, Failure> {
        if let Some(known) = self.statements.get(sql) {
            return Ok(known.clone());
        }
        let prepared = self.client()?.prepare(sql)?;
        self.statements.insert(sql.to_owned(), prepared.clone());
        Ok(prepared)
    }
}

impl Drop for Postgres {
    /// The client says goodbye to its server and waits for that, which no thread of a runtime may.
    fn drop(&mut self) {
        let client = self.client.take();
        if tokio::runtime::Handle::try_current().is_ok() {
            let ending = std::thread::Builder::new().name("store-end".to_owned());
            // Err: no thread, and then the client stays until the process ends.
            let _ = ending.spawn(move || drop(client));
        }
    }
}

impl Database for Postgres {
    fn words(&self) -> Words {
        Words {
            bytes: "BYTEA",
            table: "",
            rows: 256,
        }
    }

    fn has_tables(&mut self) -> Result<bool, Failure> {
        let found = self.query(
            "SELECT COUNT(*) FROM information_schema.tables \
             WHERE table_schema = 'tollgate' AND table_name = 'meta'",
            &[],
        )?;
        found.first().map_or(Ok(false), |row| Ok(row.int(0)? > 0))
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Failure> {
        self.batch("BEGIN")
    }

    fn lock_shape(&mut self) -> Result<(), Failure> {
        self.batch(&format!("SELECT pg_advisory_xact_lock({SHAPE_LOCK})"))?;
        self.batch("CREATE SCHEMA IF NOT EXISTS tollgate")
    }

    fn batch(&mut self, sql: &str) -> Result<(), Failure> {
        Ok(self.client()?.batch_execute(sql)?)
    }

    fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64, Failure> {
        let statement = self.statement(sql)?;
        Ok(self.client()?.execute(&statement, &borrowed(values))?)
    }

    fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Failure> {
        let statement = self.statement(sql)?;
        let found = self.client()?.query(&statement, &borrowed(values))?;
        let row = |row: &postgres::Row| {
            let each = (0..row.len()).map(|column| row.try_get::<_, Value>(column));
            each.collect::<Result<_, _>>().map(Row)
        };
        Ok(found.iter().map(row).collect::<Result<_, _>>()?)
    }
}

fn borrowed(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    let each = values.iter().map(|value| {
        let value: &(dyn ToSql + Sync) = value;
        value
    });
    each.collect()
}

impl ToSql for Value {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Int(number) => number.to_sql(ty, out),
            Self::Text(text) => (&**text).to_sql(ty, out),
            Self::Bytes(bytes) => bytes.to_sql(ty, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        <i64 as ToSql>::accepts(ty) || <String as ToSql>::accepts(ty) || *ty == Type::BYTEA
    }

    postgres::types::to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        if *ty == Type::INT8 {
            return Ok(Self::Int(i64::from_sql(ty, raw)?));
        }
        if *ty == Type::BYTEA {
            return Ok(Self::Bytes(Vec::from_sql(ty, raw)?));
        }
        Ok(Self::text(<&str>::from_sql(ty, raw)?))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self::Null)
    }

    fn accepts(ty: &Type) -> bool {
        <Self as ToSql>::accepts(ty)
    }
}

impl From<postgres::Error> for Failure {
    fn from(error: postgres::Error) -> Self {
        Self::from(&error)
    }
}

impl From<&postgres::Error> for Failure {
    /// The server's message alone: its details may repeat a value.
    fn from(error: &postgres::Error) -> Self {
        let (why, lost) = match error.as_db_error() {
            Some(said) => {
                // Class 57: the server is going away, or an operator ended the session.
                let lost = said.code().code().starts_with("57P");
                (format!("{} ({})", said.message(), said.code().code()), lost)
            }
            None => {
                let cause = error
                    .source()
                    .map_or(String::new(), |cause| format!(": {cause}"));
                (format!("{error}{cause}"), true)
            }
        };
        Self { why, lost }
    }
}
