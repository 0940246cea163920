//! The steps of an engine, as its clients saw them: out of the times at which tokens came.
//!
//! Tokens of several answers that come at the same moment are of one step, and from one step to the
//! next is what the later one took. Who was in it is known: whose token came, and who is between
//! two tokens of an answer. It knows nothing of what an engine does between two steps.

use std::collections::BTreeMap;

use tollgate_policy::units::{Micros, Time, Tokens};
use tollgate_sim::machine::Shape;

use crate::rows::Row;

/// Tokens of one step are at most so far apart when they come: some writes to some sockets. No step
/// is as short.
const TOGETHER: Micros = Micros::from_millis(2);

/// One step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seen {
    /// When its tokens came.
    pub(super) at: Time,
    /// Milliseconds.
    pub(super) took_ms: f64,
    /// What it computed.
    pub(super) shape: Shape,
}

/// A token when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Came {
    at: Time,
    /// Whose.
    row: usize,
    /// Which of its answer, from 0.
    index: u64,
}

/// The steps whose length shows, in order: those of answers that go on, and those of a prompt that
/// finds the engine without work.
pub(super) fn seen(rows: &[Row]) -> Vec<Seen> {
    let mut steps = Vec::new();
    let mut open = Open {
        rows,
        last: BTreeMap::new(),
        before: None,
    };
    for group in groups(tokens(rows)) {
        steps.extend(open.step(&group));
    }
    steps
}

fn tokens(rows: &[Row]) -> Vec<Came> {
    let mut all = Vec::new();
    for (row, answer) in rows.iter().enumerate() {
        let Some(first) = answer.first_token else {
            continue;
        };
        let later = answer.gaps.iter().scan(first, |at, gap| {
            *at = *at + *gap;
            Some(*at)
        });
        let times = std::iter::once(first).chain(later);
        all.extend((0..).zip(times).map(|(index, at)| Came { at, row, index }));
    }
    all.sort_unstable();
    all
}

/// Tokens that came together, in order. None of an answer is with another of the same.
fn groups(tokens: Vec<Came>) -> Vec<Vec<Came>> {
    let mut groups: Vec<Vec<Came>> = Vec::new();
    for token in tokens {
        let is_of = |group: &&mut Vec<Came>| {
            let close = |last: &Came| token.at.since(last.at) <= TOGETHER;
            group.last().is_some_and(close) && group.iter().all(|one| one.row != token.row)
        };
        match groups.last_mut().filter(is_of) {
            Some(group) => group.push(token),
            None => groups.push(vec![token]),
        }
    }
    groups
}

/// Answers that have begun and not ended, from step to step.
struct Open<'a> {
    rows: &'a [Row],
    /// Their last tokens.
    last: BTreeMap<usize, Came>,
    /// When the step before ended.
    before: Option<Time>,
}

impl Open<'_> {
    fn step(&mut self, group: &[Came]) -> Option<Seen> {
        let at = group.first()?.at;
        let seen = self.took(group).map(|took| Seen {
            at,
            took_ms: took.get() as f64 / 1e3,
            shape: self.shape(group),
        });
        for token in group {
            self.last.insert(token.row, *token);
        }
        let (rows, end) = (self.rows, group.last().map(|last| last.at));
        self.last
            .retain(|row, _| rows.get(*row).and_then(|row| row.last_token) > end);
        self.before = Some(at);
        seen
    }

    /// The time since the step before, if the engine has worked all the while.
    fn took(&self, group: &[Came]) -> Option<Micros> {
        let before = self.before;
        let mut gaps: Vec<Micros> = group
            .iter()
            .filter_map(|token| Some((token, self.last.get(&token.row)?)))
            .filter(|(_, last)| before.is_some_and(|before| last.at >= before))
            .map(|(token, last)| token.at.since(last.at))
            .collect();
        gaps.sort_unstable();
        if let Some(middle) = gaps.get(gaps.len() / 2) {
            return Some(*middle);
        }
        match group {
            [only] if only.index == 0 && self.last.is_empty() => {
                let sent = self.rows.get(only.row)?.sent?;
                let idle = before.is_none_or(|before| before < sent);
                idle.then(|| only.at.since(sent))
            }
            _ => None,
        }
    }

    fn shape(&self, group: &[Came]) -> Shape {
        let mut shape = Shape::default();
        let prompt_of = |row: usize| {
            let row = self.rows.get(row);
            row.map_or(0, |row| row.prompt_tokens.unwrap_or(row.prompt_asked))
        };
        for token in group.iter().filter(|token| token.index == 0) {
            let prompt = Tokens::new(prompt_of(token.row));
            shape.prompts += 1;
            shape.prompt_tokens += prompt;
            shape.kv += prompt;
        }
        // A token without text comes to nobody, and is computed all the same.
        for last in self.last.values() {
            shape.answers += 1;
            shape.kv += Tokens::new(prompt_of(last.row) + last.index + 1);
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::completed;

    fn ms(ms: u64) -> Time {
        Time::START + Micros::from_millis(ms)
    }

    /// Of a prompt, when it was sent, and when each token of its answer came.
    fn row(prompt: u64, sent: u64, tokens: &[u64]) -> Row {
        let gaps = tokens.windows(2);
        let gaps = gaps.map(|pair| Micros::from_millis(pair[1] - pair[0]));
        Row {
            sent: Some(ms(sent)),
            prompt_tokens: Some(prompt),
            first_token: tokens.first().copied().map(ms),
            last_token: tokens.last().copied().map(ms),
            gaps: gaps.collect(),
            ..completed()
        }
    }

    fn shape(answers: u64, prompts: u64, prompt_tokens: u64, kv: u64) -> Shape {
        Shape {
            answers,
            prompts,
            prompt_tokens: Tokens::new(prompt_tokens),
            kv: Tokens::new(kv),
        }
    }

    #[test]
    fn what_a_step_computed_and_how_long_it_took_shows_in_when_tokens_came() {
        let rows = [
            row(100, 0, &[50, 60, 110, 125]),
            // Comes while the other answers.
            row(40, 55, &[110, 125]),
        ];
        let told: Vec<_> = seen(&rows)
            .iter()
            .map(|seen| (seen.took_ms, seen.shape))
            .collect();
        let expected = [
            (50.0, shape(0, 1, 100, 100)),
            (10.0, shape(1, 0, 0, 101)),
            (50.0, shape(1, 1, 40, 102 + 40)),
            (15.0, shape(2, 0, 0, 103 + 41)),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_token_without_text_is_computed_all_the_same() {
        // The second has nothing to show at 20 ms.
        let rows = [row(10, 0, &[10, 20, 30]), row(10, 0, &[10, 30])];
        let told = seen(&rows);
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0].shape, shape(2, 0, 0, 22));
        assert_eq!((told[0].took_ms, told[1].took_ms), (10.0, 10.0));
    }

    #[test]
    fn who_waited_for_others_says_nothing_of_its_own_step() {
        // Two prompts at once, and one that was sent while an answer went on and came after it.
        let rows = [row(10, 0, &[30]), row(10, 0, &[30]), row(10, 20, &[70])];
        assert_eq!(seen(&rows), []);
    }
}
