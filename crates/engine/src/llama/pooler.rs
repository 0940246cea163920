//! Vectors of whole texts on a llama.cpp context.
//!
//! Pooling needs a text in one piece, while the scheduler hands it over in as many as its steps
//! allow. So tokens are gathered here until a text is whole, and whole texts are computed together,
//! each from its beginning and in a batch that begins empty: no text can see another's.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{LlamaContextParams, LlamaPoolingType};
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;
use tollgate_policy::engine::Config;
use tollgate_policy::ids::SeqId;
use tollgate_policy::kv::KvOp;

use crate::backend::{
    Backend, Begin, Drawn, FatalError, Open, OpenError, Sampled, SequenceError, StepWork,
};
use crate::fake::unit;
use crate::handle::lock;
use crate::job::Token;
use crate::llama::model::{LlamaModel, Pooling, backend};
use crate::llama::runner::fits;

/// Builds a context on the engine's thread.
pub(crate) struct Opener {
    pub(crate) model: Arc<LlamaModel>,
    pub(crate) pooling: Pooling,
    pub(crate) limits: Config,
    pub(crate) threads: NonZeroU32,
}

impl Open for Opener {
    fn open(self: Box<Self>, run: &mut dyn FnMut(&mut dyn Backend)) -> Result<(), OpenError> {
        let step = self.limits.step_tokens;
        let longest = self.limits.request_tokens();
        // As many for each sequence: llama.cpp plans its memory for a batch that it can divide
        // evenly, and stops the process where pooling then meets one that it can't.
        let most = step.max(longest).get();
        let most = most.next_multiple_of(u64::from(self.limits.sequences.max(1)));
        let tokens = fits("context", most)?.unsigned_abs();
        let threads = fits("threads", u64::from(self.threads.get()))?;
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(tokens))
            .with_n_batch(tokens)
            .with_n_ubatch(tokens)
            .with_n_seq_max(self.limits.sequences)
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            .with_kv_unified(true)
            .with_embeddings(true)
            .with_pooling_type(match self.pooling {
                Pooling::Mean => LlamaPoolingType::Mean,
                Pooling::First => LlamaPoolingType::Cls,
                Pooling::Last => LlamaPoolingType::Last,
            })
            .with_no_perf(true);
        let failed = |why| OpenError::Context { tokens, why };
        let backend = backend().map_err(|error| failed(error.to_string()))?;
        let context = {
            let _one_at_a_time = lock(self.model.opening());
            self.model.weights().new_context(backend, params)
        };
        let room = usize::try_from(tokens).unwrap_or(0);
        let mut pooler = Pooler {
            context: context.map_err(|error| failed(error.to_string()))?,
            batch: LlamaBatch::new(room, 1),
            model: &self.model,
            room,
            sequences: usize::try_from(self.limits.sequences).unwrap_or(1),
            texts: BTreeMap::new(),
        };
        run(&mut pooler);
        Ok(())
    }
}

struct Pooler<'model> {
    context: LlamaContext<'model>,
    batch: LlamaBatch<'static>,
    model: &'model LlamaModel,
    /// Tokens that fit a batch, at least those of one text.
    room: usize,
    /// Texts that fit a batch.
    sequences: usize,
    /// What there is of each text so far.
    texts: BTreeMap<SeqId, Vec<Token>>,
}

