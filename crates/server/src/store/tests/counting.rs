//! Folding, usage, spending, purging, recounting.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

promises!(PROMISES:
    a_request_counts_once_however_often_its_journal_is_replayed,
    a_request_that_the_log_has_forgotten_does_not_count_again,
    two_journals_may_have_requests_of_the_same_name,
    prompt_cached_and_output_tokens_are_kept_apart,
    a_price_holds_from_its_date_on_and_not_before,
    hours_days_and_months_agree_and_are_summed_by_any_dimension,
    a_sum_over_part_of_a_day_is_not_told_as_the_day,
    spending_is_counted_from_the_moment_a_window_begins,
    a_recount_finds_what_was_changed_behind_its_back,
    an_answer_is_kept_for_its_time_and_within_its_bytes,
);

fn a_request_counts_once_however_often_its_journal_is_replayed(store: &mut Store) {
    store.set_prices(&priced(), &[price(0)]).unwrap();
    let charges: Vec<_> = (0..40)
        .map(|n| charge(n, "t", SPRING + n * HOUR / 8))
        .collect();
    let journal = std::cell::Cell::new(0);
    let store = std::cell::RefCell::new(store);
    let replays = prop::collection::vec((0_usize..40, 0_usize..40), 1..6);
    let mut runner = TestRunner::new(Config::with_cases(12));
    let replayed = runner.run(&replays, |replays| {
        journal.set(journal.get() + 1);
        let (name, store) = (format!("j{}", journal.get()), &mut **store.borrow_mut());
        let before = total(store);
        // Whole once, in two parts; then any part of it, any number of times.
        for (from, to) in [(0, 25), (10, 40)].into_iter().chain(replays) {
            let (from, to) = (from.min(to), from.max(to));
            store
                .fold(&name, &charges[from..to], upto(u64::try_from(to).unwrap()))
                .unwrap();
        }
        let after = total(store);
        prop_assert_eq!(after.requests - before.requests, 40);
        prop_assert_eq!(
            after.output_tokens - before.output_tokens,
            (1..=40).sum::<u64>()
        );
        prop_assert_eq!(
            after.cost_nano_usd - before.cost_nano_usd,
            40 * 60 + 2 * 820
        );
        Ok(())
    });
    replayed.unwrap();
    let store = store.into_inner();
    assert_eq!(store.verify_usage().unwrap(), []);
}

fn a_request_that_the_log_has_forgotten_does_not_count_again(store: &mut Store) {
    let charges: Vec<_> = (0..10).map(|n| charge(n, "t", SPRING)).collect();
    store.fold("j", &charges, upto(10)).unwrap();
    assert_eq!(store.purge_requests(SPRING + 1).unwrap(), 10);
    assert_eq!(store.folded("j").unwrap().number, 10);
    let folded = store.fold("j", &charges, upto(10)).unwrap();
    assert_eq!((folded.counted, folded.known), (0, 10));
    assert_eq!(total(store).requests, 10);
    assert_eq!(
        store.verify_usage().unwrap(),
        [],
        "forgotten hours are not compared"
    );
}

fn two_journals_may_have_requests_of_the_same_name(store: &mut Store) {
    store.fold("a", &[charge(0, "t", SPRING)], upto(1)).unwrap();
    store.fold("b", &[charge(0, "t", SPRING)], upto(1)).unwrap();
    assert_eq!(total(store).requests, 2);
}

fn prompt_cached_and_output_tokens_are_kept_apart(store: &mut Store) {
    store
        .fold(
            "j",
            &[charge(0, "t", SPRING), charge(1, "t", SPRING)],
            upto(2),
        )
        .unwrap();
    let amounts = Amounts {
        requests: 2,
        prompt_tokens: 200,
        cached_tokens: 80,
        output_tokens: 3,
        kv_micro_gib_seconds: 14,
        cost_nano_usd: 0,
    };
    assert_eq!(total(store), amounts);
}

fn a_price_holds_from_its_date_on_and_not_before(store: &mut Store) {
    store.set_prices(&priced(), &[price(SPRING)]).unwrap();
    assert_eq!(store.prices().unwrap(), [price(SPRING)]);
    store
        .fold("j", &[charge(0, "t", SPRING - 1)], upto(1))
        .unwrap();
    assert_eq!(total(store).cost_nano_usd, 0);
    store.fold("j", &[charge(1, "t", SPRING)], upto(2)).unwrap();
    assert_eq!(total(store).cost_nano_usd, 60 + 4);
    // What has been counted keeps its cost.
    store.set_prices(&priced(), &[]).unwrap();
    assert_eq!(total(store).cost_nano_usd, 60 + 4);
}

