//! Which engine is asked, and that the client is told why.

use crate::failing::futures_all;
use crate::gateway::{Gateway, Reply, chat, engines, is_whole};
use crate::support::wait::{eventually, secs};
use crate::unruly::{Mood, Unruly};

#[tokio::test]
async fn load_is_counted_when_a_request_is_sent_and_not_when_it_is_answered() {
    let engines = engines(3).await;
    for engine in &engines {
        engine.is(Mood::Waits);
    }
    let gateway = Gateway::before(&engines, "    routing: { policy: least_load }\n").await;
    let all = futures_all((0..30).map(|_| gateway.ask()));
    let level = async {
        let sum = || engines.iter().map(Unruly::now).sum::<usize>();
        eventually(secs(60), "all are sent", async || sum() == 30).await;
        let each: Vec<_> = engines.iter().map(Unruly::now).collect();
        engines.iter().for_each(|engine| engine.is(Mood::Well));
        each
    };
    let (answers, each) = tokio::join!(all, level);
    assert_eq!(each, [10, 10, 10]);
    assert!(answers.iter().all(is_whole));
    assert!(answers.iter().all(|one| one.why_there() == "least_load"));
}

#[tokio::test]
async fn a_session_stays_on_its_engine_moves_when_that_goes_and_returns_with_it() {
    let engines = engines(3).await;
    let gateway = Gateway::before(&engines, "").await;
    let asks = |name: &str| chat("hi").header("x-session-id", name);
    let home = Reply::replica;
    let mut homes = Vec::new();
    for n in 0..12 {
        let first = gateway.send(&asks(&format!("s{n}"))).await;
        assert_eq!(first.why_there(), "session");
        homes.push(home(&first));
    }
    let goes = homes[0];
    engines[goes].kill().await;
    gateway.until_state(&engines[goes], "ejected").await;
    for (n, old) in homes.iter().enumerate() {
        let answer = gateway.send(&asks(&format!("s{n}"))).await;
        assert!(is_whole(&answer));
        let moved = home(&answer);
        assert_eq!(
            moved == *old,
            *old != homes[0],
            "only those of the one that went move"
        );
    }
    engines[goes].revive().await;
    gateway.until_state(&engines[goes], "healthy").await;
    for (n, old) in homes.iter().enumerate() {
        assert_eq!(home(&gateway.send(&asks(&format!("s{n}"))).await), *old);
    }
}

#[tokio::test]
async fn a_long_prompt_goes_where_it_has_been_and_another_tenants_does_not_follow_it() {
    let engines = engines(6).await;
    let gateway = Gateway::before(&engines, "").await;
    let long = "all that was said before ".repeat(400);
    let first = gateway.send(&chat(&long)).await;
    let home = first.replica();
    for n in 0..10 {
        let answer = gateway.send(&chat(&format!("{long} and then {n}"))).await;
        assert_eq!(answer.replica(), home);
        assert_eq!(answer.why_there(), "prefix");
    }
    let other = chat(&long).header("x-tenant-id", "another");
    let answer = gateway.send(&other).await;
    assert_eq!(answer.why_there(), "two_choices");
}
