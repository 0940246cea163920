//! What the HTTP layer answers by itself, before there is a request, put into words.
//!
//! To a head that is none, or is too long, it says a status and nothing else, and clients of this
//! API know an error by its body. It reads and writes one head; whose connection it is on is the
//! connection's to know.

use tollgate_wire::ErrorBody;

/// The longest head that the HTTP layer makes up by itself; it has three headers at most.
const HEAD_MAX: usize = 256;

/// The same answer with a body that says what is wrong; nothing where it is no such answer.
pub(crate) fn in_words(answer: &[u8]) -> Option<Vec<u8>> {
    if answer.len() > HEAD_MAX || !answer.ends_with(b"\r\n\r\n") {
        return None;
    }
    let status = answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    let (line, reason, message) = match status {
        b"400" => (
            "400 Bad Request",
            "bad_request",
            "the head of the request is not HTTP/1.1 as it can be read in one way only; send it \
             anew, with one length and no blanks where none belong",
        ),
        b"414" => (
            "414 URI Too Long",
            "uri_too_long",
            "the address is too long; the API takes what it needs in the body",
        ),
        b"431" => (
            "431 Request Header Fields Too Large",
            "head_too_large",
            "the head of the request is larger than 64 KiB or has more than 100 headers; send less",
        ),
        _ => return None,
    };
    let mut body = Vec::with_capacity(256);
    ErrorBody {
        message,
        kind: "invalid_request_error",
        param: None,
        code: None,
    }
    .write(&mut body);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {line}\r\ncontent-type: application/json\r\nx-tollgate-reason: {reason}\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut all = head.into_bytes();
    all.extend_from_slice(&body);
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_of_the_http_layer_gets_a_body_that_is_as_long_as_it_says() {
        for status in ["400 Bad Request", "414 URI Too Long", "431 Too Large"] {
            let bare =
                format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            let worded = String::from_utf8(in_words(bare.as_bytes()).unwrap()).unwrap();
            assert!(
                worded.starts_with(&format!("HTTP/1.1 {}", &status[..3])),
                "{worded}"
            );
            let (head, body) = worded.split_once("\r\n\r\n").unwrap();
            assert!(
                head.contains(&format!("content-length: {}", body.len())),
                "{head}"
            );
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["error"]["type"], "invalid_request_error");
        }
    }

    #[test]
    fn what_is_none_of_them_is_left_alone() {
        let long = format!("HTTP/1.1 400 No\r\nx: {}\r\n\r\n", "y".repeat(HEAD_MAX));
        for other in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\n\r\n{}",
            "data: x\r\n\r\n",
            "",
            &long,
        ] {
            assert_eq!(in_words(other.as_bytes()), None, "{other}");
        }
    }
}
