//! `tollgate report`: from raw rows to a page, whole or not at all.

use std::path::Path;
use std::process::ExitCode;

use tollgate_bench::args::ReportArgs;
use tollgate_bench::study::Study;

use crate::check::counted;
use crate::{output, terminal};

/// Exit code where no page was made.
const NO_PAGE: u8 = 2;

pub(crate) fn report(args: &ReportArgs) -> ExitCode {
    match made(args) {
        Ok(said) => {
            terminal::answer(&said);
            ExitCode::SUCCESS
        }
        Err(why) => {
            terminal::complain(&format!("tollgate: {why}"));
            ExitCode::from(NO_PAGE)
        }
    }
}

fn made(args: &ReportArgs) -> Result<String, String> {
    let files = [Some(&args.out), args.csv.as_ref(), args.peaks.as_ref()];
    output::can_write(files).map_err(|error| format!("{error:#}"))?;
    let study = Study::read(&args.inputs, args.options()).map_err(|error| error.to_string())?;
    write(&args.out, &study.to_html())?;
    if let Some(path) = &args.csv {
        write(path, &study.to_csv())?;
    }
    if let Some(path) = &args.peaks {
        write(path, &study.peaks_csv())?;
    }
    let (with, without) = study.counts();
    Ok(format!(
        "{}: {} with numbers, {without} without",
        args.out.display(),
        counted(with, "run")
    ))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    output::write(path, text).map_err(|error| format!("{error:#}"))
}
