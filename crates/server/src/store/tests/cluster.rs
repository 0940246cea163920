//! A PostgreSQL of a test's own, on a socket in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::clock::unix_micros;

/// How long a server may take to answer.
const PATIENCE_US: u64 = 60_000_000;

/// A server that ends with the test.
#[derive(Debug)]
pub(crate) struct Cluster {
    server: Option<Child>,
    folder: TempDir,
    binaries: PathBuf,
    /// Where it listens for encrypted connections, if it does.
    port: Option<u16>,
}

impl Cluster {
    /// Starts one, and waits until it answers.
    pub(crate) fn start() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("tollgate-pg")
            .tempdir()
            .unwrap();
        let mut cluster = Self {
            server: None,
            folder,
            binaries: binaries(),
            port: None,
        };
        if is_root() {
            // PostgreSQL refuses to run as root.
            run(Command::new("chown")
                .arg("postgres")
                .arg(cluster.folder.path()));
        }
        let data = cluster.data();
        let mut initdb = cluster.command("initdb");
        initdb.args([
            "-A",
            "trust",
            "-U",
            "tollgate",
            "--no-sync",
            "-E",
            "UTF8",
            "-D",
        ]);
        run(initdb.arg(&data));
        cluster.serve();
        cluster
    }

    /// Starts the server, again if it was stopped.
    pub(crate) fn serve(&mut self) {
        let mut server = self.command("postgres");
        server
            .arg("-D")
            .arg(self.data())
            .arg("-k")
            .arg(self.folder.path());
        server.args(["-c", "fsync=off"]);
        match self.port {
            None => server.args(["-c", "listen_addresses="]),
            Some(port) => server
                .args(["-c", "listen_addresses=127.0.0.1", "-c", "ssl=on", "-p"])
                .arg(port.to_string()),
        };
        server.stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(server.spawn().unwrap());
        let until = unix_micros() + PATIENCE_US;
        while !self.answers() {
            assert!(unix_micros() < until, "PostgreSQL did not answer in time");
            std::thread::yield_now();
        }
    }

    /// Lets it be reached by TLS at a port, where it shows this certificate.
    pub(crate) fn encrypt(&mut self, certificate: &str, key: &str) -> u16 {
        self.stop();
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let path = self.data().join(name);
            std::fs::write(&path, text).unwrap();
            run(Command::new("chmod").arg("600").arg(&path));
            if is_root() {
                run(Command::new("chown").arg("postgres").arg(&path));
            }
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        self.port = Some(port);
        self.serve();
        port
    }

    /// Stops the server, and cuts its clients off.
    pub(crate) fn stop(&mut self) {
        let data = self.data();
        let mut stop = self.command("pg_ctl");
        stop.args(["stop", "-m", "immediate", "-w", "-D"]).arg(data);
        run(&mut stop);
        if let Some(mut server) = self.server.take() {
            server.wait().unwrap();
        }
    }

    /// Where an empty database of this name is.
    pub(crate) fn database(&self, name: &str) -> String {
        let mut client = postgres::Client::connect(&self.url("postgres"), postgres::NoTls).unwrap();
        client
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .unwrap();
        self.url(name)
    }

    fn url(&self, database: &str) -> String {
        format!(
            "host={} port={} user=tollgate dbname={database}",
            self.folder.path().display(),
            self.port.unwrap_or(5432)
        )
    }

    fn answers(&self) -> bool {
        postgres::Client::connect(&self.url("postgres"), postgres::NoTls).is_ok()
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn command(&self, name: &str) -> Command {
        let program = self.binaries.join(name);
        let mut command = if is_root() {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
            command.arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.stop();
        }
    }
}

/// Debian keeps the server's programs out of the path.
fn binaries() -> PathBuf {
    let mut versions: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|path| path.join("initdb").exists())
        .collect();
    versions.sort();
    let in_path = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).find(|folder| folder.join("initdb").exists())
    });
    versions
        .pop()
        .or(in_path)
        .expect("the server of PostgreSQL is not installed; run scripts/prerequisites.sh --tests")
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(Path::new("/proc/self")).unwrap()) == 0
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}
