//! What a replica may hold at once. Requests beyond it wait with us, where their order can still be
//! chosen.
//!
//! Four bounds: sequences, the last few of them kept for tenants below their share; KV, up to a
//! threshold by class; and prefill that no first token has answered yet, since that is what a
//! newcomer's first token waits for.

use std::num::NonZeroU32;

use crate::pace::Haste;
use crate::tenant::Class;
use crate::units::{KvBlocks, Micros, Time, Tokens};

/// What a replica can hold, as it said when it came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences that may run at once.
    pub sequences: u32,
    /// KV blocks in its pool.
    pub kv: KvBlocks,
}

/// A bound that is found by itself, or set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Knob<T> {
    /// Found by itself.
    #[default]
    Auto,
    /// Set.
    Fixed(T),
}

/// How the windows of a model are bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Sequences at once. By itself: what the replica can hold, less while some of them wait inside
    /// it.
    pub concurrency: Knob<NonZeroU32>,
    /// Sequences up to which a window grows by itself where what the replica can hold was a guess;
    /// 0 where it is known.
    pub reach: u32,
    /// The last sequences, kept for tenants below their share. By itself: [`Bounds::HEADROOM`] per
    /// cent, and for a while one more for each time that one of their requests had to wait.
    pub headroom: Knob<u32>,
    /// Prompt tokens in flight to their first token. By itself: as many as take as long as a step
    /// without any, so that prefill at most doubles a step.
    pub prefill: Knob<Tokens>,
    /// Whether the replica computes prompts of tenants that have their share no faster than prompts
    /// come, and those of others first. Then the former are no part of that bound, nor are those of
    /// a tenant that is alone.
    pub paced: bool,
    /// Sequences beyond what the replica can run that it takes of tenants below their share, since
    /// it gives them places of those that had more. The last of them is for one that is expected to
    /// be over soon, so that guests with long answers are in nobody's way for long.
    pub guests: u32,
    /// KV by class.
    pub thresholds: Thresholds,
}

impl Bounds {
    /// Per cent of the sequences that are kept for tenants below their share, rounded up. What it
    /// costs in throughput is less than its share of a step's cost, since a step's fixed part is
    /// paid anyhow.
    pub const HEADROOM: u32 = 3;

    /// Windows smaller than this keep nothing back before somebody had to wait: one sequence is a
    /// large part of them, and where answers are short it is not needed. Nor is it ever where
    /// newcomers are guests.
    pub const HEADROOM_FROM: u32 = 16;

    /// Windows smaller than this never keep anything back by themselves.
    pub const HEADROOM_LEAST: u32 = 4;

    /// Per cent that is kept at most by itself, however often somebody had to wait.
    pub const HEADROOM_MAX: u32 = 12;

    /// A tenant below its share that waits longer than this for a sequence found too few kept: a
    /// few steps of a large batch, so that a wait for prefill is none.
    pub const SHORT_WAIT: Micros = Micros::from_millis(50);

    /// After so long without such a wait, one less is kept.
    pub const EASE_AFTER: Micros = Micros::from_secs(10);

    /// The last one that a small window keeps is kept until no tenant came for so long that could
    /// use it: as long as a tenant counts as active. Who comes next would wait for somebody's whole
    /// answer otherwise, however long ago the last wait was.
    pub const EASE_LAST_AFTER: Micros = Micros::from_secs(60);

    /// First in, first out hands everything on: the baseline, with nothing kept back.
    pub const fn open() -> Self {
        Self {
            concurrency: Knob::Auto,
            reach: 0,
            headroom: Knob::Fixed(0),
            prefill: Knob::Fixed(Tokens::new(u64::MAX)),
            paced: false,
            guests: 0,
            thresholds: Thresholds {
                reserved: 100,
                standard: 100,
                best_effort: 100,
                best_effort_min: 0,
            },
        }
    }

    /// `more` is what was found to be needed.
    fn headroom(self, limit: u32, more: u32) -> u32 {
        let part = |per_cent: u32| (limit * per_cent).div_ceil(100);
        match self.headroom {
            Knob::Fixed(kept) => kept.min(limit.saturating_sub(1)),
            Knob::Auto if limit < Self::HEADROOM_LEAST => 0,
            Knob::Auto if limit < Self::HEADROOM_FROM && self.guests > 0 => 0,
            Knob::Auto if limit < Self::HEADROOM_FROM => more.min(part(Self::HEADROOM_MAX)),
            Knob::Auto => (part(Self::HEADROOM) + more).min(part(Self::HEADROOM_MAX)),
        }
    }
}

