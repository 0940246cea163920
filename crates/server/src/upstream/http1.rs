//! HTTP/1.1 as a client speaks it: the head of an answer, and where its body ends.
//!
//! Strict where two readers could see two different answers (RFC 9112, sections 6 and 7): a body
//! with two lengths, or with a chunk that is none, is no answer. It reads from a buffer; nothing
//! here waits.

use std::mem::MaybeUninit;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use bytes::{Buf as _, BytesMut};

use super::headers::is_spent;

/// Headers of one answer.
const HEADERS_MAX: usize = 128;

/// Bytes of one answer's head.
pub(crate) const HEAD_MAX: usize = 64 * 1024;

/// Bytes of a chunk's size line behind the size, and of the trailers.
const EXTRAS_MAX: u32 = 16 * 1024;

/// What an engine sent is not HTTP, or could be read in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what the replica sent is no answer that can be read: {0}")]
pub(crate) struct Malformed(&'static str);

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) fields: Fields,
    /// Whether the connection can carry another request afterwards.
    pub(crate) keeps: bool,
    body: Result<BodyReader, Malformed>,
}

/// The headers of an answer, as far as they are of use to anyone: what is about the connection or
/// the engine itself is left out. With most engines that leaves none but the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    /// `Content-Type`.
    pub(crate) kind: Option<HeaderValue>,
    /// The others.
    pub(crate) others: HeaderMap,
}

impl Head {
    /// Takes a head out of `buffer`, once it is there; those of 1xx are skipped.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn take(buffer: &mut BytesMut) -> Result<Option<Self>, Malformed> {
        while !buffer.is_empty() {
            let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
            let mut parsed = httparse::Response::new(&mut []);
            let config = httparse::ParserConfig::default();
            let read = config.parse_response_with_uninit_headers(&mut parsed, buffer, &mut headers);
            let length = match read {
                Ok(httparse::Status::Complete(length)) => length,
                Ok(httparse::Status::Partial) if buffer.len() < HEAD_MAX => return Ok(None),
                Ok(httparse::Status::Partial) => return Err(Malformed("its head is too long")),
                Err(_) => return Err(Malformed("its head is not HTTP")),
            };
            let head = Self::of(&parsed)?;
            buffer.advance(length);
            if head.status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(Malformed("it switches protocols"));
            }
            if !head.status.is_informational() {
                return Ok(Some(head));
            }
        }
        Ok(None)
    }

    /// That of a stream among others, which has a connection to itself and ends with it.
    pub(crate) fn of_stream(status: StatusCode, mut headers: HeaderMap) -> Self {
        let mut framing = Framing::default();
        for (name, value) in &headers {
            framing.note(name.as_str(), value.as_bytes());
        }
        Self {
            status,
            keeps: false,
            body: framing.body(status, false),
            fields: Fields {
                kind: headers.remove(header::CONTENT_TYPE),
                others: headers,
            },
        }
    }

    fn of(parsed: &httparse::Response<'_, '_>) -> Result<Self, Malformed> {
        let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or(Malformed("its status is none"))?;
        let mut framing = Framing::default();
        for header in parsed.headers.iter() {
            framing.note(header.name, header.value);
        }
        let http_1_0 = parsed.version == Some(0);
        Ok(Self {
            status,
            keeps: match framing.after {
                After::Unsaid => !http_1_0,
                After::KeepAlive => true,
                After::Close => false,
            },
            body: framing.body(status, http_1_0),
            fields: Fields::of(parsed.headers, framing.names_others)?,
        })
    }

    /// How its body ends.
    ///
    /// # Errors
    /// It could be read in two ways.
    pub(crate) fn body(&self) -> Result<BodyReader, Malformed> {
        self.body
    }
}

