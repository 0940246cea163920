//! vLLM (`vllm/v1/metrics/loggers.py`): counts by engine, KV as a part of one, and the size of its
//! cache as labels of a gauge that is always one.

use super::{Gauges, count, kv_of, label, millionths, samples};

/// Reads `/metrics`.
pub(super) fn read(page: &str) -> Gauges {
    Gauges {
        waiting: count(page, &["vllm:num_requests_waiting"]),
        running: count(page, &["vllm:num_requests_running"]),
        kv_millionths: millionths(
            page,
            &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
        ),
        kv: cache_tokens(page).map(kv_of),
        sequences: None,
    }
}

/// Tokens that its cache holds, over all its engines.
fn cache_tokens(page: &str) -> Option<u64> {
    let number = |labels, name| label(labels, name)?.parse::<u64>().ok();
    let each = samples(page, "vllm:cache_config_info").filter_map(|(labels, _)| {
        number(labels, "block_size")?.checked_mul(number(labels, "num_gpu_blocks")?)
    });
    each.reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use tollgate_policy::units::KvBlocks;

    use super::*;

    #[test]
    fn the_gauges_of_a_page_are_read() {
        let page = "\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0
vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 4.0
vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25
vllm:cache_config_info{block_size=\"128\",engine=\"0\",num_gpu_blocks=\"10\",x=\"None\"} 1.0
";
        let expected = Gauges {
            waiting: Some(2),
            running: Some(7),
            kv_millionths: Some(250_000),
            kv: Some(KvBlocks::new(80)),
            sequences: None,
        };
        assert_eq!(read(page), expected);
        assert_eq!(read(""), Gauges::default());
    }
}
