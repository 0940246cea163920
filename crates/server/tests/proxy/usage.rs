//! What is charged is what the engine says, in whatever way it says it; and where it says nothing,
//! what was seen.

use serde_json::{Value, json};

use crate::engine::{DONE, END, Engine, FIN, STREAM, delta, json, usage, whole};
use crate::support::chat::{say, stream};
use crate::support::http::Request;
use crate::support::stream::{Stream, Told};
use crate::support::wait::secs;

async fn charged(events: &[&str], request: Request) -> (Told, Value) {
    let engine = Engine::streaming(events.iter().map(|one| (*one).to_owned()).collect()).await;
    let rig = engine.rig("").await;
    let told = Stream::begin(rig.address(), &request).await.rest().await;
    rig.until_idle(secs(60)).await;
    (told, rig.ledger_first().await)
}

fn tokens(row: &Value) -> (u64, u64, u64) {
    let number = |name: &str| row[name].as_u64().unwrap();
    (
        number("prompt_tokens"),
        number("output_tokens"),
        number("cached_tokens"),
    )
}

fn asking() -> Request {
    stream(json!({"stream_options": {"include_usage": true}}))
}

/// The chunks that tell usage.
fn usages(told: &Told) -> Vec<&Value> {
    let with_usage = |chunk: &&Value| chunk["usage"].is_object();
    told.chunks.iter().filter(with_usage).collect()
}

#[tokio::test]
async fn usage_is_asked_for_and_shown_to_nobody_who_did_not_ask() {
    let events = [&delta("a"), FIN, &usage(4, 6), DONE];
    let (told, row) = charged(&events, stream(json!({}))).await;
    told.assert_complete();
    assert!(usages(&told).is_empty());
    assert_eq!(tokens(&row), (4, 6, 0));
    assert_eq!(row["counted"], "engine");
    let (told, _) = charged(&events, asking()).await;
    let [only] = usages(&told)[..] else {
        panic!("{told:?}")
    };
    assert_eq!(only["choices"], json!([]));
}

#[tokio::test]
async fn usage_counts_wherever_it_stands() {
    let beside = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\
        \"usage\":{\"prompt_tokens\":287,\"completion_tokens\":8,\
        \"prompt_tokens_details\":{\"cached_tokens\":256}}}\n\n";
    let (told, row) = charged(&[&delta("a"), beside, DONE], asking()).await;
    assert_eq!((usages(&told).len(), tokens(&row)), (1, (287, 8, 256)));
    let early = [&delta("a"), &usage(5, 1), FIN, DONE];
    let (told, row) = charged(&early, asking()).await;
    assert_eq!((usages(&told).len(), tokens(&row)), (1, (5, 1, 0)));
    let running: Vec<String> = (0..=50).map(|n| usage(16, n)).collect();
    let mut events: Vec<&str> = running.iter().map(String::as_str).collect();
    let text = delta("a");
    events.extend([text.as_str(), FIN, DONE]);
    let (_, row) = charged(&events, stream(json!({}))).await;
    assert_eq!(tokens(&row), (16, 50, 0));
}

#[tokio::test]
async fn usage_cut_in_two_counts_whole() {
    let whole = usage(100, 40);
    let (first, second) = whole.split_at(whole.find("completion_tok").unwrap() + 14);
    let events = [&delta("a"), FIN, first, second, DONE];
    let (told, row) = charged(&events, stream(json!({}))).await;
    told.assert_complete();
    assert_eq!(tokens(&row), (100, 40, 0));
}

