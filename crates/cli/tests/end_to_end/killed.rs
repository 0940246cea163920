//! Servers that are killed while they serve: what a client saw the end of is charged once, with the
//! engine's own count, and nothing is charged twice or for more than was made. Budgets, debts and
//! idempotency go on where the ledger left them.
//!
//! Told to ignore the end of a turn, either engine makes as many tokens as it is asked for, and no
//! more than one each millisecond. So a client knows by itself what an answer costs that it saw
//! whole, and what one can cost at most that it did not. `KILL_CYCLES` asks for more than the few
//! kills of a test run.

#[expect(dead_code, reason = "the store's own tests use the rest")]
#[path = "../../../server/src/store/tests/cluster.rs"]
mod cluster;
mod engine;
mod load;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use self::cluster::Cluster;
use self::engine::Engine;
use self::load::{Ask, Chance, Seen, client};
use crate::deadline::{eventually, now};
use crate::ledger::rows;
use crate::process::{Server, run, serve, tollgate};

/// One model of the engine in the process.
const FAKE: &str = "models:
  - name: m
    engine: fake
    max_sequences: 64
    fake: { step: 1ms, per_sequence: 0us, prefill_tokens_per_second: 1000000 }
";

/// A token of output is a thousandth of a dollar.
const ACCOUNTS: &str = "\
listen: 127.0.0.1:0
prices: [{ model: m, prompt: 0, output: 1000 }]
";

const NANO_USD_A_TOKEN: u64 = 1_000_000;

/// Clients at a time, of which each has one request in flight: in a test run, and where more kills
/// are asked for, which is when a hundred requests a second are due.
const CLIENTS: u64 = 10;
const CLIENTS_MANY: u64 = 40;

/// Kills in a test run.
const CYCLES: u64 = 3;

/// Tokens of the one request that a tenant with a small budget makes in each life.
const POOR_TOKENS: u64 = 10;

/// Tokens that a tenant uses at once of 300 a minute, and how long it is in debt at least.
const DEBT_TOKENS: u64 = 3_000;
const DEBT: Duration = Duration::from_secs(480);

/// Requests of the life before that are made again.
const REPEATS: usize = 6;

/// What all lives share.
struct World {
    folder: tempfile::TempDir,
    config: String,
    engine: Option<Engine>,
    /// Another gateway on the same store, which lives on.
    beside: Option<Beside>,
    /// Lives in which the small budget is not spent.
    affords: u64,
    /// Tokens that the engine made, by request.
    made: BTreeMap<String, Vec<u64>>,
    tally: Tally,
    /// When the debt was run up.
    indebted: Option<Instant>,
}

/// A gateway with a folder of its own.
struct Beside {
    server: Server,
    folder: tempfile::TempDir,
}

impl World {
    fn new(cycles: u64, engine: Option<Engine>, rest: &str) -> Self {
        let affords = cycles.div_ceil(2);
        let usd = format!("{}.{:02}", affords / 100, affords % 100);
        let config = format!(
            "{ACCOUNTS}{rest}tenants:\n  - {{ name: a, keys: [{{ env: KILL_A }}], \
             budget: {{ usd: 1000000, per: month }} }}\n  - {{ name: b, keys: [{{ env: KILL_B }}], \
             limits: {{ tpm: 1000000000 }} }}\n  - {{ name: poor, keys: [{{ env: KILL_POOR }}], \
             budget: {{ usd: {usd}, per: month }} }}\n  - {{ name: debtor, keys: [{{ env: \
             KILL_DEBTOR }}], model_limits: [{{ model: m, limits: {{ tpm: 300 }} }}] }}\n"
        );
        Self {
            folder: tempfile::tempdir().unwrap(),
            config,
            engine,
            beside: None,
            affords,
            made: BTreeMap::new(),
            tally: Tally::default(),
            indebted: None,
        }
    }

    /// Starts the one that lives on.
    fn put_beside(&mut self) {
        let folder = tempfile::tempdir().unwrap();
        let server = self.serve_in(folder.path());
        self.beside = Some(Beside { server, folder });
    }

    fn serve(&self) -> Server {
        self.serve_in(self.folder.path())
    }

    fn serve_in(&self, folder: &Path) -> Server {
        Server::start(self.with_keys(serve(folder, &self.config)))
    }

    /// A command that finds the keys which the configuration names.
    fn with_keys(&self, mut command: Command) -> Command {
        for name in ["A", "B", "POOR", "DEBTOR"] {
            command.env(format!("KILL_{name}"), format!("sk-{name}"));
        }
        command
    }

