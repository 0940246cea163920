//! SGLang (`python/sglang/srt/metrics/collector.py`): its queue, what runs, and tokens in use as a
//! part of one.

use super::{Gauges, count, kv_of, millionths};

/// Reads `/metrics`.
pub(super) fn read(page: &str) -> Gauges {
    Gauges {
        waiting: count(page, &["sglang:num_queue_reqs"]),
        running: count(page, &["sglang:num_running_reqs"]),
        kv_millionths: millionths(page, &["sglang:token_usage"]),
        kv: count(page, &["sglang:max_total_num_tokens"]).map(|tokens| kv_of(u64::from(tokens))),
        sequences: None,
    }
}

#[cfg(test)]
mod tests {
    use tollgate_policy::units::KvBlocks;

    use super::*;

    #[test]
    fn the_gauges_of_a_page_are_read() {
        let page = "\
sglang:num_running_reqs{model_name=\"m\"} 5.0
sglang:num_queue_reqs{model_name=\"m\"} 1.0
sglang:token_usage{model_name=\"m\"} 0.5
sglang:max_total_num_tokens{model_name=\"m\"} 160000.0
";
        let expected = Gauges {
            waiting: Some(1),
            running: Some(5),
            kv_millionths: Some(500_000),
            kv: Some(KvBlocks::new(10_000)),
            sequences: None,
        };
        assert_eq!(read(page), expected);
    }
}
