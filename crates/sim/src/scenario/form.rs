//! The form of a scenario file, key by key, with what holds where a key is left out.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use tollgate_policy::tenant::Class;
use tollgate_policy::units::Micros;

use super::Contender;
use crate::arrivals::Arrivals;
use crate::chaos::Profile;
use crate::lengths::Lengths;
use crate::trace::TraceName;
use crate::workload::{Session, SharedPrefix};

/// A time: a whole number and `us`, `ms`, `s`, `m` or `h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span(pub(super) Micros);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is no time; use one like 30s, 250ms or 10m");
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
        Ok(Self(Micros::new(number.saturating_mul(micros))))
    }
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

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Form {
    pub(super) title: String,
    #[serde(default)]
    pub(super) about: String,
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
    pub(super) replay: Option<ReplayForm>,
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
    #[serde(default = "once")]
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
    pub(super) context: u64,
    pub(super) queue: usize,
    pub(super) max_wait: Option<Span>,
    pub(super) max_stream: Span,
    pub(super) tpot: Span,
    pub(super) kv_bytes_per_token: u64,
    pub(super) window: WindowForm,
    /// Whether embedded engines keep prompts to a pace, as the server's do by default.
    pub(super) prefill_pacing: bool,
    pub(super) slo: Option<SloForm>,
}

/// What answers must be like, and what the gateway promises.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SloForm {
    pub(super) ttft: Option<Span>,
    pub(super) tpot: Option<Span>,
    pub(super) e2e: Option<Span>,
    /// How many of a thousand may be later than their bound.
    #[serde(default = "tenth")]
    pub(super) per_mille: u16,
    /// Whether what does not fit is refused even where that helps nobody.
    #[serde(default)]
    pub(super) guarantee: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LongerForm {
    pub(super) at: Span,
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
    pub(super) concurrency: Option<NonZeroU32>,
    pub(super) headroom: Option<u32>,
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
    pub(super) count: usize,
    pub(super) engine: EngineForm,
    pub(super) slots: NonZeroU32,
    pub(super) step: Option<Span>,
    pub(super) per_sequence: Option<Span>,
    pub(super) steps: Option<BTreeMap<NonZeroU32, Span>>,
    pub(super) prompt_step: Option<Span>,
    pub(super) prefill_per_second: NonZeroU64,
    pub(super) attention_per_second: Option<NonZeroU64>,
    pub(super) chunk: u64,
    pub(super) kv_tokens: u64,
    pub(super) cache: bool,
    pub(super) report_every: Span,
    pub(super) starts_in: Span,
    pub(super) only: Option<ClassForm>,
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
    pub(super) every: Span,
    pub(super) prompt: u64,
    pub(super) output: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantForm {
    pub(super) name: String,
    #[serde(default = "one")]
    pub(super) count: usize,
    #[serde(default)]
    pub(super) class: ClassForm,
    #[serde(default = "least")]
    pub(super) weight: NonZeroU32,
    #[serde(default)]
    pub(super) floor_percent: u8,
    #[serde(default)]
    pub(super) limits: LimitsForm,
    pub(super) arrivals: Arrivals,
    pub(super) prompt: Lengths,
    pub(super) output: Lengths,
    pub(super) shared: Option<SharedPrefix>,
    pub(super) session: Option<Session>,
    pub(super) texts: Option<TextsForm>,
    #[serde(default)]
    pub(super) says: SaysForm,
    #[serde(default)]
    pub(super) clients: ClientsForm,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitsForm {
    pub(super) rpm: Option<NonZeroU64>,
    pub(super) tpm: Option<NonZeroU64>,
    pub(super) kv_gib_seconds: Option<u64>,
    pub(super) concurrency: Option<NonZeroU32>,
    pub(super) max_output: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TextsForm {
    pub(super) family: String,
    pub(super) tokens: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SaysForm {
    #[default]
    Nothing,
    Truth,
    AtMost(u64),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ClientsForm {
    pub(super) impatient: f64,
    pub(super) patience: Span,
    pub(super) leaves_at_dispatch: f64,
    pub(super) leaves_mid_stream: f64,
    pub(super) leaves_at_end: f64,
    pub(super) stops_reading: f64,
    pub(super) takes: Span,
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
    #[serde(default = "once")]
    pub(super) speed: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FaultForm {
    pub(super) at: Span,
    pub(super) kind: FaultKindForm,
    pub(super) replica: Option<usize>,
    pub(super) lasting: Option<Span>,
    pub(super) every: Option<Span>,
    #[serde(default = "once")]
    pub(super) times: f64,
    #[serde(default)]
    pub(super) starts_in_vain: u32,
    #[serde(default = "hundred")]
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
    pub(super) tenant: Option<String>,
    pub(super) against: Option<String>,
    pub(super) from: Option<Span>,
    pub(super) until: Option<Span>,
    #[serde(default = "ten")]
    pub(super) bins: usize,
    pub(super) at_most: Option<f64>,
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
