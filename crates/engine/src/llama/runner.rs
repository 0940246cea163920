//! Steps on a llama.cpp context.
//!
//! The context is as large as the scheduler's pool, and llama.cpp places tokens one by one, so a
//! step that the scheduler planned finds its room. A batch that fails all the same is repeated
//! sequence by sequence, so that only the offender pays.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::context::session::{LlamaStateSeqFlags, SeqState};
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::vocab::LlamaVocab;
use tollgate_policy::engine::Config;
use tollgate_policy::ids::SeqId;
use tollgate_policy::kv::KvOp;
use tollgate_policy::units::KvBlocks;

use crate::backend::{
    Backend, Begin, FatalError, Open, OpenError, Sampled, SequenceError, StepWork,
};
use crate::handle::lock;
use crate::job::Token;
use crate::llama::batches::{self, Part};
use crate::llama::lanes::Lanes;
use crate::llama::model::{LlamaModel, backend};
use crate::llama::parking::{Cells, PIECE, Parking};
use crate::llama::sampler::Chooser;

/// Builds a context on the engine's thread.
pub(crate) struct Opener {
    pub(crate) model: Arc<LlamaModel>,
    pub(crate) limits: Config,
    pub(crate) threads: NonZeroU32,
}

impl Open for Opener {
    fn open(self: Box<Self>, run: &mut dyn FnMut(&mut dyn Backend)) -> Result<(), OpenError> {
        let step_tokens = fits("step_tokens", self.limits.step_tokens.get())?;
        let (tokens, ids, layout) = self.layout();
        let tokens = fits("the pool, in tokens,", tokens)?;
        // llama.cpp has a row of results for each sequence id, and aborts where a batch has fewer.
        // Padding is a third at most.
        let batch = (step_tokens.unsigned_abs() / 3 * 4 + 4).max(ids);
        let threads = fits("threads", u64::from(self.threads.get()))?;
        let params = LlamaContextParams::default()
            .with_n_ctx(u32::try_from(tokens).ok().and_then(NonZeroU32::new))
            .with_n_batch(batch)
            .with_n_ubatch(step_tokens.unsigned_abs())
            .with_n_seq_max(ids)
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            .with_kv_unified(matches!(layout, Layout::One(_)))
            .with_no_perf(true);
        let failed = |why| OpenError::Context {
            tokens: tokens.unsigned_abs(),
            why,
        };
        let backend = backend().map_err(|error| failed(error.to_string()))?;
        let context = {
            let _one_at_a_time = lock(self.model.opening());
            self.model.weights().new_context(backend, params)
        };
        let mut runner = Runner {
            context: context.map_err(|error| failed(error.to_string()))?,
            batch: LlamaBatch::new(usize::try_from(batch).unwrap_or(0), 1),
            vocab: self.model.weights().vocab(),
            model: &self.model,
            choosers: BTreeMap::new(),
            layout,
            positions: self.limits.request_tokens().get(),
            repeats: self.limits.cache.prefixes > 0,
            lost: BTreeSet::new(),
        };
        run(&mut runner);
        Ok(())
    }
}

impl Opener {
    /// The tokens and sequence ids of the context, and how they are used.
    fn layout(&self) -> (u64, u32, Layout) {
        let limits = &self.limits;
        let running = SeqId::new(limits.seats());
        if self.model.has_lanes(limits) {
            // One takes a place before another one gives it up.
            let lanes = limits.sequences + u32::from(limits.guests > 0);
            let layout = Lanes::new(running, usize::try_from(lanes).unwrap_or(usize::MAX));
            return (
                lane_tokens(limits) * u64::from(lanes),
                lanes,
                Layout::Lanes(layout),
            );
        }
        let slots = KvBlocks::new(u64::from(limits.blocks)).slots();
        let parks = limits.cache.prefixes > 0;
        let spare = if parks { PIECE } else { 0 };
        let sequences = limits.sequence_ids();
        let layout = Parking::new(running, SeqId::new(sequences));
        (
            slots.get() + spare,
            sequences + u32::from(parks),
            Layout::One(layout),
        )
    }
}

/// Tokens of one lane, as llama.cpp rounds them.
pub(crate) fn lane_tokens(limits: &Config) -> u64 {
    limits.request_tokens().get().next_multiple_of(256)
}

/// What has which cells.
enum Layout {
    /// One KV for all sequences.
    One(Parking<SeqState>),
    /// One for each.
    Lanes(Lanes<SeqState>),
}

/// llama.cpp counts in `int32_t`.
pub(crate) fn fits(what: &'static str, value: u64) -> Result<i32, OpenError> {
    i32::try_from(value).map_err(|_| OpenError::TooLarge { what, value })
}

