//! Engines that fail requests: who is asked instead, who is left alone, and for how long.

use crate::gateway::{Gateway, chat, engines, is_whole};
use crate::support::http::Request;
use crate::support::wait::{eventually, secs};
use crate::unruly::{Mood, Unruly};

#[tokio::test]
async fn one_that_answers_500_to_all_costs_no_client_anything_and_is_soon_left_alone() {
    let engines = engines(2).await;
    let gateway = Gateway::before(&engines, "").await;
    engines[0].is(Mood::Says(500));
    for n in 0..50 {
        let answer = gateway.send(&chat(&format!("request {n}"))).await;
        assert!(is_whole(&answer), "{n}: {answer:?}");
    }
    // It is back as often as its pause is over, each time for a few.
    assert!(engines[0].asked() < 25, "{}", engines[0].asked());
    assert_eq!(engines[1].asked(), 50);
    engines[0].is(Mood::Well);
    gateway.until_state(&engines[0], "healthy").await;
    gateway.until_idle().await;
}

#[tokio::test]
async fn a_callers_mistakes_are_no_sign_against_an_engine_and_go_to_no_other() {
    let engines = engines(2).await;
    let gateway = Gateway::before(&engines, "").await;
    for status in [400, 404, 413, 422] {
        engines
            .iter()
            .for_each(|engine| engine.is(Mood::Says(status)));
        let before: usize = engines.iter().map(Unruly::asked).sum();
        for _ in 0..25 {
            assert_eq!(gateway.ask().await.status(), status);
        }
        let after: usize = engines.iter().map(Unruly::asked).sum();
        assert_eq!(after - before, 25, "no other is asked");
    }
    engines.iter().for_each(|engine| engine.is(Mood::Well));
    gateway.until_healthy(2).await;
    assert!(is_whole(&gateway.ask().await));
}

#[tokio::test]
async fn the_only_one_is_used_again_after_a_failure() {
    let engines = engines(1).await;
    let gateway = Gateway::before(&engines, "").await;
    for mood in [Mood::Says(500), Mood::Begins, Mood::Resets] {
        engines[0].is(mood);
        for _ in 0..5 {
            gateway.ask().await;
        }
        engines[0].is(Mood::Well);
        assert!(is_whole(&gateway.ask().await), "after {mood:?}");
    }
    engines[0].kill().await;
    gateway.until_state(&engines[0], "ejected").await;
    let refused = gateway.ask().await;
    assert_eq!((refused.status(), refused.reason()), (503, "no_replica"));
    let not_ready = gateway.send(&Request::get("/ready")).await;
    assert_eq!(not_ready.status(), 503, "and says so before it is asked");
    engines[0].revive().await;
    gateway.until_state(&engines[0], "healthy").await;
    assert!(is_whole(&gateway.ask().await));
    assert_eq!(gateway.send(&Request::get("/ready")).await.status(), 200);
}

#[tokio::test]
async fn one_that_hangs_takes_no_request_with_it() {
    let engines = engines(2).await;
    let gateway = Gateway::before(&engines, "    routing: { policy: round_robin }\n").await;
    engines[0].is(Mood::Frozen);
    let all = (0..40).map(|_| gateway.ask());
    let answers = futures_all(all).await;
    assert!(answers.iter().all(is_whole), "{answers:?}");
    assert!(engines[0].asked() == 0, "it has read nothing");
    gateway.until_state(&engines[0], "ejected").await;
    engines[0].is(Mood::Well);
    gateway.until_state(&engines[0], "healthy").await;
    gateway.until_idle().await;
}

#[tokio::test]
async fn a_full_one_is_left_alone_as_long_as_it_asks_and_stays_in() {
    let engines = engines(2).await;
    let gateway = Gateway::before(&engines, "").await;
    engines[0].is(Mood::Full(60));
    for n in 0..30 {
        let answer = gateway.send(&chat(&format!("request {n}"))).await;
        assert!(is_whole(&answer), "{answer:?}");
    }
    assert_eq!(engines[0].asked(), 1, "it was asked once, and then not");
    assert_eq!(gateway.state(&engines[0]).await, "healthy");
}

#[tokio::test]
async fn when_the_only_one_is_full_the_client_is_told_and_the_next_one_waits_with_us() {
    let engines = engines(1).await;
    let gateway = Gateway::before(&engines, "").await;
    engines[0].is(Mood::Full(1));
    let told = gateway.ask().await;
    assert_eq!((told.status(), told.reason()), (503, "replica_busy"));
    assert!(told.header("retry-after").is_some());
    engines[0].is(Mood::Well);
    assert!(is_whole(&gateway.ask().await));
    assert_eq!(engines[0].asked(), 2);
}