impl Fields {
    /// Where `Connection` names others, those have to be known by their names.
    fn of(headers: &[httparse::Header<'_>], names_others: bool) -> Result<Self, Malformed> {
        let mut fields = Self::default();
        for header in headers {
            if !names_others && is_spent(header.name) {
                continue;
            }
            let name = HeaderName::from_bytes(header.name.as_bytes());
            let value = known_value(header.value).map_or_else(|| value(header.value), Ok);
            let (Ok(name), Ok(value)) = (name, value) else {
                return Err(Malformed("a header of it is none"));
            };
            if name == header::CONTENT_TYPE && fields.kind.is_none() {
                fields.kind = Some(value);
            } else {
                fields.others.append(name, value);
            }
        }
        Ok(fields)
    }
}

fn value(bytes: &[u8]) -> Result<HeaderValue, header::InvalidHeaderValue> {
    HeaderValue::from_bytes(bytes)
}

/// A value that nearly every answer has.
fn known_value(bytes: &[u8]) -> Option<HeaderValue> {
    const KNOWN: [&str; 3] = [
        "application/json",
        "text/event-stream; charset=utf-8",
        "text/event-stream",
    ];
    let known = KNOWN.into_iter().find(|known| known.as_bytes() == bytes);
    known.map(HeaderValue::from_static)
}

/// What the headers of an answer say of where its body and its connection end.
#[derive(Debug, Default)]
struct Framing {
    length: Option<Result<u64, Malformed>>,
    /// Headers that say how it is coded, and whether one says that it is in chunks.
    codings: u32,
    chunked: bool,
    after: After,
    /// `Connection` names other headers.
    names_others: bool,
}

/// What an answer says of its connection after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum After {
    #[default]
    Unsaid,
    KeepAlive,
    Close,
}

impl Framing {
    fn note(&mut self, name: &str, value: &[u8]) {
        if name.eq_ignore_ascii_case("content-length") {
            self.note_length(value);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            self.codings += 1;
            self.chunked |= words(value).any(|word| word.eq_ignore_ascii_case("chunked"));
        } else if name.eq_ignore_ascii_case("connection") {
            for word in words(value) {
                if word.eq_ignore_ascii_case("close") {
                    self.after = After::Close;
                } else if word.eq_ignore_ascii_case("keep-alive") {
                    if self.after == After::Unsaid {
                        self.after = After::KeepAlive;
                    }
                } else {
                    self.names_others = true;
                }
            }
        }
    }

    fn note_length(&mut self, value: &[u8]) {
        let value = std::str::from_utf8(value).unwrap_or_default().trim();
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let length = digits.then(|| value.parse().ok()).flatten();
        let length = length.ok_or(Malformed("its length is none"));
        self.length = Some(match (self.length.take(), length) {
            (Some(Ok(before)), Ok(length)) if before != length => {
                Err(Malformed("it has two lengths"))
            }
            (Some(Err(error)), _) | (_, Err(error)) => Err(error),
            (_, length) => length,
        });
    }

    fn body(&self, status: StatusCode, http_1_0: bool) -> Result<BodyReader, Malformed> {
        let length = self.length.transpose()?;
        let bodiless = matches!(status.as_u16(), 204 | 304);
        let state = match (bodiless, self.codings, length) {
            (true, _, _) => State::Done,
            (_, 1, None) if self.chunked && !http_1_0 => State::Size(Size::default()),
            (_, 0, Some(0)) => State::Done,
            (_, 0, Some(length)) => State::Length(length),
            (_, 0, None) => State::UntilClose,
            (_, _, None) => return Err(Malformed("it is coded in a way that nobody asked for")),
            (_, _, Some(_)) => return Err(Malformed("it has a length and is chunked")),
        };
        Ok(BodyReader { state })
    }
}

/// The words of a header that is a list.
fn words(value: &[u8]) -> impl Iterator<Item = &str> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// Whether a header that is a list has this word in it.
pub(crate) fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).into_iter();
    let mut words = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    words.any(|word| word.trim().eq_ignore_ascii_case(token))
}

/// Finds the contents of a body in the bytes that carry it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyReader {
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many bytes are to come.
    Length(u64),
    UntilClose,
    /// In the size of a chunk.
    Size(Size),
    /// Behind the size, where extensions may stand: how many bytes they may still have.
    Extension {
        size: u64,
        left: u32,
    },
    /// At the LF behind the size.
    SizeEnd(u64),
    /// In a chunk, so many bytes of which are to come.
    Chunk(u64),
    /// At the CR, then the LF, behind a chunk.
    ChunkCr,
    ChunkLf,
    /// In the trailers: whether their line is empty so far, and how many bytes they may still have.
    Trailer {
        empty: bool,
        left: u32,
    },
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    value: u64,
    digits: u8,
}

/// What stands next in a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<'b> {
    /// Some of its contents.
    Data(&'b [u8]),
    /// More must be read first.
    More,
    /// It is all there.
    End,
}

