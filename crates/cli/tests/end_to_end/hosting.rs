//! Engines that the gateway starts: up when it is, back when they end, gone when it is, whatever
//! becomes of it.
//!
//! The engine is this same program with made-up answers, behind a shell that writes down its number
//! and leaves a process beside it, as engines do.

use std::path::Path;

use crate::client::Exchange;
use crate::deadline::eventually;
use crate::process::{Running, Server, serve};

/// A shell's words that start an engine called `name`, with each `$` doubled for the file.
fn engine(name: &str) -> String {
    let program = env!("CARGO_BIN_EXE_tollgate");
    format!(
        "sleep 1000 & echo $$! > {name}.beside; echo $$$$ > {name}.pid; exec {program} serve \
         --config engine.yaml --listen 127.0.0.1:{{port}} --data-dir data-{{port}}"
    )
}

/// A gateway in `folder` with these models.
fn gateway(folder: &Path, models: &str) -> std::process::Command {
    let answers = "identity: { anonymous: allow }\nmodels: [{ name: m, engine: fake }]\n";
    std::fs::write(folder.join("engine.yaml"), answers).unwrap();
    let config =
        format!("listen: 127.0.0.1:0\nidentity: {{ anonymous: allow }}\nmodels:\n{models}");
    serve(folder, &config)
}

fn hosted(name: &str, more: &str) -> String {
    let words = engine(name);
    format!(
        "  - {{ name: {name}, engine: openai, upstream: {{ model: m }}, {more}\n      replicas: \
         [{{ command: [sh, -c, '{words}'] }}] }}\n"
    )
}

/// The number of a process that wrote it down.
fn number(folder: &Path, file: &str) -> u32 {
    eventually("a process writes down its number", || {
        let text = std::fs::read_to_string(folder.join(file)).ok()?;
        text.trim().parse().ok()
    })
}

fn is_there(number: u32) -> bool {
    Path::new(&format!("/proc/{number}")).exists()
}

fn until_gone(number: u32) {
    eventually("it is gone", || (!is_there(number)).then_some(()));
}

fn ask(server: &Server, model: &str) -> (u16, String) {
    let body = format!(
        r#"{{"model":"{model}","max_tokens":3,"messages":[{{"role":"user","content":"go"}}]}}"#
    );
    let asked = Exchange::send(&server.address, "POST", "/v1/chat/completions", &[], &body);
    let answer = asked.finish();
    (answer.status, answer.body)
}

/// A gateway whose engine is up, and the numbers of the engine and of the process beside it.
fn with_engine(folder: &Path) -> (Server, [u32; 2]) {
    let server = Server::start(gateway(folder, &hosted("a", "")));
    let both = [number(folder, "a.pid"), number(folder, "a.beside")];
    assert!(both.iter().all(|one| is_there(*one)));
    (server, both)
}

#[test]
fn an_engine_serves_and_goes_with_all_it_started_when_the_gateway_drains() {
    let folder = tempfile::tempdir().unwrap();
    let (server, both) = with_engine(folder.path());
    assert_eq!(ask(&server, "a").0, 200);
    server.running.signal("TERM");
    let ended = server.running.ended(crate::deadline::PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    both.into_iter().for_each(until_gone);
}

#[test]
fn an_engine_goes_with_all_it_started_when_the_gateway_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (server, both) = with_engine(folder.path());
    server.running.kill();
    both.into_iter().for_each(until_gone);
}

#[test]
fn an_engine_that_ends_is_started_again_and_its_last_words_are_logged() {
    let folder = tempfile::tempdir().unwrap();
    let (server, [first, beside]) = with_engine(folder.path());
    let kill = format!("kill -KILL {first}");
    let sent = std::process::Command::new("sh")
        .args(["-c", &kill])
        .status();
    assert!(sent.unwrap().success());
    until_gone(beside);
    let second = eventually("another one is there", || {
        let now = number(folder.path(), "a.pid");
        (now != first && ask(&server, "a").0 == 200).then_some(now)
    });
    assert!(is_there(second));
    let ended = server.running.kill();
    assert!(ended.stderr.contains("the last of"), "{}", ended.stderr);
    until_gone(second);
}

#[test]
fn an_engine_that_can_not_start_is_told_of_and_asked_for_in_vain_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let words = "echo try >> tries; echo no weights in /nowhere {port}; exit 3";
    let models = format!(
        "  - {{ name: a, engine: openai, replicas: [{{ command: [sh, -c, '{words}'] }}] }}\n  - {{ \
         name: m, engine: fake }}\n"
    );
    let running = Running::start(gateway(folder.path(), &models));
    eventually("it is tried more than once", || {
        let tries = std::fs::read_to_string(folder.path().join("tries")).ok()?;
        (tries.lines().count() >= 2).then_some(())
    });
    let ended = running.kill();
    assert!(
        ended.stderr.contains("no weights in /nowhere"),
        "{}",
        ended.stderr
    );
}

#[test]
fn models_that_do_not_fit_together_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let load = "load: { memory: 6GiB, budget: 10GiB },";
    let models = [hosted("a", load), hosted("b", load)].concat();
    let server = Server::start(gateway(folder.path(), &models));
    assert!(!folder.path().join("a.pid").exists(), "nobody has asked");
    assert_eq!(ask(&server, "a").0, 200);
    let a = number(folder.path(), "a.pid");
    assert_eq!(ask(&server, "b").0, 200);
    until_gone(a);
    let b = number(folder.path(), "b.pid");
    assert_eq!(ask(&server, "a").0, 200);
    until_gone(b);
}
