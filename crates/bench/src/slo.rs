//! What a request has to keep to be good: limits on its latencies, all of them at once.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tollgate_policy::slo::Terms;
use tollgate_policy::units::Micros;

use crate::args::span;
use crate::rows::{Ending, Row};
use crate::summary::{millis, tpot};

/// Limits that a request meets or misses. One that did not complete misses them all.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slo {
    /// Most milliseconds from the intended send to the first token.
    pub ttft_ms: f64,
    /// Most milliseconds per output token after the first, on average over the request.
    pub tpot_ms: f64,
    /// Most milliseconds from the intended send to the last byte, where there is such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e_ms: Option<f64>,
}

impl Default for Slo {
    /// Two seconds to the first token, then ten tokens a second: what a reader bears (MLPerf
    /// Inference, Llama 3.1 8B conversational).
    fn default() -> Self {
        Self {
            ttft_ms: 2_000.0,
            tpot_ms: 100.0,
            e2e_ms: None,
        }
    }
}

impl Slo {
    /// Whether the request completed within every limit. A request of one token has no TPOT.
    pub(crate) fn met_by(&self, row: &Row) -> bool {
        let Some(first) = row.first_token.filter(|_| row.ending == Ending::Completed) else {
            return false;
        };
        let whole = millis(row.end, row.intended);
        millis(first, row.intended) <= self.ttft_ms
            && tpot(row).is_none_or(|each| each <= self.tpot_ms)
            && self.e2e_ms.is_none_or(|most| whole <= most)
    }
}

impl Slo {
    /// The same as a gateway promises it.
    pub(crate) fn terms(&self) -> Terms {
        // As many microseconds as there are, and no request is faster than one.
        let micros = |ms: f64| Micros::new((ms * 1e3) as u64).max(Micros::new(1));
        Terms {
            ttft: Some(micros(self.ttft_ms)),
            tpot: Some(micros(self.tpot_ms)),
            e2e: self.e2e_ms.map(micros),
            ..Terms::NONE
        }
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TTFT {} ms, TPOT {} ms", self.ttft_ms, self.tpot_ms)?;
        self.e2e_ms
            .map_or(Ok(()), |most| write!(f, ", E2E {most} ms"))
    }
}

impl FromStr for Slo {
    type Err = String;

    /// Reads `ttft=2s,tpot=100ms,e2e=30s`; what is not named keeps its default.
    fn from_str(text: &str) -> Result<Self, String> {
        let (mut slo, mut names) = (Self::default(), Vec::new());
        for pair in text.split(',') {
            let wrong = || format!("`{pair}` is no limit; use ttft=2s,tpot=100ms,e2e=30s");
            let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
            let limit: Micros = span(value)?;
            if limit == Micros::ZERO {
                return Err(format!(
                    "`{pair}`: no answer takes no time; use 1us or more"
                ));
            }
            if names.contains(&name) {
                return Err(format!("`{name}` stands there twice; keep one"));
            }
            names.push(name);
            let limit_ms = limit.get() as f64 / 1e3;
            match name {
                "ttft" => slo.ttft_ms = limit_ms,
                "tpot" => slo.tpot_ms = limit_ms,
                "e2e" => slo.e2e_ms = Some(limit_ms),
                _ => return Err(wrong()),
            }
        }
        Ok(slo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::completed;

    #[test]
    fn a_request_is_good_when_it_completed_within_every_limit() {
        // 50 ms to the first token, 10 ms a token, 700 ms in all.
        let met = |text: &str| text.parse::<Slo>().unwrap().met_by(&completed());
        assert!(met("ttft=50ms,tpot=10ms,e2e=700ms"));
        assert!(!met("ttft=49ms"));
        assert!(!met("tpot=9ms"));
        assert!(!met("e2e=699ms"));
        let cut = Row {
            ending: Ending::Unfinished,
            ..completed()
        };
        assert!(!Slo::default().met_by(&cut));
    }

    #[test]
    fn a_limit_that_is_none_is_refused_by_name() {
        for text in [
            "ttft",
            "first=2s",
            "ttft=2",
            "",
            "ttft=0s",
            "tpot=1s,tpot=2s",
        ] {
            assert!(text.parse::<Slo>().is_err(), "{text}");
        }
        let shown = "ttft=1s,tpot=50ms,e2e=9s".parse::<Slo>().unwrap();
        assert_eq!(shown.to_string(), "TTFT 1000 ms, TPOT 50 ms, E2E 9000 ms");
    }
}
