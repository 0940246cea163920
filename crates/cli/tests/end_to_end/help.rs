//! What the command line says of itself.

use insta::assert_snapshot;

use crate::process::{run, tollgate};

/// What a successful command prints.
fn printed(args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(tollgate(folder.path(), args));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    ended.stdout
}

/// What is said of a command line that can't be followed.
fn refused(args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(tollgate(folder.path(), args));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    ended.stderr
}

#[test]
fn help_teaches_the_verbs_with_examples() {
    assert_snapshot!(printed(&["--help"]));
}

#[test]
fn help_of_serve_says_what_happens_without_a_configuration() {
    assert_snapshot!(printed(&["serve", "--help"]));
}

#[test]
fn help_of_check_says_its_exit_codes() {
    assert_snapshot!(printed(&["check", "--help"]));
}

#[test]
fn help_of_sim_says_its_exit_codes() {
    assert_snapshot!(printed(&["sim", "--help"]));
}

#[test]
fn the_version_is_one_line() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(printed(&["--version"]), format!("tollgate {version}\n"));
}

#[test]
fn no_verb_at_all_shows_the_help() {
    assert_eq!(refused(&[]), printed(&["-h"]));
}

#[test]
fn an_unknown_verb_is_named() {
    assert_snapshot!(refused(&["server"]));
}

#[test]
fn a_flag_without_its_value_is_named() {
    assert_snapshot!(refused(&["serve", "--listen"]));
}

#[test]
fn an_address_without_a_port_is_told_what_is_missing() {
    assert_snapshot!(refused(&["serve", "--listen", "localhost"]));
}

#[test]
fn a_model_and_a_configuration_exclude_each_other() {
    assert_snapshot!(refused(&[
        "serve", "--config", "a.yaml", "--model", "b.gguf"
    ]));
}

#[test]
fn check_without_a_file_says_which_flag_is_missing() {
    assert_snapshot!(refused(&["check"]));
}
