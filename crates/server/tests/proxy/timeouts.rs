//! Only standing still is timed: a slow answer is as good as a quick one.

use std::time::Duration;

use serde_json::json;

use crate::engine::{DONE, END, Engine, FIN, STREAM, chunk, delta, rig, whole};
use crate::support::chat::{say, stream};
use crate::support::http::Connection;
use crate::support::stream::Stream;
use crate::support::wait::secs;

/// An engine whose answers take as long as it is told, in pauses of this length.
async fn slow(pause: Duration, deltas: usize) -> Engine {
    Engine::start(move |seen, mut wire| async move {
        let streams = seen.json()["stream"] == true;
        let mut tick = tokio::time::interval(pause);
        tick.tick().await;
        if streams {
            wire.send(STREAM).await;
        }
        for n in 0..deltas {
            tick.tick().await;
            if streams {
                wire.send(chunk(delta(&n.to_string()))).await;
            }
        }
        if streams {
            wire.send_chunks(&[FIN, DONE]).await;
            wire.send(END).await;
        } else {
            wire.send(whole("hi", 1, 1)).await;
        }
        Some(wire)
    })
    .await
}

#[tokio::test]
async fn an_answer_may_take_many_times_as_long_as_a_pause_in_it() {
    let engine = slow(Duration::from_millis(100), 12).await;
    let keys = "upstream: { model: qwen, first_byte: 1s, connect: 500ms }\nstream: { idle: 1s }";
    let rig = engine.rig(keys).await;
    let told = Stream::begin(rig.address(), &stream(json!({})))
        .await
        .rest()
        .await;
    told.assert_complete();
    assert_eq!(told.text, "01234567891011");
    // In one piece, no byte comes before all of it is made.
    assert_eq!(rig.send(&say(json!({}))).await.status(), 200);
}

#[tokio::test]
async fn a_replica_that_sends_nothing_more_is_cut_off() {
    let engine = Engine::start(|_, mut wire| async move {
        wire.send(STREAM).await;
        wire.send(chunk(delta("a"))).await;
        wire.closed().await;
        None
    })
    .await;
    let rig = engine
        .rig("upstream: { model: qwen }\nstream: { idle: 300ms }")
        .await;
    let told = Stream::begin(rig.address(), &stream(json!({})))
        .await
        .rest()
        .await;
    told.assert_failed("replica_silent");
    rig.until_idle(secs(60)).await;
    assert_eq!(rig.ledger_first().await["outcome"], "replica_silent");
}

#[tokio::test]
async fn a_replica_that_never_answers_a_stream_is_a_504_and_harms_no_other_model() {
    let hung = Engine::start(|_, mut wire| async move {
        wire.closed().await;
        None
    })
    .await;
    let fine = slow(Duration::from_millis(1), 1).await;
    let yaml = crate::engine::config(
        &[hung.address],
        "vllm",
        "upstream: { model: q, first_byte: 400ms }",
    );
    let other = format!(
        "  - name: other\n    engine: openai\n    replicas: [{{ url: \"http://{}\" }}]\n",
        fine.address
    );
    let rig = crate::support::rig::Rig::start(&format!("{yaml}{other}")).await;
    let mut client = Connection::open(rig.address()).await;
    client.send(&stream(json!({})).bytes()).await;
    hung.until_seen(1).await;
    for _ in 0..10 {
        assert_eq!(
            rig.send(&say(json!({"model": "other"}))).await.status(),
            200
        );
    }
    let answer = client.answer().await;
    assert_eq!((answer.status(), answer.reason()), (504, "replica_silent"));
}

#[tokio::test]
async fn a_client_that_waits_for_its_first_token_is_shown_that_somebody_is_there() {
    let (go, gone) = tokio::sync::watch::channel(false);
    let engine = Engine::start(move |_, mut wire| {
        let mut gone = gone.clone();
        async move {
            wire.send(STREAM).await;
            gone.wait_for(|go| *go).await.unwrap();
            wire.send_chunks(&[&delta("a"), FIN, DONE]).await;
            wire.send(END).await;
            Some(wire)
        }
    })
    .await;
    let rig = engine
        .rig("upstream: { model: qwen }\nstream: { keepalive: 100ms }")
        .await;
    let mut stream = Stream::begin(rig.address(), &stream(json!({}))).await;
    for _ in 0..2 {
        assert!(matches!(
            stream.next().await,
            Some(tollgate_wire::sse::SseItem::Comment(_))
        ));
    }
    go.send(true).unwrap();
    let told = stream.rest().await;
    told.assert_complete();
    assert_eq!(told.text, "a");
}

