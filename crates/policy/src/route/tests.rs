//! Each rule of choice, on replicas made up for it.

use std::collections::BTreeMap;

use super::*;

const TENANT: TenantId = TenantId::new(0);

fn candidate(replica: u32, kv: u64) -> Candidate {
    Candidate {
        replica: ReplicaId::new(replica),
        load: Load {
            kv: KvBlocks::new(kv),
            total: KvBlocks::new(1_000),
            sequences: 0,
            prefill: Tokens::ZERO,
        },
    }
}

fn idle(count: u32) -> Vec<Candidate> {
    (0..count).map(|n| candidate(n, 0)).collect()
}

fn pool(candidates: &[Candidate]) -> Vec<ReplicaId> {
    candidates.iter().map(|one| one.replica).collect()
}

/// A prompt whose blocks, of 1,000 tokens each, have these names.
fn prompt(names: &[u64]) -> Affinity {
    let block = |(name, at): (&u64, u64)| Block {
        hash: *name,
        end: Tokens::new(1_000 * at),
    };
    Affinity {
        session: None,
        prefix: names.iter().zip(1..).map(block).collect(),
    }
}

fn session(name: u64) -> Affinity {
    Affinity::default().in_session(1, TENANT, &name.to_le_bytes())
}

const ROOM: Tokens = Tokens::new(1_000_000);

fn choose(router: &mut Router, candidates: &[Candidate], affinity: &Affinity) -> Choice {
    let blocks = u64::try_from(affinity.prefix.len()).unwrap();
    let seek = Seek {
        tenant: TENANT,
        prompt: Tokens::new(1_000 * blocks + 500),
        affinity,
    };
    let choice = router.choose(seek, candidates, &pool(candidates)).unwrap();
    router.sent(choice, affinity, ROOM);
    choice
}

fn seen(router: &mut Router, candidates: &[Candidate], times: u64) -> BTreeMap<u32, u32> {
    let mut seen = BTreeMap::new();
    for n in 0..times {
        let choice = choose(router, candidates, &prompt(&[n << 32]));
        *seen.entry(choice.replica.get()).or_default() += 1;
    }
    seen
}

#[test]
fn the_only_one_with_room_is_chosen_under_every_policy() {
    for (_, policy) in Policy::ALL {
        let mut router = Router::new(policy, 1);
        let choice = choose(&mut router, &[candidate(2, 7)], &Affinity::default());
        assert_eq!(
            (choice.replica.get(), choice.because),
            (2, Because::OnlyOne)
        );
        let seek = Seek {
            tenant: TENANT,
            prompt: Tokens::ZERO,
            affinity: &Affinity::default(),
        };
        assert_eq!(router.choose(seek, &[], &[]), None);
    }
}

#[test]
fn the_least_loaded_is_the_one_with_the_least_of_its_own_size() {
    let mut router = Router::new(Policy::LeastLoad, 1);
    let small = Candidate {
        load: Load {
            total: KvBlocks::new(10),
            ..candidate(1, 5).load
        },
        ..candidate(1, 5)
    };
    let choice = choose(
        &mut router,
        &[candidate(0, 400), small],
        &Affinity::default(),
    );
    assert_eq!(
        (choice.replica.get(), choice.because),
        (0, Because::LeastLoad)
    );
}

#[test]
fn equals_share_what_comes() {
    for policy in [Policy::LeastLoad, Policy::PowerOfTwo, Policy::Prefix] {
        let seen = seen(&mut Router::new(policy, 1), &idle(3), 300);
        assert!(
            seen.values().all(|times| (60..140).contains(times)),
            "{policy:?}: {seen:?}"
        );
    }
}

#[test]
fn of_two_that_are_drawn_the_fuller_is_never_chosen() {
    let mut router = Router::new(Policy::PowerOfTwo, 1);
    let candidates: Vec<_> = (0..4).map(|n| candidate(n, u64::from(n))).collect();
    let seen = seen(&mut router, &candidates, 200);
    assert_eq!(seen.get(&3), None, "the fullest loses every draw");
    assert!(seen[&0] > 70 && seen[&1] > 40 && seen[&2] > 10, "{seen:?}");
}

#[test]
fn each_has_its_turn_also_when_one_of_them_is_full() {
    let mut router = Router::new(Policy::RoundRobin, 1);
    let all = idle(3);
    let mut turns = |candidates: &[Candidate]| {
        choose(&mut router, candidates, &Affinity::default())
            .replica
            .get()
    };
    assert_eq!(
        [turns(&all), turns(&all), turns(&all), turns(&all)],
        [0, 1, 2, 0]
    );
    assert_eq!([turns(&[all[0], all[2]]), turns(&all)], [2, 0]);
}

#[test]
fn a_prompt_goes_where_its_beginning_is_held() {
    let mut router = Router::new(Policy::Prefix, 1);
    let candidates = idle(8);
    let first = choose(&mut router, &candidates, &prompt(&[1, 2, 3]));
    assert_eq!(
        (first.because, first.cached),
        (Because::TwoChoices, Tokens::ZERO)
    );
    for n in 0..20 {
        let next = choose(&mut router, &candidates, &prompt(&[1, 2, 3, 10 + n]));
        assert_eq!(
            (next.replica, next.because),
            (first.replica, Because::Prefix)
        );
        assert_eq!(next.cached, Tokens::new(3_000));
    }
}

