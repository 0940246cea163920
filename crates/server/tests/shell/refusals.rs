//! Every way to be refused: its status, its reason, its shape, and that it costs nothing.

use serde_json::{Value, json};
use tollgate_engine::fake::Faults;

use crate::support::chat::{CHAT, endless, hi, keyed, say, short, stream};
use crate::support::http::{Answer, Connection, Framing, Piece, Request};
use crate::support::rig::{FAST, NARROW, OPEN, Rig, key};
use crate::support::stream::Stream;
use crate::support::wait::{eventually, millis, now, secs, soon};

/// Checks the shape that every client library can read, whatever the error.
fn assert_refused(answer: &Answer, status: u16, reason: &str) {
    assert_eq!(
        (answer.status(), answer.reason()),
        (status, reason),
        "{}",
        answer.text()
    );
    let head = &answer.head;
    assert_eq!(head.header("content-type"), Some("application/json"));
    if head.framing() != Framing::Chunked {
        assert_eq!(
            head.number("content-length"),
            u64::try_from(answer.body.len()).unwrap()
        );
    }
    assert!(head.request_id().starts_with("req-"));
    let json = answer.json();
    assert_eq!(json.as_object().unwrap().len(), 1);
    let error = json["error"].as_object().unwrap();
    let mut members: Vec<_> = error.keys().map(String::as_str).collect();
    members.sort_unstable();
    assert_eq!(members, ["code", "message", "param", "type"]);
    assert!(!error["message"].as_str().unwrap().is_empty());
    assert!(!error["type"].as_str().unwrap().is_empty());
    for member in ["param", "code"] {
        let value = &error[member];
        assert!(value.is_null() || value.is_string(), "{member} is {value}");
    }
}

/// Checks a refusal that tells when to come back: in seconds from now, both headers alike.
fn assert_retry(answer: &Answer) {
    let (secs, millis) = (
        answer.head.number("retry-after"),
        answer.head.number("retry-after-ms"),
    );
    assert!((1..=120).contains(&secs), "{secs} s");
    assert_eq!(secs, millis.div_ceil(1_000), "{millis} ms");
}

fn code(answer: &Answer) -> String {
    answer.json()["error"]["code"].as_str().unwrap().to_owned()
}

async fn assert_nothing_in_flight(rig: &Rig) {
    assert_eq!(rig.scrape().await.held(), []);
}

/// A request, and how it is refused: status, reason, code.
type Case = (Request, u16, &'static str, &'static str);

/// Checks the refusals of requests that the caller can mend.
async fn assert_mendable(rig: &Rig, cases: Vec<Case>) {
    for (request, status, reason, code) in cases {
        let answer = rig.send(&request).await;
        assert_refused(&answer, status, reason);
        assert_eq!(answer.json()["error"]["code"], code);
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        let retry = answer.head.header("retry-after");
        assert_eq!(retry, None, "no wait would help");
        assert_nothing_in_flight(rig).await;
    }
}

#[tokio::test]
async fn a_path_or_a_method_that_is_not_there_is_said_to_anyone() {
    let rig = Rig::start(FAST).await;
    let slash = format!("{CHAT}/");
    let not_found = |request| (request, 404, "no_route", "not_found");
    let not_allowed = |request| (request, 405, "wrong_method", "method_not_allowed");
    let cases = vec![
        not_found(Request::get("/v1/nope")),
        not_found(Request::get("/")),
        not_found(Request::post("/chat/completions", hi().to_string())),
        not_found(Request::post(&slash, hi().to_string())),
        not_allowed(Request::get(CHAT)),
        not_allowed(Request::post("/v1/models", "{}")),
        not_allowed(Request::post("/metrics", "{}")),
    ];
    assert_mendable(&rig, cases).await;
}

