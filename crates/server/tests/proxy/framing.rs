//! Whatever way an engine frames its stream, the client gets the same bytes, event by event.

use serde_json::json;

use crate::engine::{DONE, END, Engine, FIN, STREAM, chunk, delta, usage};
use crate::support::chat::stream;
use crate::support::http::{Connection, Piece};
use crate::support::stream::Stream;
use crate::support::wait::secs;

/// Everything a client gets of a stream, as bytes, and whether its body ended well.
async fn bytes(engine: &Engine) -> (String, bool) {
    let rig = engine.rig("").await;
    let mut connection = Connection::open(rig.address()).await;
    connection.send(&stream(json!({})).bytes()).await;
    let head = connection.head().await;
    assert_eq!(head.status, 200);
    let (mut framing, mut all) = (head.framing(), Vec::new());
    let whole = loop {
        match connection.piece(&mut framing).await {
            Piece::Data(data) => all.extend_from_slice(&data),
            Piece::End => break true,
            Piece::CutOff => break false,
        }
    };
    rig.until_idle(secs(60)).await;
    (String::from_utf8(all).unwrap(), whole)
}

#[tokio::test]
async fn a_stream_goes_through_byte_for_byte() {
    let events = vec![
        delta("a"),
        delta("\u{4f60}\u{597d}"),
        FIN.to_owned(),
        DONE.to_owned(),
    ];
    let engine = Engine::streaming(events.clone()).await;
    assert_eq!(bytes(&engine).await, (events.concat(), true));
}

#[tokio::test]
async fn characters_cut_anywhere_arrive_whole() {
    let events = format!(
        "{}{FIN}{}{DONE}",
        delta("\u{4f60}\u{597d}\u{1f642}"),
        usage(3, 2)
    );
    let sent = events.clone();
    let engine = Engine::start(move |_, mut wire| {
        let events = sent.clone();
        async move {
            wire.send(STREAM).await;
            for byte in events.as_bytes() {
                wire.send(chunk([*byte])).await;
            }
            wire.send(END).await;
            Some(wire)
        }
    })
    .await;
    let expected = events.replace(&usage(3, 2), "");
    assert_eq!(bytes(&engine).await, (expected, true));
}

#[tokio::test]
async fn each_event_goes_on_as_soon_as_it_is_there() {
    let (next, turn) = tokio::sync::mpsc::unbounded_channel::<()>();
    let turn = std::sync::Arc::new(tokio::sync::Mutex::new(turn));
    let engine = Engine::start(move |_, mut wire| {
        let turn = std::sync::Arc::clone(&turn);
        async move {
            wire.send(STREAM).await;
            for n in 0..5 {
                wire.send(chunk(delta(&n.to_string()))).await;
                turn.lock().await.recv().await;
            }
            wire.send_chunks(&[FIN, DONE]).await;
            wire.send(END).await;
            Some(wire)
        }
    })
    .await;
    let rig = engine.rig("").await;
    let mut stream = Stream::begin(rig.address(), &stream(json!({}))).await;
    for n in 0..5 {
        // The engine sends no more before this one has arrived.
        assert_eq!(stream.read_texts(1).await.text, n.to_string());
        next.send(()).unwrap();
    }
    stream.rest().await.assert_complete();
}

/// What a client gets of events that come in one write.
async fn of(events: &[&str]) -> String {
    let engine = Engine::streaming(events.iter().map(|one| (*one).to_owned()).collect()).await;
    let (got, whole) = bytes(&engine).await;
    assert!(whole, "{got}");
    got
}

#[tokio::test]
async fn comments_stay_comments_and_no_event_is_made_of_them() {
    let (a, busy) = (delta("x"), ": PROCESSING\n\n");
    let got = of(&[busy, busy, ":\n", ":\n", ":\n\n", &a, FIN, DONE]).await;
    assert_eq!(got, format!("{busy}{busy}:\n:\n:\n\n{a}{FIN}{DONE}"));
}

