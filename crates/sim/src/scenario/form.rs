//! The form of a scenario file, key by key, with what holds where a key is left out.

use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use tollgate_policy::tenant::Class;
use tollgate_policy::units::Micros;

use super::cost::Steps;
use super::{Contender, within};
use crate::arrivals::Arrivals;
use crate::chaos::Profile;
use crate::lengths::Lengths;
use crate::trace::TraceName;
use crate::workload::{Session, SharedPrefix};

/// A time: a whole number and `us`, `ms`, `s`, `m` or `h`, up to a year.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span(pub(super) Micros);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no time; use one like 30s, 250ms or 10m");
        let unit = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(unit);
        let micros: u64 = match unit {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => 3_600_000_000,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let span = number.checked_mul(micros).map(Micros::new);
        match span.filter(|span| *span <= Self::MOST) {
            Some(span) => Ok(Self(span)),
            None => Err(format!("{text} is more than a year; use less")),
        }
    }
}

impl Span {
    const MOST: Micros = Micros::from_secs(366 * 86_400);
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// A trace by its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameOfTrace(pub(super) TraceName);

impl<'de> Deserialize<'de> for NameOfTrace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// Tokens of anything that is one request's or one step's.
const TOKENS: u64 = 10_000_000;

/// Tokens of a replica's KV.
const KV_TOKENS: u64 = 1_000_000_000;

/// Bytes of one token's KV: far above those of any model.
const KV_BYTES: u64 = 1 << 30;

/// KV memory over time of one tenant.
const KV_GIB_SECONDS: u64 = 1_000_000_000;

/// Replicas of a fleet: more than a world goes through in a day.
pub(super) const REPLICAS: u64 = 10_000;

/// Tenants of a world, likewise.
pub(super) const TENANTS: u64 = 100_000;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Form {
    pub(super) title: String,
    #[serde(default)]
    pub(super) about: String,
    #[serde(default, deserialize_with = "within::told")]
    pub(super) chaos: Option<ChaosForm>,
    #[serde(default)]
    pub(super) duration: Span,
    #[serde(default)]
    pub(super) warmup: Span,
    #[serde(default = "minute")]
    pub(super) drain: Span,
    /// Too large to compare all tenants and all replicas with each other after every fact.
    #[serde(default)]
    pub(super) large: bool,
    #[serde(default)]
    pub(super) model: ModelForm,
    #[serde(default)]
    pub(super) fairness: FairnessForm,
    #[serde(default)]
    pub(super) fleet: Vec<ReplicaForm>,
    #[serde(default)]
    pub(super) tenants: Vec<TenantForm>,
    #[serde(default, deserialize_with = "within::told")]
    pub(super) replay: Option<ReplayForm>,
    #[serde(default, deserialize_with = "within::told")]
    pub(super) longer: Option<LongerForm>,
    #[serde(default)]
    pub(super) faults: Vec<FaultForm>,
    #[serde(default)]
    pub(super) compare: Vec<ContenderForm>,
    #[serde(default)]
    pub(super) measures: Vec<MeasureForm>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChaosForm {
    pub(super) profile: ProfileForm,
    #[serde(default = "once", deserialize_with = "within::size")]
    pub(super) size: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ProfileForm {
    Calm,
    Crashes,
    Sluggish,
    Partitions,
    Clock,
    Leavers,
    Storms,
    All,
}

impl From<ProfileForm> for Profile {
    fn from(form: ProfileForm) -> Self {
        match form {
            ProfileForm::Calm => Self::Calm,
            ProfileForm::Crashes => Self::Crashes,
            ProfileForm::Sluggish => Self::Sluggish,
            ProfileForm::Partitions => Self::Partitions,
            ProfileForm::Clock => Self::Clock,
            ProfileForm::Leavers => Self::Leavers,
            ProfileForm::Storms => Self::Storms,
            ProfileForm::All => Self::All,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ContenderForm {
    Tollgate,
    Fifo,
    Plain,
    NoControl,
    Ttl,
    Cap,
    Point,
    Structural,
    SplitAlike,
    Split,
}

impl From<ContenderForm> for Contender {
    fn from(form: ContenderForm) -> Self {
        match form {
            ContenderForm::Tollgate => Self::Tollgate,
            ContenderForm::Fifo => Self::Fifo,
            ContenderForm::Plain => Self::Plain,
            ContenderForm::NoControl => Self::NoControl,
            ContenderForm::Ttl => Self::Ttl,
            ContenderForm::Cap => Self::Cap,
            ContenderForm::Point => Self::Point,
            ContenderForm::Structural => Self::Structural,
            ContenderForm::SplitAlike => Self::SplitAlike,
            ContenderForm::Split => Self::Split,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FairnessForm {
    #[default]
    Vtc,
    Drr,
    Fifo,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClassForm {
    Reserved,
    #[default]
    Standard,
    BestEffort,
}

impl From<ClassForm> for Class {
    fn from(form: ClassForm) -> Self {
        match form {
            ClassForm::Reserved => Self::Reserved,
            ClassForm::Standard => Self::Standard,
            ClassForm::BestEffort => Self::BestEffort,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ModelForm {
    #[serde(deserialize_with = "within::whole::<_, _, 1, TOKENS>")]
    pub(super) context: u64,
    pub(super) queue: usize,
    #[serde(deserialize_with = "within::told")]
    pub(super) max_wait: Option<Span>,
    #[serde(deserialize_with = "within::lasting")]
    pub(super) max_stream: Span,
    #[serde(deserialize_with = "within::lasting")]
    pub(super) tpot: Span,
    #[serde(deserialize_with = "within::whole::<_, _, 1, KV_BYTES>")]
    pub(super) kv_bytes_per_token: u64,
    pub(super) window: WindowForm,
    /// Whether embedded engines keep prompts to a pace, as the server's do by default.
    pub(super) prefill_pacing: bool,
    #[serde(deserialize_with = "within::told")]
    pub(super) slo: Option<SloForm>,
}

/// What answers must be like, and what the gateway promises.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SloForm {
    #[serde(default, deserialize_with = "within::lasting_if_told")]
    pub(super) ttft: Option<Span>,
    #[serde(default, deserialize_with = "within::lasting_if_told")]
    pub(super) tpot: Option<Span>,
    #[serde(default, deserialize_with = "within::lasting_if_told")]
    pub(super) e2e: Option<Span>,
    /// How many of a thousand may be later than their bound.
    #[serde(default = "tenth", deserialize_with = "within::whole::<_, _, 1, 500>")]
    pub(super) per_mille: u16,
    /// Whether what does not fit is refused even where that helps nobody.
    #[serde(default)]
    pub(super) guarantee: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LongerForm {
    pub(super) at: Span,
    #[serde(deserialize_with = "within::whole::<_, _, 1, 100000>")]
    pub(super) percent: u64,
}

impl Default for ModelForm {
    fn default() -> Self {
        Self {
            context: 8_192,
            queue: 10_000,
            max_wait: None,
            max_stream: Span(Micros::from_secs(600)),
            tpot: Span(Micros::from_millis(100)),
            kv_bytes_per_token: 131_072,
            window: WindowForm::default(),
            prefill_pacing: true,
            slo: None,
        }
    }
}

/// Bounds on what a replica holds at once; each that is left out is found by the policy.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WindowForm {
    #[serde(deserialize_with = "within::told")]
    pub(super) concurrency: Option<NonZeroU32>,
    #[serde(deserialize_with = "within::told")]
    pub(super) headroom: Option<u32>,
    #[serde(deserialize_with = "within::whole_if_told::<_, _, 1, TOKENS>")]
    pub(super) prefill: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum EngineForm {
    #[default]
    Emulated,
    Embedded,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ReplicaForm {
    #[serde(deserialize_with = "within::whole::<_, _, 1, REPLICAS>")]
    pub(super) count: usize,
    pub(super) engine: EngineForm,
    pub(super) slots: NonZeroU32,
    #[serde(deserialize_with = "within::told")]
    pub(super) step: Option<Span>,
    #[serde(deserialize_with = "within::told")]
    pub(super) per_sequence: Option<Span>,
    #[serde(deserialize_with = "within::told")]
    pub(super) steps: Option<Steps>,
    #[serde(deserialize_with = "within::told")]
    pub(super) prompt_step: Option<Span>,
    pub(super) prefill_per_second: NonZeroU64,
    #[serde(deserialize_with = "within::told")]
    pub(super) attention_per_second: Option<NonZeroU64>,
    #[serde(deserialize_with = "within::whole::<_, _, 1, TOKENS>")]
    pub(super) chunk: u64,
    #[serde(deserialize_with = "within::whole::<_, _, 1, KV_TOKENS>")]
    pub(super) kv_tokens: u64,
    pub(super) cache: bool,
    #[serde(deserialize_with = "within::lasting")]
    pub(super) report_every: Span,
    pub(super) starts_in: Span,
    #[serde(deserialize_with = "within::told")]
    pub(super) only: Option<ClassForm>,
    #[serde(deserialize_with = "within::told")]
    pub(super) others: Option<OthersForm>,
}

impl Default for ReplicaForm {
    fn default() -> Self {
        Self {
            count: 1,
            engine: EngineForm::Emulated,
            slots: NonZeroU32::MIN.saturating_add(63),
            step: None,
            per_sequence: None,
            steps: None,
            prompt_step: None,
            prefill_per_second: NonZeroU64::MIN.saturating_add(11_999),
            attention_per_second: None,
            chunk: 2_048,
            kv_tokens: 262_144,
            cache: false,
            report_every: Span(Micros::from_millis(250)),
            starts_in: Span(Micros::from_secs(5)),
            only: None,
            others: None,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OthersForm {
    #[serde(deserialize_with = "within::lasting")]
    pub(super) every: Span,
    #[serde(deserialize_with = "within::whole::<_, _, 1, TOKENS>")]
    pub(super) prompt: u64,
    #[serde(deserialize_with = "within::whole::<_, _, 1, TOKENS>")]
    pub(super) output: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantForm {
    #[serde(deserialize_with = "within::name")]
    pub(super) name: String,
    #[serde(
        default = "one",
        deserialize_with = "within::whole::<_, _, 1, TENANTS>"
    )]
    pub(super) count: usize,
    #[serde(default)]
    pub(super) class: ClassForm,
    #[serde(default = "least")]
    pub(super) weight: NonZeroU32,
    #[serde(default, deserialize_with = "within::whole::<_, _, 0, 100>")]
    pub(super) floor_percent: u8,
    #[serde(default)]
    pub(super) limits: LimitsForm,
    pub(super) arrivals: Arrivals,
    pub(super) prompt: Lengths,
    pub(super) output: Lengths,
    #[serde(default, deserialize_with = "within::told")]
    pub(super) shared: Option<SharedPrefix>,
    #[serde(default, deserialize_with = "within::told")]
    pub(super) session: Option<Session>,
    #[serde(default, deserialize_with = "within::told")]
    pub(super) texts: Option<TextsForm>,
    #[serde(default)]
    pub(super) says: SaysForm,
    #[serde(default)]
    pub(super) clients: ClientsForm,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitsForm {
    #[serde(deserialize_with = "within::told")]
    pub(super) rpm: Option<NonZeroU64>,
    #[serde(deserialize_with = "within::told")]
    pub(super) tpm: Option<NonZeroU64>,
    #[serde(deserialize_with = "within::whole_if_told::<_, _, 1, KV_GIB_SECONDS>")]
    pub(super) kv_gib_seconds: Option<u64>,
    #[serde(deserialize_with = "within::told")]
    pub(super) concurrency: Option<NonZeroU32>,
    #[serde(deserialize_with = "within::whole_if_told::<_, _, 1, TOKENS>")]
    pub(super) max_output: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TextsForm {
    #[serde(deserialize_with = "within::name")]
    pub(super) family: String,
    #[serde(deserialize_with = "within::whole::<_, _, 1, TOKENS>")]
    pub(super) tokens: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SaysForm {
    #[default]
    Nothing,
    Truth,
    AtMost(#[serde(deserialize_with = "within::whole::<_, _, 1, TOKENS>")] u64),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ClientsForm {
    #[serde(deserialize_with = "within::share")]
    pub(super) impatient: f64,
    pub(super) patience: Span,
    #[serde(deserialize_with = "within::share")]
    pub(super) leaves_at_dispatch: f64,
    #[serde(deserialize_with = "within::share")]
    pub(super) leaves_mid_stream: f64,
    #[serde(deserialize_with = "within::share")]
    pub(super) leaves_at_end: f64,
    #[serde(deserialize_with = "within::share")]
    pub(super) stops_reading: f64,
    pub(super) takes: Span,
    #[serde(deserialize_with = "within::whole::<_, _, 0, 100>")]
    pub(super) retries: u32,
    pub(super) heeds_retry_after: bool,
    pub(super) retries_broken: bool,
}

impl Default for ClientsForm {
    fn default() -> Self {
        Self {
            impatient: 0.0,
            patience: Span(Micros::from_secs(10)),
            leaves_at_dispatch: 0.0,
            leaves_mid_stream: 0.0,
            leaves_at_end: 0.0,
            stops_reading: 0.0,
            takes: Span(Micros::ZERO),
            retries: 0,
            heeds_retry_after: true,
            retries_broken: false,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayForm {
    pub(super) trace: NameOfTrace,
    #[serde(default = "once", deserialize_with = "within::times")]
    pub(super) speed: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FaultForm {
    pub(super) at: Span,
    pub(super) kind: FaultKindForm,
    #[serde(default, deserialize_with = "within::told")]
    pub(super) replica: Option<usize>,
    #[serde(default, deserialize_with = "within::lasting_if_told")]
    pub(super) lasting: Option<Span>,
    #[serde(default, deserialize_with = "within::lasting_if_told")]
    pub(super) every: Option<Span>,
    #[serde(default = "once", deserialize_with = "within::times")]
    pub(super) times: f64,
    #[serde(default, deserialize_with = "within::whole::<_, _, 0, 1000>")]
    pub(super) starts_in_vain: u32,
    #[serde(
        default = "hundred",
        deserialize_with = "within::whole::<_, _, 1, 100>"
    )]
    pub(super) percent: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FaultKindForm {
    Crash,
    Slow,
    Stuck,
    Stale,
    Cut,
    ClockAhead,
    ClockBack,
    Exodus,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MeasureForm {
    pub(super) what: WhatForm,
    #[serde(default, deserialize_with = "within::told")]
    pub(super) tenant: Option<String>,
    #[serde(default, deserialize_with = "within::told")]
    pub(super) against: Option<String>,
    #[serde(default, deserialize_with = "within::told")]
    pub(super) from: Option<Span>,
    #[serde(default, deserialize_with = "within::told")]
    pub(super) until: Option<Span>,
    #[serde(default = "ten", deserialize_with = "within::whole::<_, _, 2, 1000>")]
    pub(super) bins: usize,
    #[serde(default, deserialize_with = "within::bound")]
    pub(super) at_most: Option<f64>,
    #[serde(default, deserialize_with = "within::bound")]
    pub(super) at_least: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WhatForm {
    TtftP50Ms,
    TtftP99Ms,
    ServedPercent,
    KvOverLimit,
    ProbeAuc,
    HeldAtEnd,
    Imbalance,
    RetryUnevenness,
    Preemptions,
    TokensPerSecond,
    InTimePercent,
    LatePercent,
    CoveragePercent,
    CoverageWorstMinute,
    BoundOverOutcome,
    LongestMissRun,
    FairestGoodput,
}

const fn tenth() -> u16 {
    100
}

const fn minute() -> Span {
    Span(Micros::from_secs(60))
}

const fn once() -> f64 {
    1.0
}

const fn one() -> usize {
    1
}

const fn ten() -> usize {
    10
}

const fn hundred() -> u64 {
    100
}

const fn least() -> NonZeroU32 {
    super::ONE
}
