//! Steps on a llama.cpp context.
//!
//! The context is as large as the scheduler's pool, and llama.cpp's unified KV places tokens one by
//! one, so a step that the scheduler planned finds its room. A decode that fails all the same is
//! repeated sequence by sequence, so that only the offender pays.

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
        let slots = KvBlocks::new(u64::from(self.limits.blocks)).slots();
        let parks = self.limits.cache.prefixes > 0;
        let spare = if parks { PIECE } else { 0 };
        let tokens = fits("the pool, in tokens,", slots.get() + spare)?;
        let sequences = self.limits.sequence_ids();
        let ids = sequences + u32::from(parks);
        // llama.cpp has a row of results for each sequence id, and aborts where a batch has fewer.
        let batch = step_tokens.unsigned_abs().max(ids);
        let threads = fits("threads", u64::from(self.threads.get()))?;
        let params = LlamaContextParams::default()
            .with_n_ctx(u32::try_from(tokens).ok().and_then(NonZeroU32::new))
            .with_n_batch(batch)
            .with_n_ubatch(step_tokens.unsigned_abs())
            .with_n_seq_max(ids)
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            .with_kv_unified(true)
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
            batch: LlamaBatch::new(usize::try_from(step_tokens).unwrap_or(0), 1),
            vocab: self.model.weights().vocab(),
            model: &self.model,
            choosers: BTreeMap::new(),
            parking: Parking::new(SeqId::new(self.limits.sequences), SeqId::new(sequences)),
            lost: BTreeSet::new(),
        };
        run(&mut runner);
        Ok(())
    }
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
    parking: Parking<SeqState>,
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
                if !self.parking.copy(from, to, start.get()..end.get(), cells) {
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
        self.parking.settle(&mut Kv(&mut self.context));
        let (some, others) = apart(work);
        self.batch(some, results)?;
        self.batch(others, results)
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        self.vocab
            .token_to_piece_into(LlamaToken::new(token.get()), out, false, None);
    }

    fn is_end(&self, token: Token) -> bool {
        self.model.ends().contains(&LlamaToken::new(token.get()))
    }
}

/// Splits a step where tokens of answers end and prompts begin, or the other way round, if that is
/// at one place. llama.cpp's attention on a CPU takes tokens in tiles, and computes for a tile
/// whatever one of its tokens sees. Tokens of a prompt see one sequence; those of as many answers
/// see everything, and in one batch with a prompt they would be a tile of their own. By themselves
/// they are too few for tiles.
fn apart<'work, 'a>(work: &'work [StepWork<'a>]) -> (&'work [StepWork<'a>], &'work [StepWork<'a>]) {
    let is_one = |work: &StepWork<'_>| work.tokens.len() == 1;
    let borders = work
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| is_one(&pair[0]) != is_one(&pair[1]));
    let mut borders = borders.map(|(at, _)| at + 1);
    match (ON_CPU, borders.next(), borders.next()) {
        (true, Some(border), None) => work.split_at(border),
        (true | false, _, _) => (work, &[]),
    }
}

/// Elsewhere a second batch reads all weights once more, and nothing is won.
const ON_CPU: bool = !cfg!(any(feature = "cuda", feature = "metal", feature = "vulkan"));

impl Runner<'_> {
    /// Computes all of `work`, and chooses what comes next.
    fn batch(
        &mut self,
        work: &[StepWork<'_>],
        results: &mut Vec<Sampled>,
    ) -> Result<(), FatalError> {
        if work.is_empty() {
            return Ok(());
        }
        match self.decode(work) {
            Ok(()) => {
                self.sample(work, results);
                Ok(())
            }
            Err(why) => self.one_by_one(work, results, why),
        }
    }

    /// Computes all of `work` in one batch, or says why not.
    fn decode(&mut self, work: &[StepWork<'_>]) -> Result<(), String> {
        self.batch.clear();
        for work in work {
            if self.lost.contains(&work.seq) {
                return Err("there was no room to put back what it shares with others".into());
            }
            let seq = i32::try_from(work.seq.get()).map_err(|error| error.to_string())?;
            let start = i32::try_from(work.start.get()).map_err(|error| error.to_string())?;
            let last = work.tokens.len().checked_sub(1).ok_or("no tokens")?;
            for ((at, token), position) in work.tokens.iter().enumerate().zip(start..) {
                let logits = work.samples && at == last;
                let token = LlamaToken::new(token.get());
                let added = self.batch.add(token, position, &[seq], logits);
                added.map_err(|error| error.to_string())?;
            }
        }
        self.context
            .decode(&mut self.batch)
            .map_err(|error| error.to_string())
    }

    /// Chooses a token for each of `work` that samples; it was the last batch decoded.
    fn sample(&mut self, work: &[StepWork<'_>], results: &mut Vec<Sampled>) {
        let mut end = 0;
        for work in work {
            end += work.tokens.len();
            let chooser = self.choosers.get_mut(&work.seq).filter(|_| work.samples);
            // The batch is no longer than `fits` allows.
            let index = i32::try_from(end).unwrap_or(i32::MAX) - 1;
            let drawn = chooser.map(|chooser| chooser.choose(&self.context, index, self.model));
            results.push(
                drawn
                    .transpose()
                    .map_err(|why| SequenceError { seq: work.seq, why }),
            );
        }
    }

    /// Repeats a step that failed with one decode for each sequence.
    fn one_by_one(
        &mut self,
        work: &[StepWork<'_>],
        results: &mut Vec<Sampled>,
        why: String,
    ) -> Result<(), FatalError> {
        // Some of the batch may have been computed before it failed.
        if !work
            .iter()
            .all(|work| self.clear(work.seq, work.start.get()))
        {
            return Err(FatalError { why });
        }
        let before = results.len();
        for work in work {
            match self.decode(std::slice::from_ref(work)) {
                Ok(()) => self.sample(std::slice::from_ref(work), results),
                Err(why) => results.push(Err(SequenceError { seq: work.seq, why })),
            }
        }
        let all_failed = results.iter().skip(before).all(Result::is_err);
        if all_failed && !work.iter().any(|work| self.answers(work.seq)) {
            return Err(FatalError { why });
        }
        Ok(())
    }

    /// Whether the context still computes at all: one token in a sequence that failed and is given
    /// up.
    fn answers(&mut self, seq: SeqId) -> bool {
        self.clear(seq, 0);
        let probe = StepWork {
            seq,
            start: tollgate_policy::units::Tokens::ZERO,
            tokens: &[Token::new(0)],
            samples: false,
        };
        let answers = self.decode(&[probe]).is_ok();
        self.clear(seq, 0);
        answers
    }

    /// A sequence loses what it has from a position on, and with all of it, what it missed.
    fn trim(&mut self, seq: SeqId, from: u64) {
        self.parking.trim(seq, from, &mut Kv(&mut self.context));
        if from == 0 {
            self.lost.remove(&seq);
        }
    }

    /// Drops what a sequence computed from position `from` on; whether llama.cpp could.
    fn clear(&mut self, seq: SeqId, from: u64) -> bool {
        let Ok(from) = u32::try_from(from) else {
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
