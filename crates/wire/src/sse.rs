//! Server-sent events: bytes to events and back, by the WHATWG grammar
//! (<https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream>).
//!
//! The writers append to the caller's buffer; [`SseReader`] takes the bytes of a stream however
//! they were cut. Events are bytes here: what is inside, and what a missing terminator means for
//! a request, is not decided here.

mod reader;
#[cfg(test)]
mod tests;

pub use reader::{SseEnd, SseError, SseEvent, SseItem, SseReader};

/// Appends an event without a name. The reader gets `data` back with each line end as LF, since
/// the grammar has no way to say which it was.
pub fn write_data(data: &[u8], out: &mut Vec<u8>) {
    for line in lines(data) {
        write_field(b"data: ", line, out);
    }
    out.push(b'\n');
}

/// Appends an event named `name`; a line end in the name becomes a space.
pub fn write_event(name: &str, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend(
        name.bytes()
            .map(|byte| if is_line_end(byte) { b' ' } else { byte }),
    );
    out.push(b'\n');
    write_data(data, out);
}

/// Appends a comment, which clients skip: it keeps a waiting connection alive.
pub fn write_comment(text: &str, out: &mut Vec<u8>) {
    for line in lines(text.as_bytes()) {
        write_field(b": ", line, out);
    }
    out.push(b'\n');
}

/// Appends the event that ends a good stream of OpenAI's, and only a good one.
pub fn write_done(out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: [DONE]\n\n");
}

/// Appends one line.
fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// The lines of `text`, which end in LF, CRLF or CR; one line if there is no line end.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = text.iter().position(|&byte| is_line_end(byte)) else {
            return rest.take();
        };
        let (line, tail) = text.split_at(end);
        rest = Some(match tail {
            [b'\r', b'\n', after @ ..] | [_, after @ ..] => after,
            [] => tail,
        });
        Some(line)
    })
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}
