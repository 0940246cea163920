//! The last rungs: a gateway that admits by latency before the embedded engine, as the server has
//! it.
//!
//! It is the world of the simulator, with one tenant and one replica, and keeps for each request
//! what the engine alone keeps.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::rc::Rc;

use tollgate_policy::engine::ConfigError;
use tollgate_policy::fair::Policy;
use tollgate_policy::gateway::{Effect, Event, Gateway, Model};
use tollgate_policy::ids::RequestId;
use tollgate_policy::outcome::EngineEnding;
use tollgate_policy::pace::Target;
use tollgate_policy::route;
use tollgate_policy::slo::{Slo, Terms};
use tollgate_policy::tenant::{Allowed, Class, Limits, Tenant};
use tollgate_policy::units::{KvBytes, Micros, Time, Tokens};
use tollgate_policy::window::Bounds;

use super::{Answered, Machine, Rung, config};
use crate::client::Manners;
use crate::control::{Ear, Overheard};
use crate::emulated;
use crate::machine::{MachineConfig, PlannedConfig, Sharing, StepCost};
use crate::setup::{Caller, Checks, ReplicaSetup, Says, Setup};
use crate::workload::Workload;
use crate::world;

/// Requests that wait at most.
const QUEUE_MAX: usize = 100_000;

/// How long one waits at most, as in a server of a ladder.
const MAX_WAIT: Micros = Micros::from_secs(600);

/// Serves a workload of one tenant on a rung that admits by latency: what became of each request,
/// in the order in which they came. What has not ended `drain` after the last one never does.
///
/// # Errors
/// A machine on which nothing could run.
pub fn serve_admitted(
    terms: Terms,
    machine: Machine,
    workload: &Workload,
    (seed, drain): (u64, Micros),
) -> Result<Vec<Answered>, ConfigError> {
    let arrivals = workload.arrivals().count();
    let engine = config(Rung::ContinuousPrefix, machine, arrivals);
    // Whether one can be made of it is known only by making it.
    tollgate_policy::engine::Engine::new(engine)?;
    let setup = setup(terms, machine, workload.clone(), (seed, drain, arrivals));
    let answered: Rc<RefCell<BTreeMap<RequestId, Answered>>> = Rc::default();
    let control = Overheard {
        gateway: Gateway::new(setup.config()),
        ear: Keeper {
            answered: Rc::clone(&answered),
            now: Time::START,
        },
    };
    world::run(&setup, control, None);
    let mut answered = answered.take();
    let each = (1..=arrivals as u64).map(RequestId::new);
    Ok(each
        .map(|id| answered.remove(&id).unwrap_or_default())
        .collect())
}

fn setup(
    terms: Terms,
    machine: Machine,
    workload: Workload,
    (seed, drain, arrivals): (u64, Micros, usize),
) -> Setup {
    let cost = emulated::Cost {
        step: machine.cost.step,
        per_sequence: machine.cost.per_sequence,
        prefill_tokens_per_second: NonZeroU64::new(machine.cost.prefill_tokens_per_s)
            .unwrap_or(NonZeroU64::MIN),
    };
    let planned = PlannedConfig {
        engine: tollgate_policy::engine::Config {
            paced: true,
            ..config(Rung::ContinuousPrefix, machine, arrivals)
        },
        cost: StepCost::Together(cost),
        sharing: Sharing::Tenant,
    };
    Setup {
        seed,
        workload,
        callers: vec![caller()],
        fleet: vec![ReplicaSetup {
            machine: MachineConfig::Planned(planned),
            only: None,
            report_every: Micros::ZERO,
            starts_in: Micros::ZERO,
            others: None,
        }],
        model: Model {
            context: Tokens::new(machine.context),
            queue_max: QUEUE_MAX,
            max_wait: Some(MAX_WAIT),
            max_stream: MAX_WAIT,
            kv_per_token: KvBytes::new(1),
            target: Target {
                tpot: terms.tpot.unwrap_or_else(|| Target::default().tpot),
                slo: Slo::of(terms),
            },
            window: Bounds {
                paced: true,
                ..Bounds::default()
            },
            routing: route::Policy::PowerOfTwo,
            loading: None,
        },
        fairness: Policy::Vtc,
        faults: Vec::new(),
        warmup: Time::START,
        drain,
        checks: Checks::PerRequest,
        score: None,
        longer: None,
    }
}

/// The one tenant, whose clients stay and say how long their answers come to be.
fn caller() -> Caller {
    let tenant = Tenant {
        name: "all".to_owned(),
        class: Class::Standard,
        weight: NonZeroU32::MIN,
        models: Allowed::All,
        limits: Limits::default(),
        by_model: BTreeMap::new(),
        floor: 0,
    };
    Caller {
        tenant,
        manners: Manners::default(),
        texts: None,
        says: Says::Truth,
    }
}

