//! `tollgate doctor`.

use std::path::Path;
use std::process::ExitCode;

use tollgate_server::doctor::{Finding, Grade, examine};

use crate::{check, terminal};

pub(crate) fn doctor(path: &Path) -> ExitCode {
    let config = match check::read(path) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal::complain(&format!("no runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let findings = runtime.block_on(examine(&config));
    let bad = findings
        .iter()
        .filter(|one| one.grade == Grade::Bad)
        .count();
    let doubtful = findings
        .iter()
        .filter(|one| one.grade == Grade::Doubtful)
        .count();
    for finding in &findings {
        terminal::answer(&shown(finding));
    }
    terminal::answer(&format!("{bad} to mend, {doubtful} to look at"));
    if bad > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn shown(finding: &Finding) -> String {
    let mark = match finding.grade {
        Grade::Good => "ok  ",
        Grade::Doubtful => "look",
        Grade::Bad => "MEND",
    };
    let Finding { about, found, .. } = finding;
    let line = format!("{mark}  {about}: {found}");
    match &finding.remedy {
        Some(remedy) => format!("{line}\n      -> {remedy}"),
        None => line,
    }
}
