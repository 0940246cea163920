//! Where prefixes wait that nobody uses: beside llama.cpp's KV, and not in it.
//!
//! llama.cpp's attention looks, for each token of a step, at every cell up to the last one in use,
//! if only to find that it is another sequence's. A cache full of prefixes makes each token pay for
//! all of them. So what no running sequence has is taken out of the KV and kept as bytes, and is
//! put back when one is to have it: a copy of memory, in milliseconds, where computing takes
//! seconds.
//!
//! Knows which sequences have which positions only by the copies and cuts that it is told of. What
//! is kept takes as many bytes again as the KV of the cached tokens, each counted once, and for
//! each prefix that was cut up to a piece more.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use tollgate_policy::ids::SeqId;

/// Tokens kept as one piece. A piece that was cut is put back whole for a moment, so the KV has
/// room for this many more tokens than the scheduler's pool.
pub(crate) const PIECE: u64 = 128;

/// What is done to the KV.
pub(crate) trait Cells {
    /// The KV of one sequence, as bytes.
    type Saved;

    /// Lets `to` have what `from` has at these positions. No memory is copied.
    fn copy(&mut self, from: SeqId, to: SeqId, positions: Range<u64>);

    /// Takes these positions from a sequence.
    fn clear(&mut self, seq: SeqId, positions: Range<u64>);

    /// All that a sequence has; `None` where it can't be read.
    fn save(&mut self, seq: SeqId) -> Option<Self::Saved>;

    /// Gives a sequence that has nothing what was saved; whether it could.
    fn load(&mut self, seq: SeqId, saved: &Self::Saved) -> bool;
}

type PieceId = u64;

/// Positions that several sequences have in common, or had.
#[derive(Debug)]
struct Piece<S> {
    positions: Range<u64>,
    holders: BTreeSet<SeqId>,
    /// Whether the KV has it.
    resident: bool,
    /// What it is, once it was taken out; of more positions where it was cut since.
    saved: Option<Rc<S>>,
}

/// Which sequences have what in common, and where it is.
#[derive(Debug)]
pub(crate) struct Parking<S> {
    /// Ids below this are those of sequences that run; the others keep prefixes.
    running: SeqId,
    /// A sequence through which pieces come and go; nobody else's.
    gate: SeqId,
    pieces: BTreeMap<PieceId, Piece<S>>,
    /// By sequence and first position. invariant: no two of a sequence overlap.
    held: BTreeMap<(SeqId, u64), PieceId>,
    /// invariant: all pieces that are resident and that no running sequence holds.
    idle: BTreeSet<PieceId>,
    next: PieceId,
}

impl<S> Parking<S> {
    /// Nothing is shared. Sequences below `running` run; `gate` is not used by anybody.
    pub(crate) fn new(running: SeqId, gate: SeqId) -> Self {
        Self {
            running,
            gate,
            pieces: BTreeMap::new(),
            held: BTreeMap::new(),
            idle: BTreeSet::new(),
            next: 0,
        }
    }

    /// Lets one sequence have what another has at these positions. `false` when it was taken out
    /// and can't be put back: `to` must not go on then.
    pub(crate) fn copy(
        &mut self,
        from: SeqId,
        to: SeqId,
        positions: Range<u64>,
        cells: &mut impl Cells<Saved = S>,
    ) -> bool {
        self.cover(from, positions.clone());
        let mut whole = true;
        for id in self.within(from, positions) {
            if self.is_running(to) {
                whole &= self.put_back(id, cells);
            }
            let Some(piece) = self.pieces.get_mut(&id) else {
                continue;
            };
            if piece.resident {
                cells.copy(from, to, piece.positions.clone());
            }
            piece.holders.insert(to);
            self.held.insert((to, piece.positions.start), id);
            self.judge(id);
        }
        whole
    }

    /// A sequence loses all from a position on.
    pub(crate) fn trim(&mut self, seq: SeqId, from: u64, cells: &mut impl Cells<Saved = S>) {
        self.cut(seq, from);
        for id in self.within(seq, from..u64::MAX) {
            self.leave(seq, id);
        }
        cells.clear(seq, from..u64::MAX);
    }

    /// Takes out what no running sequence has.
    pub(crate) fn settle(&mut self, cells: &mut impl Cells<Saved = S>) {
        for id in std::mem::take(&mut self.idle) {
            self.take_out(id, cells);
        }
    }

