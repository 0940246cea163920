//! The report of a run: its record, whether it is valid, and what each tenant got.

use serde::Serialize;
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::plot::Point;
use crate::rows::Row;
use crate::spec::{Cycle, Source, Spec, Timing};
use crate::summary::{Measured, Slip, TenantSummary, Totals, Validity};

/// Under which circumstances a run took place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Header {
    /// Version of this program.
    pub version: &'static str,
    /// The command line.
    pub command: String,
    /// Whom it asked.
    pub endpoint: String,
    /// For which model.
    pub model: String,
    /// The seed of all chance.
    pub seed: u64,
    /// When it began, in seconds since the Unix epoch.
    pub started_unix: u64,
    /// Where it was sent from.
    pub machine: Machine,
    /// Requests were sent for so long, in seconds.
    pub duration_s: f64,
    /// Of which the first were left out, in seconds.
    pub warm_up_s: f64,
    /// Answers were awaited for at most so long after that, in seconds.
    pub drain_s: f64,
    /// The largest 99th percentile of the send slip of a valid run, in milliseconds.
    pub slip_p99_max_ms: f64,
    /// How answers came, how texts were made, and what was sent.
    pub load: Value,
    /// Whether requests waited for answers; `load` tells it too.
    #[serde(skip)]
    pub cycle: Cycle,
}

/// What a run found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Its circumstances.
    pub header: Header,
    /// Whether its numbers mean anything.
    pub validity: Validity,
    /// How late it sent its requests.
    pub slip: Slip,
    /// What all tenants got together.
    pub totals: Totals,
    /// What each tenant got, in the order of the specification.
    pub tenants: Vec<TenantSummary>,
}

impl Report {
    /// Exit code of a run that is valid.
    pub const EXIT_VALID: u8 = 0;
    /// Exit code of a run that is not.
    pub const EXIT_INVALID: u8 = 2;

    pub(crate) fn new(spec: &Spec, tenants: &[String], rows: &[Row], started_unix: u64) -> Self {
        let measured = Measured {
            rows,
            timing: spec.timing,
        };
        let tenants: Vec<TenantSummary> = tenants
            .iter()
            .enumerate()
            .map(|(index, name)| measured.tenant(index, name))
            .collect();
        Self {
            header: header(spec, started_unix),
            validity: measured.validity(),
            slip: measured.slip(),
            totals: measured.totals(&tenants),
            tenants,
        }
    }

    /// Whether the numbers mean anything.
    pub fn is_valid(&self) -> bool {
        self.validity == Validity::Valid
    }

    /// Why the numbers mean nothing; empty if they do.
    pub fn reasons(&self) -> Vec<String> {
        match &self.validity {
            Validity::Valid => Vec::new(),
            Validity::Invalid(reasons) => reasons.clone(),
        }
    }

    /// What the process should exit with.
    pub fn exit_code(&self) -> u8 {
        if self.is_valid() {
            Self::EXIT_VALID
        } else {
            Self::EXIT_INVALID
        }
    }

    /// Its place on a frontier, by the p99 of TTFT of the tenant called `watched`; `None` of an
    /// invalid run, and where that tenant got nothing.
    pub fn point(&self, watched: &str, label: impl Into<String>) -> Option<Point> {
        let watched = self.tenants.iter().find(|tenant| tenant.name == watched);
        let p99_ms = watched.filter(|_| self.is_valid())?.ttft.p99_ms?;
        let tokens_per_s = self.totals.tokens_per_s;
        Some(Point {
            tokens_per_s,
            p99_ms,
            label: label.into(),
        })
    }

    /// As JSON. An invalid run has its circumstances and its reasons, and no numbers to quote.
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "header": self.header,
            "validity": self.validity,
            "slip": self.slip,
        });
        if self.is_valid() {
            value["totals"] = json!(self.totals);
            value["tenants"] = json!(self.tenants);
        }
        value
    }
}

fn header(spec: &Spec, started_unix: u64) -> Header {
    let Timing {
        duration,
        warm_up,
        drain,
        slip_p99_max,
    } = spec.timing;
    let secs = |span: tollgate_policy::units::Micros| span.get() as f64 / 1e6;
    let source = match &spec.source {
        Source::Drawn(tenants) => {
            let loads: Vec<_> = tenants.iter().map(|tenant| &tenant.load).collect();
            json!({ "tenants": loads })
        }
        Source::Replayed {
            name, speed, trace, ..
        } => {
            json!({ "trace": name, "speed": speed, "rows": trace.rows.len() })
        }
    };
    let cycle = match spec.cycle {
        Cycle::Open => json!("open"),
        Cycle::Closed(clients) => json!({ "closed": clients }),
    };
    Header {
        cycle: spec.cycle,
        version: env!("CARGO_PKG_VERSION"),
        command: spec.command.clone(),
        endpoint: spec.endpoint.to_string(),
        model: spec.model.clone(),
        seed: spec.seed,
        started_unix,
        machine: Machine::this(),
        duration_s: secs(duration),
        warm_up_s: secs(warm_up),
        drain_s: secs(drain),
        slip_p99_max_ms: slip_p99_max.get() as f64 / 1e3,
        load: json!({
            "loop": cycle,
            "reply": spec.reply,
            "tokenizer": spec.tokenizer,
            "source": source,
        }),
    }
}