    /// What the server before it left is as the ledger has it.
    fn look_back(&mut self, server: &Server, number: u64, before: Option<&Life>) {
        let poor = Ask::plain("sk-POOR", POOR_TOKENS).send(&server.address);
        if number <= self.affords {
            assert!(poor.is_ok(), "life {number}: {poor:?}");
        } else {
            let refused = Some((429, "budget".to_owned()));
            assert_eq!(poor.unwrap_err(), refused, "life {number}");
        }
        let owing = Ask::plain("sk-DEBTOR", DEBT_TOKENS).send(&server.address);
        match self.indebted {
            Some(since) if now() - since < DEBT => {
                let refused = Some((429, "tokens".to_owned()));
                assert_eq!(owing.unwrap_err(), refused, "life {number}");
            }
            // Repaid by now, or soon.
            Some(_) if owing.is_err() => {}
            Some(_) | None => {
                assert!(owing.is_ok(), "life {number}: {owing:?}");
                self.indebted = Some(now());
            }
        }
        if let Some(life) = before {
            self.repeat(server, life);
        }
    }

    /// Asks again with the idempotency keys of the life before.
    fn repeat(&mut self, server: &Server, life: &Life) {
        self.collect();
        let (settled, late) = life.seen.split_at(life.settled);
        let keyed = |seen: &&Seen| seen.ask.idempotency.is_some() && seen.whole.is_some();
        for seen in settled.iter().filter(keyed).rev().take(REPEATS) {
            let stays = Ask {
                patience: u64::MAX,
                ..seen.ask.clone()
            };
            let again = stays.send(&server.address).unwrap();
            assert_eq!(again.how.as_deref(), Some("replayed"), "{seen:?}");
            assert_eq!(again.body, seen.body);
            self.tally.replayed += 1;
        }
        if let Some(engine) = &self.engine {
            assert_eq!(engine.made(), BTreeMap::new(), "a replay was made again");
        }
        // What the kill cut off is free again, or was finished after all; it hangs in no case.
        let unsure = late.iter().filter(|seen| seen.ask.idempotency.is_some());
        for seen in unsure.take(REPEATS) {
            let stays = Ask {
                patience: u64::MAX,
                ..seen.ask.clone()
            };
            let again = stays.send(&server.address);
            assert!(again.is_ok_and(|again| again.whole.is_some()), "{seen:?}");
        }
    }

    /// Takes over what the engine has counted.
    fn collect(&mut self) {
        if let Some(engine) = &self.engine {
            self.made.extend(engine.made());
        }
    }

    /// Serves a load of all kinds for a while, and is killed.
    fn live_and_die(&mut self, seed: u64, before: Option<&Life>) -> Life {
        let server = self.serve();
        self.look_back(&server, seed, before);
        let (log, stop) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicBool::new(false)),
        );
        let mut chance = Chance(seed);
        let began = now();
        let clients = if std::env::var_os("KILL_CYCLES").is_some() {
            CLIENTS_MANY
        } else {
            CLIENTS
        };
        let clients: Vec<_> = (0..clients)
            .map(|n| {
                let (log, stop) = (Arc::clone(&log), Arc::clone(&stop));
                let all =
                    std::iter::once(&server).chain(self.beside.as_ref().map(|one| &one.server));
                let all: Vec<_> = all.map(|server| server.address.clone()).collect();
                let address = all[usize::try_from(n).unwrap() % all.len()].clone();
                let chance = Chance(seed * 1_000 + n + 1);
                let keys = ["sk-A", "sk-B"];
                std::thread::spawn(move || client(&address, &keys, chance, &stop, &log))
            })
            .collect();
        let requests = 40 + usize::try_from(chance.below(120)).unwrap();
        for some in (0..=requests).step_by(10) {
            eventually("more was served", || {
                (log.lock().unwrap().len() >= some).then_some(())
            });
        }
        let settled = log.lock().unwrap().len();
        self.tally.loaded += now() - began;
        self.tally.load += u64::try_from(settled).unwrap();
        await_disk_and_store(&server);
        self.beside
            .iter()
            .for_each(|one| await_disk_and_store(&one.server));
        let killed = now();
        assert_eq!(server.running.kill().code, None);
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
        self.collect();
        let seen = std::mem::take(&mut *log.lock().unwrap());
        Life {
            seen,
            settled,
            killed,
        }
    }
}

