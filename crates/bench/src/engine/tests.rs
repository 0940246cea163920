//! The engine through real sockets.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroU32;
use std::time::Duration;

use serde_json::Value;
use tollgate_policy::units::Micros;
use tollgate_sim::emulated::PrefixCache;

use super::*;

/// How long a test waits for what must come: far longer than any machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings(pace: Pace) -> Settings {
    Settings {
        listen: "127.0.0.1:0".parse().unwrap(),
        models: vec!["m".to_owned()],
        pace,
        script: Script::default(),
        seen: 100,
        output_default: 3,
        threads: 1,
    }
}

fn instant() -> EngineServer {
    EngineServer::start(settings(Pace::Instant(Tokens::new(8_192)))).unwrap()
}

fn emulated(config: Config) -> EngineServer {
    EngineServer::start(settings(Pace::Emulated(config))).unwrap()
}

fn scripted(text: &str) -> EngineServer {
    let script = crate::yaml::read(text).unwrap();
    let pace = Pace::Instant(Tokens::new(8_192));
    EngineServer::start(Settings {
        script,
        ..settings(pace)
    })
    .unwrap()
}

fn connect(engine: &EngineServer) -> TcpStream {
    let stream = TcpStream::connect(engine.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: e\r\nx-test: yes\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn chat(rest: &str) -> String {
    let body = format!(
        "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]{rest}}}"
    );
    post("/v1/chat/completions", &body)
}

/// Status and body of an answer with a length.
fn whole(stream: &mut TcpStream, request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap().parse().unwrap();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (status, String::from_utf8(body).unwrap())
}

fn get(engine: &EngineServer, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: e\r\n\r\n");
    whole(&mut connect(engine), &request)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The raw text of a stream up to its last chunk.
fn stream_text(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n0\r\n\r\n") {
        let mut piece = [0; 4_096];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "cut: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(text).unwrap()
}

/// Waits until `/metrics` has this line.
fn await_metric(engine: &EngineServer, line: &str) {
    let deadline = Clock::start();
    loop {
        let (_, text) = get(engine, "/metrics");
        if text.lines().any(|found| found == line) {
            return;
        }
        let patient = deadline.now().as_micros() < 60_000_000;
        assert!(patient, "no `{line}` in\n{text}");
        std::thread::yield_now();
    }
}

#[test]
fn a_stream_has_its_tokens_its_usage_and_its_end() {
    for engine in [instant(), emulated(Config::default())] {
        let mut stream = connect(&engine);
        let options =
            ",\"stream\":true,\"max_tokens\":4,\"stream_options\":{\"include_usage\":true}";
        for _ in 0..2 {
            let text = stream_text(&mut stream, &chat(options));
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
            assert_eq!(
                text.matches("\"content\":\"").count(),
                5,
                "a role and four tokens: {text}"
            );
            assert!(text.contains("\"finish_reason\":\"length\""), "{text}");
            // 23 bytes of prompt: "user: hello\nassistant: ".
            assert!(
                text.contains("\"prompt_tokens\":23,\"completion_tokens\":4"),
                "{text}"
            );
            assert!(text.contains("data: [DONE]\n\n"), "{text}");
        }
        assert_eq!(
            engine.counts(),
            Counts {
                requests: 2,
                gone: 0
            }
        );
    }
}

#[test]
fn a_whole_answer_is_one_body_and_says_how_long_it_is() {
    for engine in [instant(), emulated(Config::default())] {
        let mut stream = connect(&engine);
        let (status, body) = whole(&mut stream, &chat(",\"max_completion_tokens\":2"));
        assert_eq!(status, 200);
        let body = json(&body);
        assert_eq!(body["choices"][0]["message"]["content"], "toll gate ");
        assert_eq!(body["usage"]["completion_tokens"], 2);
        let text = post(
            "/v1/completions",
            "{\"model\":\"m\",\"prompt\":[\"ab\",\"cd\"]}",
        );
        let (_, body) = whole(&mut stream, &text);
        let body = json(&body);
        assert_eq!(
            body["choices"][0]["text"], "toll gate lane ",
            "as many as without a number"
        );
        assert_eq!(body["usage"]["prompt_tokens"], 4);
    }
}

#[test]
fn chunked_requests_and_requests_in_one_piece_are_read() {
    let engine = instant();
    let mut stream = connect(&engine);
    let body = "{\"model\":\"m\",\"prompt\":\"abc\"}";
    let (first, rest) = body.split_at(10);
    let chunked = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\n\r\n\
         a\r\n{first}\r\n{:x}\r\n{rest}\r\n0\r\n\r\n",
        rest.len()
    );
    assert_eq!(whole(&mut stream, &chunked).0, 200);
    let both = format!(
        "{}{}",
        post("/v1/completions", body),
        post("/v1/completions", body)
    );
    stream.write_all(both.as_bytes()).unwrap();
    let mut text = String::new();
    let mut reader = BufReader::new(&mut stream);
    while text.matches("HTTP/1.1 200 OK").count() < 2 {
        assert!(reader.read_line(&mut text).unwrap() > 0, "{text}");
    }
}

#[test]
fn what_cannot_be_served_is_an_error_in_openais_shape() {
    let engine = emulated(Config {
        context: Tokens::new(100),
        ..Config::default()
    });
    let mut stream = connect(&engine);
    for (request, status, code) in [
        (chat(",\"max_tokens\":99"), 400, "context_length_exceeded"),
        (chat(",\"max_tokens\":0"), 400, "context_length_exceeded"),
        (
            post("/v1/chat/completions", "{\"model\":\"n\",\"messages\":[]}"),
            404,
            "model_not_found",
        ),
        (post("/v1/chat/completions", "{\"model\":\"m\"}"), 400, ""),
        (post("/v1/chat/completions", "{"), 400, ""),
        (post("/v1/nope", "{}"), 404, ""),
    ] {
        let (found, body) = whole(&mut stream, &request);
        assert_eq!(found, status, "{request}");
        let error = &json(&body)["error"];
        assert_eq!(error["code"].as_str().unwrap_or_default(), code, "{body}");
        assert!(error["message"].is_string());
    }
    let mut broken = connect(&engine);
    assert_eq!(whole(&mut broken, "NONSENSE\r\n\r\n").0, 400);
}

#[test]
fn models_health_and_metrics_are_those_of_a_vllm() {
    let engine = emulated(Config::default());
    assert_eq!(get(&engine, "/health"), (200, String::new()));
    assert_eq!(json(&get(&engine, "/v1/models").1)["data"][0]["id"], "m");
    assert_eq!(get(&engine, "/v1/models/m").0, 200);
    assert_eq!(get(&engine, "/v1/models/n").0, 404);
    whole(&mut connect(&engine), &chat(""));
    // The answer's last byte leaves before the engine has counted it.
    let counted =
        "vllm:request_success_total{finished_reason=\"length\",engine=\"0\",model_name=\"m\"} 1";
    let text = (0..5_000)
        .map(|_| get(&engine, "/metrics").1)
        .find(|text| text.contains(counted))
        .unwrap();
    for line in [
        "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0",
        "vllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0",
        "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\",engine=\"0\",\
         num_gpu_blocks=\"16384\"} 1.0",
        "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 23",
        "vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 3",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "no {line} in\n{text}"
        );
    }
}

#[test]
fn a_client_that_leaves_is_cancelled_and_counted_and_its_slot_is_free() {
    let engine = emulated(Config {
        slots: NonZeroU32::MIN,
        cost: tollgate_sim::emulated::Cost {
            step: Micros::from_millis(20),
            ..Default::default()
        },
        ..Config::default()
    });
    let mut running = connect(&engine);
    running
        .write_all(chat(",\"stream\":true,\"max_tokens\":8000").as_bytes())
        .unwrap();
    let mut piece = [0; 64];
    running.read_exact(&mut piece).unwrap();
    let mut waiting = connect(&engine);
    waiting
        .write_all(chat(",\"max_tokens\":8000").as_bytes())
        .unwrap();
    let labels = "{engine=\"0\",model_name=\"m\"}";
    await_metric(&engine, &format!("vllm:num_requests_waiting{labels} 1"));
    waiting.shutdown(Shutdown::Both).unwrap();
    drop(waiting);
    await_metric(&engine, &format!("vllm:num_requests_waiting{labels} 0"));
    drop(running);
    await_metric(&engine, &format!("vllm:num_requests_running{labels} 0"));
    await_metric(&engine, "emulated:requests_cancelled_total 2");
    await_metric(&engine, &format!("vllm:kv_cache_usage_perc{labels} 0"));
    let (status, _) = whole(&mut connect(&engine), &chat(",\"max_tokens\":1"));
    assert_eq!(status, 200);
}

#[test]
fn equal_beginnings_are_found_unless_their_salt_differs() {
    let engine = emulated(Config {
        prefix_cache: PrefixCache::On,
        ..Config::default()
    });
    let mut stream = connect(&engine);
    let body = |salt: &str| {
        let prompt = "x".repeat(100);
        let text = format!("{{\"model\":\"m\",\"prompt\":\"{prompt}\",\"cache_salt\":\"{salt}\"}}");
        post("/v1/completions", &text)
    };
    let cached: Vec<Value> = ["a", "a", "b"]
        .map(|salt| {
            let (_, text) = whole(&mut stream, &body(salt));
            json(&text)["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
        })
        .into();
    assert_eq!(cached, [0, 96, 0]);
}

#[test]
fn what_was_seen_is_told_in_order_with_headers_and_bodies() {
    let engine = instant();
    let mut stream = connect(&engine);
    whole(&mut stream, &chat(",\"user\":\"first\""));
    whole(&mut stream, &chat(",\"user\":\"second\""));
    let seen = json(&get(&engine, "/seen").1);
    let requests = seen["requests"].as_array().unwrap();
    assert_eq!(requests.len(), 2, "who watches is not seen");
    assert_eq!(
        (&requests[0]["number"], &requests[1]["number"]),
        (&1.into(), &2.into())
    );
    assert!(requests[0]["body"].as_str().unwrap().contains("first"));
    assert!(requests[1]["body"].as_str().unwrap().contains("second"));
    assert_eq!(
        requests[0]["headers"][1],
        serde_json::json!(["x-test", "yes"])
    );
    assert_eq!(requests[0]["end"], "sent");
    let forget = "DELETE /seen HTTP/1.1\r\nhost: e\r\n\r\n";
    assert_eq!(whole(&mut connect(&engine), forget).0, 200);
    assert_eq!(
        json(&get(&engine, "/seen").1)["requests"],
        serde_json::json!([])
    );
}

#[test]
fn no_more_is_kept_of_what_was_seen_than_was_asked_for() {
    let pace = Pace::Instant(Tokens::new(8_192));
    let engine = EngineServer::start(Settings {
        seen: 2,
        ..settings(pace)
    })
    .unwrap();
    let mut stream = connect(&engine);
    for _ in 0..5 {
        whole(&mut stream, &chat(""));
    }
    let seen = json(&get(&engine, "/seen").1);
    let numbers: Vec<&Value> = seen["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["number"])
        .collect();
    assert_eq!(numbers, [4, 5]);
}

#[test]
fn a_script_decides_every_byte_and_the_rest_is_served_as_usual() {
    let engine = scripted(
        "answers:
  - path: /v1/chat/completions
    requests: { from: 1, to: 1 }
    steps:
      - head: 200
      - event: '{\"a\":1}'
      - wait: 1ms
      - chunk: 'data: {\"half'
      - hex: '30 0d 0a 0d 0a'
  - path: /health
    steps: [{ send: \"HTTP/1.1 503 No\\r\\ncontent-length: 0\\r\\n\\r\\n\" }]
",
    );
    let mut stream = connect(&engine);
    let text = stream_text(&mut stream, &chat(""));
    let body = text.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(
        body,
        "f\r\ndata: {\"a\":1}\n\n\r\nc\r\ndata: {\"half\r\n0\r\n\r\n"
    );
    assert_eq!(
        whole(&mut stream, &chat("")).0,
        200,
        "the second is not told"
    );
    assert_eq!(get(&engine, "/health").0, 503);
}

#[test]
fn a_script_can_cut_reset_and_fall_silent() {
    let engine = scripted(
        "answers:
  - { requests: { from: 1, to: 1 }, steps: [{ head: 200 }, { event: a }, close] }
  - { requests: { from: 1, to: 1 }, steps: [{ head: 200 }, { event: a }, reset] }
  - { requests: { from: 1, to: 1 }, steps: [{ head: 200 }, { event: a }, silence] }
",
    );
    let read = || {
        let mut stream = connect(&engine);
        stream.write_all(chat("").as_bytes()).unwrap();
        let mut text = Vec::new();
        let result = stream.read_to_end(&mut text);
        (text, result.map_err(|error| error.kind()))
    };
    let (text, result) = read();
    assert!(text.ends_with(b"data: a\n\n\r\n") && result.is_ok());
    let (_, result) = read();
    assert_eq!(result.unwrap_err(), io::ErrorKind::ConnectionReset);
    let mut silent = connect(&engine);
    silent.write_all(chat("").as_bytes()).unwrap();
    let mut head = [0; 32];
    silent.read_exact(&mut head).unwrap();
    silent
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let mut rest = Vec::new();
    assert_eq!(
        silent.read_to_end(&mut rest).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    drop(silent);
    let deadline = Clock::start();
    while engine.counts().gone == 0 {
        assert!(
            deadline.now().as_micros() < 60_000_000,
            "its leaving is not seen"
        );
        std::thread::yield_now();
    }
}

#[test]
fn steps_that_cost_more_take_longer() {
    let engine = emulated(Config::default());
    let mut stream = connect(&engine);
    let change = |percent: &str| whole(&mut connect(&engine), &post("/cost", percent)).0;
    assert_eq!(
        (change("0"), change("much"), change("1000")),
        (400, 400, 200)
    );
    let clock = Clock::start();
    whole(&mut stream, &chat(",\"max_tokens\":3"));
    // Three steps of 10.15 ms, ten times: no machine is faster than that.
    assert!(clock.now().as_micros() > 300_000);
}

#[test]
fn an_address_in_use_is_said() {
    let engine = instant();
    let taken = Settings {
        listen: engine.address(),
        ..settings(Pace::Instant(Tokens::new(1)))
    };
    let error = EngineServer::start(taken).unwrap_err().to_string();
    assert!(error.starts_with("cannot listen on 127.0.0.1:"), "{error}");
}
