//! The short forms in which a command line says what a tenant sends.

use tollgate_policy::units::Micros;
use tollgate_sim::workload::{Session, SharedPrefix, TenantLoad};
use tollgate_sim::{Arrivals, Lengths};

/// Why a text describes no tenant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`--tenant {text}`: {what}; use NAME:rate=4,prompt=128,output=64")]
pub struct TenantArgError {
    text: String,
    what: String,
}

/// Reads `NAME:rate=4,cv=2,prompt=64..256,output=300~0.8`.
pub(super) fn load(text: &str) -> Result<TenantLoad, TenantArgError> {
    read(text).map_err(|what| TenantArgError {
        text: text.to_owned(),
        what,
    })
}

/// What has been told of a tenant so far.
#[derive(Default)]
struct Told {
    rate: Option<f64>,
    cv: Option<f64>,
    prompt: Option<Lengths>,
    output: Option<Lengths>,
    shared: Option<u64>,
    variants: Option<u64>,
    share: Option<f64>,
    turns: Option<u64>,
    think_s: Option<f64>,
}

impl Told {
    fn tell(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "rate" => self.rate = Some(number(value)?),
            "cv" => self.cv = Some(number(value)?),
            "prompt" => self.prompt = Some(lengths(value)?),
            "output" => self.output = Some(lengths(value)?),
            "shared" => self.shared = Some(whole(value)?),
            "variants" => self.variants = Some(whole(value)?),
            "share" => self.share = Some(number(value)?),
            "turns" => self.turns = Some(whole(value)?),
            "think" => self.think_s = Some(number(value)?),
            _ => return Err(format!("there is no `{key}`")),
        }
        Ok(())
    }

    fn shared(&self) -> Result<Option<SharedPrefix>, String> {
        let Some(tokens) = self.shared else {
            let alone = self.variants.is_some() || self.share.is_some();
            return if alone {
                Err("variants and share say nothing without `shared=TOKENS`".to_owned())
            } else {
                Ok(None)
            };
        };
        Ok(Some(SharedPrefix {
            tokens,
            variants: small(self.variants.unwrap_or(1))?,
            share: self.share.unwrap_or(1.0),
            family: None,
        }))
    }

    fn session(&self) -> Result<Option<Session>, String> {
        match (self.turns, self.think_s) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err("`think` says nothing without `turns=N`".to_owned()),
            (Some(turns), think_s) => Ok(Some(Session {
                turns: small(turns)?,
                think_s: think_s.unwrap_or(0.0),
            })),
        }
    }
}

fn read(text: &str) -> Result<TenantLoad, String> {
    let (name, pairs) = text.split_once(':').ok_or("no colon after the name")?;
    if name.is_empty() {
        return Err("no name".to_owned());
    }
    let (mut told, mut keys) = (Told::default(), Vec::new());
    for pair in pairs.split(',') {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("`{pair}` has no `=`"))?;
        if keys.contains(&key) {
            return Err(format!("`{key}` stands there twice"));
        }
        keys.push(key);
        told.tell(key, value)?;
    }
    let rate = told.rate.ok_or("no rate")?;
    let arrivals = match told.cv {
        Some(cv) => Arrivals::Gamma { rate, cv },
        None => Arrivals::Poisson { rate },
    };
    let prompt = told.prompt.ok_or("no prompt")?;
    let output = told.output.ok_or("no output")?;
    Ok(TenantLoad {
        shared: told.shared()?,
        session: told.session()?,
        ..TenantLoad::new(name, arrivals, prompt, output)
    })
}

/// `128`, `64..256`, or `300~0.8`: a lognormal by its median and sigma, cut at 1 and at 16 times
/// the median.
pub(crate) fn lengths(text: &str) -> Result<Lengths, String> {
    if let Some((min, max)) = text.split_once("..") {
        return Ok(Lengths::Uniform {
            min: whole(min)?,
            max: whole(max)?,
        });
    }
    if let Some((median, sigma)) = text.split_once('~') {
        let tokens = whole(median)?;
        let (median, sigma) = (number(median)?, number(sigma)?);
        return Ok(Lengths::Lognormal {
            median,
            sigma,
            min: 1,
            max: tokens.saturating_mul(16),
        });
    }
    Ok(Lengths::Constant(whole(text)?))
}

