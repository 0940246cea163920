//! Quantities as types: what does not add up does not compile.
//!
//! A point in time is not a span, tokens are not blocks, blocks are not bytes. What is charged or
//! rationed is an integer; floats are for scores and reports, which live elsewhere. Arithmetic
//! saturates at both ends: a quantity never wraps, and each bound that could be met on purpose is
//! checked where the quantity is made.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A point in time, in microseconds since the driver's own start.
///
/// It is handed in, never read here: the server counts a monotonic clock, the simulator its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The driver's start.
    pub const START: Self = Self(0);

    /// The point `micros` after the driver's start.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the driver's start.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The span from `earlier` to here, zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Micros> for Time {
    type Output = Self;

    fn add(self, span: Micros) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

/// A span of time, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of `micros` microseconds.
    pub const fn new(micros: u64) -> Self {
        Self(micros)
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// A span of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// The span in microseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The span in whole milliseconds, rounded up.
    pub const fn millis_up(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// The span in whole seconds, rounded up: what `Retry-After` speaks.
    pub const fn secs_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// So many times as long.
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// The span doubled `times` times: the growth of a backoff.
    pub const fn doubled(self, times: u32) -> Self {
        match 1_u64.checked_shl(times) {
            Some(factor) => Self(self.0.saturating_mul(factor)),
            None => Self(u64::MAX),
        }
    }
}

impl Add for Micros {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Micros {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Micros {
    type Output = Self;

    /// Zero where `other` is the longer one.
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// A number of tokens: prompt, output or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(u64);

impl Tokens {
    /// No tokens.
    pub const ZERO: Self = Self(0);

    /// `count` tokens.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// How many items `slice` has, where each is a token.
    pub fn of_len<T>(slice: &[T]) -> Self {
        Self(count(slice.len()))
    }

    /// The number of tokens.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// How many blocks of KV hold this many tokens; a block begun is a block held.
    pub const fn blocks(self) -> KvBlocks {
        KvBlocks(self.0.div_ceil(KvBlocks::SLOTS.0))
    }

    /// Half as many, rounded up.
    pub const fn half(self) -> Self {
        Self(self.0.div_ceil(2))
    }

    /// `percent` of these, rounded up: what is charged is never less than it should be.
    pub const fn percent(self, percent: u64) -> Self {
        Self(self.0.saturating_mul(percent).div_ceil(100))
    }

    /// This many tokens' worth of service at `weight` a token.
    pub const fn weighted(self, weight: u64) -> Service {
        Service(self.0.saturating_mul(weight))
    }
}

impl Add for Tokens {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Stops at zero: a count is never negative.
impl Sub for Tokens {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A count of things in memory, as wide as everything else is counted.
pub(crate) fn count(things: usize) -> u64 {
    u64::try_from(things).unwrap_or(u64::MAX)
}

/// A number of KV blocks, each with room for [`KvBlocks::SLOTS`] tokens of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KvBlocks(u64);

impl KvBlocks {
    /// No blocks.
    pub const ZERO: Self = Self(0);

    /// Token slots in one block. 16, as in vLLM: small enough to waste little, large enough to keep
    /// tables short.
    pub const SLOTS: Tokens = Tokens(16);

    /// `count` blocks.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The number of blocks.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// How many tokens these blocks can hold.
    pub const fn slots(self) -> Tokens {
        Tokens(self.0.saturating_mul(Self::SLOTS.0))
    }

    /// `percent` of these, rounded down.
    pub const fn percent(self, percent: u64) -> Self {
        Self(self.0.saturating_mul(percent) / 100)
    }

    /// The memory these blocks take at `per_token` bytes of KV a token.
    pub const fn bytes(self, per_token: KvBytes) -> KvBytes {
        KvBytes(self.slots().0.saturating_mul(per_token.0))
    }
}

impl Add for KvBlocks {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for KvBlocks {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Stops at zero: a count is never negative.
impl Sub for KvBlocks {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl SubAssign for KvBlocks {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

/// Bytes of KV memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KvBytes(u64);

impl KvBytes {
    /// `count` bytes.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// So many times as many bytes.
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

/// KV memory over time, in byte-microseconds: what an answer occupies is an integral.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KvByteMicros(u128);

impl KvByteMicros {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// So many byte-microseconds.
    pub const fn new(byte_micros: u128) -> Self {
        Self(byte_micros)
    }

    /// So many GiB-seconds.
    pub fn from_gib_secs(gib_secs: u64) -> Self {
        Self(u128::from(gib_secs) * (1_000_000 << 30))
    }

    /// `bytes` held for `span`.
    pub fn of(bytes: KvBytes, span: Micros) -> Self {
        Self(u128::from(bytes.0) * u128::from(span.0))
    }

    /// The number of byte-microseconds.
    pub const fn get(self) -> u128 {
        self.0
    }

    /// So many millionths of a GiB-second, rounded down: the unit that is billed.
    pub fn micro_gib_secs(self) -> u64 {
        u64::try_from(self.0 >> 30).unwrap_or(u64::MAX)
    }

    /// So many millionths of a GiB-second.
    pub fn from_micro_gib_secs(micro_gib_secs: u64) -> Self {
        Self(u128::from(micro_gib_secs) << 30)
    }
}

impl Add for KvByteMicros {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for KvByteMicros {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Stops at zero: an amount is never negative.
impl SubAssign for KvByteMicros {
    fn sub_assign(&mut self, other: Self) {
        self.0 = self.0.saturating_sub(other.0);
    }
}

/// Money, in billionths of a dollar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NanoUsd(u64);

impl NanoUsd {
    /// No money.
    pub const ZERO: Self = Self(0);

    /// So many billionths of a dollar.
    pub const fn new(nano_usd: u64) -> Self {
        Self(nano_usd)
    }

    /// The number of billionths of a dollar.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Add for NanoUsd {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for NanoUsd {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Stops at zero: an amount is never negative.
impl Sub for NanoUsd {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl SubAssign for NanoUsd {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

/// In dollars, with as many decimals as it needs and two at least.
impl fmt::Display for NanoUsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DOLLAR: u64 = 1_000_000_000;
        let decimals = format!("{:09}", self.0 % DOLLAR);
        let kept = decimals.trim_end_matches('0').len().max(2);
        let shown: String = decimals.chars().take(kept).collect();
        write!(f, "{}.{shown}", self.0 / DOLLAR)
    }
}

/// Service given to a tenant: tokens times their weight (Sheng et al., OSDI 2024, section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service(u64);

impl Service {
    /// No service.
    pub const ZERO: Self = Self(0);

    /// `units` of service.
    pub const fn new(units: u64) -> Self {
        Self(units)
    }

    /// The service in weighted tokens.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Add for Service {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// Stops at zero: an amount is never negative.
impl Sub for Service {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl AddAssign for Service {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_begun_is_a_block_held() {
        assert_eq!(Tokens::new(0).blocks(), KvBlocks::new(0));
        assert_eq!(Tokens::new(1).blocks(), KvBlocks::new(1));
        assert_eq!(Tokens::new(16).blocks(), KvBlocks::new(1));
        assert_eq!(Tokens::new(17).blocks(), KvBlocks::new(2));
    }

    #[test]
    fn time_that_runs_backwards_is_no_time() {
        let later = Time::from_micros(5);
        assert_eq!(Time::START.since(later), Micros::ZERO);
        assert_eq!(later.since(Time::START), Micros::new(5));
    }

    #[test]
    fn money_prints_in_dollars() {
        let cases = [
            (0, "0.00"),
            (1, "0.000000001"),
            (37_500_000, "0.0375"),
            (1_500_000_000, "1.50"),
            (120_000_000_000, "120.00"),
        ];
        for (nano, shown) in cases {
            assert_eq!(NanoUsd::new(nano).to_string(), shown);
        }
    }

    #[test]
    fn retry_seconds_round_up_so_that_the_retry_is_not_early() {
        assert_eq!(Micros::new(1).secs_up(), 1);
        assert_eq!(Micros::from_secs(2).secs_up(), 2);
        assert_eq!(Micros::new(2_000_001).secs_up(), 3);
    }

    #[test]
    fn a_backoff_saturates_instead_of_wrapping() {
        assert_eq!(Micros::from_secs(1).doubled(3), Micros::from_secs(8));
        assert_eq!(Micros::from_secs(1).doubled(200), Micros::new(u64::MAX));
    }
}
