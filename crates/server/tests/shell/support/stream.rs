//! A streamed answer, event by event.

use std::collections::VecDeque;
use std::net::SocketAddr;

use serde_json::Value;
use tollgate_wire::sse::{SseItem, SseReader};

use super::http::{Connection, Framing, Head, Piece, Request};

/// A stream that is being read.
#[derive(Debug)]
pub(crate) struct Stream {
    connection: Connection,
    pub(crate) head: Head,
    framing: Framing,
    reader: SseReader,
    /// Read, and not yet looked at.
    waiting: VecDeque<SseItem>,
    /// Whether the body had its terminator; `None` while it has not ended.
    whole: Option<bool>,
}

/// What a stream said, from first to last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// The chunks, in order.
    pub(crate) chunks: Vec<Value>,
    pub(crate) text: String,
    pub(crate) finish: Option<String>,
    /// The data of an `error` event.
    pub(crate) error: Option<Value>,
    pub(crate) comments: usize,
    /// Whether `[DONE]` came.
    pub(crate) done: bool,
    /// Whether the body had its terminator.
    pub(crate) whole: bool,
}

impl Stream {
    /// Asks for a stream; the answer has begun, well or not.
    pub(crate) async fn open(to: SocketAddr, request: &Request) -> Self {
        Self::over(Connection::open(to).await, request).await
    }

    pub(crate) async fn over(mut connection: Connection, request: &Request) -> Self {
        connection.send(&request.bytes()).await;
        Self::of(connection).await
    }

    /// The answer to what has been sent.
    pub(crate) async fn of(mut connection: Connection) -> Self {
        let head = connection.head().await;
        Self {
            framing: head.framing(),
            connection,
            head,
            reader: SseReader::default(),
            waiting: VecDeque::new(),
            whole: None,
        }
    }

    /// A stream that must have begun well.
    pub(crate) async fn begin(to: SocketAddr, request: &Request) -> Self {
        let stream = Self::open(to, request).await;
        assert_eq!(stream.head.status, 200);
        stream
    }

    /// The next event or comment; `None` at the end of the body.
    pub(crate) async fn next(&mut self) -> Option<SseItem> {
        loop {
            if let Some(item) = self.waiting.pop_front() {
                return Some(item);
            }
            if !self.read_piece().await {
                return None;
            }
        }
    }

    /// Reads one write of the server's; `false` at the end of the body.
    async fn read_piece(&mut self) -> bool {
        if self.whole.is_some() {
            return false;
        }
        match self.connection.piece(&mut self.framing).await {
            Piece::Data(data) => {
                let waiting = &mut self.waiting;
                let read = self.reader.push(&data, |item| waiting.push_back(item));
                read.unwrap();
                true
            }
            Piece::End => {
                self.whole = Some(true);
                false
            }
            Piece::CutOff => {
                self.whole = Some(false);
                false
            }
        }
    }

    /// How many events each of the server's writes held, the rest of the stream through.
    pub(crate) async fn events_by_write(mut self) -> Vec<usize> {
        let mut counts = Vec::new();
        while self.read_piece().await {
            counts.push(self.waiting.drain(..).count());
        }
        counts
    }

    /// Reads on until `count` chunks with text have come.
    pub(crate) async fn read_texts(&mut self, count: usize) -> Told {
        let (mut told, mut texts) = (Told::default(), 0);
        while texts < count {
            let item = self.next().await;
            let before = told.text.len();
            told.take(item.expect("the stream ended early"));
            texts += usize::from(told.text.len() > before);
        }
        told
    }

    /// Waits for the end, whatever it is.
    pub(crate) async fn until_over(mut self) {
        while self.read_piece().await {
            self.waiting.clear();
        }
    }

    /// Everything that is still to come.
    pub(crate) async fn rest(mut self) -> Told {
        let mut told = Told::default();
        while let Some(item) = self.next().await {
            told.take(item);
        }
        told.whole = self.whole == Some(true);
        told
    }
}

impl Told {
    fn take(&mut self, item: SseItem) {
        assert!(!self.done, "something came after [DONE]: {item:?}");
        assert!(
            self.error.is_none(),
            "something came after an error: {item:?}"
        );
        let event = match item {
            SseItem::Comment(_) => {
                self.comments += 1;
                return;
            }
            SseItem::Event(event) => event,
        };
        if event.data == b"[DONE]" {
            self.done = true;
            return;
        }
        let data: Value = serde_json::from_slice(&event.data).unwrap();
        if event.event.as_deref() == Some("error") {
            self.error = Some(data);
            return;
        }
        assert_eq!(event.event, None);
        // Of several choices, the first speaks for all.
        let choices = data["choices"].as_array().into_iter().flatten();
        let mut first = choices.filter(|choice| choice["index"] == 0);
        let choice = first.next().unwrap_or(&Value::Null);
        let text = choice["delta"]["content"].as_str();
        self.text.extend(text.or_else(|| choice["text"].as_str()));
        if let Some(reason) = choice["finish_reason"].as_str() {
            assert_eq!(self.finish, None, "two reasons to end");
            self.finish = Some(reason.to_owned());
        }
        self.chunks.push(data);
    }

    /// The code of the error event.
    pub(crate) fn error_code(&self) -> &str {
        let error = self.error.as_ref();
        let error = error.unwrap_or_else(|| panic!("no error event: {self:?}"));
        error["error"]["code"].as_str().unwrap()
    }

    /// Checks that the stream ended with an error event and nothing that looks like a good end.
    pub(crate) fn assert_failed(&self, code: &str) {
        assert_eq!(self.error_code(), code);
        assert!(!self.done, "[DONE] beside an error");
        assert_eq!(self.finish, None);
        assert!(!self.whole, "a clean terminator after an error");
    }

    /// Checks that the stream ended as a good one does.
    pub(crate) fn assert_complete(&self) {
        assert_eq!(self.error, None);
        assert!(self.finish.is_some(), "no finish_reason");
        assert!(self.done, "no [DONE]");
        assert!(self.whole, "no terminator");
    }
}