fn whole(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is no number of tokens"))
}

fn small(count: u64) -> Result<u32, String> {
    u32::try_from(count).map_err(|_| format!("{count} is more than anybody means"))
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

/// Reads `500ms`, `40s` or `2m`, up to a day.
pub(crate) fn span(text: &str) -> Result<Micros, String> {
    let digits = text.trim_end_matches(|symbol: char| symbol.is_ascii_alphabetic());
    let unit = text.strip_prefix(digits).unwrap_or_default();
    let scale = match unit {
        "us" => Some(1),
        "ms" => Some(1_000),
        "s" => Some(1_000_000),
        "m" => Some(60_000_000),
        _ => None,
    };
    const DAY: Micros = Micros::from_secs(86_400);
    let span = digits.parse::<u64>().ok().zip(scale);
    let span = span
        .and_then(|(count, scale)| count.checked_mul(scale))
        .map(Micros::new);
    let wrong = || format!("`{text}` is no time up to a day; use 500ms, 40s or 2m");
    span.filter(|span| *span <= DAY).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_length_and_gap_is_read() {
        let read = load("a:rate=4,cv=2,prompt=64..256,output=300~0.8").unwrap();
        let output = Lengths::Lognormal {
            median: 300.0,
            sigma: 0.8,
            min: 1,
            max: 4_800,
        };
        let prompt = Lengths::Uniform { min: 64, max: 256 };
        let arrivals = Arrivals::Gamma { rate: 4.0, cv: 2.0 };
        let expected = TenantLoad::new("a", arrivals, prompt, output);
        assert_eq!(read, expected);
        let plain = load("a:rate=0.5,prompt=1,output=2").unwrap();
        assert_eq!(plain.arrivals, Arrivals::Poisson { rate: 0.5 });
        assert_eq!(plain.prompt, Lengths::Constant(1));
    }

    #[test]
    fn what_is_shared_and_what_follows_is_read() {
        let read =
            load("a:rate=4,prompt=1,output=1,shared=500,variants=4,share=0.7,turns=3,think=2.5");
        let read = read.unwrap();
        let shared = SharedPrefix {
            tokens: 500,
            variants: 4,
            share: 0.7,
            family: None,
        };
        assert_eq!(read.shared, Some(shared));
        let session = Session {
            turns: 3,
            think_s: 2.5,
        };
        assert_eq!(read.session, Some(session));
    }

    #[test]
    fn a_mistake_is_named() {
        let cases = [
            ("a", "no colon"),
            (":rate=1", "no name"),
            ("a:rate", "`rate` has no `=`"),
            ("a:speed=1", "there is no `speed`"),
            ("a:rate=1,rate=2", "`rate` stands there twice"),
            ("a:prompt=1,output=1", "no rate"),
            ("a:rate=1,output=1", "no prompt"),
            (
                "a:rate=1,prompt=1,output=1,share=1",
                "without `shared=TOKENS`",
            ),
            ("a:rate=1,prompt=1,output=1,think=1", "without `turns=N`"),
            (
                "a:rate=1,prompt=1..x,output=1",
                "`x` is no number of tokens",
            ),
        ];
        for (text, what) in cases {
            let refused = load(text).unwrap_err().to_string();
            assert!(refused.contains(what), "{refused}");
        }
    }

    #[test]
    fn a_time_has_a_unit_and_a_bound() {
        assert_eq!(span("150us"), Ok(Micros::new(150)));
        assert_eq!(span("500ms"), Ok(Micros::from_millis(500)));
        assert_eq!(span("40s"), Ok(Micros::from_secs(40)));
        assert_eq!(span("2m"), Ok(Micros::from_secs(120)));
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "2h",
            "1441m",
            "99999999999999999999s",
        ] {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
