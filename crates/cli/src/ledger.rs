//! `tollgate ledger`: what the journal of a data folder says, whether it adds up, and its repair.

use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use tollgate_server::journal::record::{Ended, Record};
use tollgate_server::journal::{Account, JournalError, Reader, Repaired, repair, verify};

use tollgate_server::charges;
use tollgate_server::store::{Difference, Store};

use crate::check::{MISTAKES, counted};
use crate::place::{Located, PlaceArgs, refuse, store_failed};
use crate::terminal;

/// Arguments of `ledger`.
#[derive(Args, Debug)]
pub(crate) struct LedgerArgs {
    #[command(subcommand)]
    verb: LedgerVerb,
}

#[derive(Debug, Subcommand)]
enum LedgerVerb {
    /// Recount everything, and say what does not add up.
    ///
    /// The journal by itself, and then the store against it: with --config that of store.url.
    /// Exits 0 when all is well, and 2 when something is not. A server may go on writing meanwhile.
    Verify {
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Make a damaged ledger one that a server can go on with.
    ///
    /// What is whole stays, what is lost is said in a record, and each file that is replaced is
    /// kept beside it. No server may be writing meanwhile.
    Repair {
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Print a line for each request that ended, in the order of their ends.
    Show {
        #[command(flatten)]
        place: PlaceArgs,
        /// How to print them.
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Columns, for people.
    Table,
    /// A JSON object on each line.
    Json,
}

pub(crate) fn ledger(args: &LedgerArgs) -> ExitCode {
    let (LedgerVerb::Verify { place }
    | LedgerVerb::Repair { place }
    | LedgerVerb::Show { place, .. }) = &args.verb;
    let located = match place.locate() {
        Ok(located) => located,
        Err(code) => return code,
    };
    let folder = &located.data_dir;
    if is_nowhere(folder) {
        return refuse(&format!(
            "there is no ledger in {}; give --config or --data-dir of a gateway that has run",
            folder.display()
        ));
    }
    match args.verb {
        LedgerVerb::Verify { .. } => recount(&located),
        LedgerVerb::Repair { .. } => match repair(folder) {
            Ok(repaired) => tell(&repaired),
            Err(error) => fail(&error),
        },
        LedgerVerb::Show { format, .. } => show(folder, format),
    }
}

/// Whether no gateway has ever written here: nothing is wrong, and nothing is right either.
fn is_nowhere(folder: &Path) -> bool {
    let mut reader = Reader::open(folder);
    matches!(reader.next(), Ok(None)) && reader.journal().is_none()
}

/// Recounts the journal, and then the store against it, where there is one.
fn recount(located: &Located) -> ExitCode {
    let account = verify(&located.data_dir);
    let code = report(&account);
    if !account.is_right() || account.stopped.is_some() {
        return code;
    }
    if !located.is_there() {
        let at = located.location.name();
        terminal::answer(&format!("there is no store at {at} to compare it with"));
        return code;
    }
    let store = Store::open(located.location.clone()).map_err(|error| store_failed(&error));
    match store.and_then(|mut store| differences(&located.data_dir, &mut store)) {
        Err(code) => code,
        Ok(found) if found.is_empty() => {
            terminal::answer("the store agrees with it");
            code
        }
        Ok(found) => {
            for difference in found.iter().take(SHOWN_MAX) {
                terminal::complain(&format!("tollgate: {difference}"));
            }
            let why = format!("the store differs in {} places", found.len());
            complain(&why, ExitCode::from(MISTAKES))
        }
    }
}

/// Differences that are shown; the number of all is said.
const SHOWN_MAX: usize = 100;

fn differences(folder: &Path, store: &mut Store) -> Result<Vec<Difference>, ExitCode> {
    let (journal, charges) = charges(folder).map_err(|error| fail(&error))?;
    let failed = |error| store_failed(&error);
    let mut found = store.verify_usage().map_err(failed)?;
    if let Some(journal) = journal {
        found.extend(store.verify_journal(&journal, &charges).map_err(failed)?);
    }
    Ok(found)
}

/// Prints what an account comes to.
fn report(account: &Account) -> ExitCode {
    let mut lines = vec![format!(
        "{} records in {}: {} requests ended, {} of them interrupted; {} in flight",
        account.records,
        counted(account.segments, "segment"),
        account.ended,
        account.interrupted,
        account.in_flight
    )];
    if account.lost > 0 {
        lines.push(format!("{} records were lost to damage", account.lost));
    }
    for ((tenant, model), used) in &account.totals {
        let (prompt, cached, output) = (used.prompt, used.cached, used.output);
        let model = if model.is_empty() { "no model" } else { model };
        lines.push(format!(
            "  {tenant}, {model}: {prompt} prompt tokens ({cached} cached), {output} output tokens"
        ));
    }
    terminal::answer(&lines.join("\n"));
    for fault in &account.faults {
        terminal::complain(&format!("tollgate: {fault}"));
    }
    if let Some(error) = &account.stopped {
        return fail(error);
    }
    if account.is_right() {
        terminal::answer("everything adds up");
        return ExitCode::SUCCESS;
    }
    let why = format!("{} faults; the ledger does not add up", account.fault_count);
    complain(&why, ExitCode::from(MISTAKES))
}

fn tell(repaired: &Repaired) -> ExitCode {
    for segment in &repaired.segments {
        let path = segment.path.display();
        let kept = match &segment.kept {
            Some(kept) => format!("replaced; what it was is in {}", kept.display()),
            None => "was missing, and was written anew".to_owned(),
        };
        terminal::answer(&format!("{path} {kept}"));
        for lost in &segment.lost {
            let records = lost.to.saturating_sub(lost.from);
            terminal::answer(&format!(
                "  {records} records from number {} are lost",
                lost.from
            ));
        }
    }
    let done = match (repaired.segments.len(), repaired.lost) {
        (0, _) => "nothing is damaged".to_owned(),
        (_, lost) => format!("repaired; {lost} records are lost"),
    };
    terminal::answer(&done);
    ExitCode::SUCCESS
}

fn show(folder: &Path, format: Format) -> ExitCode {
    let mut reader = Reader::open(folder);
    let mut out = BufWriter::new(io::stdout().lock());
    let mut next = || -> Result<bool, Stop> {
        let Some(entry) = reader.next()? else {
            return Ok(false);
        };
        if let Record::Ended(ended) = &entry.record {
            writeln!(out, "{}", line(ended, format)?)?;
        }
        Ok(true)
    };
    let stopped = loop {
        match next() {
            Ok(true) => {}
            Ok(false) => break None,
            Err(stop) => break Some(stop),
        }
    };
    let flushed = out.flush();
    match stopped {
        Some(Stop::Journal(error)) => fail(&error),
        Some(Stop::Output(error)) => unwritten(&error),
        None => flushed.map_or_else(|error| unwritten(&error), |()| ExitCode::SUCCESS),
    }
}

/// Why printing ends before the ledger does.
enum Stop {
    Journal(JournalError),
    Output(io::Error),
}

impl From<JournalError> for Stop {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn line(ended: &Ended, format: Format) -> io::Result<String> {
    Ok(match format {
        Format::Json => serde_json::to_string(ended)?,
        Format::Table => format!(
            "{:<24} {:<20} {:<20} {:<24} {:>8} prompt {:>8} cached {:>8} output",
            ended.request.to_string(),
            ended.tenant,
            ended.model.as_deref().unwrap_or("-"),
            ended.outcome,
            ended.used.prompt.get(),
            ended.used.cached.get(),
            ended.used.output.get(),
        ),
    })
}

/// A reader that has seen enough, like `head`, is no error.
fn unwritten(error: &io::Error) -> ExitCode {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return ExitCode::SUCCESS;
    }
    complain(&format!("can't print: {error}"), ExitCode::FAILURE)
}

fn fail(error: &JournalError) -> ExitCode {
    complain(&error.to_string(), exit_code(error))
}

/// 2 where somebody must decide something, as for a mistake in a configuration.
pub(crate) fn exit_code(error: &JournalError) -> ExitCode {
    if error.needs_a_decision() {
        ExitCode::from(MISTAKES)
    } else {
        ExitCode::FAILURE
    }
}

fn complain(why: &str, code: ExitCode) -> ExitCode {
    terminal::complain(&format!("tollgate: {why}"));
    code
}
