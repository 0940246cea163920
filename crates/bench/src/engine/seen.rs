//! What an engine saw: the last requests in their order, with headers and bodies, and how each
//! ended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tollgate_policy::units::Time;

use super::http::HttpRequest;

/// Bytes of a body that are kept.
const BODY_KEPT: usize = 16 * 1024;

/// Output tokens that were made for a request so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Made(Arc<AtomicU64>);

impl Made {
    pub(super) fn add(&self, tokens: u64) {
        self.0.fetch_add(tokens, Ordering::Relaxed);
    }
}

impl Serialize for Made {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0.load(Ordering::Relaxed))
    }
}

/// The last requests.
#[derive(Debug)]
pub(super) struct SeenLog {
    /// Kept at most; none are where it is 0.
    most: usize,
    requests: Mutex<VecDeque<SeenRequest>>,
}

#[derive(Clone, Debug, Serialize)]
struct SeenRequest {
    /// Counted from 1, in the order in which requests were whole.
    number: u64,
    /// Which connection, counted from 1.
    connection: u64,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
    /// Bytes of the whole body.
    body_bytes: usize,
    /// When it was whole, in microseconds since the start.
    at_us: u64,
    ended_us: Option<u64>,
    /// Tokens made for it, whether or not anybody took them.
    output_tokens: Made,
    end: End,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    /// It has not.
    Open,
    /// All of it was sent.
    Sent,
    /// A script cut it.
    Cut,
    /// The client left before.
    ClientGone,
}

impl SeenLog {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            requests: Mutex::default(),
        }
    }

    /// Keeps a request; where the tokens made for it are counted.
    pub(super) fn came(
        &self,
        number: u64,
        connection: u64,
        at: Time,
        request: &HttpRequest,
    ) -> Made {
        let made = Made::default();
        if self.most == 0 {
            return made;
        }
        let kept = request.body.get(..BODY_KEPT).unwrap_or(&request.body);
        let seen = SeenRequest {
            number,
            connection,
            method: request.method.clone(),
            path: request.path.clone(),
            headers: request.headers.clone(),
            body: String::from_utf8_lossy(kept).into_owned(),
            body_bytes: request.body.len(),
            at_us: at.as_micros(),
            ended_us: None,
            output_tokens: made.clone(),
            end: End::Open,
        };
        let mut requests = self.requests();
        if requests.len() == self.most {
            requests.pop_front();
        }
        requests.push_back(seen);
        made
    }

    /// Notes how it ended, if it is still kept.
    pub(super) fn ended(&self, number: u64, end: End, at: Time) {
        if self.most == 0 {
            return;
        }
        let mut requests = self.requests();
        // From the back: those that end are mostly among the last.
        if let Some(seen) = requests.iter_mut().rev().find(|seen| seen.number == number) {
            (seen.end, seen.ended_us) = (end, Some(at.as_micros()));
        }
    }

    pub(super) fn forget(&self) {
        self.requests().clear();
    }

    /// All that is kept.
    pub(super) fn to_json(&self) -> Value {
        json!({ "kept_at_most": self.most, "requests": *self.requests() })
    }

    fn requests(&self) -> MutexGuard<'_, VecDeque<SeenRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
