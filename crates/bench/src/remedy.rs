//! What to do about requests that were refused or failed, by their commonest reason.
//!
//! A reason is `x-tollgate-reason`, or the status, or what broke; who measures has met none of them
//! before. Nothing is decided here.

use std::collections::BTreeMap;

/// Requests without an answer: how often for which reason, and what that is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost<'a> {
    /// `refused` or `failed`.
    pub(crate) kind: &'static str,
    pub(crate) by_reason: &'a BTreeMap<String, u64>,
}

impl Lost<'_> {
    /// `refused: http_503 465, requests 2`; `None` where there are none.
    pub(crate) fn counts(&self) -> Option<String> {
        let shown: Vec<String> = self
            .by_reason
            .iter()
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        (!shown.is_empty()).then(|| format!("{}: {}", self.kind, shown.join(", ")))
    }

    /// What to do about most of them.
    pub(crate) fn remedy(&self) -> Option<&'static str> {
        let most = self.by_reason.iter().max_by_key(|(_, count)| **count);
        most.and_then(|(reason, _)| remedy(reason))
    }
}

/// What to do about this reason.
pub(crate) fn remedy(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "http_401" | "bad_key" => "name a key that is good there with --key",
        "http_403" | "key_scope" => "use a key that may ask for this model",
        "http_404" | "model_not_found" | "no_route" => {
            "look at --url and --model: GET /v1/models lists what is there"
        }
        "http_400" | "http_422" | "bad_request" => {
            "ask once with curl to see what is wrong; is the request within the model's context?"
        }
        "context_length_exceeded" | "context" => "use shorter prompts, or a longer context there",
        "http_413" | "body_too_large" => "use shorter prompts",
        "requests" | "tokens" | "concurrency" | "kv" | "http_429" => {
            "the tenant's own limit refuses them: raise it there, or offer less"
        }
        "insufficient_quota" | "budget_in_flight" => "raise the tenant's budget there",
        "queue_full" | "capacity" | "queue_time" | "slo" | "slo_evicted" | "retry_budget"
        | "body_room" | "http_503" | "http_529" => {
            "the endpoint has no room for more: offer less, or give it longer queues"
        }
        "no_replica" | "draining" | "ledger" | "store" => {
            "the endpoint is not ready for work: its log says why"
        }
        "connect" | "reset" => "is the endpoint still running? Its log may say more",
        "client_limit" => "this machine is out of files or ports: raise `ulimit -n`",
        "cut_off" | "error_event" | "no_finish" | "bad_reply" => {
            "the endpoint broke off its answers: its log may say more"
        }
        other if other.starts_with("http_5") => "the endpoint failed: its log may say more",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commonest_reason_has_the_remedy() {
        let by_reason = [("http_503", 9), ("http_404", 2)];
        let by_reason = by_reason.map(|(reason, count)| (reason.to_owned(), count));
        let by_reason = BTreeMap::from(by_reason);
        let lost = Lost {
            kind: "refused",
            by_reason: &by_reason,
        };
        let counts = lost.counts();
        assert_eq!(counts.as_deref(), Some("refused: http_404 2, http_503 9"));
        assert!(lost.remedy().unwrap().contains("offer less"));
        let none = Lost {
            kind: "failed",
            by_reason: &BTreeMap::new(),
        };
        assert_eq!((none.counts(), none.remedy()), (None, None));
    }

    #[test]
    fn whatever_else_goes_wrong_at_an_endpoint_is_for_its_log() {
        assert!(remedy("http_507").unwrap().contains("log"));
        assert_eq!(remedy("teapot"), None);
    }
}
