//! What the store needs of a database, so that SQLite and PostgreSQL run the same statements.
//!
//! Statements name their values `$1`, `$2`, …, and use only what both databases mean alike. Values
//! are of four kinds; what a column means is not known here.

use std::fmt;
use std::sync::Arc;

/// One value of a row, or for a statement.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Value {
    Null,
    Int(i64),
    Text(Arc<str>),
    Bytes(Vec<u8>),
}

/// Bytes may be the hash of a key, so none are shown.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Int(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
            Self::Bytes(_) => f.write_str("***"),
        }
    }
}

impl Value {
    /// A count; what no database can hold is cut.
    pub(super) fn count(number: u64) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }

    pub(super) fn text(text: impl AsRef<str>) -> Self {
        Self::Text(text.as_ref().into())
    }

    pub(super) fn optional<T>(value: Option<T>, into: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::Null, into)
    }
}

/// One row of an answer.
#[derive(Clone, Debug)]
pub(super) struct Row(pub(super) Vec<Value>);

impl Row {
    /// A column of text.
    pub(super) fn text(&self, column: usize) -> Result<String, Failure> {
        match self.0.get(column) {
            Some(Value::Text(text)) => Ok(text.to_string()),
            other => Err(Failure::odd(column, "text", other)),
        }
    }

    /// A column of text that may be empty.
    pub(super) fn optional_text(&self, column: usize) -> Result<Option<String>, Failure> {
        match self.0.get(column) {
            Some(Value::Null) => Ok(None),
            _ => self.text(column).map(Some),
        }
    }

    /// A column of numbers.
    pub(super) fn int(&self, column: usize) -> Result<i64, Failure> {
        match self.0.get(column) {
            Some(Value::Int(number)) => Ok(*number),
            other => Err(Failure::odd(column, "a number", other)),
        }
    }

    /// A column of numbers that may be empty.
    pub(super) fn optional_int(&self, column: usize) -> Result<Option<i64>, Failure> {
        match self.0.get(column) {
            Some(Value::Null) => Ok(None),
            _ => self.int(column).map(Some),
        }
    }

    /// A column of counts.
    pub(super) fn count(&self, column: usize) -> Result<u64, Failure> {
        let number = self.int(column)?;
        u64::try_from(number)
            .map_err(|_| Failure::told(format!("column {column} is {number}, less than none")))
    }

    /// A column of bytes.
    pub(super) fn bytes(&self, column: usize) -> Result<Vec<u8>, Failure> {
        match self.0.get(column) {
            Some(Value::Bytes(bytes)) => Ok(bytes.clone()),
            other => Err(Failure::odd(column, "bytes", other)),
        }
    }
}

/// What a database said no with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Its words; never a value.
    pub(super) why: String,
    /// Whether the connection is of no more use.
    pub(super) lost: bool,
}

impl Failure {
    pub(super) fn told(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            lost: false,
        }
    }

    fn odd(column: usize, wanted: &str, found: Option<&Value>) -> Self {
        let found = match found {
            None => "missing",
            Some(Value::Null) => "empty",
            Some(Value::Int(_)) => "a number",
            Some(Value::Text(_)) => "text",
            Some(Value::Bytes(_)) => "bytes",
        };
        Self::told(format!("column {column} is {found}, not {wanted}"))
    }
}

/// A connection to a database.
pub(super) trait Database: fmt::Debug + Send {
    /// The words in which the two differ.
    fn words(&self) -> Words;

    /// Whether the store's own tables are there at all.
    fn has_tables(&mut self) -> Result<bool, Failure>;

    /// Makes ready to be written, once it is known to be a store of ours.
    fn prepare(&mut self) -> Result<(), Failure>;

    /// Begins a transaction that writes; `COMMIT` or `ROLLBACK` ends it.
    fn begin(&mut self) -> Result<(), Failure>;

    /// Keeps other processes from changing the tables' shape until the transaction ends.
    fn lock_shape(&mut self) -> Result<(), Failure>;

    /// Runs statements without values.
    fn batch(&mut self, sql: &str) -> Result<(), Failure>;

    /// Runs a statement; how many rows it changed.
    fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64, Failure>;

    /// Runs a question.
    fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Failure>;
}

/// What stands for `{bytes}` and `{table}` in the schema.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    /// The type of a column of bytes.
    pub(super) bytes: &'static str,
    /// What ends the definition of a table with a key of several columns.
    pub(super) table: &'static str,
    /// Rows that one statement puts in at most: many where each statement is a round trip, one
    /// where it is a call, and a large one takes long to compile and much memory to keep.
    pub(super) rows: usize,
}
