//! Limits outlive the process: what tenants took of their rates lately, by the ledger, is missing
//! from them when a server starts.

use std::collections::BTreeMap;

use tollgate_policy::gateway::Event;
use tollgate_policy::quota::Past;
use tollgate_policy::units::Micros;
use tollgate_policy::usage::{Usage, Weights};

use crate::desk::Desk;
use crate::journal::record::{Ended, UnixMicros};

/// Tells the policy what each tenant has used of its rates. It must have had no request since: what
/// is remembered replaces what is known.
pub(crate) fn remember(desk: &Desk, recent: &[Ended], weights: Weights) {
    let clock = desk.clock();
    let now = UnixMicros::new(clock.unix_micros(clock.now()));
    for ((name, model), past) in pasts(recent, weights, now) {
        let tenant = desk.tenant_named_by_header(name);
        // A model that is served no more has no limits to be held to.
        let model = model.map(|model| desk.books().model_named(model));
        if model != Some(None) {
            desk.submit(Event::Remembered {
                tenant,
                model: model.flatten(),
                past,
            });
        }
    }
}

/// A tenant and one of its models, or all of them, by name.
type Whose<'e> = (&'e str, Option<&'e str>);

/// What each tenant took, in all and of each model.
fn pasts(recent: &[Ended], weights: Weights, now: UnixMicros) -> BTreeMap<Whose<'_>, Past> {
    let mut pasts: BTreeMap<Whose<'_>, Past> = BTreeMap::new();
    let ago = |at: UnixMicros| Micros::new(now.get().saturating_sub(at.get()));
    // What no replica had was given back, or nearly nothing.
    for ended in recent.iter().filter(|ended| ended.replica.is_some()) {
        let usage = Usage {
            prompt: ended.used.prompt,
            cached: ended.used.cached,
            output: ended.used.output,
        };
        let request = (ago(ended.received), 1);
        let tokens = (ago(ended.ended()), usage.rated(weights).get());
        let model = ended.model.as_deref().map(Some);
        for of in std::iter::once(None).chain(model) {
            let past = pasts.entry((&ended.tenant, of)).or_default();
            past.requests.push(request);
            past.tokens.push(tokens);
        }
    }
    for past in pasts.values_mut() {
        past.requests.sort_by(|one, other| other.cmp(one));
        past.tokens.sort_by(|one, other| other.cmp(one));
    }
    pasts
}
