//! What requests that waited have taught: what was known of each, what was planned, and what came.
//!
//! The newest few thousand are kept, in chunks that never change once they are full, so that all of
//! them are handed to whoever fits trees to them without being copied.

use std::collections::VecDeque;
use std::sync::Arc;

use super::calibrate::Group;
use super::trees::Features;
use crate::units::{Micros, Time, count};

/// What one request taught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lesson {
    /// What was known of it.
    pub features: Features,
    /// What the plan said of its first token.
    pub planned: Micros,
    /// What came, from when that was said.
    pub came: Micros,
    /// With which others it is calibrated.
    pub group: Group,
}

/// The last lessons of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lessons {
    full: VecDeque<Arc<[Lesson]>>,
    current: Vec<Lesson>,
    /// Lessons in chunks that were filled, forgotten ones included.
    filled: u64,
    /// Since when a chunk is full that was not asked about.
    is_due: bool,
    /// When somebody was last asked to fit.
    asked: Option<Time>,
    /// Whether an answer is awaited.
    is_open: bool,
}

impl Lessons {
    /// Lessons of one chunk: trees are fitted anew after so many.
    const CHUNK: usize = 256;

    /// Chunks that are kept: 4,096 lessons, some 700 kB.
    const CHUNKS: usize = 16;

    /// Chunks below which nothing is fitted.
    const FIRST: usize = 2;

    /// After so long an answer is no longer awaited.
    const PATIENCE: Micros = Micros::from_secs(600);

    pub(super) fn push(&mut self, lesson: Lesson) {
        self.current.push(lesson);
        if self.current.len() < Self::CHUNK {
            return;
        }
        let chunk = std::mem::replace(&mut self.current, Vec::with_capacity(Self::CHUNK));
        self.filled += count(chunk.len());
        self.full.push_back(chunk.into());
        if self.full.len() > Self::CHUNKS {
            self.full.pop_front();
        }
        self.is_due = self.full.len() >= Self::FIRST;
    }

    /// All chunks, when it is time to have trees fitted to them, `pause` after the last time at the
    /// soonest; and how many lessons there were until then.
    pub(super) fn take_due(
        &mut self,
        pause: Micros,
        now: Time,
    ) -> Option<(Vec<Arc<[Lesson]>>, u64)> {
        let since = self.asked.map(|asked| now.since(asked));
        let is_early =
            since.is_some_and(|since| since < pause || (self.is_open && since < Self::PATIENCE));
        if !self.is_due || is_early {
            return None;
        }
        (self.is_due, self.is_open, self.asked) = (false, true, Some(now));
        Some((self.full.iter().cloned().collect(), self.filled))
    }

    /// An answer has come.
    pub(super) fn answered(&mut self) {
        self.is_open = false;
    }

    /// Those that came after the first `seen`, as far as they are still known.
    pub(super) fn since(&self, seen: u64) -> impl Iterator<Item = &Lesson> {
        let newer = self.filled.saturating_sub(seen) / count(Self::CHUNK);
        let newer = usize::try_from(newer).unwrap_or(usize::MAX);
        let skipped = self.full.len().saturating_sub(newer);
        let full = self.full.iter().skip(skipped);
        full.flat_map(|chunk| chunk.iter()).chain(&self.current)
    }

    /// Lessons that are kept.
    pub(super) fn len(&self) -> usize {
        self.full.len() * Self::CHUNK + self.current.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::Class;
    use crate::units::Tokens;

    const PAUSE: Micros = Micros::from_secs(20);

    fn lesson(n: u64) -> Lesson {
        Lesson {
            features: [n; _],
            planned: Micros::new(1),
            came: Micros::new(n),
            group: Group::of(Class::Standard, Tokens::new(1), 0),
        }
    }

    fn at(secs: u64) -> Time {
        Time::START + Micros::from_secs(secs)
    }

    #[test]
    fn a_fit_is_due_with_a_new_chunk_and_not_while_another_is_awaited() {
        let mut lessons = Lessons::default();
        for n in 0..511 {
            lessons.push(lesson(n));
        }
        assert_eq!(lessons.take_due(PAUSE, at(0)), None, "one chunk is too few");
        lessons.push(lesson(511));
        let (chunks, seen) = lessons.take_due(PAUSE, at(1)).unwrap();
        assert_eq!((chunks.len(), seen), (2, 512));
        for n in 512..768 {
            lessons.push(lesson(n));
        }
        assert_eq!(lessons.take_due(PAUSE, at(100)), None, "it is not back");
        lessons.answered();
        assert_eq!(lessons.since(seen).count(), 256);
        let (chunks, seen) = lessons.take_due(PAUSE, at(100)).unwrap();
        assert_eq!((chunks.len(), seen), (3, 768));
        lessons.answered();
        assert_eq!(
            lessons.take_due(PAUSE, at(200)),
            None,
            "there is nothing new"
        );
    }

    #[test]
    fn many_lessons_a_second_are_fitted_no_oftener_and_the_oldest_go() {
        let mut lessons = Lessons::default();
        let mut fits = 0;
        for n in 0..20_000 {
            lessons.push(lesson(n));
            let now = Time::START + Micros::from_millis(n);
            if lessons.take_due(PAUSE, now).is_some() {
                fits += 1;
                lessons.answered();
            }
        }
        assert_eq!(fits, 1, "within twenty seconds");
        assert!(lessons.len() <= 4_096 + 256, "{}", lessons.len());
        let oldest = lessons.since(0).next().unwrap().came;
        assert!(oldest.get() >= 20_000 - 4_096 - 256, "{oldest:?}");
    }

    #[test]
    fn whoever_never_answers_is_asked_again_in_the_end() {
        let mut lessons = Lessons::default();
        for n in 0..512 {
            lessons.push(lesson(n));
        }
        assert!(lessons.take_due(PAUSE, at(0)).is_some());
        for n in 0..256 {
            lessons.push(lesson(n));
        }
        assert!(lessons.take_due(PAUSE, at(599)).is_none());
        assert!(lessons.take_due(PAUSE, at(600)).is_some());
    }
}