#[tokio::test]
async fn a_failure_after_a_sign_of_life_is_an_error_event() {
    let engine = Engine::start(|_, mut wire| async move {
        wire.send(STREAM).await;
        wire.closed().await;
        None
    })
    .await;
    let keys = "upstream: { model: qwen, first_byte: 800ms }\nstream: { keepalive: 100ms }";
    let rig = engine.rig(keys).await;
    let told = Stream::begin(rig.address(), &stream(json!({})))
        .await
        .rest()
        .await;
    told.assert_failed("replica_silent");
    assert!(told.comments > 0);
    rig.until_idle(secs(60)).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_its_engine_and_fills_no_memory() {
    let (sent, progress) = tokio::sync::watch::channel(0_usize);
    let engine = Engine::start(move |_, mut wire| {
        let sent = sent.clone();
        async move {
            wire.send(STREAM).await;
            let event = chunk(delta(&"x".repeat(16 * 1024)));
            for n in 1..=12_800 {
                wire.send(&event).await;
                sent.send_replace(n);
            }
            None
        }
    })
    .await;
    let rig = rig(&[engine.address], "vllm", "upstream: { model: qwen }").await;
    let mut client = Connection::open_narrow(rig.address()).await;
    client.send(&stream(json!({})).bytes()).await;
    // 200 MB are on offer. What is taken of it stands still at what sockets hold.
    let mut last = 0;
    let mut still = 0;
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    while still < 10 {
        tick.tick().await;
        let now = *progress.borrow();
        still = if now == last && now > 0 { still + 1 } else { 0 };
        last = now;
    }
    assert!(last < 2_000, "{last} events of 16 KiB were taken");
    drop(client);
    rig.until_idle(secs(60)).await;
}

#[tokio::test]
async fn a_slow_reader_loses_no_event() {
    let events: Vec<String> = (0..5_000).map(|n| delta(&format!("{n} "))).collect();
    let expected: String = (0..5_000).map(|n| format!("{n} ")).collect();
    let mut all = events;
    all.extend([FIN.to_owned(), DONE.to_owned()]);
    let engine = Engine::streaming(all).await;
    let rig = engine.rig("").await;
    let connection = Connection::open_narrow(rig.address()).await;
    let told = Stream::over(connection, &stream(json!({})))
        .await
        .rest()
        .await;
    told.assert_complete();
    assert_eq!(told.text, expected);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_at_the_bound_and_its_engine_stopped() {
    let (left, mut leaving) = tokio::sync::mpsc::unbounded_channel();
    let engine = Engine::start(move |_, mut wire| {
        let left = left.clone();
        async move {
            wire.send(STREAM).await;
            let text = delta(&"x".repeat(16 * 1024));
            while wire.is_open().await {
                wire.send(chunk(&text)).await;
            }
            left.send(()).unwrap();
            None
        }
    })
    .await;
    let keys = "upstream: { model: qwen, first_byte: 900ms }\nmax_stream: 1s\nstream: \
                { idle: 900ms, keepalive: 500ms }";
    let rig = engine.rig(keys).await;
    let connection = Connection::open_narrow(rig.address()).await;
    let stuck = Stream::over(connection, &stream(json!({}))).await;
    leaving.recv().await.unwrap();
    rig.until_idle(secs(60)).await;
    let row = rig.ledger_row(stuck.head.request_id()).await;
    assert_eq!(row["outcome"], "max_stream");
    assert!(!stuck.rest().await.whole);
}

#[tokio::test]
async fn the_first_token_is_the_first_text_whatever_comes_before_it() {
    const LATE: Duration = Duration::from_millis(700);
    for first in [
        "{\"content\":\"a\"}",
        "{\"reasoning_content\":\"a\"}",
        "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\"}}]}",
    ] {
        let event = |delta: &str| {
            format!(
                "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":7,\
                 \"model\":\"qwen\",\"choices\":[{{\"index\":0,\"delta\":{delta},\
                 \"finish_reason\":null}}]}}\n\n"
            )
        };
        let early = [
            event("{\"role\":\"assistant\",\"content\":\"\"}"),
            ": still here\n\n".to_owned(),
            event("{\"content\":null}"),
        ];
        let token = event(first);
        let engine = Engine::start(move |_, mut wire| {
            let (early, token) = (early.clone(), token.clone());
            async move {
                wire.send(STREAM).await;
                for one in &early {
                    wire.send(chunk(one)).await;
                }
                let mut tick = tokio::time::interval(LATE);
                tick.tick().await;
                tick.tick().await;
                wire.send_chunks(&[&token, FIN, DONE]).await;
                wire.send(END).await;
                Some(wire)
            }
        })
        .await;
        let rig = engine.rig("").await;
        let stream = Stream::begin(rig.address(), &stream(json!({}))).await;
        stream.rest().await.assert_complete();
        let row = rig.ledger_first().await;
        let ttft = row["ttft_us"].as_u64().unwrap();
        assert!(u128::from(ttft) >= LATE.as_micros(), "{first}: {ttft} us");
    }
}