struct Runner<'model> {
    context: LlamaContext<'model>,
    batch: LlamaBatch<'static>,
    vocab: LlamaVocab<'model>,
    model: &'model LlamaModel,
    choosers: BTreeMap<SeqId, Chooser>,
    layout: Layout,
    /// That a sequence may come to have.
    positions: u64,
    /// Whether there is a prefix cache, with which a text must say what it says without.
    repeats: bool,
    /// Sequences that were to have what could not be put back.
    lost: BTreeSet<SeqId>,
}

impl Backend for Runner<'_> {
    fn begin(&mut self, seq: SeqId, begin: &Begin) -> Result<(), SequenceError> {
        let chooser = Chooser::new(begin, self.model).map_err(|error| SequenceError {
            seq,
            why: error.to_string(),
        })?;
        self.choosers.insert(seq, chooser);
        Ok(())
    }

    fn apply(&mut self, op: KvOp) {
        match op {
            KvOp::Copy {
                from,
                to,
                start,
                end,
            } => {
                let cells = &mut Kv(&mut self.context);
                let (start, end) = (start.get(), end.get());
                let whole = match &mut self.layout {
                    Layout::One(parking) => parking.copy(from, to, start..end, cells),
                    Layout::Lanes(lanes) => lanes.copy(from, to, end, cells),
                };
                if !whole {
                    self.lost.insert(to);
                }
            }
            KvOp::Trim { seq, from } => self.trim(seq, from.get()),
            KvOp::End { seq } => {
                self.trim(seq, 0);
                self.choosers.remove(&seq);
            }
        }
    }

    fn step(
        &mut self,
        work: &[StepWork<'_>],
        results: &mut Vec<Sampled>,
    ) -> Result<(), FatalError> {
        results.extend(work.iter().map(|_| Ok(None)));
        let cells = &mut Kv(&mut self.context);
        let batches = match &mut self.layout {
            Layout::One(parking) => {
                parking.settle(cells);
                batches::of_step(work, self.repeats)
            }
            Layout::Lanes(lanes) => {
                lanes.close_up(cells);
                for work in work {
                    lanes.enter(work.seq, cells);
                }
                batches::of_lanes(work, self.repeats, self.positions, |seq| lanes.of(seq))
            }
        };
        let mut batches = batches.into_iter();
        batches.try_for_each(|parts| self.batch(parts, results))
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        self.vocab
            .token_to_piece_into(LlamaToken::new(token.get()), out, false, None);
    }

    fn is_end(&self, token: Token) -> bool {
        self.model.ends().contains(&LlamaToken::new(token.get()))
    }
}

