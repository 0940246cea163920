//! Values of a scenario that are read only within their bounds, so that one outside of them is told
//! where it stands. What several keys say together is checked elsewhere.

use std::fmt::Display;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use tollgate_policy::units::Micros;

use super::form::Span;

/// A value that may be left out, but not left empty: a key without one is mostly a slip.
pub(super) fn told<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// A whole number from `MIN` to `MAX`.
pub(super) fn whole<'de, D, T, const MIN: u64, const MAX: u64>(
    deserializer: D,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + TryInto<u64> + Copy + Display,
{
    let number = T::deserialize(deserializer)?;
    match number.try_into() {
        Ok(inside) if (MIN..=MAX).contains(&inside) => Ok(number),
        Ok(_) | Err(_) => Err(D::Error::custom(format!("{number}; use {MIN} to {MAX}"))),
    }
}

/// As [`whole`], where it may be left out.
pub(super) fn whole_if_told<'de, D, T, const MIN: u64, const MAX: u64>(
    deserializer: D,
) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + TryInto<u64> + Copy + Display,
{
    whole::<D, T, MIN, MAX>(deserializer).map(Some)
}

/// A chance, or a part of all.
pub(super) fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let share = f64::deserialize(deserializer)?;
    match (0.0..=1.0).contains(&share) {
        true => Ok(share),
        false => Err(D::Error::custom(format!("{share}; use 0 to 1"))),
    }
}

/// How many times as much, as fast or as long.
pub(super) fn times<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    const LEAST: f64 = 0.001;
    const MOST: f64 = 1_000.0;
    let times = f64::deserialize(deserializer)?;
    match (LEAST..=MOST).contains(&times) {
        true => Ok(times),
        false => Err(D::Error::custom(format!("{times}; use {LEAST} to {MOST}"))),
    }
}

/// The size of a world drawn at random, in times of the ordinary one.
pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    const MOST: f64 = 10_000.0;
    let size = f64::deserialize(deserializer)?;
    match size > 0.0 && size <= MOST {
        true => Ok(size),
        false => Err(D::Error::custom(format!(
            "{size}; use more than 0 and at most {MOST}"
        ))),
    }
}

/// A bound on a number that is measured.
pub(super) fn bound<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let bound = f64::deserialize(deserializer)?;
    match bound.is_finite() {
        true => Ok(Some(bound)),
        false => Err(D::Error::custom(format!(
            "{bound} bounds nothing; use a number"
        ))),
    }
}

/// A time that takes some.
pub(super) fn lasting<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    let span = Span::deserialize(deserializer)?;
    match span.0 == Micros::ZERO {
        true => Err(D::Error::custom("0 is no time; use 1us or more")),
        false => Ok(span),
    }
}

/// As [`lasting`], where it may be left out.
pub(super) fn lasting_if_told<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Span>, D::Error> {
    lasting(deserializer).map(Some)
}

/// A name, which is not empty.
pub(super) fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    match name.trim().is_empty() {
        true => Err(D::Error::custom("an empty name; use a word")),
        false => Ok(name),
    }
}
