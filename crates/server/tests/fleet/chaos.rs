//! Three engines under load, one of which is killed, stopped, slowed and made to reset connections:
//! no request is lost of which no token was streamed, and it is back without help.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::failing::futures_all;
use crate::gateway::{Gateway, Reply, chat, engines, is_whole};
use crate::support::wait::{eventually, secs};
use crate::unruly::{Mood, Unruly};

/// Clients that ask again and again.
const CLIENTS: usize = 12;

/// What became of the requests.
#[derive(Debug, Default)]
struct Tally {
    whole: AtomicUsize,
    cut: AtomicUsize,
    lost: std::sync::Mutex<Vec<String>>,
}

impl Tally {
    fn note(&self, answer: &Reply) {
        if is_whole(answer) {
            self.whole.fetch_add(1, Ordering::Relaxed);
        } else if answer.status() == 200 && answer.text().contains("\"content\"") {
            // It had streamed a token, and ended with an error that says so.
            assert!(answer.text().contains("\"error\""), "{answer:?}");
            self.cut.fetch_add(1, Ordering::Relaxed);
        } else {
            self.lost.lock().unwrap().push(format!("{answer:?}"));
        }
    }
}

/// Has clients ask until `phase` is over.
async fn under_load(gateway: &Gateway, tally: &Tally, phase: impl Future<Output = ()>) {
    let over = AtomicBool::new(false);
    let client = |n: usize| {
        let over = &over;
        async move {
            let mut round = 0;
            while !over.load(Ordering::Relaxed) {
                let answer = gateway
                    .send(&chat(&format!("client {n}, round {round}")))
                    .await;
                tally.note(&answer);
                round += 1;
            }
        }
    };
    let phase = async {
        phase.await;
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(futures_all((0..CLIENTS).map(client)), phase);
}

async fn until_asked(engine: &Unruly, more: usize) {
    let before = engine.asked();
    eventually(secs(60), "it is asked", async || {
        engine.asked() >= before + more
    })
    .await;
}

async fn until_whole(tally: &Tally, more: usize) {
    let before = tally.whole.load(Ordering::Relaxed);
    let done = async || tally.whole.load(Ordering::Relaxed) >= before + more;
    eventually(secs(60), "requests are served", done).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_one_of_three_does_no_request_is_lost_that_had_not_streamed_a_token() {
    let engines = engines(3).await;
    let gateway = Gateway::before(&engines, "").await;
    let (bad, tally) = (&engines[0], Tally::default());

    under_load(&gateway, &tally, async {
        until_asked(bad, 20).await;
        bad.kill().await;
        gateway.until_state(bad, "ejected").await;
        until_whole(&tally, 100).await;
        bad.revive().await;
        until_asked(bad, 20).await;
    })
    .await;

    under_load(&gateway, &tally, async {
        bad.is(Mood::Frozen);
        gateway.until_state(bad, "ejected").await;
        until_whole(&tally, 100).await;
        bad.is(Mood::Well);
        until_asked(bad, 20).await;
    })
    .await;

    under_load(&gateway, &tally, async {
        bad.is(Mood::Slow);
        let before: Vec<_> = engines.iter().map(Unruly::asked).collect();
        until_whole(&tally, 300).await;
        let more: Vec<_> = engines
            .iter()
            .zip(&before)
            .map(|(one, old)| one.asked() - old)
            .collect();
        assert!(
            more[0] * 2 < more[1].max(more[2]),
            "the slow one got {more:?}"
        );
        bad.is(Mood::Well);
        until_asked(bad, 20).await;
    })
    .await;

    under_load(&gateway, &tally, async {
        bad.is(Mood::Resets);
        until_whole(&tally, 300).await;
        bad.is(Mood::Well);
        until_asked(bad, 20).await;
    })
    .await;

    let lost = tally.lost.lock().unwrap().clone();
    assert_eq!(lost, [""; 0], "{tally:?}");
    gateway.until_healthy(3).await;
    gateway.until_idle().await;
}
