//! One request on its way through an emulated engine: what of it is known, computed and held.

use tollgate_policy::ids::RequestId;
use tollgate_policy::units::{KvBlocks, Tokens};

use super::event::{Request, Used};
use super::memory::Memory;

/// A request that waits or runs.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    request: Request,
    /// Output so far. It is known, and all but the last of it is computed.
    output: Tokens,
    /// Tokens whose KV is there. invariant: at most `known()`
    computed: Tokens,
    /// Tokens of the prompt that have ever been computed or found.
    reached: Tokens,
    /// Tokens found when it first had a slot; `None` before.
    cached: Option<Tokens>,
    /// Tokens of the step under way.
    planned: Tokens,
    /// Blocks of its own.
    own: u64,
    /// Names of shared blocks that it holds, in the order of the prompt.
    holds: Vec<u64>,
    /// Leading names of its prefix that were found, or offered to others.
    offered: usize,
}

/// What a step did for a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    /// Prompt tokens for the first time.
    pub(super) prompt: Tokens,
    /// Tokens computed before.
    pub(super) again: Tokens,
    /// None or one.
    pub(super) output: Tokens,
}

impl Sequence {
    pub(super) fn new(request: Request) -> Self {
        Self {
            request,
            output: Tokens::ZERO,
            computed: Tokens::ZERO,
            reached: Tokens::ZERO,
            cached: None,
            planned: Tokens::ZERO,
            own: 0,
            holds: Vec::new(),
            offered: 0,
        }
    }

    pub(super) fn id(&self) -> RequestId {
        self.request.id
    }

    pub(super) fn used(&self) -> Used {
        Used {
            prompt: self.reached,
            cached: self.cached.unwrap_or_default(),
            output: self.output,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.output >= self.request.output
    }

    pub(super) fn is_planned(&self) -> bool {
        self.planned > Tokens::ZERO
    }

    pub(super) fn blocks(&self) -> KvBlocks {
        let holds = u64::try_from(self.holds.len()).unwrap_or(u64::MAX);
        KvBlocks::new(self.own + holds)
    }

    /// Tokens of the prompt, and of the output so far.
    pub(super) fn known(&self) -> Tokens {
        self.request.prompt + self.output
    }

    /// Takes the blocks of all that is known, with what the cache has of it; the tokens found, or
    /// `None` if there is no room.
    pub(super) fn enter(&mut self, memory: &mut Memory) -> Option<Tokens> {
        // One token is computed at least: there is no next one without a last one.
        let before_last = (self.known() - Tokens::new(1)).get() / KvBlocks::SLOTS.get();
        let most = usize::try_from(before_last).unwrap_or(usize::MAX);
        let names = self.request.prefix.iter().take(most);
        // Held first, or taking the rest could evict them.
        let held: Vec<u64> = names
            .copied()
            .take_while(|name| memory.hold(*name))
            .collect();
        let hit = KvBlocks::new(u64::try_from(held.len()).unwrap_or(u64::MAX));
        let rest = self.known().blocks() - hit;
        if !memory.take(rest.get()) {
            held.iter().rev().for_each(|name| memory.let_go(*name));
            return None;
        }
        (self.own, self.offered) = (rest.get(), held.len());
        self.holds = held;
        self.computed = hit.slots();
        self.reached = self.reached.max(hit.slots().min(self.request.prompt));
        self.cached.get_or_insert_with(|| hit.slots());
        Some(hit.slots())
    }

    /// Takes the block that its newest token needs; whether it has it.
    pub(super) fn grow(&mut self, memory: &mut Memory) -> bool {
        let missing = self.known().blocks() - self.blocks();
        let has = memory.take(missing.get());
        if has {
            self.own += missing.get();
        }
        has
    }

    /// Plans as much of it as the budget allows; what is more than the next token of an answer
    /// counts as prefill.
    pub(super) fn plan(&mut self, budget: &mut Tokens, prefill: &mut Tokens) {
        let missing = self.known() - self.computed;
        self.planned = missing.min(*budget);
        *budget = *budget - self.planned;
        let generates = self.output > Tokens::ZERO && missing == Tokens::new(1);
        if !generates {
            *prefill += self.planned;
        }
    }

    /// Ends the step for it.
    pub(super) fn advance(&mut self, memory: &mut Memory) -> Done {
        let planned = std::mem::take(&mut self.planned);
        let was_known = self.known();
        let before = self.reached;
        let generated = self.output > Tokens::ZERO && was_known - self.computed == Tokens::new(1);
        self.computed += planned;
        self.reached = before.max(self.computed.min(self.request.prompt));
        let prompt = self.reached - before;
        self.offer(memory);
        let output = if self.computed >= was_known {
            Tokens::new(1)
        } else {
            Tokens::ZERO
        };
        self.output += output;
        let again = if generated {
            Tokens::ZERO
        } else {
            planned - prompt
        };
        Done {
            prompt,
            again,
            output,
        }
    }

    /// Offers the blocks of its prompt that are complete now to others.
    fn offer(&mut self, memory: &mut Memory) {
        let complete = self.computed.get() / KvBlocks::SLOTS.get();
        let complete = usize::try_from(complete).unwrap_or(usize::MAX);
        while self.offered < complete.min(self.request.prefix.len()) {
            if let Some(name) = self.request.prefix.get(self.offered)
                && self.own > 0
                && memory.share(*name)
            {
                self.own -= 1;
                self.holds.push(*name);
            }
            self.offered += 1;
        }
    }

    /// Gives up all its KV. The end of the prompt goes first, so that the cache keeps beginnings.
    pub(super) fn release(&mut self, memory: &mut Memory) {
        memory.give_back(std::mem::take(&mut self.own));
        let holds = std::mem::take(&mut self.holds);
        holds.iter().rev().for_each(|name| memory.let_go(*name));
    }

    /// It has computed nothing any more; what it said stays said.
    pub(super) fn forget(&mut self) {
        self.computed = Tokens::ZERO;
        self.planned = Tokens::ZERO;
        self.offered = 0;
    }
}
