//! Reads a request's body within its bounds: bytes, memory of all of them, and time.

use std::time::Duration;

use axum::http::request::Parts;
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::CONTENT_LENGTH;
use tollgate_policy::outcome::Rejection;

use crate::answer::refuse;
use crate::app::{Bounds, Turned};
use crate::door::body_room::{BodyRoom, Room};
use crate::door::patience::Patience;
use crate::prepare::Away;

/// A body, whole, and the room that it takes.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    pub(crate) room: Room,
}

/// The body, whole.
pub(crate) async fn receive(
    parts: &Parts,
    mut body: Incoming,
    (bounds, patience): (&Bounds, &Patience),
) -> Result<Received, Away> {
    let declared = parts
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok());
    let declared = declared.and_then(|value| value.parse::<usize>().ok());
    if declared.is_some_and(|length| length > bounds.body_max) {
        return Err((too_large(bounds.body_max), Some(body)));
    }
    // Nothing of a large one is read, and no memory taken, before there is room for all of it.
    let mut room = Room::default();
    if let Some(length) = declared.filter(|length| BodyRoom::counts(*length)) {
        let wanted = bounds.room.take(length);
        match patience.wait(bounds.read_time, wanted).await {
            Some(taken) => room = taken,
            None => return Err((no_room(), Some(body))),
        }
    }
    let max = (bounds.body_max, declared);
    let collecting = collect(&mut body, max, (&bounds.room, &mut room));
    match patience.wait(bounds.read_time, collecting).await {
        Some(Ok(bytes)) => Ok(Received { bytes, room }),
        Some(Err(turned)) => Err((turned, Some(body))),
        None => Err((too_slow(bounds.read_time), None)),
    }
}

async fn collect(
    body: &mut Incoming,
    (max, declared): (usize, Option<usize>),
    (rooms, room): (&BodyRoom, &mut Room),
) -> Result<Bytes, Turned> {
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    // One whose last byte has come is not asked again: that would be answered only after a turn of
    // the connection.
    while !body.is_end_stream()
        && let Some(frame) = body.frame().await
    {
        let Ok(frame) = frame else {
            let message = "the body broke off; send as many bytes as Content-Length says";
            return Err(Turned::new(Rejection::BadRequest, message));
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if first.len() + all.len() + data.len() > max {
            return Err(too_large(max));
        }
        // A body that comes in one piece, as most do, is not copied.
        if first.is_empty() && all.is_empty() {
            first = data;
            continue;
        }
        match declared {
            // There is room for all of it; memory is taken as bytes come in.
            Some(length) if all.is_empty() => all.reserve(length),
            Some(_) => {}
            None => {
                all.reserve(first.len() + data.len());
                rooms.grow(room, all.capacity()).map_err(|_| no_room())?;
            }
        }
        all.extend_from_slice(&std::mem::take(&mut first));
        all.extend_from_slice(&data);
    }
    Ok(if first.is_empty() {
        all.freeze()
    } else {
        first
    })
}

fn too_large(max: usize) -> Turned {
    let message =
        format!("the body is larger than {max} bytes; send less, or raise server.max_body");
    Turned::new(Rejection::BodyTooLarge, message)
}

fn no_room() -> Turned {
    Turned::new(
        Rejection::NoBodyRoom,
        refuse::rejected(Rejection::NoBodyRoom),
    )
}

fn too_slow(time: Duration) -> Turned {
    let message = format!(
        "the body was not sent within {} s; send it faster",
        time.as_secs()
    );
    Turned::new(Rejection::BodyTimeout, message)
}