impl Backend for Pooler<'_> {
    fn begin(&mut self, _: SeqId, _: &Begin) -> Result<(), SequenceError> {
        Ok(())
    }

    fn apply(&mut self, op: KvOp) {
        match op {
            // Only texts that were computed alike are copied, so the tokens are the whole of it.
            KvOp::Copy { from, to, end, .. } => {
                let end = usize::try_from(end.get()).unwrap_or(usize::MAX);
                let text = self
                    .texts
                    .get(&from)
                    .map(|text| text[..end.min(text.len())].to_vec());
                self.texts.insert(to, text.unwrap_or_default());
            }
            KvOp::Trim { seq, from } => {
                if let Some(text) = self.texts.get_mut(&seq) {
                    text.truncate(usize::try_from(from.get()).unwrap_or(usize::MAX));
                }
            }
            KvOp::End { seq } => {
                self.texts.remove(&seq);
            }
        }
    }

    fn step(
        &mut self,
        work: &[StepWork<'_>],
        results: &mut Vec<Sampled>,
    ) -> Result<(), FatalError> {
        for work in work {
            self.texts.entry(work.seq).or_default().extend(work.tokens);
        }
        let whole: Vec<SeqId> = work
            .iter()
            .filter(|one| one.samples)
            .map(|one| one.seq)
            .collect();
        let mut vectors = BTreeMap::new();
        let mut rest = whole.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(self.fitting(rest));
            self.pool(now, &mut vectors);
            rest = later;
        }
        for work in work {
            results.push(match vectors.remove(&work.seq) {
                Some(Ok(vector)) => Ok(Some(Drawn::Vector(vector))),
                Some(Err(why)) => Err(SequenceError { seq: work.seq, why }),
                None => Ok(None),
            });
        }
        Ok(())
    }

    fn bytes(&self, _: Token, _: &mut Vec<u8>) {}

    fn is_end(&self, _: Token) -> bool {
        true
    }
}

impl Pooler<'_> {
    fn text(&self, seq: SeqId) -> &[Token] {
        self.texts.get(&seq).map_or(&[], Vec::as_slice)
    }

    /// How many of these texts one batch takes; at least one.
    fn fitting(&self, texts: &[SeqId]) -> usize {
        let mut left = self.room;
        let fits = texts.iter().take(self.sequences).take_while(|seq| {
            let length = self.text(**seq).len();
            let fits = length <= left;
            left = left.saturating_sub(length);
            fits
        });
        fits.count().max(1)
    }

    /// Computes texts together; those of a batch that fails once more, each alone.
    fn pool(&mut self, texts: &[SeqId], vectors: &mut BTreeMap<SeqId, Result<Vec<f32>, String>>) {
        match self.compute(texts) {
            Ok(computed) => {
                vectors.extend(texts.iter().copied().zip(computed.into_iter().map(Ok)));
            }
            Err(why) if texts.len() == 1 => {
                vectors.extend(texts.iter().map(|seq| (*seq, Err(why.clone()))));
            }
            Err(_) => texts.chunks(1).for_each(|one| self.pool(one, vectors)),
        }
    }

    fn compute(&mut self, texts: &[SeqId]) -> Result<Vec<Vec<f32>>, String> {
        if self.model.is_causal() {
            self.context.clear_kv_cache();
        }
        let mut batch = std::mem::replace(&mut self.batch, LlamaBatch::new(1, 1));
        let computed = self.fill_and_compute(&mut batch, texts);
        self.batch = batch;
        computed?;
        (0..)
            .take(texts.len())
            .map(|place| {
                let vector = self.context.embeddings_seq_ith(place);
                let vector = vector.map_err(|error| error.to_string())?;
                if vector.iter().all(|number| number.is_finite()) {
                    Ok(unit(vector.to_vec()))
                } else {
                    Err("the vector has numbers that are none".to_owned())
                }
            })
            .collect()
    }

    fn fill_and_compute(
        &mut self,
        batch: &mut LlamaBatch<'static>,
        texts: &[SeqId],
    ) -> Result<(), String> {
        batch.clear();
        for (place, seq) in (0..).zip(texts) {
            for (position, token) in (0..).zip(self.text(*seq)) {
                let token = LlamaToken::new(token.get());
                let added = batch.add(token, position, &[place], true);
                added.map_err(|error| error.to_string())?;
            }
        }
        if self.model.is_causal() {
            self.context
                .decode(batch)
                .map_err(|error| error.to_string())
        } else {
            self.context
                .encode(batch)
                .map_err(|error| error.to_string())
        }
    }
}
