//! One row for each admitted request, with what it really used.

use serde_json::{Value, json};

use crate::support::chat::{keyed, say, short, stream};
use crate::support::http::Request;
use crate::support::rig::{FAST, OPEN, Rig, key};
use crate::support::stream::Stream;

const TENANT: &str = "
tenants:
  - name: payer
    keys: [{ env: PAYER }]
";

fn row<'a>(rows: &'a [Value], name: &str) -> &'a Value {
    let mut own = rows.iter().filter(|row| row["request"] == name);
    let row = own.next().unwrap_or_else(|| panic!("no row for {name}"));
    assert!(own.next().is_none(), "two rows for {name}");
    row
}

#[tokio::test]
async fn a_row_says_who_used_what_streamed_or_not_alike() {
    let config = format!(
        "{}{TENANT}",
        OPEN.replace("anonymous: allow", "anonymous: deny")
    );
    let rig = Rig::start(&config).await;
    let members = json!({"seed": 1, "max_tokens": 30});
    let whole = rig.send(&keyed(say(members.clone()), &key("PAYER"))).await;
    let usage = whole.json()["usage"].clone();
    let streamed = Stream::begin(rig.address(), &keyed(stream(members), &key("PAYER"))).await;
    let streamed_name = streamed.head.request_id().to_owned();
    streamed.rest().await.assert_complete();
    let rows = rig.drain().await.ledger();
    assert_eq!(rows.len(), 2);
    for (name, cached) in [(whole.head.request_id(), 0), (&streamed_name, 16)] {
        let row = row(&rows, name);
        assert_eq!(row["tenant"], "payer");
        assert_eq!((&row["model"], &row["replica"]), (&json!("m"), &json!(0)));
        assert_eq!(row["outcome"], "completed");
        assert_eq!(
            row["finish_reason"],
            whole.json()["choices"][0]["finish_reason"]
        );
        assert_eq!(row["prompt_tokens"], usage["prompt_tokens"]);
        assert_eq!(row["output_tokens"], usage["completion_tokens"]);
        assert_eq!(row["cached_tokens"], cached);
        let span = |name: &str| row[name].as_u64().unwrap();
        assert!(span("queue_us") <= span("ttft_us") && span("ttft_us") <= span("total_us"));
    }
}

#[tokio::test]
async fn what_was_never_let_in_has_no_row() {
    let rig = Rig::start(FAST).await;
    let refused = [
        say(json!({"model": "unknown"})),
        say(json!({"max_tokens": 0})),
        say(json!({"messages": [{"role": "user", "content": "x".repeat(9_000)}]})),
        Request::get("/nope"),
        Request::get("/v1/models"),
    ];
    for request in refused {
        rig.send(&request).await;
    }
    let served = rig.send(&short()).await;
    let rows = rig.drain().await.ledger();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["request"], served.head.request_id());
}

#[tokio::test]
async fn a_row_is_on_disk_without_waiting_for_the_end_of_the_server() {
    let rig = Rig::start(FAST).await;
    let answer = rig.send(&short()).await;
    let row = rig.ledger_row(answer.head.request_id()).await;
    assert_eq!(row["output_tokens"], 5);
}

#[tokio::test]
async fn neither_prompts_nor_answers_nor_keys_are_in_the_ledger() {
    let config = format!(
        "{}{TENANT}",
        OPEN.replace("anonymous: allow", "anonymous: deny")
    );
    let rig = Rig::start(&config).await;
    let members = json!({
        "messages": [{"role": "user", "content": "a secret of mine"}], "max_tokens": 60,
        "ignore_eos": true, "user": "somebody",
    });
    let answer = rig.send(&keyed(say(members), &key("PAYER"))).await;
    assert_eq!(answer.status(), 200);
    let rows = rig.drain().await.ledger();
    let written = json!(rows).to_string();
    for secret in ["secret of mine", "somebody", &key("PAYER"), "toll "] {
        assert!(!written.contains(secret), "{secret:?} in {written}");
    }
    assert_eq!(rows.len(), 1);
}
