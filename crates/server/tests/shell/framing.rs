//! Bytes on the wire that could be read in two ways are not answered in two ways.

use serde_json::json;

use crate::support::chat::{CHAT, hi_with, say};
use crate::support::http::{Connection, Request};
use crate::support::rig::{FAST, Rig};
use crate::support::stream::Stream;
use crate::support::wait::secs;

/// What an attacker would like to have taken for a request.
const SMUGGLED: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-tenant-id: victim\r\n\
                        content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

/// How many answers come for these bytes before the connection ends, and the first one's status.
async fn answers(rig: &Rig, bytes: &[u8]) -> (usize, Option<u16>) {
    let mut connection = Connection::open(rig.address()).await;
    // Err: the server has closed already, which is an answer as well.
    let _ = connection.try_send(bytes).await;
    let mut first = None;
    let mut count = 0;
    while let Some(answer) = connection.try_answer().await {
        first = first.or_else(|| Some(answer.status()));
        count += 1;
        if count > 2 {
            break;
        }
        // A connection that stays open has to be told that nothing else comes.
        connection.say_no_more().await;
    }
    (count, first)
}

fn head(headers: &str) -> String {
    format!(
        "POST {CHAT} HTTP/1.1\r\nhost: tollgate\r\ncontent-type: application/json\r\n{headers}\r\n"
    )
}

#[tokio::test]
async fn a_body_with_two_lengths_is_never_two_requests() {
    let rig = Rig::start(FAST).await;
    let body = short_body();
    let length = body.len();
    let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let both = [
        format!(
            "content-length: {}\r\ntransfer-encoding: chunked\r\n",
            chunked.len() + SMUGGLED.len()
        ),
        format!(
            "transfer-encoding: chunked\r\ncontent-length: {}\r\n",
            chunked.len() + SMUGGLED.len()
        ),
    ];
    for headers in both {
        let bytes = format!("{}{chunked}{SMUGGLED}", head(&headers));
        let (count, first) = answers(&rig, bytes.as_bytes()).await;
        assert!(
            count <= 1,
            "{count} answers to {headers:?}, the first {first:?}"
        );
    }
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn framing_that_contradicts_itself_is_refused_and_the_connection_closed() {
    let rig = Rig::start(FAST).await;
    let body = short_body();
    let length = body.len();
    let lengths = [
        format!("content-length: {length}\r\ncontent-length: 3\r\n"),
        format!("content-length: {length}, 3\r\n"),
        format!("content-length: +{length}\r\n"),
        format!("content-length : {length}\r\n"),
        format!("x-a: b\r\n c: d\r\ncontent-length: {length}\r\n"),
        "transfer-encoding: chunked, identity\r\n".to_owned(),
        "transfer-encoding: xchunked\r\n".to_owned(),
    ];
    for headers in lengths {
        assert_refused(&rig, &format!("{}{body}{SMUGGLED}", head(&headers))).await;
    }
    let too_large_to_count = "f".repeat(17);
    for size in [too_large_to_count.as_str(), "zz", "-5", "0x5"] {
        let chunked = head("transfer-encoding: chunked\r\n");
        assert_refused(&rig, &format!("{chunked}{size}\r\n{body}{SMUGGLED}")).await;
    }
    rig.assert_unharmed().await;
    let completed = rig.scrape().await.ended("completed");
    assert_eq!(completed, 1.0, "only the request of the check itself");
}

/// Checks that these bytes are answered with a 400, or with the end of the connection, and no more.
async fn assert_refused(rig: &Rig, bytes: &str) {
    let (count, first) = answers(rig, bytes.as_bytes()).await;
    assert!(count <= 1, "{count} answers to {bytes}");
    assert!(matches!(first, None | Some(400)), "{first:?} to {bytes}");
}

#[tokio::test]
async fn bare_line_feeds_never_make_two_requests_of_one() {
    let rig = Rig::start(FAST).await;
    let body = short_body();
    let bytes = format!(
        "{}{body}",
        head(&format!("content-length: {}\r\n", body.len()))
    );
    let bytes = bytes.replace("\r\n", "\n");
    let (count, first) = answers(&rig, bytes.as_bytes()).await;
    assert!(count <= 1);
    assert!(matches!(first, None | Some(200 | 400)), "{first:?}");
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn what_is_not_http_is_closed() {
    let rig = Rig::start(FAST).await;
    let endless = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(200_000));
    for bytes in [
        "\u{16}\u{3}\u{1}",
        "hello\r\n\r\n",
        "GET\r\n\r\n",
        endless.as_str(),
    ] {
        let mut connection = Connection::open(rig.address()).await;
        let _ = connection.try_send(bytes.as_bytes()).await;
        connection.say_no_more().await;
        let answer = connection.rest().await;
        let line = String::from_utf8_lossy(&answer);
        let refused = ["HTTP/1.1 400", "HTTP/1.1 431"]
            .iter()
            .any(|start| line.starts_with(start));
        assert!(answer.is_empty() || refused, "{line}");
    }
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn requests_sent_together_are_answered_in_order() {
    let rig = Rig::start(FAST).await;
    let mut connection = Connection::open(rig.address()).await;
    let ask = |most: u64| say(json!({"ignore_eos": true, "max_tokens": most})).bytes();
    let together = [ask(3), Request::get("/health").bytes(), ask(4), ask(5)].concat();
    connection.send(&together).await;
    for expected in [Some(3), None, Some(4), Some(5)] {
        let answer = connection.answer().await;
        assert_eq!(answer.status(), 200);
        if let Some(most) = expected {
            assert_eq!(answer.json()["usage"]["completion_tokens"], most);
        }
    }
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn an_http_1_0_client_is_served_both_ways() {
    let rig = Rig::start(FAST).await;
    let old = |body: String| {
        let head = head(&format!("content-length: {}\r\n", body.len()));
        format!("{}{body}", head.replace("HTTP/1.1", "HTTP/1.0"))
    };
    let mut connection = Connection::open(rig.address()).await;
    connection.send(old(short_body()).as_bytes()).await;
    let whole = connection.answer().await;
    assert_eq!(whole.status(), 200);
    assert!(connection.is_ended().await);
    let mut connection = Connection::open(rig.address()).await;
    let streamed = hi_with(json!({"max_tokens": 5, "ignore_eos": true, "stream": true}));
    connection.send(old(streamed.to_string()).as_bytes()).await;
    let told = Stream::of(connection).await.rest().await;
    assert_eq!((told.finish.as_deref(), told.done), (Some("length"), true));
    rig.until_idle(secs(2)).await;
}

fn short_body() -> String {
    hi_with(json!({"ignore_eos": true, "max_tokens": 5})).to_string()
}
