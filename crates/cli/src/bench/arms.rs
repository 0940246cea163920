//! The arms of a flood that are started here: this very binary, serving an emulated engine under
//! three policies.
//!
//! Each is a process of its own. They are idle but for the one that is asked.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tollgate_bench::args::NamedEndpoint;

/// Looks at a server that starts, and the pause between two of them.
const LOOKS: u32 = 600;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What all arms have: the engine.
const ENGINE: &str = "\
identity: { anonymous: allow, trust_tenant_header: true }
models:
  - name: MODEL
    engine: fake
    max_sequences: 64
    step_tokens: 2048
    queue: { max_requests: 100000, max_wait: 120s }
    fake:
      step: 10ms
      per_sequence: 150us
      prefill_tokens_per_second: 12000
      context: 8192
      kv_tokens: 262144
";

/// What each has of its own, by its name.
const ARMS: [(&str, &str); 3] = [
    (
        "fifo",
        "fairness: { policy: fifo }\ndefault_tenant: { class: standard }\n",
    ),
    (
        "limits only",
        "fairness: { policy: fifo }\n\
         default_tenant: { class: standard, limits: { rpm: 600, burst: 10 } }\n",
    ),
    ("fair", "default_tenant: { class: standard }\n"),
];

/// Servers that run for as long as this is kept.
#[derive(Debug)]
pub(super) struct Arms {
    servers: Vec<Child>,
    endpoints: Vec<NamedEndpoint>,
    folder: PathBuf,
}

impl Arms {
    /// Starts all of them, and waits until they take requests for `model`.
    pub(super) fn start(model: &str) -> anyhow::Result<Self> {
        let name = format!("tollgate-flood-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).with_context(|| format!("can't make {}", folder.display()))?;
        let mut arms = Self {
            servers: Vec::new(),
            endpoints: Vec::new(),
            folder,
        };
        for (name, own) in ARMS {
            arms.start_one(name, own, model)
                .with_context(|| format!("the arm `{name}` does not start"))?;
        }
        Ok(arms)
    }

    pub(super) fn endpoints(&self) -> &[NamedEndpoint] {
        &self.endpoints
    }

    fn start_one(&mut self, name: &str, own: &str, model: &str) -> anyhow::Result<()> {
        let address = free_address()?;
        let config = self.folder.join(format!("{name}.yaml"));
        let engine = ENGINE.replace("MODEL", &format!("{model:?}"));
        std::fs::write(&config, format!("listen: {address}\n{engine}{own}"))?;
        let log = self.folder.join(format!("{name}.log"));
        let server = Command::new(std::env::current_exe()?)
            .args(["serve", "--config"])
            .arg(&config)
            .arg("--data-dir")
            .arg(self.folder.join(name))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()?;
        self.servers.push(server);
        self.await_ready(address, &log)?;
        self.endpoints.push(NamedEndpoint {
            name: name.to_owned(),
            endpoint: format!("http://{address}/v1").parse()?,
        });
        Ok(())
    }

    fn await_ready(&mut self, address: SocketAddr, log: &Path) -> anyhow::Result<()> {
        for _ in 0..LOOKS {
            if is_ready(address) {
                return Ok(());
            }
            if let Some(server) = self.servers.last_mut()
                && let Some(status) = server.try_wait()?
            {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                bail!("{status}: {}", said.trim());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("it is not ready after {} s", (LOOK_EVERY * LOOKS).as_secs())
    }
}

impl Drop for Arms {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // Err: it has ended already.
            let _ = server.kill();
            let _ = server.wait();
        }
        // Err: it is in the system's folder for what may go.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// An address that nobody listens on, as far as can be known.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

fn is_ready(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return false;
    };
    let asked = stream.write_all(b"GET /ready HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n");
    let mut head = [0; 12];
    let read = asked.and_then(|()| {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.read_exact(&mut head)
    });
    read.is_ok() && head.ends_with(b"200")
}
