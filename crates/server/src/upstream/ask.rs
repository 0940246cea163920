//! A request as it goes over the wire to an engine: a head, and the parts of a body, which are not
//! put together where that would copy much.

use std::time::Duration;

use bytes::Bytes;
use tollgate_wire::Tap;

/// Bodies up to this size are put behind their head, to go out in one write.
const JOIN_MAX: usize = 16 * 1024;

/// A request, as it goes over the wire.
#[derive(Debug)]
pub(crate) struct Ask {
    /// Its head, and its body behind it where that is small: it goes out in one write then.
    pub(super) message: Vec<u8>,
    head_length: usize,
    /// The body of one that is not.
    pub(super) rest: Vec<Bytes>,
    /// The reader of the stream that is asked for, where one is.
    pub(super) tap: Option<Tap>,
    pub(super) first_byte: Duration,
}

impl Ask {
    /// One without a body, or with one of this length that is still to be put behind it.
    pub(crate) fn new(head: Vec<u8>, tap: Option<Tap>, first_byte: Duration) -> Self {
        Self {
            head_length: head.len(),
            message: head,
            rest: Vec::new(),
            tap,
            first_byte,
        }
    }

    /// The room that the body of this length takes behind the head.
    pub(crate) fn room_for(length: usize) -> usize {
        if length <= JOIN_MAX { length } else { 0 }
    }

    /// Puts its body behind it: the parts that this many bytes are made of.
    pub(crate) fn with_body<'p>(
        mut self,
        length: usize,
        parts: impl Iterator<Item = Part<'p>>,
    ) -> Self {
        for part in parts {
            match part {
                Part::Slice(bytes, at) if length > JOIN_MAX => self.rest.push(bytes.slice(at)),
                Part::Slice(bytes, at) => self.message.extend_from_slice(&bytes[at]),
                Part::New(bytes) if length > JOIN_MAX => self.rest.push(Bytes::from(bytes)),
                Part::New(bytes) => self.message.extend_from_slice(&bytes),
            }
        }
        self
    }

    /// What goes before its body.
    pub(super) fn head(&self) -> &[u8] {
        &self.message[..self.head_length]
    }

    /// Its body, in one piece.
    pub(super) fn body(&self) -> Bytes {
        let mut all = self.message[self.head_length..].to_vec();
        self.rest
            .iter()
            .for_each(|part| all.extend_from_slice(part));
        Bytes::from(all)
    }
}

/// A part of a body.
pub(crate) enum Part<'p> {
    /// Of the client's own, which is not copied where there is much of it.
    Slice(&'p Bytes, std::ops::Range<usize>),
    New(Vec<u8>),
}
