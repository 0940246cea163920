//! Which headers go through: of a client's request to the engine, and of the engine's answer to the
//! client.
//!
//! What is unknown goes through; what belongs to one connection, says who somebody is, or is ours
//! to say, does not.

use axum::http::header::CONNECTION;
use axum::http::{HeaderMap, HeaderName};

use super::http1::has_token;

/// What belongs to one connection (RFC 9110, section 7.6.1), in either direction.
const HOP: [&str; 11] = [
    "connection",
    "content-length",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What a client says to us and to nobody else.
const TO_US: [&str; 15] = [
    "accept-encoding",
    "api-key",
    "authorization",
    "content-encoding",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "idempotency-key",
    "x-api-key",
    "x-real-ip",
    "x-request-id",
    "x-stainless-retry-count",
    "x-tenant-id",
];

/// What an engine says to us, or what we say in its place.
const FROM_ENGINE: [&str; 8] = [
    "alt-svc",
    "content-type",
    "date",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "x-request-id",
];

/// Whether a header of an engine's answer has nothing to say to anyone behind the reader of its
/// head.
pub(super) fn is_spent(name: &str) -> bool {
    let is = |known: &&str| known.eq_ignore_ascii_case(name);
    let needed = ["content-type", "retry-after"];
    let mut spent = HOP.iter().chain(&FROM_ENGINE);
    spent.any(|known| is(known) && !needed.contains(known))
}

/// Appends the headers of a client's request that the engine gets.
pub(crate) fn write_request(headers: &HeaderMap, out: &mut Vec<u8>) {
    let named = headers.contains_key(CONNECTION);
    for (name, value) in headers {
        if goes_to_engine(name) && !(named && is_named(headers, name)) {
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

fn goes_to_engine(name: &HeaderName) -> bool {
    let text = name.as_str();
    let ours = text.starts_with("x-tollgate-") || text.starts_with("x-forwarded-");
    !ours && !HOP.contains(&text) && !TO_US.contains(&text)
}

/// Copies the headers of an engine's answer that the client gets.
pub(crate) fn copy_response(from: &HeaderMap, to: &mut HeaderMap) {
    for (name, value) in from {
        let text = name.as_str();
        let ours = text.starts_with("x-tollgate-") || text.starts_with("x-ratelimit-");
        if !ours && !HOP.contains(&text) && !FROM_ENGINE.contains(&text) && !is_named(from, name) {
            to.append(name.clone(), value.clone());
        }
    }
}

/// Whether `Connection` says that this header is for the next hop only.
fn is_named(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.contains_key(CONNECTION) && has_token(headers, &CONNECTION, name.as_str())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(names: &[&'static str]) -> HeaderMap {
        let value = |name: &&'static str| {
            let value = HeaderValue::from_static(if *name == "connection" {
                "close, x-hop"
            } else {
                "v"
            });
            (HeaderName::from_static(name), value)
        };
        names.iter().map(value).collect()
    }

    #[test]
    fn who_somebody_is_and_what_is_for_one_hop_stays_here() {
        let sent = headers(&[
            "authorization",
            "x-api-key",
            "api-key",
            "cookie",
            "x-tenant-id",
            "connection",
            "x-hop",
            "te",
            "transfer-encoding",
            "x-forwarded-for",
            "x-tollgate-x",
            "host",
            "accept-encoding",
            "traceparent",
            "x-mine",
        ]);
        let mut out = Vec::new();
        write_request(&sent, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "traceparent: v\r\nx-mine: v\r\n"
        );
    }

    #[test]
    fn an_engines_own_limits_and_identity_stay_there() {
        let sent = headers(&[
            "server",
            "date",
            "set-cookie",
            "x-ratelimit-remaining-requests",
            "x-request-id",
            "retry-after",
            "connection",
            "x-hop",
            "keep-alive",
            "x-tollgate-replica",
            "openai-model",
        ]);
        let mut got = HeaderMap::new();
        copy_response(&sent, &mut got);
        assert_eq!(
            got.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["openai-model"]
        );
    }
}
