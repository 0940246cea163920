//! One row for each admitted request, with what it really used.

use serde_json::{Value, json};
use tollgate_engine::fake::Faults;

use crate::support::chat::{keyed, say, short, stream};
use crate::support::http::Request;
use crate::support::rig::{FAST, OPEN, Rig, key};
use crate::support::stream::Stream;
use crate::support::wait::{eventually, secs};

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

/// Puts a file where the journal's folder was: no disk takes records there.
fn break_disk(rig: &Rig) {
    let journal = rig.folder().join("journal");
    std::fs::rename(&journal, rig.folder().join("away")).unwrap();
    std::fs::write(&journal, "in the way").unwrap();
}

fn mend_disk(rig: &Rig) {
    std::fs::remove_file(rig.folder().join("journal")).unwrap();
}

async fn until_failing(rig: &Rig, fails: bool) {
    let wanted = if fails { 1.0 } else { 0.0 };
    rig.until(secs(60), "the disk is known to fail or not", |scrape| {
        scrape.sum("tollgate_ledger_failing", &[]) == wanted
    })
    .await;
}

#[tokio::test]
async fn while_the_disk_fails_new_work_is_refused_and_nothing_that_ran_is_lost() {
    let rig = Rig::start(OPEN).await;
    let before = rig.send(&short()).await;
    let members = json!({"ignore_eos": true, "max_tokens": 3000});
    let running = Stream::begin(rig.address(), &stream(members)).await;
    let name = running.head.request_id().to_owned();
    break_disk(&rig);
    until_failing(&rig, true).await;
    eventually(secs(60), "new work is refused", async || {
        rig.send(&short()).await.status() == 503
    })
    .await;
    let refused = rig.send(&short()).await;
    assert_eq!(refused.head.header("x-tollgate-reason"), Some("ledger"));
    assert!(refused.head.header("retry-after").is_some());
    let ready = rig.get("/ready").await;
    assert_eq!(ready.status(), 503);
    assert!(ready.text().contains("ledger"), "{}", ready.text());
    assert_eq!(rig.get("/health").await.status(), 200);
    running.rest().await.assert_complete();
    mend_disk(&rig);
    eventually(secs(60), "it takes work again", async || {
        rig.get("/ready").await.status() == 200
    })
    .await;
    let after = rig.send(&short()).await;
    assert_eq!(after.status(), 200);
    let rows = rig.drain().await.ledger();
    assert_eq!(row(&rows, &name)["output_tokens"], 3000);
    row(&rows, before.head.request_id());
    row(&rows, after.head.request_id());
}

#[tokio::test]
async fn who_prefers_serving_serves_while_the_disk_fails() {
    let rig = Rig::start(&format!("{FAST}\nledger: {{ on_failure: serve }}\n")).await;
    break_disk(&rig);
    until_failing(&rig, true).await;
    let served = rig.send(&short()).await;
    assert_eq!(served.status(), 200);
    assert_eq!(rig.get("/ready").await.status(), 200);
    mend_disk(&rig);
    until_failing(&rig, false).await;
    let rows = rig.drain().await.ledger();
    row(&rows, served.head.request_id());
}

#[tokio::test]
async fn a_segment_that_is_removed_while_it_is_written_is_put_back() {
    let rig = Rig::start(FAST).await;
    let first = rig.send(&short()).await;
    rig.ledger_row(first.head.request_id()).await;
    for file in std::fs::read_dir(rig.folder().join("journal")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let second = rig.send(&short()).await;
    rig.ledger_row(second.head.request_id()).await;
    let rows = rig.drain().await.ledger();
    row(&rows, first.head.request_id());
    assert_eq!(rows.len(), 2);
}

#[tokio::test]
async fn a_long_answer_is_marked_as_it_goes() {
    let rig = Rig::start(OPEN).await;
    let members = json!({"ignore_eos": true, "max_tokens": 6000});
    let mut running = Stream::begin(rig.address(), &stream(members)).await;
    let name = running.head.request_id().to_owned();
    let mut marked = None;
    let is_marked = async || {
        marked = rig.last_mark(&name);
        marked.is_some()
    };
    running.read_texts(1).await;
    eventually(secs(60), "a mark is on disk", is_marked).await;
    drop(running);
    let row = rig.ledger_row(&name).await;
    let (output, marked) = (row["output_tokens"].as_u64().unwrap(), marked.unwrap());
    assert!(0 < marked && marked <= output, "{marked} of {output}");
}

#[tokio::test]
async fn a_debt_outlives_the_server_that_ran_it_up() {
    let config = format!(
        "{}tenants: [{{ name: payer, keys: [{{ env: PAYER }}], limits: {{ tpm: 100 }} }}]\n",
        OPEN.replace("anonymous: allow", "anonymous: deny")
    );
    let rig = Rig::start(&config).await;
    let members = json!({"ignore_eos": true, "max_tokens": 3000});
    let spent = rig.send(&keyed(say(members), &key("PAYER"))).await;
    assert_eq!(spent.status(), 200, "{}", spent.text());
    let folder = rig.drain().await.into_folder();
    let rig = Rig::start_in(folder, &config, Faults::default()).await;
    let refused = rig.send(&keyed(short(), &key("PAYER"))).await;
    assert_eq!((refused.status(), refused.reason()), (429, "tokens"));
    assert!(
        refused.head.number("retry-after") > 60,
        "{}",
        refused.text()
    );
}
