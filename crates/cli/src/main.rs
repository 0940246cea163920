//! The `tollgate` binary: reads the command line, and leaves the rest to the crates below it.

mod admission;
mod banner;
mod bench;
mod check;
mod doctor;
mod ledger;
mod logging;
mod model_file;
mod output;
mod people;
mod place;
mod report;
mod serve;
mod sim;
mod table;
mod terminal;
mod usage;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tollgate_bench::args::{ReportArgs, value};
use tollgate_server::keeper;
use tollgate_server::process::KEEPER_VERB;

/// A request takes and gives back some forty small pieces of memory, records among them that
/// another thread gives back. With the system's allocator that is a tenth of what it costs.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Many tenants, one set of language-model engines: fair shares, kept promises, exact bills.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  tollgate serve                            the small default model, on this computer only
  tollgate serve --model my-model.gguf      another model
  tollgate serve --config tollgate.yaml     models, tenants, keys and limits from a file
  tollgate check --config tollgate.yaml     every mistake in the file, with its line
  tollgate doctor --config tollgate.yaml    whether its engines are there and can do it
  tollgate bench flood                      what a quiet tenant gets beside one that floods
  tollgate sim scenarios/herd.yaml          a scenario on a virtual clock, by the same policy
  tollgate report runs/ --out report.html   what recorded runs show, on one page
  tollgate ledger verify                    recounts all that was served

Then point any OpenAI client at http://127.0.0.1:8080/v1";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve the OpenAI API until Ctrl-C or SIGTERM.
    ///
    /// Without --config, it listens on 127.0.0.1:8080, serves one model, and lets in any caller: an
    /// X-Tenant-ID header says which tenant a request is for. SIGTERM drains: no new work is
    /// taken, running answers finish, then it exits. A second signal, a second or more after the
    /// first, ends it at once.
    ///
    /// Logs go to stderr, as JSON lines where that is no terminal; TOLLGATE_LOG chooses what is
    /// logged: error, warn, info (the default), debug, or as in info,tollgate::request=warn.
    Serve(ServeArgs),
    /// Report every mistake in a configuration file, each with its path and line.
    ///
    /// Exits 0 when there is none and 2 when there are some. Nothing is started, and no model is
    /// loaded. The variables that the file names must be set.
    Check {
        /// The file to check.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Put recorded runs on one page: goodput, latencies, tenants, claims, and what got worse.
    ///
    /// Reads the raw rows that `bench run --rows` and `bench ladder` write, and the record beside
    /// them where there is one. The page is one HTML file that loads nothing. Exits 2, and writes
    /// nothing, when a file cannot be read or holds no rows.
    Report(ReportArgs),
    /// Load any OpenAI endpoint honestly, and compare what comes of it.
    ///
    /// All of them exit 2 where there is no result to trust: an endpoint that is down, a mistake in
    /// a file, a run that was not what it should have been.
    Bench {
        #[command(subcommand)]
        verb: Box<bench::BenchVerb>,
    },
    /// Try a scenario in a world of numbers: the policy that `serve` runs, on a virtual clock.
    ///
    /// Prints what each gateway that the scenario names comes to, and which laws it broke. The same
    /// seed gives the same run.
    Sim(sim::SimArgs),
    /// Look at everything that a configuration relies on, and say what is wrong and what to do.
    ///
    /// It asks the engines whether they are there, what they know and whether they stream, and
    /// looks at ports, files and devices. Nothing is changed; each engine is asked for one token.
    /// Exits 0 when all of it works, 1 when something does not, and 2 when the file has mistakes.
    Doctor {
        /// The configuration to look at.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Run an engine for the gateway that started this, and end it with the gateway.
    #[command(name = KEEPER_VERB, hide = true)]
    KeepEngine {
        /// The engine's command.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Make, list, rotate, expire and revoke keys of the store's tenants.
    #[command(subcommand)]
    Keys(people::KeysVerb),
    /// Add, change, list and remove tenants of the store, beside those in a configuration.
    #[command(subcommand)]
    Tenants(people::TenantsVerb),
    /// Sum what was used, by tenant, model and time.
    ///
    /// Usage is kept for ever, by the hour of UTC in which a request ended. What a gateway has
    /// written down and not yet counted is counted first.
    Usage(usage::UsageArgs),
    /// What a tenant owes for a month.
    Invoice(usage::InvoiceArgs),
    /// How promises of latency fare: what a gateway says now, and what its trace of decisions says.
    Admission(admission::AdmissionArgs),
    /// Read the ledger of a data folder, recount it, or repair it.
    Ledger(ledger::LedgerArgs),
}

/// Flags of `serve`. They win over the configuration.
#[derive(Args, Debug)]
struct ServeArgs {
    /// Configuration in YAML; docs/config.md describes every key.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on; 127.0.0.1:8080 unless the configuration says otherwise. Any
    /// but this computer's own needs --config, since without it every caller is let in.
    #[arg(long, value_name = "ADDR", value_parser = value::address)]
    listen: Option<SocketAddr>,
    /// Folder for the usage ledger, made if it is missing; ./tollgate-data unless the configuration
    /// says otherwise.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// A GGUF file to serve instead of the default model, under its name without .gguf.
    #[arg(long, value_name = "FILE.gguf", conflicts_with = "config")]
    model: Option<PathBuf>,
}

/// Takes numbers below 0 for values, so that who gives one is told what to give instead, and not
/// that there is no such flag.
fn with_negative_numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(with_negative_numbers)
}

fn parse() -> Cli {
    let matches = with_negative_numbers(Cli::command()).get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn main() -> ExitCode {
    match parse().verb {
        Verb::Serve(args) => serve::serve(args),
        Verb::Check { config } => check::check(&config),
        Verb::Report(args) => report::report(&args),
        Verb::Bench { verb } => bench::bench(&verb),
        Verb::Doctor { config } => doctor::doctor(&config),
        Verb::KeepEngine { command } => keeper::keep(&command),
        Verb::Sim(args) => sim::sim(args),
        Verb::Keys(verb) => people::keys(verb),
        Verb::Tenants(verb) => people::tenants(verb),
        Verb::Usage(args) => usage::usage(&args),
        Verb::Invoice(args) => usage::invoice(&args),
        Verb::Ledger(args) => ledger::ledger(&args),
        Verb::Admission(args) => admission::admission(&args),
    }
}