/// What one server lived through.
struct Life {
    seen: Vec<Seen>,
    /// How many of them had been seen when disk and store were awaited.
    settled: usize,
    killed: Instant,
}

/// Waits until two more batches are on disk, and the store has twice taken what was due.
fn await_disk_and_store(server: &Server) {
    let read = || {
        let names = ["tollgate_ledger_batches", "tollgate_store_rounds"];
        let scrape = server.get("/metrics").body;
        names.map(|name| value(&scrape, name))
    };
    let before = read();
    eventually("disk and store have what was served", || {
        let [batches, rounds] = read();
        (batches >= before[0] + 3.0 && rounds >= before[1] + 2.0).then_some(())
    });
}

fn value(scrape: &str, name: &str) -> f64 {
    let mut lines = scrape.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap().trim().parse().unwrap()
}

/// Counts of what the kills did, to see that they did something.
#[derive(Debug, Default)]
struct Tally {
    whole: u64,
    interrupted: u64,
    interrupted_tokens: u64,
    left: u64,
    /// Seen whole more than 50 ms before a kill, and not charged in full.
    late: u64,
    replayed: u64,
    /// Requests that the engine had and nobody pays: their start was not on disk.
    unpaid: u64,
    /// Requests, and in how long.
    load: u64,
    loaded: Duration,
}

impl World {
    fn check(&mut self, life: &Life, charged: &BTreeMap<String, Value>) {
        for (n, seen) in life.seen.iter().enumerate() {
            let row = charged.get(&seen.name);
            let output = row.and_then(|row| row["output_tokens"].as_u64());
            let outcome = row.and_then(|row| row["outcome"].as_str());
            let asked = seen.ask.tokens;
            if let Some(end) = seen.whole {
                assert!(seen.said.is_none_or(|said| said == asked), "{seen:?}");
                let exact = output == Some(asked) && outcome == Some("completed");
                assert!(exact || n >= life.settled, "{seen:?} is charged {row:?}");
                self.tally.whole += u64::from(exact);
                let early = life.killed.saturating_duration_since(end) > Duration::from_millis(50);
                self.tally.late += u64::from(early && !exact);
            }
            let Some(output) = output else { continue };
            assert!(output <= asked, "{seen:?} is charged {row:?}");
            let steps = life.killed.saturating_duration_since(seen.sent).as_millis() + 1;
            match outcome {
                Some("interrupted") => {
                    assert!(u128::from(output) <= steps, "{seen:?} is charged {row:?}");
                    self.tally.interrupted += 1;
                    self.tally.interrupted_tokens += output;
                }
                Some(gone) if gone.starts_with("client_gone") && self.engine.is_none() => {
                    assert!(output >= seen.read, "{seen:?} is charged {row:?}");
                    self.tally.left += 1;
                }
                Some(gone) if gone.starts_with("client_gone") => self.tally.left += 1,
                _ => {}
            }
        }
    }

    /// Ledger and engine agree, request by request.
    fn check_engine(&mut self, charged: &BTreeMap<String, Value>) {
        if self.engine.is_none() {
            return;
        }
        for (name, row) in charged {
            let output = row["output_tokens"].as_u64().unwrap();
            let made = self.made.get(name).map(Vec::as_slice).unwrap_or_default();
            let most = made.iter().max().copied().unwrap_or(0);
            assert!(output <= most, "{row} of {made:?}");
            assert!(
                row["outcome"] != "completed" || output == most,
                "{row} of {made:?}"
            );
        }
        let unpaid = self.made.keys().filter(|name| !charged.contains_key(*name));
        self.tally.unpaid = u64::try_from(unpaid.count()).unwrap();
    }

    /// Store and ledger agree, to the nano-dollar.
    fn check_store(&self, charged: &BTreeMap<String, Value>) {
        let mut sums: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
        for row in charged.values() {
            let output = row["output_tokens"].as_u64().unwrap();
            let sum = sums.entry(row["tenant"].as_str().unwrap()).or_default();
            sum[0] += 1;
            sum[1] += output;
            sum[2] += output * NANO_USD_A_TOKEN;
        }
        let args = "usage --config tollgate.yaml --by tenant --format json";
        let args: Vec<_> = args.split(' ').collect();
        let shown = run(self.with_keys(tollgate(self.folder.path(), &args)));
        assert_eq!(shown.code, Some(0), "{}", shown.stderr);
        let usage: Vec<Value> = serde_json::from_str(&shown.stdout).unwrap();
        let usage: BTreeMap<_, _> = usage
            .iter()
            .map(|row| {
                let amount = |name: &str| row[name].as_u64().unwrap();
                let amounts = ["requests", "output_tokens", "cost_nano_usd"].map(amount);
                (row["tenant"].as_str().unwrap(), amounts)
            })
            .collect();
        assert_eq!(usage, sums);
        let cost = usage.get("poor").unwrap()[2];
        assert_eq!(cost, self.affords * POOR_TOKENS * NANO_USD_A_TOKEN);
    }
}