/// Per cent of a replica's KV up to which each class is dispatched to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// For [`Class::Reserved`], within the tenant's own floor.
    pub reserved: u8,
    /// For [`Class::Standard`].
    pub standard: u8,
    /// For [`Class::BestEffort`].
    pub best_effort: u8,
    /// What best effort may always hold, as long as the standard threshold is not reached.
    pub best_effort_min: u8,
}

impl Default for Thresholds {
    /// Past about 95 per cent engines preempt and recompute whole prompts; that zone is never
    /// entered on purpose.
    fn default() -> Self {
        Self {
            reserved: 92,
            standard: 85,
            best_effort: 60,
            best_effort_min: 5,
        }
    }
}

/// What a request asks of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its tenant's promise.
    pub class: Class,
    /// KV it is expected to hold.
    pub kv: KvBlocks,
    /// Its prompt.
    pub prompt: Tokens,
    /// Whether it may use what is kept for tenants below their share.
    pub may_use_kept: bool,
    /// Whether its tenant has less than its share running while others are active too.
    pub beside_others: bool,
    /// Whether a full replica would take it all the same.
    pub guest: Guest,
    /// Per cent of the KV set aside for its tenant.
    pub floor: u8,
    /// KV that its tenant's running requests are expected to hold.
    pub tenant_kv: KvBlocks,
}

/// What a request would be in a replica that runs all it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// None: no tenant has so much more that it would give up a place for it.
    No,
    /// One that may stay for long.
    Staying,
    /// One that is expected to be over soon.
    Brief,
}

/// Why a request must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocked {
    /// What sequences are left are kept for tenants below their share.
    Headroom,
    /// As many sequences run as can, and it is none of those that are given a place of others.
    Guests,
    /// As much prefill is in flight as a step can bear.
    Prefill,
    /// What it is expected to hold of KV passes the threshold of its class.
    Kv,
    /// As many sequences run as may.
    Sequences,
}

impl Blocked {
    /// The reason as operators read it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Headroom => "headroom",
            Self::Prefill => "prefill",
            Self::Kv => "kv",
            Self::Guests | Self::Sequences => "sequences",
        }
    }
}

/// Whether a request that goes to a replica is of those that sequences are kept for: of a tenant
/// that has no more than its share, beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newcomer {
    /// It is not.
    No,
    /// It found its place in time.
    InTime,
    /// It waited for one, and nothing else of its tenant could have taken what was kept.
    Late,
}

/// Why a window last changed its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moved {
    /// It has the size the replica came up with.
    #[default]
    Came,
    /// Sequences waited inside the replica.
    Shrank,
    /// It was used up, and none waited inside the replica.
    Grew,
    /// The replica is back from a failure, and is given more with each answer.
    Returned,
}

impl Moved {
    /// The reason as metrics spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Came => "came_up",
            Self::Shrank => "replica_queues",
            Self::Grew => "used_up",
            Self::Returned => "returned",
        }
    }
}

/// Whether the time between the tokens of answers is no more than was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It is, or nothing says otherwise.
    Kept,
    /// It is more.
    Missed,
}

/// What one replica holds of what it may.
///
/// KV reservations are estimates: a sequence may outgrow its own, and the engine then preempts. But
/// a request that is alone always fits, however large its estimate, since the door turned away what
/// the pool cannot hold. Alone is one beside which the replica holds nothing for anybody else.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    capacity: Capacity,
    bounds: Bounds,
    /// Sequences that may be held. invariant: at least 1, or 0 before the replica is up.
    limit: u32,
    moved: Moved,
    held: Held,
    /// Sequences it was sent, since the start, beyond what it can run.
    guests: u64,
    /// Sequences kept beyond what the bounds say, since newcomers found none, and when that last
    /// changed.
    more: (u32, Time),
    /// Sequences that may be held while it is just back from a failure. invariant: `>= 1`.
    warming: Option<u32>,
    /// KV blocks held, as the replica last said.
    reported: KvBlocks,
    /// Those of them that were more than what was held here: somebody else's, or what sequences
    /// hold beyond their estimates.
    beyond: KvBlocks,
    /// KV blocks that it was sent since, less what has ended since: where no report comes any more,
    /// it does not grow.
    since: KvBlocks,
    /// Sequences that it was sent since.
    sent: u32,
    /// Those that waited inside it, as it last said, beside what it had just been sent.
    waited: u32,
    pace: Pace,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    sequences: u32,
    kv: KvBlocks,
    best_effort_kv: KvBlocks,
    prefill: Tokens,
}

