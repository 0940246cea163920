//! What a prefix says that was taken out of the KV and put back: the same as when it was computed,
//! up to what rounding alone does, which is measured.

use std::sync::atomic::Ordering;

use tollgate_policy::engine::Config;
use tollgate_policy::ids::TenantId;
use tollgate_policy::units::Tokens;

use crate::conformance::rig::{self, CACHED, Lab, Rig, Said};
use crate::conformance::{LENGTH, PROMPTS};
use crate::llama::PUT_BACK;
use crate::{Job, Token};

/// Some blocks on the model, and no two prompts begin with the same one.
fn prompt(id: usize) -> String {
    let system = "Every cart that comes by must stop, pay what its load is worth, and wait its \
                  turn. Be brief and be fair, and never ask twice. ";
    format!("Gate {id}. {}{}", system.repeat(3), PROMPTS[id])
}

fn job(rig: &Rig, id: u64, prompt: &str) -> Job {
    let mut job = rig.job(id, prompt, 12);
    job.sampling.logprobs = Some(5);
    job
}

/// How far the likeliest tokens moved, until the texts part.
fn moved(cold: &Said, warm: &Said) -> f32 {
    let pairs = cold.logprobs.iter().zip(&warm.logprobs);
    let alike = pairs.take_while(|(a, b)| a.chosen.bytes == b.chosen.bytes);
    let apart = alike.map(|(a, b)| (a.chosen.logprob - b.chosen.logprob).abs());
    apart.fold(0.0, f32::max)
}

/// Where two answers part, what the gap between the two likeliest tokens is there.
fn gap_at_parting(lab: &Lab, text: &str, cold: &[Token], warm: &[Token]) -> Option<(f32, f32)> {
    let same = cold.iter().zip(warm).take_while(|(a, b)| a == b).count();
    (same < cold.len()).then(|| {
        let mut tokens = lab.model.tokenize(text).unwrap();
        tokens.extend(&cold[..same]);
        lab.gap_and_noise(&tokens)
    })
}

/// The same, with room for each sequence at its longest: each has a KV of its own then.
const LANES: Config = Config {
    context: Tokens::new(512),
    ..CACHED
};

#[test]
fn a_prefix_that_was_put_back_says_what_it_said_cold_up_to_rounding() {
    let Some(lab) = rig::llama() else { return };
    assert!(!lab.has_lanes(&CACHED));
    says_the_same_put_back(&lab, CACHED);
}

#[test]
fn a_prefix_that_was_copied_to_another_kv_says_what_it_said_cold_up_to_rounding() {
    let Some(lab) = rig::llama() else { return };
    assert!(lab.has_lanes(&LANES));
    says_the_same_put_back(&lab, LANES);
}

fn says_the_same_put_back(lab: &Lab, limits: Config) {
    let rig = lab.start(limits);
    let count = 4;
    let text = |id: u64| prompt(usize::try_from(id).unwrap());
    let cold: Vec<_> = (0..count)
        .map(|id| rig.run(vec![job(&rig, id, &text(id))])[&id].clone())
        .collect();
    let before = PUT_BACK.load(Ordering::Relaxed);
    // All at once, and in the other order: their cells lie elsewhere than when they were computed.
    let asked: Vec<_> = (0..count)
        .rev()
        .map(|id| job(&rig, count + id, &text(id)))
        .collect();
    let warm = rig.run(asked);
    let put_back = PUT_BACK.load(Ordering::Relaxed) - before;
    let generated = rig.generated();
    let (mut same, mut furthest, mut noisiest) = (0, 0.0_f32, 0.0_f32);
    for (id, cold) in (0..).zip(&cold) {
        let warm = &warm[&(count + id)];
        assert_eq!((cold.ending, warm.ending), (LENGTH, LENGTH));
        assert_eq!(cold.usage.cached, Tokens::ZERO);
        assert!(warm.usage.cached >= Tokens::new(32), "{:?}", warm.usage);
        // Of one, as it takes longer than all the rest.
        if id == 0 {
            let tokens = lab.model.tokenize(&text(id)).unwrap();
            noisiest = noisiest.max(lab.gap_and_noise(&tokens).1);
        }
        let parted = gap_at_parting(lab, &text(id), &generated[&id], &generated[&(count + id)]);
        if let Some((gap, noise)) = parted {
            assert!(gap <= noise, "request {id} parts: gap {gap}, noise {noise}");
        } else {
            same += 1;
        }
        furthest = furthest.max(moved(&cold.choices[&0], &warm.choices[&0]));
    }
    println!(
        "{put_back} pieces put back; {same} of {count} say the same; likelihoods moved by \
         {furthest} at most, rounding moves logits by {noisiest}"
    );
    // The last one's was in the KV still.
    assert!(put_back + 1 >= count, "{put_back}");
    // A likelihood moves by its own logit and by the sum of all.
    assert!(furthest <= 2.0 * noisiest, "{furthest} {noisiest}");
    rig.assert_empty();
}

#[test]
fn what_one_tenant_left_as_bytes_is_not_put_back_for_another() {
    let Some(lab) = rig::llama() else { return };
    is_not_put_back_for_another(&lab, CACHED);
    is_not_put_back_for_another(&lab, LANES);
}

fn is_not_put_back_for_another(lab: &Lab, limits: Config) {
    let rig = lab.start(limits);
    rig.run(vec![job(&rig, 0, &prompt(0))]);
    // A step of somebody else's: before it, what nobody has is taken out.
    rig.run(vec![job(&rig, 1, PROMPTS[1])]);
    let before = PUT_BACK.load(Ordering::Relaxed);
    let mut others = job(&rig, 2, &prompt(0));
    others.tenant = TenantId::new(1);
    assert_eq!(rig.run(vec![others])[&2].usage.cached, Tokens::ZERO);
    assert_eq!(PUT_BACK.load(Ordering::Relaxed), before);
    let own = rig.run(vec![job(&rig, 3, &prompt(0))])[&3].usage;
    assert!(own.cached >= Tokens::new(32), "{own:?}");
    assert!(PUT_BACK.load(Ordering::Relaxed) > before);
    rig.assert_empty();
}
