//! A start that can't succeed says why and what to do, in one line, and leaves nothing running.

use std::io::Read as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use insta::assert_snapshot;

use crate::deadline::{eventually, timed};
use crate::process::{OPEN, Running, Server, run, serve, tollgate};

/// How soon a signal ends a process that has nothing to finish.
const AT_ONCE: Duration = Duration::from_secs(2);

/// How soon the default model takes work.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// What a start that fails says last.
fn complaint(command: Command) -> String {
    let ended = run(command);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("tollgate: "), "{}", ended.stderr);
    last.to_owned()
}

fn serve_model(folder: &Path, model: &str) -> Command {
    tollgate(
        folder,
        &["serve", "--listen", "127.0.0.1:0", "--model", model],
    )
}

/// The default model, where it has been fetched.
fn default_model() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let model = root.join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !model.exists() {
        println!("not tried: there is no {}", model.display());
        return None;
    }
    Some(model)
}

#[test]
fn without_a_model_it_says_what_to_run() {
    let folder = tempfile::tempdir().unwrap();
    let said = complaint(tollgate(folder.path(), &["serve"]));
    assert_snapshot!(said);
}

#[test]
fn without_keys_it_does_not_leave_this_computer() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.gguf"), "").unwrap();
    let args = ["serve", "--listen", "0.0.0.0:0", "--model", "m.gguf"];
    assert_snapshot!(complaint(tollgate(folder.path(), &args)));
}

#[test]
fn a_port_in_use_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = serve(folder.path(), OPEN);
    command.args(["--listen", &address]);
    assert_snapshot!(complaint(command).replace(&address, "[address]"));
}

#[test]
fn a_data_folder_that_can_not_be_written_is_said() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("data"),
        "a file where a folder should be",
    )
    .unwrap();
    let mut command = serve(folder.path(), OPEN);
    command.args(["--data-dir", "data/inside"]);
    assert_snapshot!(complaint(command));
}

#[test]
fn a_model_file_that_is_not_there_is_said() {
    let folder = tempfile::tempdir().unwrap();
    assert_snapshot!(complaint(serve_model(folder.path(), "no-such.gguf")));
}

#[test]
fn a_model_file_that_is_none_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("notes.gguf", &b"these are my notes"[..]),
        ("empty.gguf", b""),
    ] {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        assert_snapshot!(name, complaint(serve_model(folder.path(), name)));
    }
}

#[test]
fn a_folder_is_no_model_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("models")).unwrap();
    assert_snapshot!(complaint(serve_model(folder.path(), "models")));
}

#[test]
fn a_model_file_that_was_cut_is_said_to_be_unusable() {
    let Some(model) = default_model() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut half = Vec::new();
    let whole = std::fs::File::open(model).unwrap();
    whole.take(20 << 20).read_to_end(&mut half).unwrap();
    std::fs::write(folder.path().join("half.gguf"), half).unwrap();
    let ended = run(serve_model(folder.path(), "half.gguf"));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    for said in ["tollgate: model half: ", "corrupted or incomplete"] {
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
}

#[test]
fn a_signal_while_a_model_file_is_read_ends_it_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("endless.gguf");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    // Open on both sides, so that whoever reads it waits for more.
    let mut options = std::fs::File::options();
    let _endless = options.read(true).write(true).open(&pipe).unwrap();
    let running = Running::start(serve_model(folder.path(), "endless.gguf"));
    eventually("it reads the file", || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap();
        let mut files = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        files.any(|file| file == pipe).then_some(())
    });
    running.signal("TERM");
    assert_eq!(running.ended(AT_ONCE).code, None);
}

#[test]
fn the_default_model_takes_work_within_seconds() {
    let Some(model) = default_model() else { return };
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    std::fs::create_dir(&models).unwrap();
    std::os::unix::fs::symlink(&model, models.join(model.file_name().unwrap())).unwrap();
    let command = || tollgate(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    // The first start makes a faster copy beside it, once.
    let server = Server::start(command());
    let copy = models.join("SmolLM2-135M-Instruct.Q8_0.gguf");
    let made = || std::fs::metadata(&copy).unwrap().modified().unwrap();
    let first = made();
    assert_eq!(server.get("/ready").status, 200);
    drop(server);
    let (server, took) = timed(|| Server::start(command()));
    println!("ready after {took:?}");
    assert!(took <= READY_WITHIN, "{took:?}");
    assert_eq!(server.get("/ready").status, 200);
    let listed = server.get("/v1/models").body;
    assert!(listed.contains(r#""smollm2""#), "{listed}");
    assert_eq!(made(), first);
    let files = std::fs::read_dir(&models).unwrap().count();
    assert_eq!(files, 2, "and nothing else is left");
}

#[test]
fn a_reader_of_the_banner_may_leave() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut command = serve(folder.path(), OPEN);
    command.args(["--listen", &port.to_string()]);
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let running = Running::of(child);
    let address = port.to_string();
    let server = Server { running, address };
    let ready = || {
        std::net::TcpStream::connect(port)
            .ok()
            .map(|_| server.get("/ready").status)
    };
    eventually("it is ready", || ready().filter(|status| *status == 200));
    assert!(server.stream(20).finish().is_done());
    server.running.signal("TERM");
    assert_eq!(server.running.ended(AT_ONCE).code, Some(0));
}
