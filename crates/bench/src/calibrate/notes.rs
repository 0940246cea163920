//! What a run of a calibration leaves to be said: who was turned away, and that more sequences were
//! asked for than the engine serves at once.

use std::collections::BTreeMap;

use super::steps::Seen;
use crate::remedy::Lost;
use crate::rows::{Ending, Row};

/// What became of the requests of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fates {
    completed: u64,
    refused: BTreeMap<String, u64>,
    failed: BTreeMap<String, u64>,
    unfinished: u64,
}

impl Fates {
    pub(super) fn of(rows: &[Row]) -> Self {
        let mut fates = Self::default();
        for row in rows {
            match &row.ending {
                Ending::Completed => fates.completed += 1,
                Ending::Refused(reason) => *fates.refused.entry(reason.clone()).or_default() += 1,
                Ending::Failed(failure) => *fates.failed.entry(failure.label()).or_default() += 1,
                Ending::Unfinished | Ending::NotSent => fates.unfinished += 1,
            }
        }
        fates
    }

    /// Whether more were lost than completed: what is left is not what was to be measured.
    pub(super) fn is_lost(&self) -> bool {
        let refused: u64 = self.refused.values().sum();
        let failed: u64 = self.failed.values().sum();
        self.completed <= refused + failed + self.unfinished
    }

    /// Who had no answer and why, and what to do about it; `None` where all had one.
    pub(super) fn told(&self) -> Option<String> {
        let kinds = [("refused", &self.refused), ("failed", &self.failed)];
        let lost = kinds.map(|(kind, by_reason)| Lost { kind, by_reason });
        let mut parts: Vec<String> = lost.iter().filter_map(Lost::counts).collect();
        if self.unfinished > 0 {
            parts.push(format!("unfinished: {}", self.unfinished));
        }
        if parts.is_empty() {
            return None;
        }
        let counts = format!("completed: {}; {}", self.completed, parts.join("; "));
        Some(match lost.iter().find_map(Lost::remedy) {
            Some(remedy) => format!("{counts}; {remedy}"),
            None => counts,
        })
    }
}

/// That no step had as many sequences as were asked for; `None` where one had.
pub(super) fn never(clients: u32, steps: &[Seen]) -> Option<String> {
    let of = |seen: &Seen| seen.shape.answers + seen.shape.prompts;
    let most = steps.iter().map(of).max()?;
    (most < u64::from(clients)).then(|| {
        format!(
            "no step had more than {most}: the engine serves no more at once, so its cost for more \
             is a guess; let --sequences end at {most} and `slots` be {most}, or give the engine \
             more slots"
        )
    })
}

#[cfg(test)]
mod tests {
    use tollgate_policy::units::Time;
    use tollgate_sim::machine::Shape;

    use super::*;
    use crate::rows::Failure;
    use crate::rows::tests::completed;

    fn ended(ending: Ending) -> Row {
        Row {
            ending,
            ..completed()
        }
    }

    #[test]
    fn who_was_turned_away_is_counted_by_reason_with_a_remedy() {
        let refused = || ended(Ending::Refused("http_503".to_owned()));
        let rows = [refused(), completed(), refused(), completed(), completed()];
        let fates = Fates::of(&rows);
        let told = fates.told().unwrap();
        assert!(
            told.starts_with("completed: 3; refused: http_503 2; "),
            "{told}"
        );
        assert!(told.contains("offer less"), "{told}");
        assert!(!fates.is_lost());
        let rows = [completed(), ended(Ending::Failed(Failure::Connect))];
        assert!(Fates::of(&rows).is_lost(), "as many as were answered");
        assert_eq!(Fates::of(&[completed()]).told(), None);
    }

    #[test]
    fn more_sequences_than_the_engine_serves_at_once_are_told() {
        let step = |answers, prompts| Seen {
            at: Time::START,
            took_ms: 1.0,
            shape: Shape {
                answers,
                prompts,
                ..Shape::default()
            },
        };
        let steps = [step(7, 1), step(8, 0), step(3, 0)];
        let told = never(16, &steps).unwrap();
        assert!(told.starts_with("no step had more than 8: "), "{told}");
        assert_eq!(never(8, &steps), None);
        assert_eq!(
            never(8, &[]),
            None,
            "that there were no steps is told elsewhere"
        );
    }
}
