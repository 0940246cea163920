//! HTTP/1 by hand, so that a test sees every byte, and can send wrong ones.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::wait::soon;

/// One request, not yet sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    line: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn get(path: &str) -> Self {
        Self {
            line: format!("GET {path} HTTP/1.1"),
            headers: vec![("host".into(), "tollgate".into())],
            body: Vec::new(),
        }
    }

    /// A request with a body, which is said to be JSON.
    pub(crate) fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let request = Self {
            line: format!("POST {path} HTTP/1.1"),
            body,
            ..Self::get(path)
        };
        let length = request.body.len().to_string();
        request
            .header("content-type", "application/json")
            .header("content-length", length)
    }

    /// The same with another method.
    pub(crate) fn method(mut self, method: &str) -> Self {
        let rest = self.line.split_once(' ').map(|(_, rest)| rest.to_owned());
        self.line = format!("{method} {}", rest.unwrap());
        self
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Takes a header out.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(header, _)| header != name);
        self
    }

    /// The same body in chunks of this size.
    pub(crate) fn chunked(self, size: usize) -> Self {
        let mut request = self
            .without("content-length")
            .header("transfer-encoding", "chunked");
        let mut body = Vec::new();
        for chunk in request.body.chunks(size) {
            body.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            body.extend_from_slice(chunk);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"0\r\n\r\n");
        request.body = body;
        request
    }

    /// All that goes over the wire.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// The head alone.
    pub(crate) fn head_bytes(&self) -> Vec<u8> {
        let mut bytes = self.line.clone().into_bytes();
        bytes.extend_from_slice(b"\r\n");
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    /// The answer, over a connection of its own.
    pub(crate) async fn send(&self, to: SocketAddr) -> Answer {
        Connection::open(to).await.ask(self).await
    }
}

/// The head of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    fn parse(text: &str) -> Self {
        let mut lines = text.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Self {
            status: status.parse().unwrap(),
            headers: lines.filter(|line| !line.is_empty()).map(header).collect(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(header, _)| header == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} stands twice");
        value
    }

    /// A header that must be there, as a number.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.header(name);
        let value = value.unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap()
    }

    /// The request's name.
    pub(crate) fn request_id(&self) -> &str {
        self.header("x-request-id").unwrap()
    }

    pub(crate) fn framing(&self) -> Framing {
        match (
            self.header("transfer-encoding"),
            self.header("content-length"),
        ) {
            (Some(coding), None) => {
                assert_eq!(coding, "chunked");
                Framing::Chunked
            }
            (None, Some(length)) => Framing::Length(length.parse().unwrap()),
            (None, None) => Framing::UntilClose,
            (Some(_), Some(_)) => panic!("a body with two lengths: {self:?}"),
        }
    }
}

/// How the end of a body shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// So many bytes are to come.
    Length(usize),
    Chunked,
    UntilClose,
}

/// A part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Data(Vec<u8>),
    /// All of it was there.
    End,
    /// The connection ended first.
    CutOff,
}

/// An answer, read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.head.status
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        let json = serde_json::from_slice(&self.body);
        json.unwrap_or_else(|error| panic!("{error} in {:?}", self.text()))
    }

    /// The reason in the header, which only errors have.
    pub(crate) fn reason(&self) -> &str {
        self.head.header("x-tollgate-reason").unwrap_or("none")
    }
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(to: SocketAddr) -> Self {
        let socket = soon("connecting", TcpStream::connect(to)).await.unwrap();
        Self::over(socket)
    }

    /// A connection whose client can hold next to nothing that it has not read.
    pub(crate) async fn open_narrow(to: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(2048).unwrap();
        let socket = soon("connecting", socket.connect(to)).await.unwrap();
        Self::over(socket)
    }

    fn over(socket: TcpStream) -> Self {
        socket.set_nodelay(true).unwrap();
        Self {
            socket,
            unread: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).await.unwrap();
    }

    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        soon("sending", self.socket.write_all(bytes)).await
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn ask(&mut self, request: &Request) -> Answer {
        self.send(&request.bytes()).await;
        self.answer().await
    }

    /// The next answer, whole.
    pub(crate) async fn answer(&mut self) -> Answer {
        let answer = self.try_answer().await;
        answer.expect("the connection ended without an answer")
    }

    /// The next answer, or `None` where the connection ends before it is there.
    pub(crate) async fn try_answer(&mut self) -> Option<Answer> {
        let head = self.try_head().await?;
        let mut framing = head.framing();
        let mut body = Vec::new();
        loop {
            match self.piece(&mut framing).await {
                Piece::Data(data) => body.extend_from_slice(&data),
                Piece::End => return Some(Answer { head, body }),
                Piece::CutOff => return None,
            }
        }
    }

    pub(crate) async fn head(&mut self) -> Head {
        let head = self.try_head().await;
        head.expect("the connection ended without an answer")
    }

    pub(crate) async fn try_head(&mut self) -> Option<Head> {
        loop {
            let text = self.up_to(b"\r\n\r\n").await?;
            let head = Head::parse(std::str::from_utf8(&text).unwrap());
            if head.status != 100 {
                return Some(head);
            }
        }
    }

    /// The next part of a body.
    pub(crate) async fn piece(&mut self, framing: &mut Framing) -> Piece {
        match framing {
            Framing::Length(0) => Piece::End,
            Framing::Length(left) => {
                if self.unread.is_empty() && !self.read().await {
                    return Piece::CutOff;
                }
                let taken = self.unread.len().min(*left);
                *left -= taken;
                Piece::Data(self.unread.drain(..taken).collect())
            }
            Framing::Chunked => self.chunk().await.unwrap_or(Piece::CutOff),
            Framing::UntilClose => {
                if self.unread.is_empty() && !self.read().await {
                    return Piece::End;
                }
                Piece::Data(std::mem::take(&mut self.unread))
            }
        }
    }

    async fn chunk(&mut self) -> Option<Piece> {
        let size = self.up_to(b"\r\n").await?;
        let size = std::str::from_utf8(&size).unwrap().trim_end();
        let size = usize::from_str_radix(size, 16).unwrap();
        while self.unread.len() < size + 2 {
            if !self.read().await {
                return None;
            }
        }
        let mut data: Vec<u8> = self.unread.drain(..size + 2).collect();
        assert_eq!(data.split_off(size), b"\r\n");
        Some(match size {
            0 => Piece::End,
            _ => Piece::Data(data),
        })
    }

    /// Ends the client's half of the connection.
    pub(crate) async fn say_no_more(&mut self) {
        // Err: the server has ended it already.
        let _ = self.socket.shutdown().await;
    }

    /// Whether the server ends the connection without another byte.
    pub(crate) async fn is_ended(&mut self) -> bool {
        self.unread.is_empty() && !self.read().await
    }

    /// Everything up to the end of the connection.
    pub(crate) async fn rest(mut self) -> Vec<u8> {
        while self.read().await {}
        self.unread
    }

    /// Bytes up to and with `mark`.
    async fn up_to(&mut self, mark: &[u8]) -> Option<Vec<u8>> {
        loop {
            let found = self.unread.windows(mark.len()).position(|at| at == mark);
            if let Some(at) = found {
                return Some(self.unread.drain(..at + mark.len()).collect());
            }
            if !self.read().await {
                return None;
            }
        }
    }

    /// Reads what is there; `false` at the end of the connection, be it a good one or not.
    async fn read(&mut self) -> bool {
        let read = soon("reading", self.socket.read_buf(&mut self.unread)).await;
        read.is_ok_and(|count| count > 0)
    }
}
