//! A client of a few lines, that shows what is on the wire: one connection for each request.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use crate::deadline::PATIENCE;

/// A request that was sent, and what has come back so far.
#[derive(Debug)]
pub(crate) struct Exchange {
    stream: TcpStream,
    got: Vec<u8>,
}

/// An answer, to its last byte.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    /// Whether the body ended as HTTP says, and not by a cut.
    pub(crate) whole: bool,
}

impl Exchange {
    pub(crate) fn send(
        address: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(body);
        stream.write_all(request.as_bytes()).unwrap();
        let got = Vec::new();
        Self { stream, got }
    }

    /// Reads until some of the answer's text is there.
    pub(crate) fn read_until(&mut self, wanted: &str) {
        while !String::from_utf8_lossy(&self.got).contains(wanted) {
            assert!(self.read(), "it ended without {wanted}");
        }
    }

    /// Reads to the end.
    pub(crate) fn finish(mut self) -> Answer {
        while self.read() {}
        Answer::parse(&self.got)
    }

    /// Reads on; false at the end, and where the connection was cut.
    fn read(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        loop {
            return match self.stream.read(&mut piece) {
                Ok(size) => {
                    self.got.extend_from_slice(&piece[..size]);
                    size > 0
                }
                // A read with a timeout is not taken up again where a signal comes between.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
                Err(error) => panic!("{error}"),
            };
        }
    }
}

impl Answer {
    /// What these bytes are, all of it or what has come.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let (body, whole) = if head.contains("transfer-encoding: chunked") {
            joined(bytes)
        } else {
            (body.to_owned(), true)
        };
        Self {
            status,
            head,
            body,
            whole,
        }
    }

    /// The events of a stream, but for the last word.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|l| l.strip_prefix("data: "));
        let data = data.filter(|data| *data != "[DONE]");
        data.map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    /// Why the stream says it ended.
    pub(crate) fn finish_reason(&self) -> Option<String> {
        let events = self.events();
        let mut reasons = events.iter().filter_map(|event| {
            let reason = &event["choices"][0]["finish_reason"];
            reason.as_str().map(str::to_owned)
        });
        reasons.next_back()
    }

    /// Whether it is a stream that ended as a complete one does.
    pub(crate) fn is_done(&self) -> bool {
        self.whole && self.body.trim_end().ends_with("data: [DONE]")
    }

    /// A header of the answer.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// The chunks of a body put together, and whether the last one was there.
fn joined(answer: &[u8]) -> (String, bool) {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let mut rest = &answer[end.unwrap() + 4..];
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&rest[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let Some(chunk) = rest.get(line + 2..line + 2 + size) else {
            break;
        };
        body.extend_from_slice(chunk);
        if size == 0 {
            return (String::from_utf8_lossy(&body).into_owned(), true);
        }
        rest = rest.get(line + 4 + size..).unwrap_or_default();
    }
    (String::from_utf8_lossy(&body).into_owned(), false)
}
