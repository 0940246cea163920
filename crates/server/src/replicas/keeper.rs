//! The keeper of an engine: a process between the gateway and an engine that it started, which ends
//! the engine, and all that the engine has started, once the gateway is no more.
//!
//! It is this program again, under a verb of its own. It learns of the gateway's end by its
//! standard input, a pipe whose other end the gateway alone holds: the system closes it however the
//! gateway went, killed included. (A parent-death signal would reach the engine alone, and not what
//! it started; and it is sent when a thread of the parent ends, not only the parent.) It decides
//! nothing else: whether an engine is started again is the gateway's to say.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// How long an engine may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(10);

/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(50);

/// What a shell answers for a program that can't be run.
const NOT_RUN: u8 = 127;

/// Runs an engine until it ends or standard input does, and then ends all that it left behind.
/// Answers as the engine did.
pub fn keep(command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else {
        return complain("no command was given");
    };
    let started = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        // A group of its own: all that it starts is ended with it, and Ctrl-C in the gateway's
        // terminal, which drains the gateway, does not reach it.
        .process_group(0)
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let program = program.to_string_lossy();
            return complain(&format!("can't run {program}: {error}"));
        }
    };
    let group = Pid::from_child(&child);
    std::thread::spawn(move || {
        wait_for_the_gateway();
        end(group);
    });
    let status = wait(&mut child);
    end(group);
    code(status)
}

/// Returns once the gateway is no more, or wants the engine to end.
fn wait_for_the_gateway() {
    let mut nothing = [0; 64];
    let mut stdin = std::io::stdin().lock();
    while stdin.read(&mut nothing).is_ok_and(|read| read > 0) {}
}

/// Ends a group of processes: asks, waits, and kills.
fn end(group: Pid) {
    let mut waited = Duration::ZERO;
    // Err: there is nobody left in it.
    if kill_process_group(group, Signal::TERM).is_err() {
        return;
    }
    while waited < GRACE {
        if test_kill_process_group(group).is_err() {
            return;
        }
        std::thread::sleep(LOOK);
        waited += LOOK;
    }
    let _ = kill_process_group(group, Signal::KILL);
}

fn wait(child: &mut Child) -> Option<ExitStatus> {
    child.wait().ok()
}

fn code(status: Option<ExitStatus>) -> ExitCode {
    let Some(status) = status else {
        return ExitCode::FAILURE;
    };
    let signal = status.signal().map(|signal| 128 + signal);
    let number = status.code().or(signal).unwrap_or(1);
    ExitCode::from(u8::try_from(number).unwrap_or(1))
}

fn complain(what: &str) -> ExitCode {
    use std::io::Write as _;
    // Err: nobody reads the engine's log.
    let _ = writeln!(std::io::stderr(), "tollgate: {what}");
    ExitCode::from(NOT_RUN)
}