#[test]
fn a_replica_that_has_more_to_do_than_its_prefix_saves_is_passed_by() {
    let mut router = Router::new(Policy::Prefix, 1);
    let mut candidates = idle(2);
    let first = choose(&mut router, &candidates, &prompt(&[1, 2, 3]));
    let holder = usize::try_from(first.replica.get()).unwrap();
    candidates[holder].load.prefill = Tokens::new(2_900);
    assert_eq!(
        choose(&mut router, &candidates, &prompt(&[1, 2, 3])).because,
        Because::Prefix
    );
    candidates[holder].load.prefill = Tokens::new(3_100);
    let other = choose(&mut router, &candidates, &prompt(&[1, 2, 3]));
    assert_ne!(other.replica, first.replica);
    assert_eq!(
        (other.because, other.cached),
        (Because::PrefixBusy, Tokens::ZERO)
    );
}

#[test]
fn prompts_that_nobody_holds_go_by_load_and_not_to_the_smallest_cache() {
    let mut router = Router::new(Policy::Prefix, 1);
    // The second holds a large prefix and is idle, the first holds little and is busy.
    router.sent(
        Choice {
            replica: ReplicaId::new(1),
            because: Because::OnlyOne,
            cached: Tokens::ZERO,
        },
        &prompt(&(100..200).collect::<Vec<_>>()),
        ROOM,
    );
    let mut candidates = idle(2);
    candidates[0].load.prefill = Tokens::new(8_000);
    let seen = seen(&mut router, &candidates, 20);
    assert_eq!(seen, BTreeMap::from([(1, 20)]));
}

#[test]
fn a_prefix_that_all_share_heats_no_replica() {
    let mut router = Router::new(Policy::Prefix, 1);
    let mut candidates = idle(8);
    let mut load = [0_u64; 8];
    for n in 0..4_000_u64 {
        let choice = choose(&mut router, &candidates, &prompt(&[1, 2, 1_000 + n]));
        let at = usize::try_from(choice.replica.get()).unwrap();
        load[at] += 3_500 - choice.cached.get();
        // Each works off its queue at the same pace, at three quarters of what comes in.
        candidates[at].load.prefill += Tokens::new(3_500 - choice.cached.get());
        for one in &mut candidates {
            one.load.prefill = one.load.prefill - Tokens::new(250);
        }
    }
    let (most, sum) = (load.iter().max().unwrap(), load.iter().sum::<u64>());
    assert!(
        most * 8 * 100 <= sum * 110,
        "the hottest has {most} of {sum}"
    );
}

#[test]
fn a_session_stays_where_it_is_and_only_those_of_a_replica_that_goes_move() {
    let mut router = Router::new(Policy::Prefix, 1);
    let all = idle(5);
    let home = |router: &mut Router, candidates: &[Candidate]| -> Vec<Choice> {
        (0..200)
            .map(|n| choose(router, candidates, &session(n)))
            .collect()
    };
    let before = home(&mut router, &all);
    assert!(
        before
            .iter()
            .all(|choice| choice.because == Because::Session)
    );
    let fewer: Vec<_> = all
        .iter()
        .copied()
        .filter(|one| one.replica.get() != 2)
        .collect();
    let without = home(&mut router, &fewer);
    for (old, new) in before.iter().zip(&without) {
        assert!(old.replica == new.replica || old.replica.get() == 2);
        assert_ne!(new.replica.get(), 2);
    }
    assert_eq!(
        home(&mut router, &all),
        before,
        "and on its return only they come back"
    );
    let mut per_replica = [0; 5];
    for choice in &before {
        per_replica[usize::try_from(choice.replica.get()).unwrap()] += 1;
    }
    assert!(
        per_replica.iter().all(|count| *count > 20),
        "{per_replica:?}"
    );
}

#[test]
fn a_session_whose_replica_is_full_says_that_it_moved() {
    let mut router = Router::new(Policy::PowerOfTwo, 1);
    let all = idle(3);
    let home = choose(&mut router, &all, &session(7));
    let with_room: Vec<_> = all
        .iter()
        .copied()
        .filter(|one| one.replica != home.replica)
        .collect();
    let affinity = session(7);
    let seek = Seek {
        tenant: TENANT,
        prompt: Tokens::ZERO,
        affinity: &affinity,
    };
    let moved = router.choose(seek, &with_room, &pool(&all)).unwrap();
    assert_eq!(moved.because, Because::SessionMoved);
}

#[test]
fn requests_without_a_session_hash_by_how_they_begin() {
    let mut router = Router::new(Policy::Hash, 1);
    let all = idle(6);
    let one = choose(&mut router, &all, &prompt(&[1, 2]));
    let other = choose(&mut router, &all, &prompt(&[1, 9]));
    assert_eq!((one.replica, one.because), (other.replica, Because::Hash));
}

#[test]
fn the_same_seed_makes_the_same_choices() {
    let play = || seen(&mut Router::new(Policy::Prefix, 9), &idle(7), 100);
    assert_eq!(play(), play());
}