impl Runner<'_> {
    /// Computes `parts`, but for those of sequences that failed in this step, and chooses what
    /// comes next. A result is found by whose work the part is.
    fn batch(
        &mut self,
        mut parts: Vec<Part<'_>>,
        results: &mut [Sampled],
    ) -> Result<(), FatalError> {
        parts.retain(|part| results[part.of].is_ok());
        if parts.is_empty() {
            return Ok(());
        }
        match self.decode(&parts) {
            Ok(()) => {
                self.sample(&parts, results);
                self.take_back(&parts);
                Ok(())
            }
            Err(why) => self.one_by_one(parts, results, why),
        }
    }

    /// Computes all of `parts` in one batch, or says why not.
    fn decode(&mut self, parts: &[Part<'_>]) -> Result<(), String> {
        self.batch.clear();
        for part in parts {
            if self.lost.contains(&part.seq) {
                return Err("there was no room to put back what it shares with others".into());
            }
            let seq = self.id(part.seq).ok_or("there is no KV left for it")?;
            let seq = i32::try_from(seq.get()).map_err(|error| error.to_string())?;
            let start = i32::try_from(part.start).map_err(|error| error.to_string())?;
            let last = part.tokens.len().checked_sub(1).ok_or("no tokens")?;
            let padding = part.tokens.iter().rev().take(1).cycle().take(part.padding);
            let tokens = part.tokens.iter().chain(padding);
            for ((at, token), position) in tokens.enumerate().zip(start..) {
                let logits = part.samples && at == last;
                let token = LlamaToken::new(token.get());
                let added = self.batch.add(token, position, &[seq], logits);
                added.map_err(|error| error.to_string())?;
            }
        }
        self.context
            .decode(&mut self.batch)
            .map_err(|error| error.to_string())
    }

    /// Chooses a token for each of `parts` that samples; they were the last batch decoded.
    fn sample(&mut self, parts: &[Part<'_>], results: &mut [Sampled]) {
        let mut end = 0;
        for part in parts {
            end += part.tokens.len();
            let chooser = self.choosers.get_mut(&part.seq).filter(|_| part.samples);
            // The batch is no longer than `fits` allows.
            let index = i32::try_from(end).unwrap_or(i32::MAX) - 1;
            end += part.padding;
            let drawn = chooser.map(|chooser| chooser.choose(&self.context, index, self.model));
            results[part.of] = drawn
                .transpose()
                .map_err(|why| SequenceError { seq: part.seq, why });
        }
    }

    /// Repeats a batch that failed with one decode for each sequence.
    fn one_by_one(
        &mut self,
        mut parts: Vec<Part<'_>>,
        results: &mut [Sampled],
        why: String,
    ) -> Result<(), FatalError> {
        for part in &mut parts {
            part.padding = 0;
        }
        // Some of the batch may have been computed before it failed.
        if !parts.iter().all(|part| self.clear(part.seq, part.start)) {
            return Err(FatalError { why });
        }
        for part in &parts {
            match self.decode(std::slice::from_ref(part)) {
                Ok(()) => self.sample(std::slice::from_ref(part), results),
                Err(why) => results[part.of] = Err(SequenceError { seq: part.seq, why }),
            }
        }
        let all_failed = parts.iter().all(|part| results[part.of].is_err());
        if all_failed && !parts.iter().any(|part| self.answers(part.seq)) {
            return Err(FatalError { why });
        }
        Ok(())
    }

    /// Whether the context still computes at all: one token in a sequence that failed and is given
    /// up.
    fn answers(&mut self, seq: SeqId) -> bool {
        self.trim(seq, 0);
        let probe = Part {
            of: 0,
            seq,
            start: 0,
            tokens: &[Token::new(0)],
            samples: false,
            padding: 0,
        };
        let answers = self.decode(&[probe]).is_ok();
        self.trim(seq, 0);
        answers
    }

    /// A sequence loses what it has from a position on, and with all of it, what it missed.
    fn trim(&mut self, seq: SeqId, from: u64) {
        let cells = &mut Kv(&mut self.context);
        match &mut self.layout {
            Layout::One(parking) => parking.trim(seq, from, cells),
            Layout::Lanes(lanes) => lanes.trim(seq, from, cells),
        }
        if from == 0 {
            self.lost.remove(&seq);
        }
    }

    /// What llama.cpp calls a sequence.
    fn id(&mut self, seq: SeqId) -> Option<SeqId> {
        match &mut self.layout {
            Layout::One(_) => Some(seq),
            Layout::Lanes(lanes) => lanes.enter(seq, &mut Kv(&mut self.context)),
        }
    }

    /// Drops what padding computed.
    fn take_back(&mut self, parts: &[Part<'_>]) {
        for part in parts.iter().filter(|part| part.padding > 0) {
            let end = u64::try_from(part.tokens.len()).map(|tokens| part.start + tokens);
            // Both are true: the batch was computed.
            let _ = end.is_ok_and(|end| self.clear(part.seq, end));
        }
    }

    /// Drops what a sequence computed from position `from` on; whether llama.cpp could.
    fn clear(&mut self, seq: SeqId, from: u64) -> bool {
        let (Some(seq), Ok(from)) = (self.id(seq), u32::try_from(from)) else {
            return false;
        };
        self.context
            .clear_kv_cache_seq(Some(seq.get()), Some(from), None)
            .unwrap_or(false)
    }
}

/// Pieces of KV that were made of bytes again, in all contexts: how tests know that any were.
#[cfg(test)]
pub(crate) static PUT_BACK: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// The KV of a context. Positions are no larger than `fits` allows.
struct Kv<'run, 'model>(&'run mut LlamaContext<'model>);

impl Cells for Kv<'_, '_> {
    type Saved = SeqState;

    fn copy(&mut self, from: SeqId, to: SeqId, positions: Range<u64>) {
        let (start, end) = (position(positions.start), position(positions.end));
        let id = |seq: SeqId| i32::try_from(seq.get());
        if let (Ok(from), Ok(to)) = (id(from), id(to)) {
            // Err: positions past what `fits` allows, of which there are none.
            let _ = self.0.copy_kv_cache_seq(from, to, start, end);
        }
    }

    fn clear(&mut self, seq: SeqId, positions: Range<u64>) {
        let (start, end) = (position(positions.start), position(positions.end));
        // Err: as above. A whole range is always cleared.
        let _ = self.0.clear_kv_cache_seq(Some(seq.get()), start, end);
    }

    fn save(&mut self, seq: SeqId) -> Option<SeqState> {
        let seq = i32::try_from(seq.get()).ok()?;
        self.0.state_seq_get(seq, LlamaStateSeqFlags::empty()).ok()
    }

    fn load(&mut self, seq: SeqId, saved: &SeqState) -> bool {
        let seq = i32::try_from(seq.get());
        let loaded = seq.is_ok_and(|seq| self.0.state_seq_set(saved, seq).is_ok());
        #[cfg(test)]
        PUT_BACK.fetch_add(u64::from(loaded), std::sync::atomic::Ordering::Relaxed);
        loaded
    }
}

/// A position as llama.cpp counts them; `None` is the end of all.
fn position(position: u64) -> Option<u32> {
    u32::try_from(position).ok()
}
