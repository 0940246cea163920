//! Limits outlive the process: what tenants took of their rates lately, by the ledger, is missing
//! from them when a server starts.

use std::collections::BTreeMap;

use tollgate_policy::gateway::Event;
use tollgate_policy::quota::Past;
use tollgate_policy::units::Micros;
use tollgate_policy::usage::{Usage, Weights};

use crate::desk::Desk;
use crate::journal::record::{Ended, UnixMicros};

/// Tells the policy what each tenant has used of its rates.
pub(crate) fn remember(desk: &Desk, recent: &[Ended], weights: Weights) {
    let clock = desk.clock();
    let now = UnixMicros::new(clock.unix_micros(clock.now()));
    for (name, past) in pasts(recent, weights, now) {
        let tenant = desk.tenant_named_by_header(name);
        desk.submit(Event::Remembered { tenant, past });
    }
}

/// What each tenant took, by name.
fn pasts(recent: &[Ended], weights: Weights, now: UnixMicros) -> BTreeMap<&str, Past> {
    let mut pasts: BTreeMap<&str, Past> = BTreeMap::new();
    let ago = |at: UnixMicros| Micros::new(now.get().saturating_sub(at.get()));
    // What no replica had was given back, or nearly nothing.
    for ended in recent.iter().filter(|ended| ended.replica.is_some()) {
        let past = pasts.entry(&ended.tenant).or_default();
        let usage = Usage {
            prompt: ended.used.prompt,
            cached: ended.used.cached,
            output: ended.used.output,
        };
        past.requests.push((ago(ended.received), 1));
        past.tokens
            .push((ago(ended.ended()), usage.rated(weights).get()));
    }
    for past in pasts.values_mut() {
        past.requests.sort_by(|one, other| other.cmp(one));
        past.tokens.sort_by(|one, other| other.cmp(one));
    }
    pasts
}
