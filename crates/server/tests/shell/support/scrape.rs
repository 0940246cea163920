//! What `/metrics` says.

use std::collections::{BTreeMap, BTreeSet};

/// One scrape: every sample by its name and labels, and the names of the metrics themselves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrape {
    samples: BTreeMap<String, f64>,
    /// Each declared metric.
    pub(crate) declared: BTreeSet<String>,
}

impl Scrape {
    pub(crate) fn parse(text: &str) -> Self {
        let mut scrape = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().unwrap();
                scrape.declared.insert(name.to_owned());
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let before = scrape
                    .samples
                    .insert(name.to_owned(), value.parse().unwrap());
                assert_eq!(before, None, "{name} stands twice");
            }
        }
        scrape
    }

    /// The sum of all samples of this name that have all these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &str| {
            let each =
                |(label, value): &(&str, &str)| sample.contains(&format!("{label}=\"{value}\""));
            metric(sample) == name && labels.iter().all(each)
        };
        let found = self.samples.iter().filter(|(sample, _)| has(sample));
        found.map(|(_, value)| value).sum()
    }

    /// How many requests ended for this reason.
    pub(crate) fn ended(&self, reason: &str) -> f64 {
        self.sum("tollgate_requests_total", &[("reason", reason)])
    }

    /// Requests that ended, by reason.
    pub(crate) fn reasons(&self) -> BTreeMap<String, f64> {
        let mut reasons = BTreeMap::new();
        for (sample, value) in &self.samples {
            if metric(sample) == "tollgate_requests_total" {
                let reason = sample.split("reason=\"").nth(1).unwrap();
                let reason = reason.split('"').next().unwrap();
                *reasons.entry(reason.to_owned()).or_default() += value;
            }
        }
        reasons
    }

    /// How many series there are.
    pub(crate) fn series(&self) -> usize {
        self.samples.len()
    }

    /// Whether some sample of this metric is other than zero.
    pub(crate) fn has_moved(&self, name: &str) -> bool {
        let own = |sample: &str| {
            let sample = metric(sample);
            sample == name
                || sample
                    .strip_prefix(name)
                    .is_some_and(|rest| rest == "_total" || rest == "_count")
        };
        self.samples
            .iter()
            .any(|(sample, value)| own(sample) && *value != 0.0)
    }

    /// Whether nothing is held anywhere.
    pub(crate) fn is_idle(&self) -> bool {
        self.held().is_empty()
    }

    /// What is held of what is to be given back, if anything is.
    pub(crate) fn held(&self) -> Vec<(&'static str, f64)> {
        const HELD: [&str; 9] = [
            "tollgate_in_flight_requests",
            "tollgate_queue_requests",
            "tollgate_queue_tokens",
            "tollgate_running_requests",
            "tollgate_window_sequences",
            "tollgate_window_kv_blocks",
            "tollgate_engine_waiting_sequences",
            "tollgate_engine_kv_blocks",
            "tollgate_engine_sequence_ids",
        ];
        let each = HELD.iter().map(|name| (*name, self.sum(name, &[])));
        each.filter(|(_, held)| *held != 0.0).collect()
    }
}

/// The name of a sample, without its labels.
fn metric(sample: &str) -> &str {
    sample.split('{').next().unwrap()
}