impl World {
    /// The journal of a gateway adds up, and the store that its configuration names agrees with it.
    fn verify(&self, folder: &Path) {
        let verify = ["ledger", "verify", "--config", "tollgate.yaml"];
        let verified = run(self.with_keys(tollgate(folder, &verify)));
        assert_eq!(verified.code, Some(0), "{}", verified.stderr);
        let said = "the store agrees with it";
        assert!(verified.stdout.contains(said), "{}", verified.stdout);
    }
}

/// The rows by request, of which none may have two.
fn charged(folder: &Path) -> BTreeMap<String, Value> {
    let mut charged = BTreeMap::new();
    for row in rows(folder) {
        let name = row["request"].as_str().unwrap().to_owned();
        let twice = charged.insert(name, row);
        assert!(twice.is_none(), "charged twice: {twice:?}");
    }
    charged
}

fn cycles() -> u64 {
    let cycles = std::env::var("KILL_CYCLES").ok();
    cycles.map_or(CYCLES, |cycles| cycles.parse().unwrap())
}

fn kill_again_and_again(mut world: World, cycles: u64) {
    let mut lives: Vec<Life> = Vec::new();
    for seed in 1..=cycles {
        let life = world.live_and_die(seed, lives.last());
        // They have been asked for again, and there are many.
        if let Some(before) = lives.last_mut() {
            let bodies = before.seen.iter_mut().map(|seen| &mut seen.body);
            bodies.for_each(|body| *body = String::new());
        }
        lives.push(life);
    }
    let last = world.serve();
    world.look_back(&last, cycles + 1, lives.last());
    last.running.signal("TERM");
    assert_eq!(last.running.ended(crate::deadline::PATIENCE).code, Some(0));
    world.collect();
    let mut charged = charged(world.folder.path());
    if let Some(Beside { server, folder }) = world.beside.take() {
        server.running.signal("TERM");
        assert_eq!(
            server.running.ended(crate::deadline::PATIENCE).code,
            Some(0)
        );
        let others = self::charged(folder.path());
        println!("{} were charged by the one that lived on", others.len());
        for (name, row) in others {
            let twice = charged.insert(name, row);
            assert!(twice.is_none(), "two requests of one name: {twice:?}");
        }
        world.verify(folder.path());
    }
    for life in &lives {
        world.check(life, &charged);
    }
    world.check_engine(&charged);
    world.check_store(&charged);
    world.verify(world.folder.path());
    let tally = &world.tally;
    let rate = tally.load as f64 / tally.loaded.as_secs_f64();
    println!(
        "{cycles} kills under {rate:.0} requests a second, {} charged: {tally:?}",
        charged.len()
    );
    assert!(tally.whole >= 20 * cycles, "{tally:?}");
    assert!(tally.interrupted > 0 && tally.left > 0, "{tally:?}");
    assert!(tally.replayed > 0, "{tally:?}");
}

#[test]
fn whatever_dies_each_request_is_charged_once_and_for_no_more_than_was_made() {
    let cycles = cycles();
    kill_again_and_again(World::new(cycles, None, FAKE), cycles);
}

#[test]
fn whatever_dies_in_front_of_another_engine_is_charged_as_that_engine_counted() {
    let cycles = cycles();
    let elsewhere = tempfile::tempdir().unwrap();
    let engine = Engine::start(elsewhere.path());
    let model = format!(
        "models:\n  - name: m\n    engine: vllm\n    replicas: [{{ url: \"http://{}\" }}]\n",
        engine.address
    );
    kill_again_and_again(World::new(cycles, Some(engine), &model), cycles);
}

#[test]
fn whatever_dies_of_two_gateways_on_one_postgres_each_request_is_charged_once() {
    let cycles = cycles();
    let cluster = Cluster::start();
    let url = cluster.database("killed");
    let rest = format!("store: {{ url: \"{url}\" }}\n{FAKE}");
    let mut world = World::new(cycles, None, &rest);
    world.put_beside();
    kill_again_and_again(world, cycles);
}
