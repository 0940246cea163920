//! Where the store is that a command reads or changes, and who says so.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tollgate_server::config::StoreConfig;
use tollgate_server::store::{Actor, Asked, Location, Store, StoreError, UsageError};
use tollgate_server::{FoldError, Folding, unix_micros};

use crate::{check, terminal};

/// Where the data folder is where nothing says.
const DATA_DIR: &str = "./tollgate-data";

/// Flags that say which store is meant.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlaceArgs {
    /// The configuration of the gateway whose store is meant: its data_dir and store.url.
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir")]
    config: Option<PathBuf>,
    /// The data folder whose store is meant; ./tollgate-data unless one of both is given.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// A place that is known and not opened.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) location: Location,
    pub(crate) data_dir: PathBuf,
    /// Tenants that the configuration has, where one was given.
    configured: Vec<String>,
}

/// A store that is open, and what is known beside it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) store: Store,
    data_dir: PathBuf,
    /// Tenants that the configuration has, where one was given.
    configured: Vec<String>,
}

impl PlaceArgs {
    /// Where it all is; says so where there is no data folder.
    pub(crate) fn locate(&self) -> Result<Located, ExitCode> {
        let located = match &self.config {
            Some(file) => {
                let config = check::read(file)?;
                let names = config.tenants.list.iter().map(|tenant| tenant.name.clone());
                Located {
                    location: config.store.location(&config.data_dir),
                    configured: names.collect(),
                    data_dir: config.data_dir,
                }
            }
            None => {
                let data_dir = self.data_dir.clone().unwrap_or_else(|| DATA_DIR.into());
                Located {
                    location: StoreConfig::default().location(&data_dir),
                    data_dir,
                    configured: Vec::new(),
                }
            }
        };
        if !located.data_dir.is_dir() {
            let folder = located.data_dir.display();
            return Err(refuse(&format!(
                "there is no folder {folder}; give --config or --data-dir of a gateway that has run"
            )));
        }
        Ok(located)
    }

    /// Opens the store, which must be there; says why not otherwise.
    pub(crate) fn open(&self) -> Result<Place, ExitCode> {
        let located = self.locate()?;
        if !located.is_there() {
            let folder = located.data_dir.display();
            return Err(refuse(&format!(
                "there is no store in {folder}: a gateway makes it when it starts, and so does \
                 `tollgate tenants create`"
            )));
        }
        located.open()
    }

    /// Opens the store, and makes it where there is none.
    pub(crate) fn open_or_make(&self) -> Result<Place, ExitCode> {
        self.locate()?.open()
    }
}

impl Located {
    /// Whether there is a file, or a server may have a store; whether it has is not asked.
    pub(crate) fn is_there(&self) -> bool {
        match &self.location {
            Location::File(path) => path.exists(),
            Location::Server(_) => true,
        }
    }

    /// Opens the store; says why not otherwise.
    pub(crate) fn open(self) -> Result<Place, ExitCode> {
        let store = Store::open(self.location).map_err(|error| store_failed(&error))?;
        Ok(Place {
            store,
            data_dir: self.data_dir,
            configured: self.configured,
        })
    }
}

impl Place {
    /// Counts what the gateway has written down since it last did, so that the answer is whole also
    /// where it was killed.
    pub(crate) fn catch_up(&mut self) -> Result<(), ExitCode> {
        let folded = Folding::of(&self.data_dir).catch_up(&mut self.store);
        folded.map(drop).map_err(|error| match &error {
            FoldError::Store(error) => store_failed(error),
            FoldError::Journal(_) => refuse(&error.to_string()),
        })
    }

    /// Sees that somebody has this name: in the store or the configuration, or by what was used.
    pub(crate) fn sees(&mut self, tenant: &str) -> Result<(), ExitCode> {
        if self.is_configured(tenant) || self.is_stored(tenant)? || self.has_used(tenant)? {
            return Ok(());
        }
        Err(refuse(&format!(
            "nobody is called {tenant} in the store, or has used anything by that name; `tollgate \
             usage` and `tollgate tenants list` show who is there"
        )))
    }

    fn is_stored(&mut self, tenant: &str) -> Result<bool, ExitCode> {
        let stored = self.store.tenants().map_err(|error| store_failed(&error))?;
        Ok(stored.iter().any(|row| row.name == tenant))
    }

    fn has_used(&mut self, tenant: &str) -> Result<bool, ExitCode> {
        let ever = Asked {
            by: Some("tenant"),
            from: Some("1970-01"),
            to: None,
            tenant: Some(tenant),
        };
        let ever = ever.read(unix_micros()).map_err(|why| refuse(&why))?;
        match self.store.usage(&ever) {
            Ok(rows) => Ok(!rows.is_empty()),
            Err(UsageError::Store(error)) => Err(store_failed(&error)),
            Err(error) => Err(refuse(&error.to_string())),
        }
    }

    /// Whether the configuration has a tenant of this name.
    pub(crate) fn is_configured(&self, name: &str) -> bool {
        self.configured.iter().any(|configured| configured == name)
    }
}

/// Whoever runs the command, for the audit.
pub(crate) fn actor() -> Actor {
    let account = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    Actor {
        name: format!("cli:{}", account.as_deref().unwrap_or("unknown")),
        at_us: unix_micros(),
    }
}

/// Says what is wrong with what was asked, or with what is there: exit code 2.
pub(crate) fn refuse(why: &str) -> ExitCode {
    terminal::complain(&format!("tollgate: {why}"));
    ExitCode::from(check::MISTAKES)
}

/// Says what is wrong with the store.
pub(crate) fn store_failed(error: &StoreError) -> ExitCode {
    terminal::complain(&format!("tollgate: {error}"));
    if error.is_lasting() {
        ExitCode::from(check::MISTAKES)
    } else {
        ExitCode::FAILURE
    }
}
