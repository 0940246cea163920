//! A decision as a line of CSV: what was known, what was promised, and what came.
//!
//! Prompts and keys are not in it. Times are whole microseconds; what is not known is empty.

use std::fmt::Write as _;

use tollgate_policy::slo::{Because, Facts, Metric, Row, Verdict};
use tollgate_policy::units::{Micros, Tokens};

/// The columns, in their order.
pub const COLUMNS: &str = "received_unix_us,request,model,tenant,class,verdict,reason,\
prompt,cached,output_max,output_median,output_most,waited_us,ahead,work_ahead,at_once,\
running,slots,replicas,waiting,kv_free_percent,prefill_ahead,gap_us,recent_gap_us,idle_us,age_us,ending,\
prefill_base_us,prefill_per_1000_us,prefill_age_us,decode_base_us,decode_per_1000_us,\
plan_first_us,estimate_first_us,estimate_tpot_us,estimate_last_us,\
bound_ttft_us,bound_tpot_us,bound_e2e_us,footing,limit_ttft_us,limit_tpot_us,limit_e2e_us,\
alpha,outcome,ttft_us,tpot_us,e2e_us,output";

/// One decision.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) received_unix_us: u64,
    pub(crate) request: u64,
    pub(crate) model: String,
    pub(crate) tenant: String,
    pub(crate) row: Row,
}

impl Line {
    /// Adds the line, with its end, to `text`.
    pub(super) fn add_to(&self, text: &mut String) {
        let judged = &self.row.judged;
        let (verdict, reason) = match judged.verdict {
            Verdict::Admit(because) => ("admit", Because::label(because)),
            Verdict::Refuse(metric) => ("refuse", metric.label()),
        };
        // Writing to a string does not fail, here and below.
        let _ = write!(
            text,
            "{},{},{},{},{},{verdict},{reason}",
            self.received_unix_us,
            self.request,
            quoted(&self.model),
            quoted(&self.tenant),
            judged.facts.class.label(),
        );
        facts(text, &judged.facts);
        let estimate = judged.estimate;
        span(text, judged.plan.map(|plan| plan.first));
        span(text, estimate.map(|plan| plan.first));
        span(text, estimate.and_then(|plan| plan.tpot));
        span(text, estimate.and_then(|plan| plan.last));
        for bound in judged.bounds {
            span(text, bound.map(|bound| bound.promised));
        }
        let footing = judged.bounds[0].map_or("", |bound| bound.footing.label());
        let _ = write!(text, ",{footing}");
        for metric in Metric::ALL {
            span(text, judged.terms.and_then(|terms| terms.of(metric)));
        }
        let alpha = judged.terms.map_or(0, |terms| terms.alpha.get());
        let seen = &self.row.seen;
        let _ = write!(text, ",0.{alpha:03},{}", seen.outcome.row().reason);
        for metric in Metric::ALL {
            span(text, seen.of(metric));
        }
        let _ = writeln!(text, ",{}", seen.output);
    }
}

fn facts(text: &mut String, facts: &Facts) {
    let tokens = [
        facts.prompt,
        facts.cached,
        facts.output_max,
        facts.output_median,
        facts.output_most,
    ];
    for tokens in tokens.map(Tokens::get) {
        let _ = write!(text, ",{tokens}");
    }
    let pool = &facts.pool;
    let _ = write!(
        text,
        ",{},{},{},{},{},{},{},{},{},{}",
        facts.waited.get(),
        facts.ahead,
        facts.work_ahead,
        u8::from(facts.at_once),
        pool.running,
        pool.slots,
        pool.replicas,
        pool.waiting,
        pool.kv_free,
        pool.prefill_ahead,
    );
    span(text, pool.gap.map(|gap| gap.value));
    span(text, pool.recent_gap.map(|gap| gap.value));
    span(text, Some(pool.idle));
    span(text, Some(pool.age));
    let _ = write!(text, ",{}", pool.ending);
    span(text, pool.prefill.map(|line| line.base));
    span(text, pool.prefill.map(|line| line.per_thousand));
    span(text, pool.prefill.map(|line| line.age));
    span(text, pool.decode.map(|line| line.base));
    span(text, pool.decode.map(|line| line.per_thousand));
}

fn span(text: &mut String, span: Option<Micros>) {
    text.push(',');
    if let Some(span) = span {
        let _ = write!(text, "{}", span.get());
    }
}

fn quoted(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_owned()
    }
}
