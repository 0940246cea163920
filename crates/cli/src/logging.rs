//! Logs go to stderr: one JSON object a line for a machine, coloured lines for a person.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Ours in full; of llama.cpp, which tells all it knows of a model, what went wrong.
const DEFAULT: &str = "info,llama-cpp-2=error,llama_cpp_2=error";

/// Starts logging. `TOLLGATE_LOG` chooses what is logged, as in `info,tollgate::request=warn`.
pub(crate) fn start() {
    let filter =
        EnvFilter::try_from_env("TOLLGATE_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        log.init();
    } else {
        log.json().flatten_event(true).init();
    }
}
