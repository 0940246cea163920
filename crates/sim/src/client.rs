//! What clients do while they wait: stay, leave in any phase, stop reading, ask again.
//!
//! What one client is going to do is drawn when it first asks, from the stream of its tenant, so
//! that two gateways in the same scenario meet the same clients.

use rand_pcg::Pcg64;
use tollgate_policy::units::{Micros, Tokens};

use crate::chance::unit;

/// How the clients of one tenant behave. Chances are in `0..=1`, and add up to at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Manners {
    /// Chance that a client leaves once it has waited up to `patience`, whatever comes first.
    pub impatient: f64,
    /// The longest that an impatient client waits.
    pub patience: Micros,
    /// Chance that a client leaves before its first token, right after it was dispatched.
    pub leaves_at_dispatch: f64,
    /// Chance that a client leaves in the middle of its answer.
    pub leaves_mid_stream: f64,
    /// Chance that a client leaves when its answer is made and not yet taken.
    pub leaves_at_end: f64,
    /// Chance that our own handler panics in the middle of an answer.
    pub panics: f64,
    /// Chance that a client stops reading and keeps its connection.
    pub stops_reading: f64,
    /// From the end of an answer to its last byte taken.
    pub takes: Micros,
    /// How it asks again.
    pub retries: Retries,
}

/// How a client asks again after a refusal or a failure before the first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// How often.
    pub most: u32,
    /// Whether it waits as long as it is told to; else, or where it is told nothing, its pauses
    /// double.
    pub obedient: Obedience,
    /// What it does when an answer breaks off that had begun.
    pub broken: Broken,
}

/// What a client does when an answer breaks off that had begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Broken {
    /// It keeps what it has, as the SDKs do.
    #[default]
    Keeps,
    /// It asks again for all of it, as agents do.
    AsksAgain,
}

/// Whether a client heeds `Retry-After`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Obedience {
    /// It does, as the SDKs do.
    #[default]
    Waits,
    /// It does not.
    Ignores,
}

impl Default for Manners {
    /// Clients that take their answers and never ask again.
    fn default() -> Self {
        Self {
            impatient: 0.0,
            patience: Micros::from_secs(10),
            leaves_at_dispatch: 0.0,
            leaves_mid_stream: 0.0,
            leaves_at_end: 0.0,
            panics: 0.0,
            stops_reading: 0.0,
            takes: Micros::ZERO,
            retries: Retries {
                most: 0,
                obedient: Obedience::Waits,
                broken: Broken::Keeps,
            },
        }
    }
}

impl Manners {
    /// What the next client is going to do, whose answer comes to be `output` long.
    pub(crate) fn fate(&self, output: Tokens, rng: &mut Pcg64) -> Fate {
        let chances = [
            self.impatient,
            self.leaves_at_dispatch,
            self.leaves_mid_stream,
            self.leaves_at_end,
            self.panics,
            self.stops_reading,
        ];
        if chances.iter().all(|chance| *chance <= 0.0) {
            return Fate::Stays;
        }
        let (drawn, how_far) = (unit(rng), unit(rng));
        let part = |whole: u64| (how_far * whole as f64) as u64;
        let token = Tokens::new(part(output.get()) + 1);
        let fates = [
            Fate::LeavesAfter(Micros::new(part(self.patience.get()))),
            Fate::LeavesAtDispatch,
            Fate::LeavesAt(token),
            Fate::LeavesAtEnd,
            Fate::PanicsAt(token),
            Fate::StopsReading,
        ];
        let mut below = 0.0;
        for (chance, fate) in chances.into_iter().zip(fates) {
            below += chance;
            if drawn < below {
                return fate;
            }
        }
        Fate::Stays
    }
}

impl Retries {
    /// The pause before try number `tried` + 1, where the gateway said `told`.
    ///
    /// Where it says nothing, half a second that doubles up to eight, less a quarter at random: as
    /// the OpenAI SDKs do.
    pub(crate) fn pause(&self, tried: u32, told: Option<Micros>, rng: &mut Pcg64) -> Micros {
        const FIRST: Micros = Micros::from_millis(500);
        const LONGEST: Micros = Micros::from_secs(8);
        let drawn = unit(rng);
        match (told, self.obedient) {
            (Some(told), Obedience::Waits) => told,
            (Some(_), Obedience::Ignores) | (None, _) => {
                let pause = FIRST.doubled(tried).min(LONGEST);
                Micros::new((pause.get() as f64 * (1.0 - 0.25 * drawn)) as u64)
            }
        }
    }
}

/// What one client is going to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It takes its answer.
    Stays,
    /// It leaves when this much time has passed, whatever has come by then.
    LeavesAfter(Micros),
    /// It leaves before its first token.
    LeavesAtDispatch,
    /// It leaves at this output token.
    LeavesAt(Tokens),
    /// It leaves when the answer is made and not yet taken.
    LeavesAtEnd,
    /// Its handler panics at this output token.
    PanicsAt(Tokens),
    /// It takes nothing more and does not leave.
    StopsReading,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{Purpose, stream};

    #[test]
    fn each_fate_comes_as_often_as_its_chance_says() {
        let manners = Manners {
            impatient: 0.2,
            leaves_mid_stream: 0.3,
            stops_reading: 0.1,
            ..Manners::default()
        };
        let mut rng = stream(1, Purpose::Client, "a");
        let fates: Vec<Fate> = (0..10_000)
            .map(|_| manners.fate(Tokens::new(10), &mut rng))
            .collect();
        let count = |is: fn(&Fate) -> bool| fates.iter().filter(|fate| is(fate)).count();
        let stays = count(|fate| *fate == Fate::Stays);
        let mid = count(|fate| matches!(fate, Fate::LeavesAt(_)));
        assert!(stays.abs_diff(4_000) < 250, "{stays}");
        assert!(mid.abs_diff(3_000) < 250, "{mid}");
        assert!(fates.iter().all(|fate| match fate {
            Fate::LeavesAt(token) => (1..=10).contains(&token.get()),
            Fate::LeavesAfter(span) => *span < Micros::from_secs(10),
            Fate::Stays | Fate::StopsReading => true,
            Fate::LeavesAtDispatch | Fate::LeavesAtEnd | Fate::PanicsAt(_) => false,
        }));
    }

    #[test]
    fn an_obedient_client_waits_as_told_and_another_doubles_its_pauses() {
        let mut rng = stream(1, Purpose::Retry, "a");
        let told = Some(Micros::from_secs(40));
        let obedient = Retries {
            most: 9,
            obedient: Obedience::Waits,
            broken: Broken::Keeps,
        };
        assert_eq!(obedient.pause(0, told, &mut rng), Micros::from_secs(40));
        let other = Retries {
            obedient: Obedience::Ignores,
            ..obedient
        };
        for (tried, longest) in [(0, 500), (1, 1_000), (4, 8_000), (9, 8_000)] {
            let pause = other.pause(tried, told, &mut rng);
            let longest = Micros::from_millis(longest);
            assert!(pause <= longest && pause.get() * 4 >= longest.get() * 3);
        }
    }
}