impl BodyReader {
    /// What stands next in `bytes`, of which it takes what it has used.
    ///
    /// # Errors
    /// The chunks are none.
    pub(crate) fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Next<'b>, Malformed> {
        loop {
            match self.state {
                State::Done => return Ok(Next::End),
                State::Length(left) => {
                    let (taken, left) = take(bytes, left);
                    if taken.is_empty() {
                        return Ok(Next::More);
                    }
                    self.state = match left {
                        0 => State::Done,
                        left => State::Length(left),
                    };
                    return Ok(Next::Data(taken));
                }
                State::UntilClose => {
                    let taken = std::mem::take(bytes);
                    return Ok(if taken.is_empty() {
                        Next::More
                    } else {
                        Next::Data(taken)
                    });
                }
                State::Chunk(left) => {
                    let (taken, left) = take(bytes, left);
                    if taken.is_empty() {
                        return Ok(Next::More);
                    }
                    self.state = match left {
                        0 => State::ChunkCr,
                        left => State::Chunk(left),
                    };
                    return Ok(Next::Data(taken));
                }
                State::Size(_)
                | State::Extension { .. }
                | State::SizeEnd(_)
                | State::ChunkCr
                | State::ChunkLf
                | State::Trailer { .. } => {
                    let Some((byte, rest)) = bytes.split_first() else {
                        return Ok(Next::More);
                    };
                    self.state = self.state.after(*byte)?;
                    *bytes = rest;
                }
            }
        }
    }

    /// Bytes that are to come, where that is known from the start.
    pub(crate) fn length(&self) -> Option<usize> {
        match self.state {
            State::Length(length) => usize::try_from(length).ok(),
            State::UntilClose
            | State::Size(_)
            | State::Extension { .. }
            | State::SizeEnd(_)
            | State::Chunk(_)
            | State::ChunkCr
            | State::ChunkLf
            | State::Trailer { .. }
            | State::Done => None,
        }
    }

    /// The connection ended: whether the body was all there.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self.state, State::Done | State::UntilClose)
    }

    /// Whether it is all there.
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }
}

impl State {
    /// The state behind one byte of what is around chunks.
    fn after(self, byte: u8) -> Result<Self, Malformed> {
        let extras = Malformed("what is around its chunks is too long");
        let bad = Malformed("a chunk of it is none");
        match self {
            Self::Size(size) => match (char::from(byte).to_digit(16), byte) {
                // 15 digits are more than any body has, and fit a u64.
                (Some(digit), _) if size.digits < 15 => Ok(Self::Size(Size {
                    value: size.value * 16 + u64::from(digit),
                    digits: size.digits + 1,
                })),
                (None, b'\r') if size.digits > 0 => Ok(Self::SizeEnd(size.value)),
                (None, b';' | b' ' | b'\t') if size.digits > 0 => Ok(Self::Extension {
                    size: size.value,
                    left: EXTRAS_MAX,
                }),
                _ => Err(bad),
            },
            Self::Extension { size, left } => match byte {
                b'\r' => Ok(Self::SizeEnd(size)),
                b'\n' => Err(bad),
                _ => Ok(Self::Extension {
                    size,
                    left: left.checked_sub(1).ok_or(extras)?,
                }),
            },
            Self::SizeEnd(0) if byte == b'\n' => Ok(Self::Trailer {
                empty: true,
                left: EXTRAS_MAX,
            }),
            Self::SizeEnd(size) if byte == b'\n' => Ok(Self::Chunk(size)),
            Self::ChunkCr if byte == b'\r' => Ok(Self::ChunkLf),
            Self::ChunkLf if byte == b'\n' => Ok(Self::Size(Size::default())),
            Self::Trailer { empty, left } => match (byte, empty) {
                (b'\n', true) => Ok(Self::Done),
                (b'\n', false) => Ok(Self::Trailer { empty: true, left }),
                (b'\r', _) => Ok(Self::Trailer { empty, left }),
                _ => Ok(Self::Trailer {
                    empty: false,
                    left: left.checked_sub(1).ok_or(extras)?,
                }),
            },
            Self::SizeEnd(_)
            | Self::ChunkCr
            | Self::ChunkLf
            | Self::Length(_)
            | Self::UntilClose
            | Self::Chunk(_)
            | Self::Done => Err(bad),
        }
    }
}