#[tokio::test]
async fn usage_that_comes_long_after_the_end_of_the_answer_is_waited_for() {
    let (seen, has_seen) = tokio::sync::watch::channel(false);
    let engine = Engine::start(move |_, mut wire| {
        let mut has_seen = has_seen.clone();
        async move {
            wire.send(STREAM).await;
            wire.send_chunks(&[&delta("a"), FIN]).await;
            has_seen.wait_for(|seen| *seen).await.unwrap();
            wire.send_chunks(&[&usage(26, 1), DONE]).await;
            wire.send(END).await;
            Some(wire)
        }
    })
    .await;
    let rig = engine.rig("").await;
    let mut told = Stream::begin(rig.address(), &stream(json!({}))).await;
    told.read_texts(1).await;
    seen.send_replace(true);
    told.rest().await.assert_complete();
    rig.until_idle(secs(60)).await;
    assert_eq!(tokens(&rig.ledger_first().await), (26, 1, 0));
}

#[tokio::test]
async fn a_usage_chunk_that_lacks_choices_is_given_them() {
    let bare = "data: {\"id\":\"c1\",\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n";
    let (told, row) = charged(&[&delta("a"), FIN, bare, DONE], asking()).await;
    let [only] = usages(&told)[..] else {
        panic!("{told:?}")
    };
    assert_eq!((&only["choices"], &only["id"]), (&json!([]), &json!("c1")));
    assert_eq!(
        (only["created"].as_u64(), &only["model"]),
        (Some(7), &json!("qwen"))
    );
    assert_eq!(tokens(&row), (3, 2, 0));
}

#[tokio::test]
async fn choices_that_are_not_there_harm_nobody() {
    let events = [
        "data: {\"choices\":[]}\n\n",
        &delta("a"),
        "data: {\"choices\":[],\"usage\":null}\n\n",
        FIN,
        &usage(1, 1),
        DONE,
    ];
    let (told, row) = charged(&events, stream(json!({}))).await;
    assert_eq!((told.text.as_str(), tokens(&row)), ("a", (1, 1, 0)));
}

