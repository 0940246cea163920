//! A step that does not end: its requests fail, the replica is not ready, and comes back when the
//! step did after all.

use serde_json::json;
use tollgate_engine::fake::Faults;
use tollgate_policy::units::Micros;

use crate::support::chat::{endless, say, short};
use crate::support::rig::{OPEN, Rig};
use crate::support::stream::Stream;
use crate::support::wait::{eventually, secs};

#[tokio::test]
async fn a_step_that_does_not_end_fails_its_requests_and_the_replica_comes_back_after_it() {
    let yaml = OPEN.replace(
        "engine: fake",
        "engine: fake\n    stuck_step: { after: 1s }",
    );
    let faults = Faults {
        slow_step: Some((50, Micros::from_secs(8))),
        ..Faults::default()
    };
    let rig = Rig::start_with(&yaml, faults).await;
    let stream = Stream::begin(rig.address(), &endless()).await;
    let told = stream.rest().await;
    told.assert_failed("replica_failed");
    assert_eq!(rig.get("/ready").await.status(), 503);
    let refused = rig.send(&short()).await;
    assert_eq!(refused.status(), 503, "{}", refused.text());
    // What was made before the step is charged.
    let row = rig.ledger_first().await;
    let made = row["output_tokens"].as_u64();
    assert!(made.unwrap() > 10, "{row}");
    let is_ready = async || rig.get("/ready").await.status() == 200;
    eventually(secs(60), "the replica is started again", is_ready).await;
    let answer = rig
        .send(&say(json!({"max_tokens": 5, "ignore_eos": true})))
        .await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    rig.until_idle(secs(60)).await;
}