/// As much of `bytes` as there is of `left`, and what is left then.
fn take<'b>(bytes: &mut &'b [u8], left: u64) -> (&'b [u8], u64) {
    let most = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    let (taken, rest) = bytes.split_at(most);
    *bytes = rest;
    (taken, left - u64::try_from(most).unwrap_or(left))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(text: &str) -> Result<Option<Head>, Malformed> {
        Head::take(&mut BytesMut::from(text.as_bytes()))
    }

    fn reader(headers: &str) -> Result<BodyReader, Malformed> {
        let text = format!("HTTP/1.1 200 OK\r\n{headers}\r\n");
        head(&text)?.unwrap().body()
    }

    /// The contents of a body that comes in these pieces, and what is left behind it.
    fn contents(reader: &mut BodyReader, pieces: &[&[u8]]) -> Result<(Vec<u8>, usize), Malformed> {
        let (mut out, mut left) = (Vec::new(), 0);
        for piece in pieces {
            let mut bytes = *piece;
            while let Next::Data(data) = reader.next(&mut bytes)? {
                out.extend_from_slice(data);
            }
            left += bytes.len();
        }
        Ok((out, left))
    }

    #[test]
    fn a_head_is_taken_once_it_is_whole_and_those_of_1xx_are_skipped() {
        assert!(head("HTTP/1.1 200 OK\r\ncontent-le").unwrap().is_none());
        let mut buffer = BytesMut::from(
            &b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\nx: y\r\n\r\nbody"[..],
        );
        let head = Head::take(&mut buffer).unwrap().unwrap();
        assert_eq!((head.status.as_u16(), &buffer[..]), (404, &b"body"[..]));
        assert!(head.keeps);
    }

    #[test]
    fn a_connection_is_kept_only_where_both_sides_mean_it() {
        for (text, keeps) in [
            ("HTTP/1.1 200 OK\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nconnection: Close\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n\r\n", true),
        ] {
            assert_eq!(head(text).unwrap().unwrap().keeps, keeps, "{text}");
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_no_answer() {
        for headers in [
            "content-length: 3\r\ntransfer-encoding: chunked\r\n",
            "content-length: 3\r\ncontent-length: 4\r\n",
            "content-length: +3\r\n",
            "content-length: 3, 3\r\n",
            "transfer-encoding: gzip, chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: gzip\r\n",
        ] {
            assert!(reader(headers).is_err(), "{headers}");
        }
    }

    #[test]
    fn chunks_are_read_with_extensions_and_trailers() {
        let mut reader = reader("transfer-encoding: chunked\r\n").unwrap();
        let body = b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nt: v\r\n\r\nHTTP";
        assert_eq!(
            contents(&mut reader, &[body]),
            Ok((b"abc0123456789".to_vec(), 4))
        );
        assert!(reader.is_done());
    }

    #[test]
    fn chunks_that_are_none_are_refused() {
        for body in [
            "x\r\n",
            "\r\n",
            "3\r\nabcd\r\n",
            "3\nabc",
            "fffffffffffffffff\r\n",
            "3\r\nabc\n",
        ] {
            let mut reader = reader("transfer-encoding: chunked\r\n").unwrap();
            assert!(
                contents(&mut reader, &[body.as_bytes()]).is_err(),
                "{body:?}"
            );
        }
    }

    #[test]
    fn a_body_that_breaks_off_is_told_from_one_that_ends() {
        let mut short = reader("content-length: 5\r\n").unwrap();
        assert_eq!(contents(&mut short, &[b"abc"]), Ok((b"abc".to_vec(), 0)));
        assert!(!short.ends_with_connection());
        let mut open = reader("").unwrap();
        assert_eq!(contents(&mut open, &[b"abc"]), Ok((b"abc".to_vec(), 0)));
        assert!(open.ends_with_connection() && !open.is_done());
    }

    proptest! {
        #[test]
        fn chunks_read_alike_however_they_are_cut(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut body = Vec::new();
            for chunk in &chunks {
                body.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                body.extend_from_slice(chunk);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"0\r\n\r\n");
            let (first, second) = body.split_at(cut.index(body.len() + 1));
            let mut reader = reader("transfer-encoding: chunked\r\n").unwrap();
            let read = contents(&mut reader, &[first, second]);
            prop_assert_eq!(read, Ok((chunks.concat(), 0)));
            prop_assert!(reader.is_done());
        }

        #[test]
        fn bytes_of_any_kind_never_panic(bytes: Vec<u8>) {
            let mut reader = reader("transfer-encoding: chunked\r\n").unwrap();
            let _ = contents(&mut reader, &[&bytes]);
            let _ = Head::take(&mut BytesMut::from(bytes.as_slice()));
        }
    }
}
