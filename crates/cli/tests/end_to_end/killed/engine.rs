//! An emulated engine that outlives the servers in front of it, and counts by itself.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::client::Exchange;
use crate::deadline::eventually;
use crate::process::{Running, tollgate};

#[derive(Debug)]
pub(super) struct Engine {
    /// Kept to keep it alive.
    _running: Running,
    pub(super) address: String,
}

impl Engine {
    /// One token of each answer a step, and a step is never shorter than a millisecond.
    pub(super) fn start(folder: &Path) -> Self {
        let args = [
            "bench",
            "engine",
            "--listen",
            "127.0.0.1:0",
            "--model",
            "m",
            "--step",
            "1ms",
            "--per-sequence",
            "0us",
            "--prefill",
            "1000000",
            "--seen",
            "100000",
        ];
        let mut running = Running::start(tollgate(folder, &args));
        let line = running.line(|line| line.contains("http://"));
        let (_, address) = line.split_once("http://").unwrap();
        Self {
            address: address.trim().to_owned(),
            _running: running,
        }
    }

    /// Requests that came since this was last asked, and are over, by the names that the gateway
    /// gives them; with the tokens made for each, more than one where it was sent again.
    pub(super) fn made(&self) -> BTreeMap<String, Vec<u64>> {
        let seen = eventually("the engine has let go of all", || {
            let seen: Value = serde_json::from_str(&self.send("GET").body).unwrap();
            let requests = seen["requests"].as_array().unwrap();
            let over = requests.iter().all(|one| one["end"] != "open");
            over.then(|| requests.clone())
        });
        self.send("DELETE");
        let mut made: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for one in seen {
            let headers = one["headers"].as_array().unwrap();
            let name = headers.iter().find(|pair| pair[0] == "x-request-id");
            if let Some(name) = name {
                let name = name[1].as_str().unwrap().to_owned();
                let tokens = one["output_tokens"].as_u64().unwrap();
                made.entry(name).or_default().push(tokens);
            }
        }
        made
    }

    fn send(&self, method: &str) -> crate::client::Answer {
        Exchange::send(&self.address, method, "/seen", &[], "").finish()
    }
}
