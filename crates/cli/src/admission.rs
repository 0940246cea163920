//! `tollgate admission`: how promises of latency fare, as a running gateway says and as its trace
//! of decisions says.

mod ask;
mod rows;

use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;
use tollgate_bench::args::value;
use tollgate_server::promises::{COLUMNS, trace_files};

use self::rows::Sums;
use crate::place::refuse;
use crate::table::Table;
use crate::terminal;

/// Arguments of `admission`.
#[derive(Args, Debug)]
pub(crate) struct AdmissionArgs {
    #[command(subcommand)]
    verb: AdmissionVerb,
}

#[derive(Debug, Subcommand)]
enum AdmissionVerb {
    /// Ask a running gateway how its promises stand, and what it can't keep.
    Status {
        /// The operator's listener: `admin.listen` of its configuration.
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081",
              value_parser = value::address)]
        admin: SocketAddr,
        /// The variable that holds an admin key, where the listener asks for one.
        #[arg(long, value_name = "VARIABLE")]
        key_env: Option<String>,
        /// Print what it says as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Sum the trace of decisions up: bounds kept, how wide they were, and who was refused.
    Report {
        #[command(flatten)]
        place: Place,
    },
    /// Print the trace of decisions as one CSV, the oldest first; pandas reads it as it is.
    Export {
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Args, Debug)]
struct Place {
    /// Folder where the server keeps its files: `data_dir` of its configuration.
    #[arg(long, value_name = "DIR", default_value = "./tollgate-data")]
    data_dir: PathBuf,
}

pub(crate) fn admission(args: &AdmissionArgs) -> ExitCode {
    let done = match &args.verb {
        AdmissionVerb::Status {
            admin,
            key_env,
            json,
        } => status(*admin, key_env.as_deref(), *json),
        AdmissionVerb::Report { place } => report(&place.data_dir),
        AdmissionVerb::Export { place } => export(&place.data_dir),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => refuse(&why),
    }
}

fn status(admin: SocketAddr, key_env: Option<&str>, as_json: bool) -> Result<(), String> {
    let key = match key_env {
        Some(name) => Some(
            std::env::var(name)
                .map_err(|_| format!("the variable {name} is not set; let it hold an admin key"))?,
        ),
        None => None,
    };
    let text = ask::get(admin, "/admin/v1/admission", key.as_deref())?;
    if as_json {
        terminal::answer(&text);
        return Ok(());
    }
    let page: Value = serde_json::from_str(&text)
        .map_err(|error| format!("{admin} says something that is no status: {error}"))?;
    let models = page["models"].as_array().cloned().unwrap_or_default();
    if models.is_empty() {
        terminal::answer("No model promises anything; give one an `slo`.");
    }
    for model in &models {
        terminal::answer(&told(model));
    }
    Ok(())
}

/// One model's part of a status.
fn told(model: &Value) -> String {
    let mut text = format!("{}\n", shown(&model["model"]));
    let mut classes = Table::new(&[
        "class", "mode", "alpha", "ttft ms", "tpot ms", "e2e ms", "pressure", "factors",
    ]);
    for class in model["classes"].as_array().into_iter().flatten() {
        let factors = class["factors"].as_array().into_iter().flatten();
        let factors: Vec<_> = factors.map(|factor| number(&factor["times"])).collect();
        let pressed = if class["pressed"] == true { " !" } else { "" };
        classes.row(vec![
            shown(&class["class"]),
            shown(&class["mode"]),
            shown(&class["alpha"]),
            shown(&class["ttft_ms"]),
            shown(&class["tpot_ms"]),
            shown(&class["e2e_ms"]),
            number(&class["pressure"]) + pressed,
            factors.join(" "),
        ]);
    }
    let mut bounds = Table::new(&[
        "bound",
        "due",
        "kept",
        "last minute",
        "worst minute",
        "missed on end",
        "bound/outcome",
    ]);
    for of in model["bounds"].as_array().into_iter().flatten() {
        bounds.row(vec![
            shown(&of["of"]),
            shown(&of["due"]),
            number(&of["kept"]),
            number(&of["last_minute"]),
            number(&of["worst_minute"]),
            shown(&of["longest_run_of_misses"]),
            number(&of["width"]),
        ]);
    }
    text += &format!("{}\n\n{}\n\n", classes.text(), bounds.text());
    for (what, key) in [
        ("let in", "admitted"),
        ("refused", "refused"),
        ("dropped", "dropped"),
    ] {
        let counts = model[key].as_array().into_iter().flatten();
        let counts = counts.filter(|count| count["requests"].as_u64() > Some(0));
        let counts: Vec<_> = counts
            .map(|count| format!("{} {}", shown(&count["reason"]), shown(&count["requests"])))
            .collect();
        if !counts.is_empty() {
            text += &format!("{what}: {}\n", counts.join(", "));
        }
    }
    text += &fitted(&model["trees"]);
    if let Some(regret) = model["regret"].as_u64() {
        text += &format!("of those refused, about {regret} would have been in time\n");
    }
    for line in model["says"].as_array().into_iter().flatten() {
        text += &format!("{}\n", shown(line));
    }
    text
}

/// What estimates are put right by, where they are.
fn fitted(trees: &Value) -> String {
    if trees["trees"].as_u64().unwrap_or(0) == 0 {
        return String::new();
    }
    format!(
        "estimates are put right by {} trees, fitted to {} answers: bounds cost {} of what they \
         cost without\n",
        shown(&trees["trees"]),
        shown(&trees["fitted_to"]),
        number(&trees["loss"]),
    )
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

fn number(value: &Value) -> String {
    value
        .as_f64()
        .map_or_else(|| "-".to_owned(), |number| format!("{number:.3}"))
}

fn report(data_dir: &Path) -> Result<(), String> {
    let mut sums = Sums::default();
    read(trace(data_dir)?, |line| {
        sums.add(line);
        Ok(())
    })?;
    terminal::answer(&sums.text());
    Ok(())
}

fn export(data_dir: &Path) -> Result<(), String> {
    let files = trace(data_dir)?;
    let mut out = BufWriter::new(io::stdout().lock());
    // Whoever reads has seen enough where it can't be written.
    if writeln!(out, "{COLUMNS}").is_err() {
        return Ok(());
    }
    read(files, |line| writeln!(out, "{line}").map_err(|_| Stop))?;
    let _ = out.flush();
    Ok(())
}

/// Nobody wants to know more.
struct Stop;

/// The files of the trace, the oldest first.
fn trace(data_dir: &Path) -> Result<Vec<PathBuf>, String> {
    trace_files(data_dir).map_err(|error| {
        let folder = data_dir.display();
        format!(
            "there is no trace of decisions in {folder}: {error}; give --data-dir of a gateway \
             with an slo"
        )
    })
}

/// Hands each line of the trace to `take`.
fn read(files: Vec<PathBuf>, mut take: impl FnMut(&str) -> Result<(), Stop>) -> Result<(), String> {
    for path in files {
        let said = |error: io::Error| format!("{}: {error}", path.display());
        let file = std::fs::File::open(&path).map_err(said)?;
        let mut lines = BufReader::new(file).lines();
        match lines.next() {
            Some(Ok(heading)) if heading == COLUMNS => {}
            Some(Ok(_)) => {
                return Err(format!("{} was written by another version", path.display()));
            }
            Some(Err(error)) => return Err(said(error)),
            None => continue,
        }
        for line in lines {
            if take(&line.map_err(said)?).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}
