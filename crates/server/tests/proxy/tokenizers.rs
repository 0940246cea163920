//! A model whose tokenizer is configured: what a prompt costs is counted before its engine has, and
//! what the engine counts is the truth all the same.

use serde_json::{Value, json};

use crate::engine::{DONE, Engine, FIN, delta, usage, whole};
use crate::support::chat::{CHAT, say, stream};
use crate::support::http::Request;
use crate::support::rig::Rig;
use crate::support::stream::Stream;
use crate::support::wait::secs;

/// Each word between spaces is a token.
const WORDS: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null,
    "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"?": 0, "river": 1}, "unk_token": "?"}}"#;

/// A gateway that counts, for a caller with these limits.
async fn counting(engine: &Engine, limits: &str) -> (tempfile::TempDir, Rig) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, WORDS).unwrap();
    let rig = Rig::start(&format!(
        "identity: {{ anonymous: allow, trust_tenant_header: false }}\nmodels:\n  - name: m\n    \
         engine: vllm\n    tokenizer: {}\n    replicas: [{{ url: \"http://{}\" }}]\n\
         default_tenant: {{ limits: {{ {limits} }} }}\n",
        path.display(),
        engine.address
    ))
    .await;
    (folder, rig)
}

/// A prompt of few tokens and many bytes.
fn long_words() -> Value {
    json!({"messages": [{"role": "user", "content": "antidisestablishmentarianism ".repeat(20)}]})
}

#[tokio::test]
async fn a_limit_of_tokens_is_held_to_what_the_tokenizer_counts() {
    let engine = Engine::saying(whole("hi", 24, 1)).await;
    // 580 bytes are 145 tokens at four bytes each; counted they are 20, and some of a template.
    let asks = json!({"max_tokens": 10});
    let request = |members: Value| {
        let mut body = long_words();
        body["max_tokens"] = members["max_tokens"].clone();
        say(body)
    };
    let (_folder, rig) = counting(&engine, "rpm: 1000, tpm: 100").await;
    let answer = rig.send(&request(asks.clone())).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let row = rig.ledger_first().await;
    assert_eq!(
        (&row["prompt_tokens"], &row["counted"]),
        (&json!(24), &json!("engine"))
    );
    let plain = Engine::saying(whole("hi", 24, 1)).await;
    let yaml = crate::engine::config(&[plain.address], "vllm", "");
    let limits = "default_tenant: { limits: { rpm: 1000, tpm: 100 } }\n";
    let rig = Rig::start(&(yaml + limits)).await;
    let answer = rig.send(&request(asks)).await;
    assert_eq!((answer.status(), answer.reason()), (429, "tokens"));
}

#[tokio::test]
async fn an_answer_is_counted_where_its_engine_does_not_and_is_marked_as_estimated() {
    let text = "a river of words ";
    let engine = Engine::streaming(vec![
        delta(text),
        delta("and more"),
        FIN.into(),
        DONE.into(),
    ])
    .await;
    let (_folder, rig) = counting(&engine, "rpm: 1000").await;
    let ask = async || {
        let told = Stream::begin(
            rig.address(),
            &stream(json!({"stream_options": {"include_usage": true}})),
        )
        .await;
        let told = told.rest().await;
        told.assert_complete();
        told.chunks.last().unwrap()["usage"]["completion_tokens"].clone()
    };
    // The first shows that this engine does not count: 25 bytes at four a token.
    assert_eq!(ask().await, json!(7));
    assert_eq!(ask().await, json!(6));
    rig.until_idle(secs(60)).await;
    let (_, remains) = rig.into_parts();
    let rows = remains.ledger();
    assert!(
        rows.iter().all(|row| row["counted"] == "estimated"),
        "{rows:?}"
    );
}

#[tokio::test]
async fn what_the_engine_counts_wins_streamed_or_not_and_large_prompts_too() {
    let events = [&delta("river"), FIN, &usage(7_000, 3), DONE];
    let engine = Engine::streaming(events.iter().map(|one| (*one).to_owned()).collect()).await;
    let (_folder, rig) = counting(&engine, "rpm: 1000").await;
    // More than is counted by the thread that carries requests, and more than is counted at all.
    for words in [4_000, 200_000] {
        let body = json!({"model": "m", "stream": true,
            "messages": [{"role": "user", "content": "word ".repeat(words)}]});
        let request = Request::post(CHAT, body.to_string());
        Stream::begin(rig.address(), &request)
            .await
            .rest()
            .await
            .assert_complete();
    }
    rig.until_idle(secs(60)).await;
    let (_, remains) = rig.into_parts();
    for row in remains.ledger() {
        assert_eq!(
            (&row["prompt_tokens"], &row["output_tokens"]),
            (&json!(7_000), &json!(3))
        );
        assert_eq!(row["counted"], "engine");
    }
}