impl Window {
    /// Sequences that a replica is given at first when it is back from a failure.
    const WARM_FROM: u32 = 2;

    /// The empty window of a replica that is not up yet.
    pub fn new(bounds: Bounds) -> Self {
        let capacity = Capacity {
            sequences: 0,
            kv: KvBlocks::ZERO,
        };
        Self {
            capacity,
            bounds,
            limit: 0,
            moved: Moved::Came,
            held: Held::default(),
            guests: 0,
            more: (0, Time::START),
            warming: None,
            reported: KvBlocks::ZERO,
            since: KvBlocks::ZERO,
            sent: 0,
            waited: 0,
            pace: Pace::Kept,
            beyond: KvBlocks::ZERO,
        }
    }

    /// The replica came up, with this capacity; what is held stays held.
    pub fn resize(&mut self, capacity: Capacity) {
        self.capacity = capacity;
        (self.reported, self.since, self.sent) = (KvBlocks::ZERO, KvBlocks::ZERO, 0);
        (self.beyond, self.waited) = (KvBlocks::ZERO, 0);
        self.moved = Moved::Came;
        self.warming = None;
        self.limit = match self.bounds.concurrency {
            Knob::Auto => capacity.sequences,
            Knob::Fixed(limit) => limit.get().min(capacity.sequences),
        };
    }

    /// The replica is back from a failure, and others have carried its load meanwhile: it is given
    /// little at first, or all that waits would go to the one that is empty, and may not be well.
    pub fn warm_up(&mut self) {
        self.warming = Some(Self::WARM_FROM);
        self.moved = Moved::Returned;
    }

    /// It answered a request: while it warms up it may have one more, so that its window doubles
    /// with each round of answers.
    pub fn answered(&mut self) {
        let more = self.warming.map(|warm| warm.saturating_add(1));
        self.warming = more.filter(|warm| *warm < self.limit);
    }

    /// Takes in what the replica says of itself: how many of its sequences wait inside it, and what
    /// KV it holds.
    ///
    /// Those that wait inside it would be better off with us, where they can be passed by; so it is
    /// given that many less, and an eighth more each time that it was full and none waited. What it
    /// was sent since its last word may just not have begun: to take that for a queue would shrink
    /// the window of an engine that is asked four times a second to next to nothing. Where its size
    /// is looked for, what it was sent before that may have been under way for long, as many are
    /// sent at once; so only as many count as waited when it last spoke, too.
    pub fn report(&mut self, waiting: u32, kv: KvBlocks) {
        let mut waiting = waiting.saturating_sub(std::mem::take(&mut self.sent));
        let before = std::mem::replace(&mut self.waited, waiting);
        if self.is_looked_for() {
            waiting = waiting.min(before);
        }
        (self.reported, self.since) = (kv, KvBlocks::ZERO);
        self.beyond = kv - self.held.kv;
        if self.bounds.concurrency != Knob::Auto {
            return;
        }
        if waiting > 0 {
            let fewer = self.held.sequences.saturating_sub(waiting).max(1);
            if fewer < self.limit {
                (self.limit, self.moved) = (fewer, Moved::Shrank);
            }
        } else if self.waited == 0 && self.is_used_up() && self.limit < self.most() {
            let more = self.limit + (self.limit / 8).max(1);
            (self.limit, self.moved) = (more.min(self.most()), Moved::Grew);
        }
    }

    /// Whether the answers of its pool come at the pace they are promised: as long as they do, a
    /// window whose size was a guess may grow beyond it.
    pub const fn note_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// Whether what the replica can hold was a guess.
    const fn is_looked_for(&self) -> bool {
        self.bounds.reach > 0
    }

    /// Whether it holds all that it may, but for what is kept for tenants below their share, which
    /// those that ask for more may not be.
    fn is_used_up(&self) -> bool {
        self.held.sequences.saturating_add(self.headroom()) >= self.limit
    }

