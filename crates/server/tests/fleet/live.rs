//! Replicas that come and go while the gateway runs, by its operator and by its configuration.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::failing::futures_all;
use crate::gateway::{Gateway, addresses, engines, is_whole, yaml};
use crate::support::http::Request;
use crate::support::wait::{eventually, secs};
use crate::unruly::{Mood, Unruly};

fn adding(engine: &Unruly) -> Request {
    let body = json!({ "model": "m", "url": format!("http://{}", engine.address) });
    Request::post("/admin/v1/replicas", body.to_string())
}

#[tokio::test]
async fn a_replica_that_is_added_gets_work_and_one_that_is_removed_finishes_its_own() {
    let engines = engines(2).await;
    let gateway = Gateway::before(&engines[..1], "").await;
    let added = gateway.operator(&adding(&engines[1])).await;
    assert_eq!((added.status(), &added.json()["replica"]), (201, &json!(1)));
    gateway.until_healthy(2).await;
    let twice = gateway.operator(&adding(&engines[1])).await;
    assert_eq!(twice.status(), 409);

    engines.iter().for_each(|engine| engine.is(Mood::Waits));
    let all = futures_all((0..20).map(|_| gateway.ask()));
    let goes = async {
        let sum = || engines.iter().map(Unruly::now).sum::<usize>();
        eventually(secs(60), "all are sent", async || sum() == 20).await;
        assert!(engines[1].now() > 0);
        assert_eq!(gateway.remove(1).await.status(), 202);
        assert_eq!(gateway.state(&engines[1]).await, "leaving");
        engines.iter().for_each(|engine| engine.is(Mood::Well));
    };
    let (answers, ()) = tokio::join!(all, goes);
    assert!(answers.iter().all(is_whole), "{answers:?}");
    gateway.until_state(&engines[1], "none").await;
    let before = engines[1].asked();
    for _ in 0..10 {
        assert!(is_whole(&gateway.ask().await));
    }
    assert_eq!(engines[1].asked(), before);
    let again = gateway.operator(&adding(&engines[1])).await;
    assert_eq!(
        (again.status(), &again.json()["replica"]),
        (201, &json!(1)),
        "its number is free"
    );
    gateway.until_healthy(2).await;
    gateway.drain().await;
}

#[tokio::test]
async fn what_can_not_be_added_or_removed_is_refused_with_the_reason() {
    let engines = engines(1).await;
    let gateway = Gateway::before(&engines, "").await;
    let post = |body: serde_json::Value| Request::post("/admin/v1/replicas", body.to_string());
    let cases = [
        (
            post(json!({ "model": "none", "url": "http://127.0.0.1:1" })),
            404,
        ),
        (post(json!({ "model": "m", "url": "127.0.0.1:1" })), 400),
        (post(json!({ "model": "m" })), 400),
        (
            post(json!({ "model": "m", "url": "http://127.0.0.1:1", "onyl": "x" })),
            400,
        ),
        (
            post(json!({ "model": "m", "url": "http://127.0.0.1:1", "only": "x" })),
            400,
        ),
    ];
    for (request, status) in cases {
        let answer = gateway.operator(&request).await;
        assert_eq!(answer.status(), status, "{answer:?}");
        assert!(answer.json()["error"]["message"].is_string());
    }
    assert_eq!(gateway.remove(7).await.status(), 404);
    assert_eq!(gateway.replicas().await.len(), 1);
}

#[tokio::test]
async fn a_changed_configuration_adds_and_removes_replicas_and_no_request_is_lost() {
    let engines = engines(3).await;
    let all = addresses(&engines);
    let gateway = Gateway::before(&engines[..2], "").await;
    let (mut asked, mut lost) = (0, 0);
    let over = AtomicBool::new(false);
    for names in [&all[..], &all[1..], &all[2..], &all[..]] {
        gateway.reload(&yaml(names, "")).await;
        over.store(false, Ordering::Relaxed);
        let waiting = async {
            for (engine, at) in engines.iter().zip(&all) {
                let state = if names.contains(at) {
                    "healthy"
                } else {
                    "none"
                };
                gateway.until_state(engine, state).await;
            }
            over.store(true, Ordering::Relaxed);
        };
        let asking = async {
            loop {
                let answers = futures_all((0..8).map(|_| gateway.ask())).await;
                asked += answers.len();
                lost += answers.iter().filter(|answer| !is_whole(answer)).count();
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        };
        tokio::join!(waiting, asking);
    }
    assert!(asked > 0);
    assert_eq!(lost, 0, "of {asked}");
    gateway.until_idle().await;
}
