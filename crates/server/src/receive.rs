//! Reads a request's body within its bounds: bytes and time.

use std::time::Duration;

use axum::http::request::Parts;
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::CONTENT_LENGTH;
use tollgate_policy::outcome::Rejection;

use crate::app::{Bounds, Turned};
use crate::patience::Patience;
use crate::prepare::Away;

/// The body, whole.
pub(crate) async fn receive(
    parts: &Parts,
    mut body: Incoming,
    (bounds, patience): (Bounds, &Patience),
) -> Result<Bytes, Away> {
    let declared = parts
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok());
    let declared = declared.and_then(|value| value.parse::<usize>().ok());
    if declared.is_some_and(|length| length > bounds.body_max) {
        return Err((too_large(bounds.body_max), Some(body)));
    }
    // What is declared is not yet sent: memory is taken as bytes come in.
    let collecting = collect(&mut body, bounds.body_max);
    match patience.wait(bounds.read_time, collecting).await {
        Some(Ok(bytes)) => Ok(bytes),
        Some(Err(turned)) => Err((turned, Some(body))),
        None => Err((too_slow(bounds.read_time), None)),
    }
}

async fn collect(body: &mut Incoming, max: usize) -> Result<Bytes, Turned> {
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
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&data);
        }
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

fn too_slow(time: Duration) -> Turned {
    let message = format!(
        "the body was not sent within {} s; send it faster",
        time.as_secs()
    );
    Turned::new(Rejection::BodyTimeout, message)
}
