//! Arguments that make no sense: each verb says what is wrong and what to write, exits with 2, and
//! has begun nothing by then.

use std::fs;
use std::path::Path;

use crate::process::{Ended, run, tollgate};

fn ran(folder: &Path, line: &str) -> Ended {
    let words: Vec<&str> = line
        .split(' ')
        .map(|word| word.trim_matches('\''))
        .collect();
    run(tollgate(folder, &words))
}

/// Words of parsers and of the language, which say nothing to whoever typed the line.
const JARGON: [&str; 9] = [
    "panicked",
    "socket address syntax",
    "non-zero type",
    "target type",
    "invalid digit",
    "invalid float",
    "nonzero u64",
    "at line 1 column",
    "valid UTF-8",
];

fn assert_all_refuse(folder: &Path, cases: &[(&str, &str)]) {
    for (line, said) in cases {
        let ended = ran(folder, line);
        let told = &ended.stderr;
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(2), ""),
            "{line}: {told}"
        );
        assert!(told.contains(said), "{line}: {told}");
        for word in JARGON {
            assert!(!told.contains(word), "{line}: {told}");
        }
    }
}

#[test]
fn numbers_that_are_none_are_told_what_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (
            "bench engine --listen localhost:8000",
            "use an address and a port",
        ),
        ("bench engine --slots 0", "use a whole number from 1 on"),
        ("bench engine --slots -1", "use a whole number from 1 on"),
        ("bench engine --slots 99999999999", "use a smaller number"),
        ("bench engine --chunk 0", "use a whole number from 1 to"),
        (
            "bench engine --threads 0",
            "use a whole number from 1 to 256",
        ),
        ("bench engine --model ''", "use a name that is not empty"),
        (
            "bench engine --model a --model a",
            "the model `a` is named twice",
        ),
        ("bench gate --slots x", "use a whole number from 1 on"),
        ("bench flood --rounds 0", "use a whole number from 1 on"),
        ("bench flood --tenants 1", "use 2 to 64"),
        ("sim a.yaml --seed -1", "use a whole number from 0 on"),
        ("tenants create a --rpm 0", "use a whole number from 1 on"),
        (
            "tenants create a --weight 1001",
            "use a whole number from 1 to 1000",
        ),
        (
            "tenants create a --kv-gib-seconds x",
            "use a number like 40 or 0.5",
        ),
        (
            "tenants create a --model-limits m:rpm=0",
            "with a number above 0",
        ),
        (
            "tenants create a --model-limits m:speed=1",
            "use rpm, burst, tpm",
        ),
        ("admission status --admin 8081", "use an address and a port"),
    ];
    assert_all_refuse(folder.path(), &cases);
    assert!(
        fs::read_dir(folder.path()).unwrap().next().is_none(),
        "and nothing was made"
    );
}

#[test]
fn a_ladder_that_cannot_be_climbed_is_told_before_its_first_cell() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (
            "bench ladder --sim --out l --loads nan",
            "use a number like 2 or 0.5",
        ),
        (
            "bench ladder --sim --out l --loads 1 --seeds 0",
            "use a whole number from 1 to 1000",
        ),
        (
            "bench ladder --sim --out l --loads 1,1",
            "stands twice; name each rung and each load once",
        ),
        (
            "bench ladder --sim --out l --loads 1 --slo ttft=0s",
            "no answer takes no time",
        ),
        (
            "bench ladder --sim --out l --loads 1 --kv-tokens 17",
            "use a multiple of 16",
        ),
        (
            "bench ladder --sim --out l --loads 1 --context 100",
            "do not fit a context of 100",
        ),
        (
            "bench ladder --model no.gguf --out l --loads 1",
            "no.gguf is not there",
        ),
    ];
    assert_all_refuse(folder.path(), &cases);
    assert!(
        fs::read_dir(folder.path()).unwrap().next().is_none(),
        "and nothing was made"
    );
}

/// A folder with a folder, with bytes that are no text, and with a text that is nothing else.
fn with_odd_files() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("dir")).unwrap();
    fs::write(folder.path().join("bytes"), [0xFF, 0xFE, 0x00]).unwrap();
    fs::write(folder.path().join("word"), "hello\n").unwrap();
    folder
}

/// That nothing was made beside or in them.
fn assert_as_it_was(folder: &Path) {
    let left = |folder: &Path| fs::read_dir(folder).unwrap().count();
    assert_eq!((left(folder), left(&folder.join("dir"))), (3, 0));
}

#[test]
fn files_that_are_none_are_told_what_to_name() {
    let folder = with_odd_files();
    let no_yaml = "`hello` stands where keys with values belong";
    let no_ledger = "there is no ledger in dir; give --config";
    let cases = [
        (
            "sim none",
            "there is no such file; the folder scenarios has some",
        ),
        ("sim dir", "it is a directory; name the file in it"),
        ("sim bytes", "it is not UTF-8 text; use a YAML file"),
        ("sim word", no_yaml),
        ("bench engine --script word", no_yaml),
        (
            "bench gate --baseline word",
            "is no baseline; name one with --baseline",
        ),
        ("report none", "name files of raw rows, or folders"),
        ("ledger verify --data-dir dir", no_ledger),
        ("ledger show --data-dir dir", no_ledger),
        ("ledger repair --data-dir dir", no_ledger),
        (
            "admission export --data-dir dir",
            "there is no trace of decisions in dir",
        ),
    ];
    assert_all_refuse(folder.path(), &cases);
    assert_as_it_was(folder.path());
}

#[test]
fn files_that_cannot_be_written_are_told_before_anything_runs() {
    let folder = with_odd_files();
    let load = "bench run --url http://127.0.0.1:1 --model m --tenant a:rate=1,prompt=1,output=1";
    let flood = "bench flood --url http://127.0.0.1:1";
    let (is_folder, nowhere) = (
        "dir is a folder; name a file in it",
        "in a folder that is there",
    );
    for (line, said) in [
        (format!("{load} --json dir"), is_folder),
        (format!("{load} --json none/a.json"), nowhere),
        (format!("{flood} --plot dir"), is_folder),
        (format!("{flood} --json none/a.json"), nowhere),
        ("report word --out none/a.html".to_owned(), nowhere),
        ("report word --csv dir".to_owned(), is_folder),
        (
            "bench gate --update --baseline none/a.json".to_owned(),
            nowhere,
        ),
    ] {
        assert_all_refuse(folder.path(), &[(&line, said)]);
    }
    assert_as_it_was(folder.path());
}

#[test]
fn a_tenant_that_nobody_is_has_no_usage_and_no_invoice() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tollgate-data")).unwrap();
    assert_eq!(ran(folder.path(), "tenants create acme").code, Some(0));
    for line in [
        "usage --tenant nobody",
        "invoice nobody --month 2026-07",
        "keys list --tenant nobody",
    ] {
        let ended = ran(folder.path(), line);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{line}");
        let said = "nobody is called nobody in the store";
        assert!(ended.stderr.contains(said), "{line}: {}", ended.stderr);
    }
    for line in [
        "usage --tenant acme",
        "invoice acme --month 2026-07",
        "keys list --tenant acme",
    ] {
        assert_eq!(ran(folder.path(), line).code, Some(0), "{line}");
    }
    for line in [
        "tenants create b --models ''",
        "keys create --tenant acme --models ''",
    ] {
        let ended = ran(folder.path(), line);
        assert_eq!(ended.code, Some(2), "{line}");
        assert!(
            ended.stderr.contains("models has an empty name"),
            "{line}: {}",
            ended.stderr
        );
    }
}
