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
