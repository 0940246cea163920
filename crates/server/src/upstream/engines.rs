//! What the engines that run in other processes differ in: where they say how they are, and how.
//!
//! One file for each. They read pages; who asks, and what follows from an answer, is not here.

mod llama_server;
mod sglang;
mod vllm;

use tollgate_policy::units::{KvBlocks, Tokens};

use crate::config::RemoteKind;

/// What an engine says of itself; `None` where it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gauges {
    /// Requests that wait inside it.
    pub(crate) waiting: Option<u32>,
    /// Requests that run.
    pub(crate) running: Option<u32>,
    /// How full its KV is, in millionths.
    pub(crate) kv_millionths: Option<u32>,
    /// What its KV holds.
    pub(crate) kv: Option<KvBlocks>,
    /// Requests that it can run at once.
    pub(crate) sequences: Option<u32>,
}

impl Gauges {
    /// KV that is in use, where the size of all of it is `total`.
    pub(crate) fn kv_used(&self, total: KvBlocks) -> KvBlocks {
        let used = u64::from(self.kv_millionths.unwrap_or(0));
        let blocks = u128::from(total.get()) * u128::from(used) / 1_000_000;
        KvBlocks::new(u64::try_from(blocks).unwrap_or(u64::MAX))
    }

    /// What is known, with what `other` adds.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            waiting: self.waiting.or(other.waiting),
            running: self.running.or(other.running),
            kv_millionths: self.kv_millionths.or(other.kv_millionths),
            kv: self.kv.or(other.kv),
            sequences: self.sequences.or(other.sequences),
        }
    }
}

/// Where an engine says that it is well.
pub(crate) const fn health_path(kind: RemoteKind) -> &'static str {
    match kind {
        RemoteKind::Vllm | RemoteKind::Sglang | RemoteKind::LlamaServer => "/health",
        RemoteKind::OpenAi => "/v1/models",
    }
}

/// Where an engine says how busy it is, if it does.
pub(crate) const fn gauges_path(kind: RemoteKind) -> Option<&'static str> {
    match kind {
        RemoteKind::Vllm | RemoteKind::Sglang | RemoteKind::LlamaServer => Some("/metrics"),
        RemoteKind::OpenAi => None,
    }
}

/// Where an engine says what it can hold, where its gauges do not.
pub(crate) const fn capacity_path(kind: RemoteKind) -> Option<&'static str> {
    match kind {
        RemoteKind::LlamaServer => Some("/props"),
        RemoteKind::Vllm | RemoteKind::Sglang | RemoteKind::OpenAi => None,
    }
}

/// Reads a page of gauges.
pub(crate) fn read_gauges(kind: RemoteKind, page: &str) -> Gauges {
    match kind {
        RemoteKind::Vllm => vllm::read(page),
        RemoteKind::Sglang => sglang::read(page),
        RemoteKind::LlamaServer => llama_server::read(page),
        RemoteKind::OpenAi => Gauges::default(),
    }
}

/// Reads a page of capacities.
pub(crate) fn read_capacity(kind: RemoteKind, page: &str) -> Gauges {
    match kind {
        RemoteKind::LlamaServer => llama_server::read_props(page),
        RemoteKind::Vllm | RemoteKind::Sglang | RemoteKind::OpenAi => Gauges::default(),
    }
}

/// The samples of a metric in Prometheus' text format: labels as they stand, and the value.
fn samples<'p>(page: &'p str, name: &'p str) -> impl Iterator<Item = (&'p str, f64)> {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            // A label's value may hold a brace; the last one ends the labels.
            Some(rest) => rest.rsplit_once('}')?,
            None => ("", rest.strip_prefix([' ', '\t']).map(|_| rest)?),
        };
        let value = value.split_ascii_whitespace().next()?;
        Some((labels, value.parse().ok()?))
    })
}

/// The sum of a gauge over its labels: an engine may have several, such as one for each of its
/// ranks.
fn count(page: &str, names: &[&str]) -> Option<u32> {
    let sum = |name: &&str| {
        let mut found = samples(page, name).peekable();
        found.peek()?;
        Some(
            found
                .map(|(_, value)| whole(value))
                .fold(0, u32::saturating_add),
        )
    };
    names.iter().find_map(sum)
}

/// The largest of a gauge that is a part of one, in millionths.
fn millionths(page: &str, names: &[&str]) -> Option<u32> {
    let most = |name: &&str| {
        let parts = samples(page, name).map(|(_, part)| whole(part.clamp(0.0, 1.0) * 1e6));
        parts.max()
    };
    names.iter().find_map(most)
}

/// A gauge as a whole number.
fn whole(value: f64) -> u32 {
    let digits = format!("{:.0}", value.clamp(0.0, f64::from(u32::MAX)));
    digits.parse().unwrap_or(0)
}

/// The value of one label.
fn label<'l>(labels: &'l str, name: &str) -> Option<&'l str> {
    let mut each = labels.split(',');
    each.find_map(|one| {
        one.trim()
            .strip_prefix(name)?
            .strip_prefix("=\"")?
            .strip_suffix('"')
    })
}

fn kv_of(tokens: u64) -> KvBlocks {
    KvBlocks::new(tokens / KvBlocks::SLOTS.get())
}

const _: () = assert!(KvBlocks::SLOTS.get() > 0 && Tokens::ZERO.get() == 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_with_labels_and_without() {
        let page = "# HELP a b\na 1\na{x=\"}\"} 2.0 1700\nab 3\na_total 4\n";
        let found: Vec<_> = samples(page, "a").collect();
        assert_eq!(found, [("", 1.0), ("x=\"}\"", 2.0)]);
    }

    #[test]
    fn of_a_gauge_that_is_no_number_nothing_is_known() {
        assert_eq!(count("a x\n", &["a"]), None);
        assert_eq!(count("a NaN\n", &["a"]), Some(0));
        assert_eq!(count("a -1\na 1e30\n", &["a"]), Some(u32::MAX));
    }

    #[test]
    fn kv_in_use_is_a_part_of_all_of_it() {
        let gauges = Gauges {
            kv_millionths: Some(250_000),
            ..Gauges::default()
        };
        assert_eq!(gauges.kv_used(KvBlocks::new(1_000)), KvBlocks::new(250));
    }
}
