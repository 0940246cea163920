//! A KV for each sequence, where the pool has room for every sequence at its longest.
//!
//! In one KV for all, llama.cpp's attention looks, for each token, at the cells of every sequence,
//! if only to find that they are another's. With a KV for each it looks at the sequence's own. It
//! computes such sequences together only where their numbers follow each other, so those that are
//! there are kept without a gap, the newest last: what a sequence has is moved when one below it
//! ends. And nothing can be shared between them but by a copy of memory, so a cached prefix is the
//! bytes of a sequence that computed it, taken when that sequence is over or somebody shares it.
//!
//! What is kept takes no more bytes than the KV itself, as long as there are no more prefixes than
//! sequences.

use std::collections::BTreeMap;
use std::rc::Rc;

use tollgate_policy::ids::SeqId;

use crate::llama::parking::Cells;

/// Which sequence has which KV, and what is kept of those that are over. A lane's number is what
/// llama.cpp takes for a sequence's.
#[derive(Debug)]
pub(super) struct Lanes<S> {
    /// Ids below this are those of sequences that run; the others keep prefixes.
    running: SeqId,
    /// By lane. invariant: no sequence is twice, the last lane is not empty, and there are at most
    /// `most`.
    held: Vec<Option<SeqId>>,
    most: usize,
    /// By the id that keeps it.
    kept: BTreeMap<SeqId, Kept<S>>,
}

/// A prefix that is kept.
#[derive(Debug)]
struct Kept<S> {
    /// Its positions are those before this one.
    end: u64,
    source: Source<S>,
}

#[derive(Debug)]
enum Source<S> {
    /// A sequence that runs has it.
    Running(SeqId),
    /// These bytes, which may have more.
    Saved(Rc<S>),
}

impl<S> Clone for Source<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Running(seq) => Self::Running(*seq),
            Self::Saved(saved) => Self::Saved(Rc::clone(saved)),
        }
    }
}

impl<S> Lanes<S> {
    /// All of so many lanes are empty. Sequences below `running` run.
    pub(super) const fn new(running: SeqId, most: usize) -> Self {
        Self {
            running,
            held: Vec::new(),
            most,
            kept: BTreeMap::new(),
        }
    }

    /// The lane of a sequence, if it has one.
    pub(super) fn of(&self, seq: SeqId) -> Option<SeqId> {
        let place = self.held.iter().position(|held| *held == Some(seq))?;
        u32::try_from(place).ok().map(SeqId::new)
    }

    /// The lane of a sequence, which is given the next one where it has none, if there is one.
    pub(super) fn enter(&mut self, seq: SeqId, cells: &mut impl Cells<Saved = S>) -> Option<SeqId> {
        if let Some(lane) = self.of(seq) {
            return Some(lane);
        }
        self.close_up(cells);
        if self.held.len() >= self.most {
            return None;
        }
        self.held.push(Some(seq));
        Some(number(self.held.len() - 1))
    }

    /// Lets one sequence have what another has before `end`. `false` when that is gone: `to` must
    /// not go on then.
    pub(super) fn copy(
        &mut self,
        from: SeqId,
        to: SeqId,
        end: u64,
        cells: &mut impl Cells<Saved = S>,
    ) -> bool {
        if !self.is_running(to) {
            // A sequence that runs has all that comes before, too.
            let source = match self.is_running(from) {
                true => Some(Source::Running(from)),
                false => self.kept.get(&from).map(|kept| kept.source.clone()),
            };
            self.kept
                .extend(source.map(|source| (to, Kept { end, source })));
            return true;
        }
        let saved = match self.is_running(from) {
            true => self.save(from, cells),
            false => self.saved(from, cells),
        };
        let Some(lane) = self.enter(to, cells) else {
            return false;
        };
        let loaded = saved.is_some_and(|saved| cells.load(lane, &saved));
        cells.clear(lane, end..u64::MAX);
        loaded
    }

    /// A sequence loses all from a position on, and its lane with the first.
    pub(super) fn trim(&mut self, seq: SeqId, from: u64, cells: &mut impl Cells<Saved = S>) {
        if !self.is_running(seq) {
            match self.kept.get_mut(&seq) {
                Some(kept) if from > 0 => kept.end = kept.end.min(from),
                Some(_) | None => drop(self.kept.remove(&seq)),
            }
            return;
        }
        self.keep_from(seq, cells);
        let Some(lane) = self.of(seq) else { return };
        cells.clear(lane, from..u64::MAX);
        if from == 0 {
            self.leave(seq);
        }
    }

    /// Moves what is in the last lanes to empty ones.
    pub(super) fn close_up(&mut self, cells: &mut impl Cells<Saved = S>) {
        while let Some(gap) = self.held.iter().position(Option::is_none) {
            let last = number(self.held.len() - 1);
            let moved = cells.save(last);
            if !moved.is_some_and(|saved| cells.load(number(gap), &saved)) {
                // Left as it is: batches come apart at the gap.
                return;
            }
            cells.clear(last, 0..u64::MAX);
            self.held.swap_remove(gap);
            self.forget_empty();
        }
    }

    /// Prefixes kept as bytes.
    #[cfg(test)]
    fn as_bytes(&self) -> usize {
        let saved = |kept: &&Kept<S>| matches!(kept.source, Source::Saved(_));
        self.kept.values().filter(saved).count()
    }

    fn is_running(&self, seq: SeqId) -> bool {
        seq < self.running
    }

    fn leave(&mut self, seq: SeqId) {
        for held in &mut self.held {
            held.take_if(|held| *held == seq);
        }
        self.forget_empty();
    }

    fn forget_empty(&mut self) {
        while self.held.pop_if(|held| held.is_none()).is_some() {}
    }

    /// All that a sequence has that runs.
    fn save(&self, seq: SeqId, cells: &mut impl Cells<Saved = S>) -> Option<Rc<S>> {
        let saved = self.of(seq).and_then(|lane| cells.save(lane));
        saved.map(Rc::new)
    }

    /// The bytes of a prefix that is kept.
    fn saved(&mut self, id: SeqId, cells: &mut impl Cells<Saved = S>) -> Option<Rc<S>> {
        if let Source::Running(seq) = self.kept.get(&id)?.source {
            self.keep_from(seq, cells);
        }
        match &self.kept.get(&id)?.source {
            Source::Saved(saved) => Some(Rc::clone(saved)),
            Source::Running(_) => None,
        }
    }

    /// Makes bytes of what is kept of a sequence that runs, if anything is. What can't be read is
    /// kept no longer.
    fn keep_from(&mut self, seq: SeqId, cells: &mut impl Cells<Saved = S>) {
        let is_of = |kept: &Kept<S>| matches!(kept.source, Source::Running(of) if of == seq);
        if !self.kept.values().any(is_of) {
            return;
        }
        match self.save(seq, cells) {
            Some(saved) => {
                for kept in self.kept.values_mut().filter(|kept| is_of(kept)) {
                    kept.source = Source::Saved(Rc::clone(&saved));
                }
            }
            None => self.kept.retain(|_, kept| !is_of(kept)),
        }
    }
}

/// A lane by its place.
fn number(place: usize) -> SeqId {
    SeqId::new(u32::try_from(place).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
