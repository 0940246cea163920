//! Raw rows: what became of each request, one line of CSV each, written as they end.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use tollgate_policy::units::{Micros, Time};

/// What became of one request. Times count from the start of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Index of its tenant.
    pub tenant: usize,
    /// When it was due.
    pub intended: Time,
    /// When the client began to send it; `None` if it never did.
    pub sent: Option<Time>,
    /// When its first non-empty token came.
    pub first_token: Option<Time>,
    /// When its last non-empty token came.
    pub last_token: Option<Time>,
    /// When nothing more was to come.
    pub end: Time,
    /// The HTTP status, once there was one.
    pub status: Option<u16>,
    /// How it ended.
    pub ending: Ending,
    /// Prompt tokens that it was to have.
    pub prompt_asked: u64,
    /// Output tokens that it asked for.
    pub output_asked: u64,
    /// Prompt tokens by the endpoint's own usage, where it sent any.
    pub prompt_tokens: Option<u64>,
    /// Output tokens by the endpoint's own usage, where it sent any.
    pub output_tokens: Option<u64>,
    /// Non-empty deltas that came.
    pub deltas: u64,
    /// Those of the deltas that came between the end of the warm-up and the end of sending.
    pub deltas_in_window: u64,
    /// The endpoint's `x-request-id`, cut and cleaned; empty if it sent none.
    pub request_id: String,
    /// The time between each two non-empty deltas, in order, and at most [`Row::GAPS_MAX`] of them.
    pub gaps: Vec<Micros>,
}

impl Row {
    /// Gaps kept of one request: more than any answer has tokens, and a bound on its memory.
    pub const GAPS_MAX: usize = 65_536;
}

/// How a request ended, seen from the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All of the answer came, with its finish reason and its terminator.
    Completed,
    /// The endpoint would not serve it: a 4xx, 503 or 529. Carries `x-tollgate-reason`, or the
    /// status where the endpoint sends no reason.
    Refused(String),
    /// It was let in, or should have been, and went wrong.
    Failed(Failure),
    /// No end came before the run was over.
    Unfinished,
    /// It was due while as many as the client bears were open; the run is invalid.
    NotSent,
}

/// What went wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection.
    Connect,
    /// No connection, because this machine is out of files or ports: the run is invalid.
    ClientLimit,
    /// The connection broke before or within the answer.
    Reset,
    /// The answer stopped before its terminator.
    CutOff,
    /// An error event came inside the stream.
    ErrorEvent,
    /// A stream that says it is done but gave no finish reason.
    NoFinish,
    /// Bytes that are no such answer.
    BadReply,
    /// A 5xx that is no refusal, or a status that nobody should send.
    Status(u16),
}

impl Ending {
    /// The kind, for tables: `completed`, `refused`, `failed`, `unfinished` or `not_sent`.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Refused(_) => "refused",
            Self::Failed(_) => "failed",
            Self::Unfinished => "unfinished",
            Self::NotSent => "not_sent",
        }
    }

    /// Why, for tables; empty where the kind says it all.
    pub fn reason(&self) -> String {
        match self {
            Self::Refused(reason) => reason.clone(),
            Self::Failed(failure) => failure.label(),
            Self::Completed | Self::Unfinished | Self::NotSent => String::new(),
        }
    }
}

impl Failure {
    /// The failure, for tables.
    pub fn label(&self) -> String {
        match self {
            Self::Connect => "connect".to_owned(),
            Self::ClientLimit => "client_limit".to_owned(),
            Self::Reset => "reset".to_owned(),
            Self::CutOff => "cut_off".to_owned(),
            Self::ErrorEvent => "error_event".to_owned(),
            Self::NoFinish => "no_finish".to_owned(),
            Self::BadReply => "bad_reply".to_owned(),
            Self::Status(status) => format!("http_{status}"),
        }
    }
}

/// What another program sent, made fit for a table: letters, digits and `._:-`, at most 64.
pub(crate) fn cleaned(text: &str) -> String {
    let fit = |symbol: char| {
        let keep = symbol.is_ascii_alphanumeric() || "._:-".contains(symbol);
        if keep { symbol } else { '_' }
    };
    text.chars().map(fit).take(64).collect()
}

