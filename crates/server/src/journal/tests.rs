//! The journal on a disk that fails, and on a real one.

mod damage;
mod faulty;
mod points;
mod real;

use std::borrow::Cow;

use tollgate_policy::units::{KvByteMicros, Micros, Tokens};

use super::record::{Counted, Ended, Mark, Record, RequestName, Started, UnixMicros, Used};

fn name(number: u64) -> RequestName {
    RequestName { boot: 7, number }
}

fn started(number: u64) -> Started {
    Started {
        request: name(number),
        tenant: format!("tenant-{}", number % 3).into(),
        key: None,
        model: "m".into(),
        replica: 0,
        received: UnixMicros::new(1_000 + number),
        dispatched: UnixMicros::new(2_000 + number),
    }
}

fn used(output: u64) -> Used {
    Used {
        prompt: Tokens::new(10),
        cached: Tokens::new(2),
        output: Tokens::new(output),
        kv: KvByteMicros::new(u128::from(output) << 40),
    }
}

fn mark(number: u64, output: u64) -> Mark {
    Mark {
        request: name(number),
        at: UnixMicros::new(3_000 + output),
        used: used(output),
    }
}

fn ended(number: u64, output: u64) -> Ended {
    let started = started(number);
    Ended {
        request: started.request,
        tenant: started.tenant,
        key: None,
        model: Some(started.model),
        replica: Some(started.replica),
        outcome: Cow::Borrowed("completed"),
        finish_reason: Some(Cow::Borrowed("stop")),
        used: used(output),
        counted: Counted::Engine,
        received: started.received,
        queue: Micros::new(1_000),
        ttft: Some(Micros::new(1_500)),
        total: Micros::new(9_000),
    }
}

/// The ends among records.
fn ends(records: &[Record]) -> Vec<&Ended> {
    fn end(record: &Record) -> Option<&Ended> {
        match record {
            Record::Ended(ended) => Some(ended),
            Record::Opened(_)
            | Record::Started(_)
            | Record::Carried(..)
            | Record::Mark(_)
            | Record::Lost(_) => None,
        }
    }
    records.iter().filter_map(end).collect()
}