    /// Pieces that were taken out.
    #[cfg(test)]
    pub(crate) fn parked(&self) -> usize {
        let away = |piece: &&Piece<S>| !piece.resident;
        self.pieces.values().filter(away).count()
    }

    fn is_running(&self, seq: SeqId) -> bool {
        seq < self.running
    }

    /// The pieces of a sequence that begin in these positions.
    fn within(&self, seq: SeqId, positions: Range<u64>) -> Vec<PieceId> {
        let (first, end) = ((seq, positions.start), (seq, positions.end));
        self.held.range(first..end).map(|(_, id)| *id).collect()
    }

    /// Makes pieces of all that a sequence has at these positions, with borders at both ends.
    fn cover(&mut self, seq: SeqId, positions: Range<u64>) {
        self.cut(seq, positions.start);
        self.cut(seq, positions.end);
        let mut at = positions.start;
        while at < positions.end {
            if let Some(id) = self.held.get(&(seq, at)) {
                at = self.pieces[id].positions.end;
                continue;
            }
            let next = self.held.range((seq, at)..(seq, positions.end)).next();
            let gap = next.map_or(positions.end, |((_, start), _)| *start);
            let end = gap.min((at / PIECE + 1) * PIECE);
            self.place(Piece {
                positions: at..end,
                holders: BTreeSet::from([seq]),
                resident: true,
                saved: None,
            });
            at = end;
        }
    }

    /// Makes two of the piece that goes on over this position.
    fn cut(&mut self, seq: SeqId, at: u64) {
        let before = self.held.range((seq, 0)..(seq, at)).next_back();
        let piece = before.and_then(|(_, id)| self.pieces.get_mut(id));
        let Some(piece) = piece.filter(|piece| piece.positions.end > at) else {
            return;
        };
        let end = std::mem::replace(&mut piece.positions.end, at);
        let rest = Piece {
            positions: at..end,
            holders: piece.holders.clone(),
            resident: piece.resident,
            saved: piece.saved.clone(),
        };
        self.place(rest);
    }

    fn place(&mut self, piece: Piece<S>) {
        let id = self.next;
        self.next += 1;
        for holder in &piece.holders {
            self.held.insert((*holder, piece.positions.start), id);
        }
        self.pieces.insert(id, piece);
        self.judge(id);
    }

    fn leave(&mut self, seq: SeqId, id: PieceId) {
        let Some(piece) = self.pieces.get_mut(&id) else {
            return;
        };
        self.held.remove(&(seq, piece.positions.start));
        piece.holders.remove(&seq);
        if piece.holders.is_empty() {
            self.pieces.remove(&id);
        }
        self.judge(id);
    }

    /// Notes whether a piece is to be taken out.
    fn judge(&mut self, id: PieceId) {
        let running = self.running;
        let idle = self.pieces.get(&id).is_some_and(|piece| {
            piece.resident && piece.holders.first().is_some_and(|first| *first >= running)
        });
        if idle {
            self.idle.insert(id);
        } else {
            self.idle.remove(&id);
        }
    }

    /// Whether the KV has the piece now.
    fn put_back(&mut self, id: PieceId, cells: &mut impl Cells<Saved = S>) -> bool {
        let Some(piece) = self.pieces.get_mut(&id) else {
            return false;
        };
        if piece.resident {
            return true;
        }
        let Some(saved) = &piece.saved else {
            return false;
        };
        if cells.load(self.gate, saved) {
            for holder in &piece.holders {
                cells.copy(self.gate, *holder, piece.positions.clone());
            }
            piece.resident = true;
        }
        let resident = piece.resident;
        cells.clear(self.gate, 0..u64::MAX);
        self.judge(id);
        resident
    }

    /// One that can't be read stays where it is.
    fn take_out(&mut self, id: PieceId, cells: &mut impl Cells<Saved = S>) {
        let Some(piece) = self.pieces.get_mut(&id) else {
            return;
        };
        if piece.saved.is_none()
            && let Some(holder) = piece.holders.first()
        {
            cells.copy(*holder, self.gate, piece.positions.clone());
            piece.saved = cells.save(self.gate).map(Rc::new);
            cells.clear(self.gate, 0..u64::MAX);
        }
        if piece.saved.is_some() {
            for holder in &piece.holders {
                cells.clear(*holder, piece.positions.clone());
            }
            piece.resident = false;
        }
    }
}

#[cfg(test)]
mod tests;