#[tokio::test]
async fn without_any_usage_it_is_reckoned_from_the_text_and_marked() {
    let (told, row) = charged(&[&delta("hello"), &delta(" world"), FIN, DONE], asking()).await;
    told.assert_complete();
    assert_eq!(row["counted"], "estimated");
    assert_eq!(row["output_tokens"], 3, "eleven bytes at four a token");
    let [only] = usages(&told)[..] else {
        panic!("{told:?}")
    };
    assert_eq!(only["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn text_in_few_large_events_costs_what_it_costs_in_many() {
    let large = delta(&"word ".repeat(64));
    let (_, row) = charged(&[&large, FIN, DONE], stream(json!({}))).await;
    assert_eq!(row["output_tokens"], 80);
}

#[tokio::test]
async fn choices_are_counted_together_and_none_ends_the_stream_for_the_others() {
    let of = |index: u32, rest: &str| {
        format!("data: {{\"choices\":[{{\"index\":{index},{rest}}}]}}\n\n")
    };
    let text = "\"delta\":{\"content\":\"x\"}";
    let end = "\"delta\":{},\"finish_reason\":\"stop\"";
    let mut events: Vec<String> = Vec::new();
    for n in 0..5 {
        events.extend((n < 3).then(|| of(0, text)));
        events.push(of(1, text));
        events.extend((n == 3).then(|| of(0, end)));
    }
    events.push(of(1, end));
    let sent: Vec<&str> = events.iter().map(String::as_str).chain([DONE]).collect();
    let (told, row) = charged(&sent, stream(json!({"n": 2}))).await;
    assert!(told.done && told.chunks.len() == events.len());
    assert_eq!(row["output_tokens"], 8);
}

#[tokio::test]
async fn an_answer_in_one_piece_is_charged_what_it_says_and_goes_on_as_it_is() {
    let body = "{ \"choices\":[],\"usage\":{\"prompt_tokens\":1200,\"completion_tokens\":80,\
        \"prompt_tokens_details\":{\"cached_tokens\":1024}}, \"x\": 1.50 }";
    let mut answer =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_owned();
    for piece in body.as_bytes().chunks(7) {
        let piece = std::str::from_utf8(piece).unwrap();
        answer.push_str(&format!("{:x}\r\n{piece}\r\n", piece.len()));
    }
    answer.push_str("0\r\n\r\n");
    let engine = Engine::saying(answer).await;
    let rig = engine.rig("").await;
    let answer = rig.send(&say(json!({}))).await;
    assert_eq!(answer.text(), body);
    assert_eq!(tokens(&rig.ledger_first().await), (1200, 80, 1024));
}

#[tokio::test]
async fn embeddings_are_charged_by_what_they_read() {
    let body =
        "{\"object\":\"list\",\"data\":[],\"usage\":{\"prompt_tokens\":900,\"total_tokens\":900}}";
    let engine = Engine::saying(json("200 OK", body)).await;
    let rig = engine.rig("").await;
    let request = Request::post("/v1/embeddings", r#"{"model":"fast","input":["a","b"]}"#);
    let answer = rig.send(&request).await;
    assert_eq!((answer.status(), answer.text()), (200, body));
    let seen = engine.only();
    assert!(
        seen.head.starts_with("POST /v1/embeddings "),
        "{}",
        seen.head
    );
    assert_eq!(seen.text(), r#"{"model":"qwen","input":["a","b"]}"#);
    assert_eq!(tokens(&rig.ledger_first().await), (900, 0, 0));
}

#[tokio::test]
async fn what_was_reserved_and_not_used_comes_back_for_streams_as_for_others() {
    let engine = Engine::start(|seen, mut wire| async move {
        if seen.json()["stream"] == true {
            wire.send_stream(&[&delta("a"), FIN, &usage(12, 8), DONE])
                .await;
        } else {
            wire.send(whole("a", 12, 8)).await;
        }
        Some(wire)
    })
    .await;
    let yaml = crate::engine::config(&[engine.address], "vllm", "upstream: { model: qwen }");
    let yaml = format!(
        "{yaml}tenants: [{{ name: anonymous, class: standard, limits: {{ tpm: 10000 }} }}]\n"
    );
    let rig = crate::support::rig::Rig::start(&yaml).await;
    for n in 0..20_u64 {
        let members = json!({"max_tokens": 2000, "stream": n % 2 == 0});
        let answer = rig.send(&say(members)).await;
        assert_eq!(answer.status(), 200, "{n}: {}", answer.text());
        rig.until_idle(secs(60)).await;
    }
    let answer = rig.send(&say(json!({"max_tokens": 1}))).await;
    let left = answer.head.number("x-ratelimit-remaining-tokens");
    assert!(left >= 10_000 - 21 * 20 - 100, "{left}");
}

/// A gateway whose callers have these limits, before an engine that answers anything.
async fn limited(limits: &str) -> (Engine, crate::support::rig::Rig) {
    let engine = Engine::start(|_, mut wire| async move {
        wire.send(whole("a", 12, 8)).await;
        Some(wire)
    })
    .await;
    let yaml = crate::engine::config(&[engine.address], "vllm", "upstream: { model: qwen }");
    let yaml = format!(
        "{yaml}tenants: [{{ name: anonymous, class: standard, limits: {{ {limits} }} }}]\n"
    );
    let rig = crate::support::rig::Rig::start(&yaml).await;
    (engine, rig)
}

#[tokio::test]
async fn a_picture_is_reckoned_by_its_kind_and_not_by_its_bytes() {
    let picture = |data: &str| json!({"type": "image_url", "image_url": {"url": data}});
    let with_pictures = |parts: Vec<Value>| {
        say(json!({"max_tokens": 9, "messages": [{"role": "user", "content": parts}]}))
    };
    let (engine, rig) = limited("tpm: 50000").await;
    let large = format!("data:image/png;base64,{}", "A".repeat(2 << 20));
    let answer = rig.send(&with_pictures(vec![picture(&large)])).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(engine.seen().len(), 1);
    let (engine, rig) = limited("tpm: 2000").await;
    let many = vec![picture("https://example.com/1x1.png"); 40];
    assert_eq!(rig.send(&with_pictures(many)).await.status(), 429);
    assert!(engine.seen().is_empty());
}

#[tokio::test]
async fn a_huge_prompt_is_not_free_because_its_answer_is_short() {
    let (engine, rig) = limited("tpm: 1000").await;
    let prompt = "word ".repeat(5_000);
    let messages = json!([{"role": "user", "content": prompt}]);
    let answer = rig
        .send(&say(json!({"max_tokens": 1, "messages": messages})))
        .await;
    assert_eq!(answer.status(), 429);
    assert!(engine.seen().is_empty());
}

#[tokio::test]
async fn requests_that_fail_leave_their_tenants_place_free() {
    let (engine, rig) = limited("concurrency: 1").await;
    for body in [
        "{",
        r#"{"model":"nope","messages":[]}"#,
        r#"{"model":"m","messages":7}"#,
    ] {
        let answer = rig.send(&Request::post("/v1/chat/completions", body)).await;
        assert!((400..405).contains(&answer.status()));
        rig.until_idle(secs(60)).await;
    }
    assert_eq!(
        rig.send(&say(json!({"max_tokens": null}))).await.status(),
        200
    );
    assert_eq!(engine.seen().len(), 1);
}

#[tokio::test]
async fn usage_in_a_shape_that_nobody_knows_leaves_what_was_reckoned() {
    let body = r#"{"object":"text_completion","choices":[{"text":"four"}],"usage":{"total":9000}}"#;
    let known = body.replace(
        r#"{"total":9000}"#,
        r#"{"prompt_tokens":890,"completion_tokens":10}"#,
    );
    for (body, expected, counted) in [
        (known.as_str(), (890, 10, 0), "engine"),
        (body, (2, 1, 0), "estimated"),
    ] {
        let engine = Engine::saying(json("200 OK", body)).await;
        let rig = engine.rig("").await;
        let request = Request::post("/v1/completions", r#"{"model":"fast","prompt":"eightby."}"#);
        assert_eq!(rig.send(&request).await.text(), body);
        let row = rig.ledger_first().await;
        assert_eq!((tokens(&row), &row["counted"]), (expected, &json!(counted)));
    }
}

#[tokio::test]
async fn who_has_a_rate_of_requests_alone_is_asked_for_no_tokens() {
    let (engine, rig) = limited("rpm: 2").await;
    let messages = json!([{"role": "user", "content": "word ".repeat(5_000)}]);
    for status in [200, 200, 429] {
        let answer = rig.send(&say(json!({"messages": messages}))).await;
        assert_eq!(answer.status(), status, "{}", answer.text());
        assert_eq!(answer.head.header("x-ratelimit-remaining-tokens"), None);
    }
    assert_eq!(engine.seen().len(), 2);
}

#[tokio::test]
async fn a_limit_of_tokens_stops_streams_as_it_stops_answers_in_one_piece() {
    for streamed in [false, true] {
        let engine = Engine::start(move |_, mut wire| async move {
            if streamed {
                wire.send_stream(&[&delta("a"), FIN, &usage(300, 300), DONE])
                    .await;
            } else {
                wire.send(whole("a", 300, 300)).await;
            }
            Some(wire)
        })
        .await;
        let yaml = crate::engine::config(&[engine.address], "vllm", "upstream: { model: qwen }");
        let limits = "tenants: [{ name: anonymous, class: standard, limits: { tpm: 60 } }]\n";
        let rig = crate::support::rig::Rig::start(&format!("{yaml}{limits}")).await;
        let request = say(json!({"max_tokens": 9, "stream": streamed}));
        assert_eq!(rig.send(&request).await.status(), 200);
        rig.until_idle(secs(60)).await;
        // It owes nine minutes of its limit now, so no slow machine lets the next one in.
        let refused = rig.send(&request).await;
        assert_eq!(
            (refused.status(), refused.reason()),
            (429, "tokens"),
            "{streamed}"
        );
        assert_eq!(engine.seen().len(), 1);
    }
}