/// The columns of a file of rows; `gaps_us` has its numbers apart by spaces.
pub(crate) const COLUMNS: &str = "tenant,intended_us,sent_us,first_token_us,last_token_us,end_us,\
                       status,ending,reason,prompt_asked,output_asked,prompt_tokens,output_tokens,deltas,\
                       deltas_in_window,request_id,gaps_us";

/// A file of rows.
#[derive(Debug)]
pub(crate) struct RowFile {
    tenants: Vec<String>,
    file: BufWriter<File>,
}

impl RowFile {
    /// Creates the file, and its header.
    pub(crate) fn create(path: &Path, tenants: &[String]) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        writeln!(file, "{COLUMNS}")?;
        Ok(Self {
            tenants: tenants.iter().map(|name| cleaned(name)).collect(),
            file,
        })
    }

    /// Appends a row.
    pub(crate) fn write(&mut self, row: &Row) -> io::Result<()> {
        let tenant = self.tenants.get(row.tenant).map_or("", String::as_str);
        writeln!(self.file, "{}", line(row, tenant))
    }

    /// Hands everything so far to the system.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn line(row: &Row, tenant: &str) -> String {
    // Taken apart so that a new field has to be placed.
    let Row {
        tenant: _,
        intended,
        sent,
        first_token,
        last_token,
        end,
        status,
        ending,
        prompt_asked,
        output_asked,
        prompt_tokens,
        output_tokens,
        deltas,
        deltas_in_window,
        request_id,
        gaps,
    } = row;
    let time = |at: &Option<Time>| at.map_or_else(String::new, |at| at.as_micros().to_string());
    let count = |count: &Option<u64>| count.map_or_else(String::new, |count| count.to_string());
    [
        tenant.to_owned(),
        intended.as_micros().to_string(),
        time(sent),
        time(first_token),
        time(last_token),
        end.as_micros().to_string(),
        count(&status.map(u64::from)),
        ending.label().to_owned(),
        ending.reason(),
        prompt_asked.to_string(),
        output_asked.to_string(),
        count(prompt_tokens),
        count(output_tokens),
        deltas.to_string(),
        deltas_in_window.to_string(),
        request_id.clone(),
        spaced(gaps),
    ]
    .join(",")
}

fn spaced(gaps: &[Micros]) -> String {
    let gaps: Vec<String> = gaps.iter().map(|gap| gap.get().to_string()).collect();
    gaps.join(" ")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A row that completed: due at 10 s, and each time after it as long as its name says.
    pub(crate) fn completed() -> Row {
        let at = |millis: u64| Time::from_micros(10_000_000 + millis * 1_000);
        Row {
            tenant: 0,
            intended: at(0),
            sent: Some(at(1)),
            first_token: Some(at(50)),
            last_token: Some(at(680)),
            end: at(700),
            status: Some(200),
            ending: Ending::Completed,
            prompt_asked: 128,
            output_asked: 64,
            prompt_tokens: Some(128),
            output_tokens: Some(64),
            deltas: 64,
            deltas_in_window: 64,
            request_id: "r-1".to_owned(),
            gaps: vec![Micros::from_millis(10); 63],
        }
    }

    #[test]
    fn a_row_has_a_field_for_every_column() {
        let refused = Row {
            sent: None,
            first_token: None,
            status: Some(429),
            ending: Ending::Refused("requests".to_owned()),
            gaps: vec![Micros::new(7), Micros::new(1)],
            ..completed()
        };
        let text = line(&refused, "quiet");
        assert_eq!(text.split(',').count(), COLUMNS.split(',').count());
        assert_eq!(
            text,
            "quiet,10000000,,,10680000,10700000,429,refused,requests,128,64,128,64,64,64,r-1,7 1"
        );
    }

    #[test]
    fn nothing_that_came_over_the_wire_can_break_a_table() {
        assert_eq!(cleaned("req-1.a:b_c"), "req-1.a:b_c");
        assert_eq!(cleaned("a,b\n\"=cmd|é"), "a_b___cmd__");
        assert_eq!(cleaned(&"x".repeat(1_000)).len(), 64);
    }

    #[test]
    fn rows_are_on_disk_after_a_flush() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.csv");
        let mut file = RowFile::create(&path, &["quiet".to_owned()]).unwrap();
        file.write(&completed()).unwrap();
        file.flush().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().next(), Some(COLUMNS));
        assert!(
            text.lines()
                .nth(1)
                .unwrap()
                .starts_with("quiet,10000000,10001000,10050000,")
        );
    }
}
