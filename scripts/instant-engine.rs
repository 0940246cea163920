//! An engine that costs next to nothing, to measure what stands in front of it: each request is
//! answered at once, a stream as 32 events in one write. Built with `rustc -O`; one argument, the
//! port. It reads requests as wrk and gateways write them, and is no server for anything else. Its
//! model is `stub`, which it lists: some gateways ask before they send it anything.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn main() {
    let port = std::env::args().nth(1).expect("a port");
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).expect("a free port");
    for stream in listener.incoming().flatten() {
        std::thread::Builder::new()
            .stack_size(64 * 1024)
            .spawn(move || serve(stream))
            .expect("a thread");
    }
}

fn serve(mut stream: TcpStream) {
    let (whole, events) = (whole(), events());
    let page = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let models = models();
    // Without it, every answer shows a false 40 ms.
    stream.set_nodelay(true).expect("nodelay");
    let mut buffer = vec![0; 64 * 1024];
    let mut held = 0;
    loop {
        match stream.read(&mut buffer[held..]) {
            Ok(0) | Err(_) => return,
            Ok(count) => held += count,
        }
        let Some(end) = find(&buffer[..held], b"\r\n\r\n") else { continue };
        let head = &buffer[..end];
        let length = find(head, b"ontent-length: ").or_else(|| find(head, b"ontent-Length: "));
        let length = length.map_or(0, |at| {
            let digits = head[at + 15..].iter().take_while(|byte| byte.is_ascii_digit());
            digits.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'))
        });
        if held < end + 4 + length {
            continue;
        }
        let body = &buffer[end + 4..end + 4 + length];
        let answer = match (head.starts_with(b"GET"), find(body, b"\"stream\":true")) {
            (true, _) if head.starts_with(b"GET /v1/models") => &models,
            (true, _) => &page[..],
            (false, Some(_)) => &events,
            (false, None) => &whole,
        };
        if stream.write_all(answer).is_err() {
            return;
        }
        held = 0;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|at| at == what)
}

fn models() -> Vec<u8> {
    let body = r#"{"object":"list","data":[{"id":"stub","object":"model","owned_by":"vllm"}]}"#;
    json(body)
}

fn whole() -> Vec<u8> {
    let text = "word ".repeat(32);
    let body = format!(
        "{{\"id\":\"c1\",\"object\":\"chat.completion\",\"created\":7,\"model\":\"stub\",\
         \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}},\
         \"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":32,\
         \"total_tokens\":41}}}}"
    );
    json(&body)
}

fn json(body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n\
         {body}"
    )
    .into_bytes()
}

fn events() -> Vec<u8> {
    let start = "{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":7,\
        \"model\":\"stub\",";
    let mut out = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
        transfer-encoding: chunked\r\n\r\n"
        .to_owned();
    let mut event = |data: &str| {
        let event = format!("data: {data}\n\n");
        out.push_str(&format!("{:x}\r\n{event}\r\n", event.len()));
    };
    for n in 0..32 {
        event(&format!(
            "{start}\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"word{n} \"}},\
             \"finish_reason\":null}}]}}"
        ));
    }
    event(&format!(
        "{start}\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}"
    ));
    event(&format!(
        "{start}\"choices\":[],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":32,\
         \"total_tokens\":41}}}}"
    ));
    event("[DONE]");
    out.push_str("0\r\n\r\n");
    out.into_bytes()
}
