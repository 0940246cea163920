//! What an idle process holds in memory.

use std::path::Path;
use std::process::Command;

use crate::deadline::eventually;
use crate::process::{OPEN, Server, serve};

/// What is held at most with an engine that has no model, in KiB: of an optimised binary, and of
/// one built for tests.
const RELEASE_MAX: u64 = 25 * 1024;
const DEV_MAX: u64 = 40 * 1024;

/// Resident memory after some hundred requests, in KiB.
fn idle_after_requests(command: Command) -> u64 {
    let server = Server::start(command);
    for _ in 0..10 {
        let streams: Vec<_> = (0..20).map(|_| server.stream(10)).collect();
        for stream in streams {
            assert!(stream.finish().is_done());
        }
    }
    eventually("nothing is in flight", || {
        let metrics = server.get("/metrics").body;
        metrics
            .contains("tollgate_in_flight_requests 0\n")
            .then_some(())
    });
    resident(server.running.pid())
}

fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse().unwrap()
}

#[test]
fn it_is_small_without_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let dev = idle_after_requests(serve(folder.path(), OPEN));
    println!("test build: {dev} KiB resident");
    assert!(dev <= DEV_MAX, "{dev} KiB");
}

#[test]
fn the_release_build_is_smaller_still() {
    let dev = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let release = dev.with_file_name("").join("../release/tollgate");
    if !release.exists() {
        println!("not tried: there is no release build");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let like = serve(folder.path(), OPEN);
    let mut command = Command::new(release);
    command
        .args(like.get_args())
        .current_dir(folder.path())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let kib = idle_after_requests(command);
    println!("release build: {kib} KiB resident");
    assert!(kib <= RELEASE_MAX, "{kib} KiB");
}
