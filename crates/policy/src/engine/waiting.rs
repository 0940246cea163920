//! What waits in an engine, as the planner sees it: what each could share, and whether it pays to
//! wait for that.

use super::Engine;
use super::config::CacheConfig;
use super::sequence::{Sequence, alike};
use crate::batch::{Candidate, Hold};
use crate::pace::Haste;
use crate::units::{KvBlocks, Tokens};

/// For how many steps a sequence waits for prefixes that others compute, before it computes them
/// itself: the longest prompts take some dozens.
const HOLDS_MAX: u32 = 128;

impl Engine {
    /// What waits, as the planner sees it; nothing where none could start for want of an id.
    /// `others` is whether more than one tenant has work here.
    pub(super) fn candidates(&self, others: bool) -> Vec<Candidate> {
        let seated = self.waiting.iter().any(|sequence| sequence.seat.is_some());
        if self.seats.is_empty() && !seated {
            return Vec::new();
        }
        let mut candidates = Vec::with_capacity(self.waiting.len());
        for (index, sequence) in self.waiting.iter().enumerate() {
            candidates.push(self.candidate(index, sequence, others));
        }
        candidates
    }

    fn candidate(&self, index: usize, sequence: &Sequence, others: bool) -> Candidate {
        let (served, running) = self.standing(sequence.tenant);
        let blank = Candidate {
            known: sequence.known(),
            matched: Tokens::ZERO,
            held: KvBlocks::ZERO,
            idle: KvBlocks::ZERO,
            reserved: sequence.reserved(&self.config),
            seated: sequence.seat.is_some(),
            gave: sequence.gave,
            passed: sequence.passed,
            hold: Hold::No,
            paced: sequence.haste.is_paced(others),
            brief: sequence.seat.is_none() && sequence.haste == Haste::InPassing,
            served,
            running,
        };
        if let Some(elder) = self.prefilled_elder(sequence) {
            let matched = self.running[elder].prompt - Tokens::new(1);
            // A last block in part becomes its own at the first write.
            let held = KvBlocks::new(matched.get() / KvBlocks::SLOTS.get());
            return Candidate {
                matched,
                held,
                ..blank
            };
        }
        let probe = self
            .cache
            .probe(sequence.tenant, &sequence.tokens, &self.pool);
        Candidate {
            matched: probe.matched,
            held: probe.matched.blocks(),
            idle: probe.idle,
            hold: self.hold(index, sequence, probe.matched),
            ..blank
        }
    }

    /// The running sequence whose whole prompt is that of this one, and computed.
    pub(super) fn prefilled_elder(&self, sequence: &Sequence) -> Option<usize> {
        let elder = sequence
            .elder
            .filter(|_| sequence.output() == Tokens::ZERO)?;
        let is_there = |one: &Sequence| {
            one.id == elder && !one.is_in_prefill() && one.prompt == sequence.prompt
        };
        self.running
            .iter()
            .position(is_there)
            .filter(|_| sequence.prompt > Tokens::new(1))
    }

    /// Whether it pays to wait for what another one of its tenant computes: most of what this one
    /// would compute itself.
    fn hold(&self, index: usize, sequence: &Sequence, matched: Tokens) -> Hold {
        if sequence.held >= HOLDS_MAX || sequence.seat.is_some() {
            return Hold::No;
        }
        let pays = |other: &Sequence| {
            if sequence.elder == Some(other.id) {
                return true;
            }
            if other.tenant != sequence.tenant || self.config.cache == CacheConfig::OFF {
                return false;
            }
            let same = alike(&sequence.tokens, other.first(other.prompt));
            let same = same.min(sequence.tokens.len() - 1);
            let whole = Tokens::new(u64::try_from(same).unwrap_or(0)).get() / KvBlocks::SLOTS.get();
            let gain = KvBlocks::new(whole).slots() - matched;
            gain > Tokens::ZERO && gain + gain >= sequence.known() - matched
        };
        let mut prefills = self.running.iter().filter(|other| other.is_in_prefill());
        if prefills.any(pays) {
            return Hold::Running;
        }
        let mut before = self.waiting.iter().take(index);
        let first = before.position(|other| other.seat.is_none() && pays(other));
        first.map_or(Hold::No, Hold::With)
    }
}
