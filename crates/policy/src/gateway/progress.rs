//! How far each running request has come: what a crash would leave unknown, so it is said now and
//! then.
//!
//! It follows the facts and decides when there is something to say. What is charged at the end is
//! the engine's own count; this says what that will be at least.

use std::collections::{BTreeMap, BTreeSet};

use super::event::{Event, Served};
use crate::ids::RequestId;
use crate::units::{KvByteMicros, KvBytes, Micros, Time, Tokens};
use crate::usage::Usage;

/// How often a running request is said to have come further.
pub const MARK_EVERY: Micros = Micros::from_secs(1);

/// How far a running request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which request.
    pub id: RequestId,
    /// What it has used, at least: reused prompt tokens are known at its end only.
    pub usage: Usage,
    /// KV memory over time so far.
    pub kv: KvByteMicros,
}

/// All running requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Tracks {
    tracks: BTreeMap<RequestId, Track>,
    /// Those that came further since they were looked at last.
    moved: BTreeSet<RequestId>,
}

#[derive(Clone, Copy, Debug)]
struct Track {
    dispatched: Time,
    marked: Time,
    usage: Usage,
    /// When the engine was done with it: from then on it holds no KV, however slow its client is.
    done: Option<Time>,
    kv_per_token: KvBytes,
}

impl Tracks {
    /// A replica was given a request, perhaps not the first one.
    pub(super) fn dispatched(&mut self, id: RequestId, kv_per_token: KvBytes, now: Time) {
        let track = Track {
            dispatched: now,
            marked: now,
            usage: Usage::default(),
            done: None,
            kv_per_token,
        };
        self.tracks.insert(id, track);
    }

    /// Takes from a fact what it says of progress.
    pub(super) fn hear(&mut self, event: &Event, now: Time) {
        // An engine here tells of a step; of one elsewhere, the tokens that pass by are known.
        if let Event::Stepped { served, .. } = event {
            served.iter().for_each(|one| self.served(one));
        }
        if let Event::Streamed(served) = event {
            self.served(served);
        }
        if let Event::EngineEnded { id, .. } = event
            && let Some(track) = self.tracks.get_mut(id)
        {
            track.done.get_or_insert(now);
        }
    }

    fn served(&mut self, served: &Served) {
        if let Some(track) = self.tracks.get_mut(&served.id) {
            track.usage.prompt += served.prompt;
            track.usage.output += served.output;
            self.moved.insert(served.id);
        }
    }

    /// What is to be said now.
    pub(super) fn due(&mut self, now: Time) -> Vec<Progress> {
        let mut due = Vec::new();
        for id in std::mem::take(&mut self.moved) {
            let Some(track) = self.tracks.get_mut(&id) else {
                continue;
            };
            if now.since(track.marked) < MARK_EVERY {
                continue;
            }
            track.marked = now;
            due.push(Progress {
                id,
                usage: track.usage,
                kv: track.kv(track.usage, now),
            });
        }
        due
    }

    /// A request is over; what it held of KV over time, with what it used in the end.
    pub(super) fn ended(&mut self, id: RequestId, usage: Usage, now: Time) -> KvByteMicros {
        self.moved.remove(&id);
        let track = self.tracks.remove(&id);
        track.map_or(KvByteMicros::ZERO, |track| track.kv(usage, now))
    }
}

impl Track {
    /// The prompt all the time, and the output for half of it, since it grew from nothing.
    fn kv(&self, usage: Usage, now: Time) -> KvByteMicros {
        let tokens: Tokens = usage.prompt + usage.output.half();
        let span = self.done.unwrap_or(now).since(self.dispatched);
        KvByteMicros::of(self.kv_per_token.times(tokens.get()), span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::Report;
    use crate::ids::ReplicaId;
    use crate::outcome::{EngineEnding, FinishReason};

    const ID: RequestId = RequestId::new(1);

    fn at(millis: u64) -> Time {
        Time::START + Micros::from_millis(millis)
    }

    fn step(tracks: &mut Tracks, prompt: u64, output: u64, now: Time) -> Vec<Progress> {
        let served = Served {
            id: ID,
            prompt: Tokens::new(prompt),
            output: Tokens::new(output),
        };
        let event = Event::Stepped {
            replica: ReplicaId::new(0),
            served: vec![served],
            report: Report::default(),
        };
        tracks.hear(&event, now);
        tracks.due(now)
    }

    #[test]
    fn progress_is_said_once_a_second_and_sums_up() {
        let mut tracks = Tracks::default();
        tracks.dispatched(ID, KvBytes::new(2), at(0));
        assert_eq!(step(&mut tracks, 10, 1, at(100)), []);
        let said = step(&mut tracks, 0, 1, at(1_000));
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].usage.prompt, Tokens::new(10));
        assert_eq!(said[0].usage.output, Tokens::new(2));
        // (10 + 2 / 2) tokens of 2 bytes for a second.
        assert_eq!(said[0].kv, KvByteMicros::new(22_000_000));
        assert_eq!(step(&mut tracks, 0, 1, at(1_900)), []);
        assert_eq!(step(&mut tracks, 0, 1, at(2_000)).len(), 1);
        assert_eq!(tracks.due(at(9_000)), [], "nothing new to say");
    }

    #[test]
    fn tokens_that_pass_by_from_an_engine_elsewhere_are_progress() {
        let mut tracks = Tracks::default();
        tracks.dispatched(ID, KvBytes::new(1), at(0));
        tracks.hear(
            &Event::Streamed(Served {
                id: ID,
                prompt: Tokens::ZERO,
                output: Tokens::new(3),
            }),
            at(1_000),
        );
        let said = tracks.due(at(1_000));
        assert_eq!(said[0].usage.output, Tokens::new(3));
    }

    #[test]
    fn kv_is_held_until_the_engine_is_done_and_not_while_a_client_dawdles() {
        let mut tracks = Tracks::default();
        tracks.dispatched(ID, KvBytes::new(1), at(0));
        let usage = Usage {
            prompt: Tokens::new(4),
            ..Usage::default()
        };
        let ending = EngineEnding::Finished(FinishReason::Stop);
        let done = Event::EngineEnded {
            id: ID,
            ending,
            usage,
        };
        tracks.hear(&done, at(500));
        let kv = tracks.ended(ID, usage, at(60_000));
        assert_eq!(kv, KvByteMicros::new(4 * 500_000));
        assert_eq!(tracks.ended(ID, usage, at(60_000)), KvByteMicros::ZERO);
    }
}