#[tokio::test]
async fn what_the_caller_can_mend_is_said_with_its_own_code() {
    let identity = "anonymous: deny, trust_tenant_header: true";
    let rig = Rig::start(&FAST.replace("anonymous: allow", identity)).await;
    let me = |request: Request| request.header("x-tenant-id", "me");
    let typed = |kind: &str| {
        let untyped = say(json!({})).without("content-type");
        me(untyped.header("content-type", kind))
    };
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(9_000)}]});
    let too_long = "context_length_exceeded";
    let unknown = "model_not_found";
    let bad_key = "invalid_api_key";
    let cases = vec![
        (say(json!({})), 401, "bad_key", bad_key),
        (Request::get("/v1/models"), 401, "bad_key", bad_key),
        (me(say(json!({"model": "x"}))), 404, unknown, unknown),
        (me(Request::get("/v1/models/x")), 404, unknown, unknown),
        (
            me(say(json!({"n": 0}))),
            400,
            "bad_request",
            "invalid_value",
        ),
        (me(say(long)), 400, too_long, too_long),
        (
            typed("text/plain"),
            415,
            "media_type",
            "unsupported_media_type",
        ),
        (
            typed("application/jsonx"),
            415,
            "media_type",
            "unsupported_media_type",
        ),
    ];
    assert_mendable(&rig, cases).await;
    let untyped = me(say(json!({}))).without("content-type");
    for request in [
        typed("application/json; charset=utf-8"),
        typed("Application/JSON"),
        untyped,
    ] {
        assert_eq!(rig.send(&request).await.status(), 200);
    }
    let rows = rig.drain().await.ledger();
    assert_eq!(rows.len(), 3, "refusals are not charged");
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_refused_with_both_numbers_and_nothing_is_spent() {
    let config = format!(
        "
{}
tenants:
  - name: t
    keys: [{{ env: T }}]
    limits: {{ rpm: 1, burst: 9, max_context: 400 }}
",
        FAST.replace("identity: { anonymous: allow }", "")
    );
    let rig = Rig::start(&config).await;
    let good = rig
        .send(&keyed(say(json!({"max_tokens": 2})), &key("T")))
        .await;
    assert_eq!(good.head.number("x-ratelimit-remaining-requests"), 8);
    for path in [CHAT, "/v1/completions"] {
        for length in [400, 9_000] {
            let text = "x".repeat(length);
            let body = json!({
                "model": "m", "prompt": text, "stream": true,
                "messages": [{"role": "user", "content": text}],
            });
            let long = rig
                .send(&keyed(Request::post(path, body.to_string()), &key("T")))
                .await;
            assert_refused(&long, 400, "context_length_exceeded");
            let text = long.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(
                text.contains("maximum context length is 400 tokens"),
                "{text}"
            );
            let prompt = if path == CHAT { length + 18 } else { length };
            assert!(text.contains(&format!("{} tokens", prompt + 1)), "{text}");
            let param = if path == CHAT { "messages" } else { "prompt" };
            assert_eq!(long.json()["error"]["param"], param);
            assert!(
                text.contains(&format!("your {param} resulted in")),
                "{text}"
            );
            assert!(
                text.ends_with(&format!("the length of the {param}.")),
                "{text}"
            );
            assert_eq!(long.head.number("x-ratelimit-remaining-requests"), 8);
            assert_nothing_in_flight(&rig).await;
        }
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up_on() {
    let rig = Rig::start(&format!("server: {{ read_timeout: 1s }}\n{FAST}")).await;
    let mut connection = Connection::open(rig.address()).await;
    let request = Request::post(CHAT, vec![b' '; 100]);
    let begun = now();
    connection.send(&request.head_bytes()).await;
    connection.send(b"{\"model\"").await;
    let answer = connection.answer().await;
    assert_refused(&answer, 408, "body_timeout");
    assert!((millis(900)..secs(3)).contains(&begun.elapsed()));
    assert!(
        connection.is_ended().await,
        "what is left of the body is not taken for a request"
    );
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_to_a_client_that_writes_first_and_reads_later() {
    let rig = Rig::start(&format!("server: {{ max_body: 1MiB }}\n{FAST}")).await;
    let large = Request::post(CHAT, vec![b' '; 12 << 20]);
    for request in [large.clone(), large.chunked(64 * 1024)] {
        let mut connection = Connection::open(rig.address()).await;
        connection.send(&request.bytes()).await;
        let answer = connection.answer().await;
        assert_refused(&answer, 413, "body_too_large");
        assert_eq!(code(&answer), "body_too_large");
        assert!(answer.text().contains("1048576"), "{}", answer.text());
    }
    assert_eq!(rig.scrape().await.ended("body_too_large"), 2.0);
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_has_its_refusal_at_once() {
    let rig = Rig::start(&format!("server: {{ max_body: 1MiB }}\n{FAST}")).await;
    let large = Request::post(CHAT, vec![b' '; 2 << 20]).header("expect", "100-continue");
    let begun = now();
    let mut connection = Connection::open(rig.address()).await;
    connection.send(&large.head_bytes()).await;
    assert_refused(&connection.answer().await, 413, "body_too_large");
    assert!(begun.elapsed() < secs(3), "{:?}", begun.elapsed());
    // One that is welcome is told to go on.
    let small = say(json!({"max_tokens": 2})).header("expect", "100-continue");
    let mut connection = Connection::open(rig.address()).await;
    assert_eq!(connection.ask(&small).await.status(), 200);
}

#[tokio::test]
async fn the_text_of_a_refusal_comes_before_its_unread_body_is_gone() {
    let rig = Rig::start(&format!("server: {{ max_body: 1MiB }}\n{FAST}")).await;
    let large = Request::post(CHAT, vec![b' '; 2 << 20]);
    let mut connection = Connection::open(rig.address()).await;
    connection.send(&large.head_bytes()).await;
    let head = connection.head().await;
    assert_eq!(head.status, 413);
    assert_eq!(head.header("connection"), Some("close"));
    let mut framing = head.framing();
    assert!(
        matches!(framing, Framing::Length(_)),
        "its end is seen at once"
    );
    let mut text = Vec::new();
    while let Piece::Data(piece) = connection.piece(&mut framing).await {
        text.extend(piece);
    }
    let json: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(json["error"]["code"], "body_too_large");
}

#[tokio::test]
async fn a_refusal_of_a_small_body_leaves_the_connection_open() {
    let config = FAST.replace("identity: { anonymous: allow }", "");
    let tenants = "tenants:\n  - name: t\n    keys: [{ env: T }]\n";
    let rig = Rig::start(&format!("{config}\n{tenants}")).await;
    let mut connection = Connection::open(rig.address()).await;
    for _ in 0..3 {
        let refused = connection.ask(&short()).await;
        assert_refused(&refused, 401, "bad_key");
    }
}

#[tokio::test]
async fn a_body_that_is_encoded_is_refused_by_that_name() {
    let rig = Rig::start(FAST).await;
    for coding in ["gzip", "br", "identity, gzip"] {
        let refused = rig.send(&short().header("content-encoding", coding)).await;
        assert_refused(&refused, 415, "media_type");
        assert!(
            refused.text().contains("Content-Encoding"),
            "{}",
            refused.text()
        );
    }
    let plain = short().header("content-encoding", "identity");
    assert_eq!(rig.send(&plain).await.status(), 200);
}

#[tokio::test]
async fn a_head_that_is_none_or_too_long_is_answered_in_json() {
    let rig = Rig::start(FAST).await;
    let (long, longer) = ("x".repeat(80 * 1024), "x".repeat(256 * 1024));
    let heads = [
        (400, "GET / HTTP/9.9\r\n\r\n".to_owned()),
        (
            400,
            "POST /v1/chat/completions HTTP/1.1\r\ncontent-length: x\r\n\r\n".to_owned(),
        ),
        (414, format!("GET /{long} HTTP/1.1\r\nhost: x\r\n\r\n")),
        (
            431,
            format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {longer}\r\n\r\n"),
        ),
    ];
    for (status, head) in heads {
        let mut connection = Connection::open(rig.address()).await;
        // Also behind a good one on the same connection.
        assert_eq!(connection.ask(&Request::get("/health")).await.status(), 200);
        connection.send(head.as_bytes()).await;
        let answer = connection.answer().await;
        assert_eq!(answer.status(), status, "{answer:?}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        assert_eq!(answer.head.header("connection"), Some("close"));
        assert!(answer.head.header("x-tollgate-reason").is_some());
        assert!(connection.try_answer().await.is_none());
    }
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_request_over_the_rate_is_told_a_wait_that_is_long_enough() {
    let config = format!(
        "
{}
tenants:
  - name: t
    keys: [{{ env: T }}]
    limits: {{ rpm: 120, burst: 1 }}
",
        FAST.replace("identity: { anonymous: allow }", "")
    );
    let rig = Rig::start(&config).await;
    let request = keyed(short(), &key("T"));
    assert_eq!(rig.send(&request).await.status(), 200);
    let refused = rig.send(&request).await;
    assert_refused(&refused, 429, "requests");
    assert_retry(&refused);
    assert_eq!(code(&refused), "rate_limit_exceeded");
    assert_eq!(refused.json()["error"]["type"], "requests");
    assert_eq!(refused.head.number("x-ratelimit-remaining-requests"), 0);
    let wait = refused.head.number("retry-after-ms");
    assert!(wait <= 1_000, "{wait} ms for half a second's credit");
    assert_nothing_in_flight(&rig).await;
    // A refused try spends nothing, so the first that passes shows when there was credit again.
    let passes = async || rig.send(&request).await.status() == 200;
    eventually(
        millis(wait + 100),
        "another request passes when it was told to",
        passes,
    )
    .await;
}

#[tokio::test]
async fn a_tenant_with_all_it_may_have_in_flight_is_told_so() {
    let config = format!(
        "
{}
tenants:
  - name: t
    keys: [{{ env: T }}]
    limits: {{ concurrency: 1, rpm: 1, burst: 9 }}
",
        OPEN.replace("identity: { anonymous: allow }", "")
    );
    let rig = Rig::start(&config).await;
    let running = Stream::begin(rig.address(), &keyed(endless(), &key("T"))).await;
    let refused = rig.send(&keyed(short(), &key("T"))).await;
    assert_refused(&refused, 429, "concurrency");
    assert_retry(&refused);
    assert_eq!(code(&refused), "rate_limit_exceeded");
    assert_eq!(
        refused.head.number("x-ratelimit-remaining-requests"),
        8,
        "it is not spent"
    );
    drop(running);
    rig.until_idle(secs(2)).await;
    assert_eq!(rig.send(&keyed(short(), &key("T"))).await.status(), 200);
}

#[tokio::test]
async fn a_queue_that_is_full_says_so() {
    let rig = Rig::start(&NARROW.replace("fake:", "queue: { max_requests: 1 }\n    fake:")).await;
    let running = Stream::begin(rig.address(), &endless()).await;
    let mut waiting = Connection::open(rig.address()).await;
    waiting.send(&short().bytes()).await;
    rig.until(secs(2), "one waits", |now| {
        now.sum("tollgate_queue_requests", &[]) == 1.0
    })
    .await;
    let refused = rig.send(&stream(json!({}))).await;
    assert_refused(&refused, 503, "queue_full");
    assert_retry(&refused);
    drop(running);
    assert_eq!(waiting.answer().await.status(), 200);
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_request_that_waited_as_long_as_it_may_is_told_so_and_spends_nothing() {
    let config = NARROW
        .replace("identity: { anonymous: allow }", "")
        .replace("fake:", "queue: { max_wait: 300ms }\n    fake:");
    let config = format!(
        "{config}
tenants:
  - name: t
    keys: [{{ env: T }}]
    limits: {{ rpm: 1, burst: 9 }}
"
    );
    let rig = Rig::start(&config).await;
    let running = Stream::begin(rig.address(), &keyed(endless(), &key("T"))).await;
    assert_eq!(running.head.number("x-ratelimit-remaining-requests"), 8);
    for request in [short(), stream(json!({}))] {
        let begun = now();
        let refused = rig.send(&keyed(request, &key("T"))).await;
        assert_refused(&refused, 503, "queue_time");
        assert_retry(&refused);
        assert!(
            (millis(290)..secs(2)).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
    }
    drop(running);
    rig.until_idle(secs(2)).await;
    let served = rig.send(&keyed(short(), &key("T"))).await;
    assert_eq!(served.head.number("x-ratelimit-remaining-requests"), 7);
    let rows = rig.drain().await.ledger();
    let evicted: Vec<_> = rows
        .iter()
        .filter(|row| row["outcome"] == "queue_time")
        .collect();
    assert_eq!(evicted.len(), 2, "they were admitted, and used nothing");
    assert!(
        evicted
            .iter()
            .all(|row| row["output_tokens"] == 0 && row["replica"].is_null())
    );
}

#[tokio::test]
async fn where_nobody_may_wait_what_can_not_start_is_refused() {
    let rig = Rig::start(&NARROW.replace("fake:", "queue: { max_wait: 0s }\n    fake:")).await;
    let running = Stream::begin(rig.address(), &endless()).await;
    let refused = rig.send(&short()).await;
    assert_refused(&refused, 503, "capacity");
    assert_retry(&refused);
    drop(running);
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn without_a_replica_requests_are_sent_away_and_not_kept() {
    let faults = Faults {
        fatal_step: Some(1),
        ..Faults::default()
    };
    let rig = Rig::start_with(OPEN, faults).await;
    let mut refused = None;
    let is_refused = async || {
        let answer = rig.send(&short()).await;
        let found = answer.status() == 503;
        refused = found.then_some(answer);
        found
    };
    eventually(secs(5), "no replica is left", is_refused).await;
    let refused = refused.unwrap();
    assert_refused(&refused, 503, "no_replica");
    assert_retry(&refused);
    assert_nothing_in_flight(&rig).await;
}

#[tokio::test]
async fn one_that_goes_away_sends_new_requests_elsewhere() {
    let rig = Rig::start(OPEN).await;
    let address = rig.address();
    let running = Stream::begin(
        address,
        &stream(json!({"ignore_eos": true, "max_tokens": 800})),
    )
    .await;
    let (server, _remains) = rig.into_parts();
    let mut draining = tokio::task::JoinSet::new();
    draining.spawn(server.drain());
    let mut refused = None;
    let is_refused = async || {
        let answer = short().send(address).await;
        let found = answer.status() == 503;
        refused = found.then_some(answer);
        found
    };
    eventually(millis(500), "new requests are refused", is_refused).await;
    let refused = refused.unwrap();
    assert_refused(&refused, 503, "draining");
    assert_retry(&refused);
    assert_eq!(refused.head.header("connection"), Some("close"));
    running.rest().await.assert_complete();
    soon("draining", draining.join_all()).await;
}