/// Keeps when tokens came and how requests ended.
struct Keeper {
    answered: Rc<RefCell<BTreeMap<RequestId, Answered>>>,
    now: Time,
}

impl Ear for Keeper {
    fn event(&mut self, event: Event, now: Time) -> Event {
        self.now = now;
        let mut all = self.answered.borrow_mut();
        if let Event::Stepped { served, .. } = &event {
            for one in served {
                let tokens = &mut all.entry(one.id).or_default().tokens;
                let more = usize::try_from(one.output.get()).unwrap_or(0);
                tokens.extend(std::iter::repeat_n(now, more));
            }
        }
        if let Event::EngineEnded { id, ending, .. } = &event
            && let EngineEnding::Finished(_) = ending
        {
            all.entry(*id).or_default().end = Some(now);
        }
        drop(all);
        event
    }

    fn effect(&mut self, effect: &Effect) {
        if let Effect::Refuse(refusal) = effect {
            let mut all = self.answered.borrow_mut();
            let one = all.entry(refusal.id).or_default();
            (one.end, one.refused) = (Some(self.now), true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Arrivals;
    use crate::lengths::Lengths;
    use crate::rungs::serve;
    use crate::rungs::tests::machine;
    use crate::workload::TenantLoad;

    fn workload(rate: f64) -> Workload {
        let output = Lengths::Lognormal {
            median: 32.0,
            sigma: 0.7,
            min: 1,
            max: 256,
        };
        let prompt = Lengths::Constant(400);
        let load = TenantLoad::new("all", Arrivals::Poisson { rate }, prompt, output);
        let until = Time::START + Micros::from_secs(300);
        Workload::drawn(vec![load], until, 1).unwrap()
    }

    const LIMITS: Terms = Terms {
        ttft: Some(Micros::from_millis(1_000)),
        tpot: Some(Micros::from_millis(200)),
        ..Terms::NONE
    };

    fn served(rung: Rung, rate: f64) -> Vec<Answered> {
        let terms = rung.terms(LIMITS).unwrap();
        let drain = Micros::from_secs(30);
        serve_admitted(terms, machine(), &workload(rate), (1, drain)).unwrap()
    }

    /// Answers whose first token came in time, of all that came.
    fn in_time(answered: &[Answered], rate: f64) -> f64 {
        let workload = workload(rate);
        let good = workload.arrivals().zip(answered).filter(|(arrival, one)| {
            let first = one.tokens.first().map(|first| first.since(arrival.at));
            one.end.is_some() && first.is_some_and(|first| first <= Micros::from_millis(1_000))
        });
        good.count() as f64 / answered.len() as f64
    }

    #[test]
    fn past_saturation_most_of_what_is_served_is_in_time_and_below_it_all_are_served() {
        let late = in_time(&plain(8.0), 8.0);
        let ours = in_time(&served(Rung::Goodput, 8.0), 8.0);
        assert!(ours > 2.0 * late && ours > 0.4, "{ours} and {late}");
        let quiet = served(Rung::Goodput, 1.0);
        assert!(quiet.iter().all(|one| !one.refused && one.end.is_some()));
    }

    fn plain(rate: f64) -> Vec<Answered> {
        let arrivals: Vec<_> = workload(rate).arrivals().collect();
        let until = Time::START + Micros::from_secs(330);
        serve(Rung::ContinuousPrefix, machine(), &arrivals, until).unwrap()
    }

    #[test]
    fn the_surest_guarantee_refuses_more_and_never_everything_for_ever() {
        let refused = |answered: &[Answered]| answered.iter().filter(|one| one.refused).count();
        let rungs = [Rung::Guarantee80, Rung::Guarantee99];
        let [loose, sure] = rungs.map(|rung| served(rung, 5.0));
        assert!(refused(&loose) <= refused(&sure), "of {}", sure.len());
        // In each of the last four minutes some are served.
        let arrivals: Vec<_> = workload(5.0).arrivals().collect();
        for minute in 1..5 {
            let within = |at: Time| at.as_micros() / 60_000_000 == minute;
            let each = arrivals.iter().zip(&sure);
            let served = each.filter(|(arrival, one)| within(arrival.at) && !one.refused);
            assert!(served.count() > 30, "in minute {minute}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_answers() {
        assert_eq!(served(Rung::Goodput, 6.0), served(Rung::Goodput, 6.0));
    }
}
