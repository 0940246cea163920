//! One request in an engine: what is known of it, what is computed, and what it holds.

use super::config::{Config, Reservation};
use super::event::{Start, Work};
use crate::batch::{self, View};
use crate::ids::{RequestId, SeqId, TenantId};
use crate::kv::{BlockPool, BlockTable};
use crate::pace::Haste;
use crate::prefix::Token;
use crate::units::{Service, Tokens};
use crate::usage::Usage;

/// How often one request is preempted at most: after that, it starts again only with room for all
/// it may come to.
pub(super) const PREEMPTIONS_MAX: u32 = 3;

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: RequestId,
    pub(super) tenant: TenantId,
    /// The prompt, then the output.
    pub(super) tokens: Vec<Token>,
    pub(super) prompt: Tokens,
    pub(super) max_output: Tokens,
    /// How soon its prompt may be computed.
    pub(super) haste: Haste,
    /// invariant: less than `known()`.
    pub(super) computed: Tokens,
    /// The most that was ever there. invariant: at least `computed`.
    pub(super) reached: Tokens,
    /// Prompt tokens reused at the first time that they were there.
    pub(super) cached: Tokens,
    /// Those of them that no work has told of.
    pub(super) untold: Tokens,
    /// Kept through a preemption: what sampling remembers is filed under it.
    pub(super) seat: Option<SeqId>,
    pub(super) table: BlockTable,
    pub(super) elder: Option<RequestId>,
    /// For want of room. invariant: at most [`PREEMPTIONS_MAX`].
    pub(super) preemptions: u32,
    /// Whether it ever gave its place to another.
    pub(super) has_given: bool,
    /// Plans since it did, while it waits for one. invariant: none while it runs.
    pub(super) gave: Option<u32>,
    /// What was known of it when it was given a place last, and what of that was to be computed.
    pub(super) placed: (Tokens, Tokens),
    /// Sequences that started before it though they came after it.
    pub(super) passed: u32,
    /// Plans in which it waited for what another computes.
    pub(super) held: u32,
}

impl Sequence {
    pub(super) fn new(start: Start) -> Self {
        let Start {
            id,
            tenant,
            prompt,
            max_output,
            elder,
            served: _,
            haste,
        } = start;
        Self {
            id,
            tenant,
            prompt: Tokens::of_len(&prompt),
            tokens: prompt,
            max_output,
            haste,
            computed: Tokens::ZERO,
            reached: Tokens::ZERO,
            cached: Tokens::ZERO,
            untold: Tokens::ZERO,
            seat: None,
            table: BlockTable::default(),
            elder,
            preemptions: 0,
            has_given: false,
            gave: None,
            placed: (Tokens::ZERO, Tokens::ZERO),
            passed: 0,
            held: 0,
        }
    }

    pub(super) fn known(&self) -> Tokens {
        Tokens::of_len(&self.tokens)
    }

    pub(super) fn output(&self) -> Tokens {
        self.known() - self.prompt
    }

    /// Whether its prompt is not all there yet.
    pub(super) fn is_in_prefill(&self) -> bool {
        self.computed < self.prompt
    }

    /// The first `count` of its tokens.
    pub(super) fn first(&self, count: Tokens) -> &[Token] {
        let count = usize::try_from(count.get()).unwrap_or(usize::MAX);
        &self.tokens[..count.min(self.tokens.len())]
    }

    /// All that it may come to, where room for that is set aside.
    pub(super) fn reserved(&self, config: &Config) -> Option<Tokens> {
        let all = (self.prompt + self.max_output).min(config.request_tokens());
        match config.reservation {
            Reservation::Contiguous => Some(all),
            Reservation::Paged => (self.preemptions >= PREEMPTIONS_MAX).then_some(all),
        }
    }

    /// Whether it may give its place to another: at first at any time, and then whenever it has got
    /// on with one that it was given back.
    fn gives(&self) -> bool {
        let (known, again) = self.placed;
        !self.has_given || self.known() - known >= batch::stay(again)
    }

    /// It has been given a place.
    pub(super) fn take_place(&mut self) {
        self.gave = None;
        self.placed = (self.known(), self.known() - self.computed);
    }

    /// Its place was given to another.
    pub(super) fn give_place(&mut self) {
        (self.has_given, self.gave) = (true, Some(0));
    }

    /// `others` is whether somebody else has work in the engine.
    pub(super) fn view(
        &self,
        config: &Config,
        pool: &BlockPool,
        ((served, running), others): ((Service, usize), bool),
    ) -> View {
        View {
            known: self.known(),
            computed: self.computed,
            held: self.table.len(),
            sole: self.table.sole(pool),
            reserved: self.reserved(config),
            served,
            running,
            paced: self.haste.is_paced(others),
            gives: self.gives(),
        }
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            prompt: self.prompt.min(self.reached),
            cached: self.cached,
            output: self.output(),
        }
    }

    /// Takes over the KV of its first `count` tokens, whose blocks its table has.
    pub(super) fn reuse(&mut self, count: Tokens) {
        let new = self.prompt.min(count) - self.prompt.min(self.reached);
        self.cached += new;
        self.untold += new;
        self.computed = count;
        self.reached = self.reached.max(count);
    }

    /// The next `count` tokens of this sequence.
    pub(super) fn work(&mut self, seq: SeqId, count: Tokens) -> Work {
        let end = self.computed + count;
        Work {
            id: self.id,
            seq,
            start: self.computed,
            count,
            samples: end == self.known(),
            fresh: self.prompt.min(end) - self.prompt.min(self.reached),
            reused: std::mem::take(&mut self.untold),
        }
    }
}

/// How many tokens two prompts begin with alike.
pub(super) fn alike(one: &[Token], other: &[Token]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
