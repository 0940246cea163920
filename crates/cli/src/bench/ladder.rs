//! `tollgate bench ladder`: says which cell runs, and what each rung came to.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use tollgate_bench::Stop;
use tollgate_bench::args::LadderArgs;
use tollgate_bench::ladder::{Climbed, Step};

use super::INVALID;
use crate::{model_file, terminal};

/// Exit code of a ladder that is not climbed to its end.
const GOES_ON: u8 = 3;

pub(super) fn climb(args: &LadderArgs, command: String) -> anyhow::Result<ExitCode> {
    if let Some(model) = &args.engine.model {
        model_file::look_at(model).map_err(anyhow::Error::msg)?;
    }
    if let Some(server) = &args.engine.server
        && !server.is_file()
    {
        bail!("{} is no program; name one with --server", server.display());
    }
    let program = std::env::current_exe().context("where is this program?")?;
    let climbed = args
        .ladder(program, command)
        .climb(&Stop::on_signal(), |step| match step {
            Step::Begins(name, [done, of]) => {
                terminal::complain(&format!("{done} of {of}: {name}"))
            }
            Step::Failed(name, why) => terminal::complain(&format!("{name} failed: {why}")),
        })?;
    Ok(said(&climbed))
}

fn said(climbed: &Climbed) -> ExitCode {
    let mut before: Option<f64> = None;
    for peak in &climbed.peaks {
        let times = before
            .filter(|before| *before > 0.0)
            .map(|before| peak.goodput_per_s / before);
        let times = times.map_or_else(String::new, |times| format!(", {times:.2}x the one before"));
        terminal::answer(&format!(
            "{}: {:.2} good requests/s ({:.2} to {:.2} over {} seeds) at {}/s{times}",
            peak.series, peak.goodput_per_s, peak.low, peak.high, peak.seeds, peak.load_per_s
        ));
        before = Some(peak.goodput_per_s);
    }
    let Climbed {
        done,
        of,
        with_numbers,
        page,
        ..
    } = climbed;
    terminal::answer(&format!("{done} of {of} cells; {}", page.display()));
    if *with_numbers == 0 && done == of {
        terminal::complain(
            "tollgate: no cell has numbers; the records under DIR/cells say why, and what is \
             removed of them is run again",
        );
        return ExitCode::from(INVALID);
    }
    if done == of {
        ExitCode::SUCCESS
    } else {
        terminal::complain("the same command goes on with the rest");
        ExitCode::from(GOES_ON)
    }
}
