//! A year of usage by the hour for a thousand tenants and three models: how long a sum takes, and
//! how fast requests are counted.
//!
//! `cargo run --release -p tollgate-server --example usage_year [TENANTS]`

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "an example, which measures"
)]

use std::path::Path;

use tollgate_policy::units::Tokens;
use tollgate_policy::usage::Usage;
use tollgate_server::store::{Charge, Dimension, Grain, Location, Place, Question, Store};
use tollgate_server::unix_micros;

/// 2026-01-01, in microseconds since the Unix epoch.
const START: u64 = 1_767_225_600_000_000;
const HOUR: u64 = 3_600_000_000;
const MODELS: [&str; 3] = ["small", "middle", "large"];

fn main() {
    let tenants = std::env::args()
        .nth(1)
        .map_or(1_000, |n| n.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.db");
    let mut store = Store::open(Location::File(path.clone())).unwrap();
    fold(&mut store);
    let began = unix_micros();
    let rows = fill(&path, tenants);
    println!("made {rows} rows of usage in {:.1} s", seconds_since(began));
    let questions: [(&str, Vec<Dimension>); 3] = [
        (
            "tenant and month",
            vec![Dimension::Tenant, Dimension::Time(Grain::Month)],
        ),
        (
            "tenant and day",
            vec![Dimension::Tenant, Dimension::Time(Grain::Day)],
        ),
        ("model", vec![Dimension::Model]),
    ];
    for (name, by) in questions {
        let question = Question {
            by,
            from_us: START,
            to_us: START + 365 * 24 * HOUR,
            tenant: None,
        };
        let began = unix_micros();
        let rows = store.usage(&question).unwrap();
        println!(
            "by {name}: {} rows in {:.3} s",
            rows.len(),
            seconds_since(began)
        );
    }
    let bytes = std::fs::metadata(&path).unwrap().len();
    println!("the file has {} MiB", bytes >> 20);
}

/// Writes usage as folding would have: hours, and days and months as their sums.
fn fill(path: &Path, tenants: u64) -> usize {
    const HOURS: &str = "
        WITH RECURSIVE hours(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM hours WHERE n < 8759),
        tenants(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM tenants WHERE n < ?2 - 1),
        models(name) AS (VALUES ('large'), ('middle'), ('small'))
        INSERT INTO usage SELECT 0, ?1 + hours.n * 3600000000,
            'tenant-' || substr('0000' || tenants.n, -4), name, 3, 1000 + tenants.n, 10,
            200 + hours.n % 7, 5, 12345 FROM hours, tenants, models";
    const SUMS: &str = "SUM(requests), SUM(prompt_tokens), SUM(cached_tokens), \
                        SUM(output_tokens), SUM(kv), SUM(cost)";
    let database = rusqlite::Connection::open(path).unwrap();
    let rows = database
        .execute(HOURS, (START as i64, tenants as i64))
        .unwrap();
    let day = "start_us - start_us % 86400000000";
    let month = "1000000 * CAST(strftime('%s', start_us / 1000000, 'unixepoch', \
                 'start of month') AS INTEGER)";
    for (grain, of, start) in [(1, 0, day), (2, 1, month)] {
        let sql = format!(
            "INSERT INTO usage SELECT {grain}, {start} AS at, tenant, model, {SUMS} FROM usage \
             WHERE grain = {of} AND start_us >= ?1 GROUP BY at, tenant, model"
        );
        database.execute(&sql, [START as i64]).unwrap();
    }
    rows
}

/// Counts requests as the journal brings them.
fn fold(store: &mut Store) {
    const REQUESTS: u64 = 50_000;
    let began = unix_micros();
    for batch in 0..REQUESTS / 2_000 {
        let charges: Vec<_> = (batch * 2_000..(batch + 1) * 2_000).map(charge).collect();
        let upto = Place {
            number: (batch + 1) * 2_000,
            ..Place::default()
        };
        store.fold("example", &charges, upto).unwrap();
    }
    let took = seconds_since(began);
    println!(
        "counted {REQUESTS} requests in {took:.2} s, {:.0} a second",
        50_000.0 / took
    );
}

fn charge(number: u64) -> Charge {
    let tenant = format!("tenant-{:04}", number % 997);
    let usage = Usage {
        prompt: Tokens::new(number % 4_000),
        cached: Tokens::ZERO,
        output: Tokens::new(number % 500),
    };
    Charge {
        usage,
        ..Charge::blank(number, &tenant, MODELS[(number % 3) as usize], START - HOUR)
    }
}

fn seconds_since(began_us: u64) -> f64 {
    unix_micros().saturating_sub(began_us) as f64 / 1e6
}
