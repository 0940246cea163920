//! HTTP/1.1 by hand: requests out of a socket, and heads of answers.
//!
//! Written out because a script may send what no library would let it, and because an engine that
//! answers at once should cost less than the gateway that is measured with it.

use std::io;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The longest head of a request, in bytes.
const HEAD_MAX: usize = 64 * 1024;

/// The longest body of a request, in bytes: what a gateway lets through by default, and more.
const BODY_MAX: usize = 64 << 20;

/// The most headers of a request.
const HEADERS_MAX: usize = 100;

/// A request, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpRequest {
    pub(super) method: String,
    /// Without the query.
    pub(super) path: String,
    /// As they came, in order.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl HttpRequest {
    /// A header by its name in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let named = |(key, _): &&(String, String)| key.eq_ignore_ascii_case(name);
        self.headers
            .iter()
            .find(named)
            .map(|(_, value)| value.as_str())
    }

    /// Whether the connection is over after the answer.
    pub(super) fn closes(&self) -> bool {
        self.header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// Why no request came out of a socket.
#[derive(Debug)]
pub(super) enum NoRequest {
    /// The other side has gone, at a good moment or a bad one.
    Gone,
    /// What came is no request that is read here; the answer to it.
    Wrong(u16, &'static str),
}

impl From<io::Error> for NoRequest {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Reads the next request; what comes after it stays in `unread`.
pub(super) async fn read_request(
    stream: &mut TcpStream,
    unread: &mut BytesMut,
) -> Result<HttpRequest, NoRequest> {
    let mut request = loop {
        if let Some((request, length)) = parse_head(unread)? {
            unread.advance(length);
            break request;
        }
        if unread.len() > HEAD_MAX {
            return Err(NoRequest::Wrong(431, "the head is too long"));
        }
        more(stream, unread).await?;
    };
    if request.header("expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    request.body = match (
        request.header("transfer-encoding"),
        request.header("content-length"),
    ) {
        (Some(_), _) => read_chunks(stream, unread).await?,
        (None, Some(length)) => {
            let length: usize = length
                .parse()
                .map_err(|_| NoRequest::Wrong(400, "content-length is no number"))?;
            if length > BODY_MAX {
                return Err(NoRequest::Wrong(413, "the body is too long"));
            }
            read_exactly(stream, unread, length).await?
        }
        (None, None) => Vec::new(),
    };
    Ok(request)
}

/// The head at the start of `bytes` and its length, once it is all there.
fn parse_head(bytes: &[u8]) -> Result<Option<(HttpRequest, usize)>, NoRequest> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let wrong = |_| NoRequest::Wrong(400, "this is no HTTP/1.1 request");
    let httparse::Status::Complete(length) = head.parse(bytes).map_err(wrong)? else {
        return Ok(None);
    };
    let target = head.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let request = HttpRequest {
        method: head.method.unwrap_or_default().to_owned(),
        path: path.to_owned(),
        headers: head
            .headers
            .iter()
            .map(|header| (header.name.to_owned(), text(header.value)))
            .collect(),
        body: Vec::new(),
    };
    Ok(Some((request, length)))
}

async fn more(stream: &mut TcpStream, unread: &mut BytesMut) -> Result<(), NoRequest> {
    if unread.capacity() - unread.len() < 4_096 {
        unread.reserve(16_384);
    }
    match stream.read_buf(unread).await? {
        0 => Err(NoRequest::Gone),
        _ => Ok(()),
    }
}

async fn read_exactly(
    stream: &mut TcpStream,
    unread: &mut BytesMut,
    length: usize,
) -> Result<Vec<u8>, NoRequest> {
    while unread.len() < length {
        more(stream, unread).await?;
    }
    Ok(unread.split_to(length).to_vec())
}

async fn read_chunks(stream: &mut TcpStream, unread: &mut BytesMut) -> Result<Vec<u8>, NoRequest> {
    let mut body = Vec::new();
    loop {
        let size = loop {
            match httparse::parse_chunk_size(unread) {
                Ok(httparse::Status::Complete((length, size))) => {
                    unread.advance(length);
                    break usize::try_from(size).unwrap_or(usize::MAX);
                }
                Ok(httparse::Status::Partial) => more(stream, unread).await?,
                Err(_) => return Err(NoRequest::Wrong(400, "a chunk has no size")),
            }
        };
        if size > BODY_MAX || body.len() + size > BODY_MAX {
            return Err(NoRequest::Wrong(413, "the body is too long"));
        }
        // The line end behind it too. Trailers are not read: nobody sends any to an engine.
        let chunk = read_exactly(stream, unread, size + 2).await?;
        if size == 0 {
            return Ok(body);
        }
        body.extend_from_slice(chunk.get(..size).unwrap_or_default());
    }
}

/// Appends an answer that is not streamed.
pub(super) fn write_whole(status: u16, content_type: &str, body: &[u8], out: &mut Vec<u8>) {
    let head = format!(
        "HTTP/1.1 {status} {}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        reason(status),
        body.len()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body);
}

/// Appends the head of a stream of events, whose body comes in chunks.
pub(super) fn write_stream_head(status: u16, out: &mut Vec<u8>) {
    let head = format!(
        "HTTP/1.1 {status} {}\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
         cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n",
        reason(status)
    );
    out.extend_from_slice(head.as_bytes());
}

/// Appends a chunk of a body.
pub(super) fn write_chunk(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Ends a body of chunks.
pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