#[tokio::test]
async fn events_without_contents_are_swallowed() {
    let (a, b) = (delta("a"), delta("b"));
    let got = of(&[&a, "data:\n\n", "data: \n\n", &b, FIN, DONE]).await;
    assert_eq!(got, format!("{a}{b}{FIN}{DONE}"));
}

#[tokio::test]
async fn lines_that_end_in_crlf_are_events_of_their_own() {
    let crlf = |text: &str| text.replace('\n', "\r\n");
    let named = "event: message\r\nid: 7\r\ndata: {\"choices\":[]}\r\n\r\n";
    let (a, fin, done) = (crlf(&delta("a")), crlf(FIN), crlf(DONE));
    let sent = [
        named,
        a.as_str(),
        &delta("b"),
        &fin,
        &crlf(&usage(2, 2)),
        &done,
    ];
    let got = of(&sent).await;
    assert_eq!(got, format!("{named}{a}{}{fin}{done}", delta("b")));
}

#[tokio::test]
async fn data_on_several_lines_and_a_byte_order_mark_go_through() {
    let several = "\u{feff}data: {\"choices\":\ndata: []}\n\n";
    let got = of(&[several, &delta("a"), FIN, DONE]).await;
    assert_eq!(got, format!("{several}{}{FIN}{DONE}", delta("a")));
}

#[tokio::test]
async fn members_that_nobody_knows_go_through() {
    let strange = "data: {\"id\":\"c1\",\"service_tier\":\"x\",\"system_fingerprint\":\"f\",\
        \"x_vendor\":[1.50],\"choices\":[{\"index\":0,\"delta\":{\
        \"reasoning_content\":\"r\",\"reasoning_items\":[{\"a\":1}],\
        \"refusal\":null,\"annotations\":[]}}]}\n\n";
    assert_eq!(
        of(&[strange, FIN, DONE]).await,
        format!("{strange}{FIN}{DONE}")
    );
}

#[tokio::test]
async fn a_tool_call_of_three_mebibytes_goes_through_whole() {
    let arguments = "x".repeat(3 << 20);
    let event = format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{{\"index\":0,\"function\":\
         {{\"arguments\":\"{arguments}\"}}}}]}}}}]}}\n\n"
    );
    let pieces: Vec<&str> = event
        .as_bytes()
        .chunks(16 * 1024)
        .map(|piece| std::str::from_utf8(piece).unwrap())
        .chain([FIN, DONE])
        .collect();
    let got = of(&pieces).await;
    assert!(got == format!("{event}{FIN}{DONE}"), "{} bytes", got.len());
}

#[tokio::test]
async fn a_stream_says_that_nobody_is_to_keep_it() {
    let engine = Engine::streaming(vec![delta("a"), FIN.into(), DONE.into()]).await;
    let rig = engine.rig("").await;
    let stream = Stream::begin(rig.address(), &stream(json!({}))).await;
    let header = |name| stream.head.header(name);
    assert_eq!(header("content-type"), Some("text/event-stream"));
    assert_eq!(header("cache-control"), Some("no-cache"));
    assert_eq!(header("x-accel-buffering"), Some("no"));
    assert_eq!(header("content-length"), None);
}

#[tokio::test]
async fn an_event_past_the_bound_ends_the_stream_with_an_error_and_holds_little() {
    let engine = Engine::start(|_, mut wire| async move {
        wire.send(STREAM).await;
        wire.send(chunk(delta("a"))).await;
        wire.send(chunk("data: ")).await;
        for _ in 0..256 {
            wire.send(chunk([b'a'; 1024])).await;
        }
        wire.closed().await;
        None
    })
    .await;
    let rig = engine
        .rig("upstream: { model: qwen, max_event: 64KiB }")
        .await;
    let told = Stream::begin(rig.address(), &stream(json!({})))
        .await
        .rest()
        .await;
    told.assert_failed("replica_bad_answer");
    assert_eq!(told.text, "a");
    rig.until_idle(secs(60)).await;
}
