//! Keys that are not known: one answer for all of them, and no trace of what was sent.

use crate::support::chat::{CHAT, TEXT, hi};
use crate::support::http::Request;
use crate::support::rig::{FAST, Rig, key};

/// Something that stands in no answer of its own accord.
const SECRET: &str = "Zq7xWv";

#[tokio::test]
async fn no_key_that_is_wrong_can_be_told_from_another_or_leaves_a_trace() {
    let config = FAST.replace("anonymous: allow", "anonymous: deny");
    let rig = Rig::start(&format!(
        "{config}\ntenants:\n  - {{ name: t, keys: [{{ env: T }}] }}\n"
    ))
    .await;
    let keys: Vec<Vec<u8>> = vec![
        format!("sk-{SECRET}").into(),
        format!("{}{SECRET}", key("T")).into(),
        key("T").to_uppercase().into(),
        format!("Basic {SECRET}").into(),
        format!("Bearer Bearer {SECRET}").into(),
        format!("{} {SECRET}", key("T")).into(),
        SECRET.repeat(1_700).into(),
        [SECRET.as_bytes(), b"\xff\xfe\x80"].concat(),
        SECRET.chars().rev().collect::<String>().into(),
        b"Bearer".into(),
        b"".into(),
    ];
    let endpoints = [
        Request::post(CHAT, hi().to_string()),
        Request::post(TEXT, hi().to_string()),
        Request::post(CHAT, "{:"),
        Request::get("/v1/models"),
        Request::get("/v1/models/m"),
        Request::post("/v1/embeddings", hi().to_string()),
        Request::get("/v1/usage"),
    ];
    let expected = rig.send(&endpoints[0]).await;
    assert_eq!((expected.status(), expected.reason()), (401, "bad_key"));
    assert_eq!(expected.json()["error"]["code"], "invalid_api_key");
    for key in &keys {
        for request in &endpoints {
            let places = [
                ("authorization", [b"Bearer ", key.as_slice()].concat()),
                ("authorization", key.clone()),
                ("x-api-key", key.clone()),
                ("api-key", key.clone()),
            ];
            for (place, value) in places {
                let answer = rig.send(&request.clone().header(place, value)).await;
                assert_eq!((answer.status(), answer.text()), (401, expected.text()));
                assert!(!format!("{:?}", answer.head).contains(SECRET));
            }
        }
    }
    let metrics = rig.get("/metrics").await;
    assert!(!metrics.text().contains(SECRET));
    assert!(metrics.text().contains("reason=\"bad_key\""));
    assert!(rig.scrape().await.is_idle());
    assert_eq!(rig.drain().await.ledger().len(), 0);
}