fn hours_days_and_months_agree_and_are_summed_by_any_dimension(store: &mut Store) {
    let mut charges = Vec::new();
    for n in 0..600 {
        let tenant = if n % 3 == 0 { "a" } else { "b" };
        charges.push(charge(n, tenant, SPRING + n * HOUR));
    }
    store.fold("j", &charges, upto(600)).unwrap();
    let sum = |rows: &[UsageRow]| {
        let mut sum = Amounts::default();
        rows.iter().for_each(|row| sum.plus(row.amounts));
        sum
    };
    let all = total(store);
    assert_eq!(all.requests, 600);
    for grain in Grain::ALL {
        let time = Dimension::Time(grain);
        let rows = store
            .usage(&everything(&[Dimension::Tenant, time]))
            .unwrap();
        assert_eq!(sum(&rows), all, "{grain:?}");
        assert!(rows.is_sorted_by_key(|row| (row.tenant.clone(), row.time.clone())));
    }
    let months = everything(&[Dimension::Time(Grain::Month), Dimension::Tenant]);
    let months = store.usage(&months).unwrap();
    let first = (months[0].time.as_deref(), months[0].tenant.as_deref());
    assert_eq!((months.len(), first), (4, (Some("2026-03"), Some("a"))));
    let only = Question {
        tenant: Some("a".to_owned()),
        ..everything(&[Dimension::Model])
    };
    let rows = store.usage(&only).unwrap();
    assert_eq!((rows.len(), rows[0].amounts.requests), (1, 200));
    assert_eq!(store.verify_usage().unwrap(), []);
}

fn a_sum_over_part_of_a_day_is_not_told_as_the_day(store: &mut Store) {
    let ask = |by: &[Dimension], from_us| Question {
        from_us,
        ..everything(by)
    };
    let day = [Dimension::Time(Grain::Day)];
    let cut = store.usage(&ask(&day, SPRING)).unwrap_err();
    assert_eq!(cut, UsageError::CutsGrain("day"));
    let cut = store.usage(&ask(&[], SPRING + 1)).unwrap_err();
    assert_eq!(cut, UsageError::NotWholeHours);
    let twice = store
        .usage(&ask(&[Dimension::Tenant, Dimension::Tenant], 0))
        .unwrap_err();
    assert_eq!(twice, UsageError::Twice);
    // Half a day by tenant is summed from its hours.
    store
        .fold(
            "j",
            &[charge(0, "t", SPRING - 1), charge(1, "t", SPRING)],
            upto(2),
        )
        .unwrap();
    let rows = store.usage(&ask(&[Dimension::Tenant], SPRING)).unwrap();
    assert_eq!(rows[0].amounts.requests, 1);
}

fn spending_is_counted_from_the_moment_a_window_begins(store: &mut Store) {
    store.set_prices(&priced(), &[price(0)]).unwrap();
    let keyed = |number, ended_us| Charge {
        key: Some("k1".into()),
        ..charge(number, "t", ended_us)
    };
    let charges = [
        keyed(0, SPRING - 1),
        keyed(1, SPRING),
        charge(2, "t", SPRING + HOUR),
    ];
    store.fold("j", &charges, upto(3)).unwrap();
    assert_eq!(store.spent(&Scope::Tenant("t"), SPRING).unwrap(), 64 + 66);
    assert_eq!(store.spent(&Scope::Key("k1"), SPRING).unwrap(), 64);
    assert_eq!(
        store.spent(&Scope::Key("k1"), SPRING - HOUR).unwrap(),
        62 + 64
    );
    assert_eq!(store.spent(&Scope::Tenant("nobody"), 0).unwrap(), 0);
}

fn a_recount_finds_what_was_changed_behind_its_back(store: &mut Store) {
    let charges: Vec<_> = (0..5).map(|n| charge(n, "t", SPRING)).collect();
    store.fold("j", &charges[..4], upto(4)).unwrap();
    assert_eq!(store.verify_journal("j", &charges).unwrap(), []);
    assert_eq!(store.verify_usage().unwrap(), []);
    let tamper = |sql: &str, store: &mut Store| {
        store.with(|database| database.batch(sql)).unwrap();
    };
    tamper(
        "UPDATE request_log SET output_tokens = 9 WHERE request = 'req-2'",
        store,
    );
    tamper("DELETE FROM request_log WHERE request = 'req-3'", store);
    let found = store.verify_journal("j", &charges).unwrap();
    let said: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].starts_with("req-2: prompt 100, cached 40, output 3"),
        "{}",
        said[0]
    );
    assert_eq!(said[1], "req-3: not in the store");
    assert_eq!(store.verify_usage().unwrap().len(), 1, "the hour");
    tamper("UPDATE usage SET cost = cost + 1 WHERE grain = 2", store);
    assert_eq!(
        store.verify_usage().unwrap().len(),
        2,
        "the hour and the month"
    );
}

fn an_answer_is_kept_for_its_time_and_within_its_bytes(store: &mut Store) {
    let replay = |n: u8, finished_us| Replay {
        tenant: "t".to_owned(),
        name: [n; 32],
        body_hash: [n; 32],
        request: format!("req-{n}"),
        status: 200,
        headers: "[]".to_owned(),
        body: vec![n; 100],
        finished_us,
    };
    for n in 1..=4 {
        store.keep_replay(&replay(n, u64::from(n))).unwrap();
    }
    assert_eq!(store.replay("t", &[2; 32], 0).unwrap(), Some(replay(2, 2)));
    assert_eq!(store.replay("t", &[2; 32], 3).unwrap(), None, "too old");
    assert_eq!(
        store.replay("u", &[2; 32], 0).unwrap(),
        None,
        "another tenant's"
    );
    store.purge_replays(2, 250).unwrap();
    let kept = [1, 2, 3, 4].map(|n| store.replay("t", &[n; 32], 0).unwrap().is_some());
    assert_eq!(kept, [false, false, true, true]);
}