#[tokio::test]
async fn after_its_first_token_a_stream_ends_with_an_error_and_is_made_once() {
    let engines = engines(2).await;
    let gateway = Gateway::before(&engines, "").await;
    for mood in [Mood::BreaksOff, Mood::Begins] {
        engines.iter().for_each(|engine| engine.is(mood));
        let before: usize = engines.iter().map(Unruly::asked).sum();
        let answer = gateway.ask().await;
        assert_eq!(answer.status(), 200);
        assert!(answer.text().contains("\"error\""), "{answer:?}");
        assert!(!answer.text().contains("[DONE]"), "{answer:?}");
        let after: usize = engines.iter().map(Unruly::asked).sum();
        assert_eq!(after - before, 1, "{mood:?}");
    }
    gateway.until_idle().await;
}

#[tokio::test]
async fn one_that_misses_probes_and_serves_is_kept() {
    let engines = engines(2).await;
    let gateway = Gateway::before(&engines, "").await;
    engines[0].is(Mood::Deaf);
    for _ in 0..60 {
        assert!(is_whole(&gateway.ask().await));
        assert_eq!(gateway.state(&engines[0]).await, "healthy");
    }
}

#[tokio::test]
async fn when_all_fail_the_client_is_told_after_a_bounded_number_of_tries() {
    let engines = engines(5).await;
    let gateway = Gateway::before(&engines, "").await;
    engines.iter().for_each(|engine| engine.is(Mood::Says(500)));
    let answer = gateway.ask().await;
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, "replica_failed_request")
    );
    assert_eq!(engines.iter().map(Unruly::asked).sum::<usize>(), 3);
    gateway.until_idle().await;
}

#[tokio::test]
async fn loads_return_to_nothing_however_requests_end() {
    let engines = engines(2).await;
    let gateway = Gateway::before(&engines, "    routing: { policy: least_load }\n").await;
    for mood in [
        Mood::Says(500),
        Mood::BreaksOff,
        Mood::Begins,
        Mood::Says(400),
        Mood::Resets,
    ] {
        engines[0].is(mood);
        futures_all((0..20).map(|_| gateway.ask())).await;
    }
    engines[0].is(Mood::Well);
    gateway.until_healthy(2).await;
    engines.iter().for_each(|engine| engine.is(Mood::Waits));
    // Clients that leave while their engines work.
    let leaving = futures_all((0..20).map(|_| gateway.ask()));
    let work = async {
        let both = async || engines.iter().all(|engine| engine.now() > 0);
        eventually(secs(60), "both work", both).await;
    };
    tokio::select! {
        _ = leaving => panic!("nobody answers"),
        () = work => {}
    }
    engines.iter().for_each(|engine| engine.is(Mood::Well));
    gateway.until_healthy(2).await;
    gateway.until_idle().await;
    let before = engines[0].asked();
    // Some at a time: the one that is back is given more with each answer.
    for _ in 0..10 {
        let whole = futures_all((0..10).map(|_| gateway.ask())).await;
        assert!(whole.iter().all(is_whole));
    }
    let share = engines[0].asked() - before;
    assert!((20..=80).contains(&share), "it got {share} of 100");
}

/// All of them at once.
pub(crate) async fn futures_all<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|cx| {
        for (one, done) in &mut waiting {
            if done.is_none()
                && let std::task::Poll::Ready(output) = one.as_mut().poll(cx)
            {
                *done = Some(output);
            }
        }
        match waiting.iter().all(|(_, done)| done.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    waiting.into_iter().filter_map(|(_, done)| done).collect()
}

#[tokio::test]
async fn while_its_engine_is_dead_the_gateway_says_so_and_stays_alive() {
    let engines = engines(1).await;
    let gateway = Gateway::before(&engines, "").await;
    let (ready, health) = (Request::get("/ready"), Request::get("/health"));
    assert_eq!(gateway.send(&ready).await.status(), 200);
    engines[0].kill().await;
    eventually(secs(60), "it is not ready", async || {
        gateway.send(&ready).await.status() == 503
    })
    .await;
    assert_eq!(gateway.send(&health).await.status(), 200);
    let refused = gateway.ask().await;
    assert!(matches!(refused.status(), 502 | 503), "{refused:?}");
    engines[0].revive().await;
    eventually(secs(60), "it is ready again", async || {
        gateway.send(&ready).await.status() == 200
    })
    .await;
    assert!(is_whole(&gateway.ask().await));
}
