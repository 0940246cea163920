//! An engine's `/metrics`, under the names that vLLM uses, so that what reads vLLM reads it too.

use std::fmt::Write as _;

use tollgate_policy::units::KvBlocks;
use tollgate_sim::emulated::{Counters, Gauges, PrefixCache};

use super::{Pace, Shared};

/// The text that a scraper gets.
pub(super) fn write(shared: &Shared, gone: u64) -> String {
    let (gauges, counters) = match &shared.machine {
        Some(machine) => machine.shown(),
        None => (Gauges::default(), Counters::default()),
    };
    let name = shared.settings.models.first().map_or("", String::as_str);
    let mut page = Page {
        labels: format!("engine=\"0\",model_name=\"{}\"", escaped(name)),
        text: String::new(),
    };
    let share = part(gauges.kv_used, gauges.kv_total);
    page.one("num_requests_running", "gauge", gauges.running);
    page.one("num_requests_waiting", "gauge", gauges.waiting);
    page.one("kv_cache_usage_perc", "gauge", share);
    // The name of it in older versions.
    page.one("gpu_cache_usage_perc", "gauge", share);
    page.cache_config(shared, gauges);
    page.one(
        "prefix_cache_queries_total",
        "counter",
        counters.prefix_queried,
    );
    page.one("prefix_cache_hits_total", "counter", counters.prefix_hit);
    page.one("num_preemptions_total", "counter", counters.preempted);
    page.one("prompt_tokens_total", "counter", counters.prompt);
    page.one("generation_tokens_total", "counter", counters.output);
    page.success(counters);
    let _ = writeln!(
        page.text,
        "# TYPE emulated:requests_cancelled_total counter\n\
         emulated:requests_cancelled_total {gone}\n\
         # TYPE emulated:tokens_recomputed_total counter\n\
         emulated:tokens_recomputed_total {}",
        counters.recomputed
    );
    page.text
}

struct Page {
    labels: String,
    text: String,
}

// A `String` takes whatever is written to it.
impl Page {
    fn one(&mut self, name: &str, kind: &str, value: impl std::fmt::Display) {
        let labels = &self.labels;
        let _ = writeln!(
            self.text,
            "# TYPE vllm:{name} {kind}\nvllm:{name}{{{labels}}} {value}"
        );
    }

    fn cache_config(&mut self, shared: &Shared, gauges: Gauges) {
        let prefix = match shared.settings.pace {
            Pace::Emulated(config) => config.prefix_cache == PrefixCache::On,
            Pace::Instant(_) => false,
        };
        let prefix = if prefix { "True" } else { "False" };
        let _ = writeln!(
            self.text,
            "# TYPE vllm:cache_config_info gauge\n\
             vllm:cache_config_info{{block_size=\"{}\",enable_prefix_caching=\"{prefix}\",\
             engine=\"0\",num_gpu_blocks=\"{}\"}} 1.0",
            KvBlocks::SLOTS,
            gauges.kv_total.get(),
        );
    }

    /// Cancelled requests are in none of these, as at vLLM.
    fn success(&mut self, counters: Counters) {
        let labels = &self.labels;
        let _ = writeln!(
            self.text,
            "# TYPE vllm:request_success_total counter\n\
             vllm:request_success_total{{finished_reason=\"length\",{labels}}} {}\n\
             vllm:request_success_total{{finished_reason=\"abort\",{labels}}} 0",
            counters.finished
        );
    }
}

fn part(used: KvBlocks, total: KvBlocks) -> f64 {
    if total == KvBlocks::ZERO {
        return 0.0;
    }
    used.get() as f64 / total.get() as f64
}

fn escaped(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
