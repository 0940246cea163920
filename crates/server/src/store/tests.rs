//! What the store promises, held against both databases.
//!
//! Each promise is a function over an empty store. On SQLite each is a test; on PostgreSQL one test
//! runs all of them, since a server takes seconds to start.

mod cluster;
mod counting;
mod failing;
mod opening;
mod people;

use tollgate_policy::price::Price;
use tollgate_policy::units::{KvByteMicros, NanoUsd, Tokens};
use tollgate_policy::usage::Usage;

use self::cluster::Cluster;
use super::*;

/// A promise, and the sentence that it is.
type Promise = (&'static str, fn(&mut Store));

/// Runs a promise against an SQLite of its own.
fn on_sqlite(promise: fn(&mut Store)) {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::File(folder.path().join("tollgate.db"));
    promise(&mut Store::open(location).unwrap());
}

/// A test for each promise, and a list of them.
macro_rules! promises {
    ($list:ident: $($name:ident),+ $(,)?) => {
        pub(super) const $list: &[super::Promise] = &[$((stringify!($name), $name)),+];

        mod on_sqlite {
            $(#[test] fn $name() { super::super::on_sqlite(super::$name); })+
        }
    };
}
pub(crate) use promises;

#[test]
fn postgres_keeps_every_promise_that_sqlite_keeps() {
    let cluster = Cluster::start();
    let all = counting::PROMISES.iter().chain(people::PROMISES);
    let all = all.chain(failing::PROMISES);
    for (n, (name, promise)) in all.enumerate() {
        let url = cluster.database(&format!("promise_{n}"));
        println!("{name}");
        promise(&mut Store::open(Location::Server(url)).unwrap());
    }
}

/// 2026-03-29, an hour before the clocks of Berlin change, in microseconds since the epoch.
const SPRING: u64 = 1_774_746_000_000_000;

const HOUR: u64 = 3_600_000_000;

/// A request of some use.
fn charge(number: u64, tenant: &str, ended_us: u64) -> Charge {
    Charge {
        usage: Usage {
            prompt: Tokens::new(100),
            cached: Tokens::new(40),
            output: Tokens::new(number + 1),
        },
        kv: KvByteMicros::from_micro_gib_secs(7),
        ..Charge::blank(number, tenant, "m", ended_us)
    }
}

/// A nano-dollar for a computed token, two for a generated one, and nothing else.
fn price(from_us: u64) -> PriceRow {
    PriceRow {
        model: "m".to_owned(),
        from_us,
        price: Price {
            prompt: NanoUsd::new(1_000_000),
            output: NanoUsd::new(2_000_000),
            ..Price::FREE
        },
    }
}

/// The models that it is for.
fn priced() -> [String; 1] {
    ["m".to_owned()]
}

/// All records before this one have been looked at.
fn upto(number: u64) -> Place {
    Place {
        number,
        ..Place::default()
    }
}

fn everything(by: &[Dimension]) -> Question {
    Question {
        by: by.to_vec(),
        from_us: 0,
        to_us: Grain::Month.start(4_000_000_000_000_000),
        tenant: None,
    }
}

fn total(store: &mut Store) -> Amounts {
    let rows = store.usage(&everything(&[])).unwrap();
    rows.first().map(|row| row.amounts).unwrap_or_default()
}

fn by(name: &str) -> Actor {
    Actor {
        name: name.to_owned(),
        at_us: SPRING,
    }
}