    /// Sequences that it may come to hold.
    fn most(&self) -> u32 {
        match self.pace {
            Pace::Kept => self.capacity.sequences.max(self.bounds.reach),
            Pace::Missed => self.capacity.sequences,
        }
    }

    /// Whether `ask` would fit, where `prefill` is what a step can bear by itself, if that is
    /// known.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn room_for(&self, ask: &Ask, prefill: Option<Tokens>) -> Result<(), Blocked> {
        let (held, limit) = (self.held.sequences, self.limit());
        if held >= limit.saturating_add(self.guests_max()) {
            return Err(Blocked::Sequences);
        }
        if self.held.sequences == 0 && self.beyond == KvBlocks::ZERO {
            return Ok(());
        }
        // Before KV: guests may pass it until there is a place for it.
        if held >= limit.saturating_add(self.guests_like(ask)) {
            return Err(Blocked::Guests);
        }
        if self.occupancy() + ask.kv > self.ceiling(ask) {
            return Err(Blocked::Kv);
        }
        if held + self.headroom() >= limit && !ask.may_use_kept {
            return Err(Blocked::Headroom);
        }
        if self.bounds.paced && !ask.beside_others {
            return Ok(());
        }
        let bearable = self.prefill_max(prefill);
        // Beside others, a tenant below its share is not made to wait for what they have in
        // prefill, up to as much again: its own is what it waits for.
        let times = if ask.beside_others { 2 } else { 1 };
        let bearable = bearable.map(|most| Tokens::new(most.get().saturating_mul(times)));
        let in_flight = self.held.prefill;
        if in_flight > Tokens::ZERO && bearable.is_some_and(|most| in_flight + ask.prompt > most) {
            return Err(Blocked::Prefill);
        }
        Ok(())
    }

    /// Whether any request of this class could fit.
    pub fn is_open_to(&self, class: Class) -> bool {
        let least = Ask {
            class,
            kv: KvBlocks::ZERO,
            prompt: Tokens::ZERO,
            may_use_kept: true,
            beside_others: true,
            guest: Guest::Brief,
            floor: 100,
            tenant_kv: KvBlocks::ZERO,
        };
        self.room_for(&least, None).is_ok()
    }

    /// The part of a prompt that counts as prefill in flight: none of one that the replica keeps
    /// back for others.
    pub const fn counted(&self, prompt: Tokens, haste: Haste) -> Tokens {
        match haste {
            Haste::WhileAlone | Haste::AsTheyCome if self.bounds.paced => Tokens::ZERO,
            Haste::AtOnce | Haste::InPassing | Haste::WhileAlone | Haste::AsTheyCome => prompt,
        }
    }

    /// Holds one more sequence, with so much prefill in flight.
    pub fn hold(&mut self, class: Class, kv: KvBlocks, prompt: Tokens) {
        self.guests += u64::from(self.held.sequences >= self.limit());
        self.held.sequences += 1;
        self.held.kv += kv;
        self.since += kv;
        self.sent += 1;
        self.held.prefill += prompt;
        if class == Class::BestEffort {
            self.held.best_effort_kv += kv;
        }
    }

    /// A prompt has been answered by its first token, or given up.
    pub fn prefilled(&mut self, prompt: Tokens) {
        self.held.prefill = self.held.prefill - prompt;
    }

    /// Lets go of what [`Window::hold`] held, but for the prompt, which [`Window::prefilled`] lets
    /// go of.
    ///
    /// # Panics
    /// When nothing is held: a request ended twice.
    pub fn release(&mut self, class: Class, kv: KvBlocks) {
        assert!(
            self.held.sequences > 0,
            "released a window that holds nothing"
        );
        self.held.sequences -= 1;
        self.held.kv -= kv;
        self.since -= kv.min(self.since);
        if class == Class::BestEffort {
            self.held.best_effort_kv -= kv;
        }
        let empty = Held::default();
        debug_assert!(
            self.held.sequences > 0 || self.held == empty,
            "held for nobody: {self:?}"
        );
    }

    /// Sequences held.
    pub const fn sequences(&self) -> u32 {
        self.held.sequences
    }

    /// Sequences that it was sent as guests, since the start.
    pub const fn guests_taken(&self) -> u64 {
        self.guests
    }

    /// KV blocks reserved.
    pub const fn kv(&self) -> KvBlocks {
        self.held.kv
    }

    /// KV blocks held: what is reserved, or what the replica last said and what it was sent since,
    /// whichever is more. Where nothing is held here, what it said of somebody else's: its last
    /// word on what was ours is outdated.
    pub fn occupancy(&self) -> KvBlocks {
        if self.held.sequences == 0 {
            return self.beyond;
        }
        self.held.kv.max(self.reported + self.since)
    }

    /// Prompt tokens in flight to their first token.
    pub const fn prefill(&self) -> Tokens {
        self.held.prefill
    }

    /// Sequences that may be held.
    pub fn limit(&self) -> u32 {
        self.warming.map_or(self.limit, |warm| warm.min(self.limit))
    }

    /// Sequences that it may hold beyond its limit: none where that is less than the replica can
    /// run, or nobody would have to give up a place for them.
    fn guests_max(&self) -> u32 {
        match self.limit() >= self.capacity.sequences {
            true => self.bounds.guests,
            false => 0,
        }
    }

    /// Those of them that one like `ask` may be among.
    fn guests_like(&self, ask: &Ask) -> u32 {
        match ask.guest {
            Guest::Staying if ask.may_use_kept => self.guests_max().saturating_sub(1),
            Guest::Brief if ask.may_use_kept => self.guests_max(),
            Guest::No | Guest::Staying | Guest::Brief => 0,
        }
    }

    /// Sequences kept for tenants below their share.
    pub fn headroom(&self) -> u32 {
        self.bounds.headroom(self.limit(), self.more.0)
    }

    /// A request goes to the replica: where it was late, one more sequence is kept from now on.
    pub fn sent_to(&mut self, who: Newcomer, now: Time) {
        self.ease(now);
        let before = self.headroom();
        match who {
            Newcomer::No => {}
            Newcomer::InTime if self.is_last() => self.more.1 = now,
            Newcomer::InTime => {}
            Newcomer::Late => {
                self.more = (self.more.0 + 1, now);
                if self.headroom() == before {
                    self.more.0 -= 1;
                }
            }
        }
    }

    /// Keeps less again where nobody had to wait for long enough.
    fn ease(&mut self, now: Time) {
        let (more, since) = self.more;
        let (rest, least) = match (self.is_last(), self.keeps_none_by_itself()) {
            (true, _) => (Bounds::EASE_LAST_AFTER, 0),
            (false, true) => (Bounds::EASE_AFTER, 1),
            (false, false) => (Bounds::EASE_AFTER, 0),
        };
        let rests = now.since(since).get() / rest.get();
        if more > 0 && rests > 0 {
            let fewer = u64::from(more).saturating_sub(rests);
            self.more = (u32::try_from(fewer).unwrap_or(0).max(least), now);
        }
    }

    /// Whether the one sequence that is kept is one more than is kept by itself.
    fn is_last(&self) -> bool {
        self.more.0 == 1 && self.keeps_none_by_itself()
    }

    fn keeps_none_by_itself(&self) -> bool {
        self.bounds.headroom(self.limit(), 0) == 0
    }

    /// Prompt tokens that may be in flight to their first token, where a step can bear `measured`
    /// by itself; `None` is any number.
    pub fn prefill_max(&self, measured: Option<Tokens>) -> Option<Tokens> {
        match self.bounds.prefill {
            Knob::Auto => measured,
            Knob::Fixed(tokens) => Some(tokens).filter(|most| *most < Tokens::new(u64::MAX)),
        }
    }

    /// Why it has the size it has.
    pub const fn moved(&self) -> Moved {
        self.moved
    }

    /// What could be held.
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// KV blocks up to which `ask` is let in.
    fn ceiling(&self, ask: &Ask) -> KvBlocks {
        let of = |percent: u8| self.capacity.kv.percent(u64::from(percent));
        let thresholds = self.bounds.thresholds;
        match ask.class {
            Class::Standard => of(thresholds.standard),
            Class::Reserved if ask.tenant_kv + ask.kv <= of(ask.floor) => of(thresholds.reserved),
            Class::Reserved => of(thresholds.standard),
            Class::BestEffort => {
                let within_min =
                    self.held.best_effort_kv + ask.kv <= of(thresholds.best_effort_min);
                of(if within_min {
                    thresholds.standard
                } else {
                    thresholds.best_effort
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
