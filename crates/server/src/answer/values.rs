//! Values of an answer's headers, written into one piece of memory.
//!
//! An answer has some ten of them that are numbers. Each with a piece of its own would cost more
//! than what they say.

use std::fmt::{Display, Write as _};

use axum::http::HeaderValue;
use bytes::BytesMut;

/// Room for the values of one answer, more or less.
const ROOM: usize = 128;

/// Writes values.
#[derive(Debug)]
pub(crate) struct Values(BytesMut);

impl Values {
    pub(crate) fn new() -> Self {
        Self(BytesMut::with_capacity(ROOM))
    }

    /// What this looks like, as a value.
    pub(crate) fn of(&mut self, what: impl Display) -> HeaderValue {
        // Err: memory takes all that is written.
        let _ = write!(self.0, "{what}");
        let text = self.0.split().freeze();
        let empty = HeaderValue::from_static("");
        HeaderValue::from_maybe_shared(text).unwrap_or(empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_its_own() {
        let mut values = Values::new();
        let long = "x".repeat(300);
        let each = [values.of(7), values.of(&long), values.of("6m0s")];
        assert_eq!(each, ["7", &long, "6m0s"]);
    }
}
