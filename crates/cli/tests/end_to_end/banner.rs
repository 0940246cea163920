//! The first lines a person sees.

use insta::assert_snapshot;

use crate::process::{OPEN, Server, serve};

const KEYED: &str = "\
listen: 127.0.0.1:0
models: [{ name: m, engine: fake }]
tenants:
  - { name: a, keys: [{ env: A_KEY }] }
  - { name: b, keys: [{ sha256: 38fcc73a9dc613f145bed24eb4123f92105c78567a6e563d43dbcb1f29927864 }] }
";

fn banner(config: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve(folder.path(), config);
    command.env("A_KEY", "sk-a");
    let banner = Server::start(command).banner();
    banner.replace(env!("CARGO_PKG_VERSION"), "[version]")
}

#[test]
fn it_says_that_a_key_is_needed() {
    assert_snapshot!(banner(KEYED));
}

#[test]
fn it_says_that_no_key_is_needed() {
    assert_snapshot!(banner(OPEN));
}

#[test]
fn it_says_that_one_key_is_one() {
    let one: String = KEYED.lines().take(4).map(|l| format!("{l}\n")).collect();
    assert!(banner(&one).contains("whoever has the API key"));
}

#[test]
fn the_example_with_curl_is_answered_as_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(serve(folder.path(), OPEN));
    let banner = server.banner().replace("[address]", &server.address);
    let start = banner.find("curl -N").unwrap();
    let end = banner[start..].find("\n\n").unwrap();
    let has_curl = std::process::Command::new("curl").arg("--version").output();
    if has_curl.is_err() {
        println!("not tried: there is no curl here");
        return;
    }
    let script = &banner[start..start + end];
    let said = std::process::Command::new("sh")
        .args(["-c", script])
        .output();
    let said = String::from_utf8(said.unwrap().stdout).unwrap();
    assert!(
        said.trim_end().ends_with("data: [DONE]"),
        "{script}\n{said}"
    );
}
