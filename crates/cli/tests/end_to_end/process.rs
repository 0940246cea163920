//! The binary as a child process: started in a folder of its own, read without pause, and killed
//! when the test lets go of it.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::client::{Answer, Exchange};
use crate::deadline::{Deadline, PATIENCE};

/// One model that makes text up, and anyone may call.
pub(crate) const OPEN: &str = "\
listen: 127.0.0.1:0
identity: { anonymous: allow }
models: [{ name: m, engine: fake }]
";

/// The binary with these arguments, in `folder`, and with none of the caller's own wishes.
pub(crate) fn tollgate<A: AsRef<OsStr>>(folder: &Path, args: &[A]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .args(args)
        .current_dir(folder)
        .env_remove("TOLLGATE_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// `serve` with this configuration, written into `folder`.
pub(crate) fn serve(folder: &Path, config: &str) -> Command {
    std::fs::write(folder.join("tollgate.yaml"), config).unwrap();
    tollgate(folder, &["serve", "--config", "tollgate.yaml"])
}

/// Runs a command to its end.
pub(crate) fn run(command: Command) -> Ended {
    Running::start(command).ended(PATIENCE)
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` where a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A process that runs, for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    out: Tail,
    err: Tail,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        Self::of(command.spawn().unwrap())
    }

    /// Takes charge of a child, and reads those of its pipes that it still has.
    pub(crate) fn of(mut child: Child) -> Self {
        let out = Tail::of(child.stdout.take());
        let err = Tail::of(child.stderr.take());
        Self { child, out, err }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The first line of its output that is `wanted`.
    pub(crate) fn line(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        self.out.read_until(wanted)
    }

    /// Sends a signal, by its name without `SIG`.
    pub(crate) fn signal(&self, name: &str) {
        self.signals(&[name]);
    }

    /// Sends some one after the other, as fast as can be.
    pub(crate) fn signals(&self, names: &[&str]) {
        let kill = |name: &&str| format!("kill -{name} {}", self.pid());
        let kill = names.iter().map(kill).collect::<Vec<_>>().join(" && ");
        let sent = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(sent.success(), "{kill}");
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(mut self) -> Ended {
        self.child.kill().unwrap();
        self.ended(PATIENCE)
    }

    /// Waits for its end, which must come within `span`.
    pub(crate) fn ended(mut self, span: Duration) -> Ended {
        let deadline = Deadline::within(span);
        self.out.read_to_end(deadline);
        self.err.read_to_end(deadline);
        let code = self.child.wait().unwrap().code();
        Ended {
            code,
            stdout: std::mem::take(&mut self.out.seen),
            stderr: std::mem::take(&mut self.err.seen),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Err: it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that says it is ready.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) running: Running,
    /// Host and port.
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(command: Command) -> Self {
        Self::attach(Running::start(command))
    }

    /// Waits until it says that it is ready, and where.
    pub(crate) fn attach(mut running: Running) -> Self {
        let first = running.out.read_until(|line| line.starts_with("Tollgate "));
        let (_, address) = first.split_once("http://").unwrap();
        let address = address.trim().to_owned();
        Self { running, address }
    }

    /// The banner, once all of it is there.
    pub(crate) fn banner(&mut self) -> String {
        self.running
            .out
            .read_until(|line| line.starts_with("Ctrl-C"));
        self.running.out.seen.replace(&self.address, "[address]")
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        Exchange::send(&self.address, "GET", path, &[], "").finish()
    }

    /// Asks the model `m` for a streamed answer of exactly `tokens` tokens.
    pub(crate) fn stream(&self, tokens: u32) -> Exchange {
        let body = format!(
            r#"{{"model":"m","stream":true,"max_tokens":{tokens},"ignore_eos":true,"messages":[{{"role":"user","content":"go"}}]}}"#
        );
        Exchange::send(&self.address, "POST", "/v1/chat/completions", &[], &body)
    }
}

/// The lines of a pipe. A thread reads them as they come, so that the child never waits for us.
#[derive(Debug)]
struct Tail {
    lines: Receiver<String>,
    seen: String,
}

impl Tail {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Self {
        let (sender, lines) = channel();
        if let Some(pipe) = pipe {
            std::thread::spawn(move || {
                let mut pipe = BufReader::new(pipe);
                let mut line = Vec::new();
                while pipe.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                    let text = String::from_utf8_lossy(&line).into_owned();
                    if sender.send(text).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
        let seen = String::new();
        Self { lines, seen }
    }

    /// The first line that is `wanted`.
    fn read_until(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Deadline::within(PATIENCE);
        loop {
            match self.lines.recv_timeout(deadline.left()) {
                Ok(line) => {
                    self.seen.push_str(&line);
                    if wanted(&line) {
                        return line;
                    }
                }
                Err(why) => panic!("{why}; so far: {}", self.seen),
            }
        }
    }

    fn read_to_end(&mut self, deadline: Deadline) {
        loop {
            match self.lines.recv_timeout(deadline.left()) {
                Ok(line) => self.seen.push_str(&line),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => panic!("it still runs; so far: {}", self.seen),
            }
        }
    }
}
