//! The event log: one line for each fact, order and fault, in words that do not change from one
//! build to the next.
//!
//! Two runs with the same seed write the same bytes.

use std::fmt::Write as _;

use tollgate_policy::gateway::{Effect, Event};
use tollgate_policy::units::{Micros, Time};

use crate::fault::FaultKind;

/// Where the lines go. Each ends with a newline.
pub struct Log<'a> {
    line: String,
    write: &'a mut dyn FnMut(&str),
}

impl std::fmt::Debug for Log<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

impl<'a> Log<'a> {
    /// A log that hands its lines to `write`.
    pub fn new(write: &'a mut dyn FnMut(&str)) -> Self {
        Self {
            line: String::new(),
            write,
        }
    }

    pub(super) fn fact(&mut self, fact: &Event, now: Time) {
        let text = match fact {
            Event::Arrived(arrival) | Event::Sought(arrival, _) => format!(
                "arrived request={} tenant={} prompt={} says={} retry={}",
                arrival.id,
                arrival.tenant,
                arrival.prompt,
                shown(arrival.output_max),
                arrival.retry,
            ),
            Event::Turned { id, outcome, .. } => {
                format!("turned request={id} outcome={}", outcome.row().reason)
            }
            Event::FirstToken { id } => format!("first_token request={id}"),
            Event::Begun { id } => format!("begun request={id}"),
            Event::Streamed(served) => format!(
                "streamed request={} prompt={} output={}",
                served.id, served.prompt, served.output
            ),
            Event::Reported { replica, report } => format!(
                "reported replica={replica} waiting={} kv={}",
                report.waiting,
                report.kv.get()
            ),
            Event::Reckoned { id } => format!("reckoned request={id}"),
            Event::Noticed { replica, sign } => format!("noticed replica={replica} sign={sign:?}"),
            Event::ReplicaFull { replica, .. } => format!("replica_full replica={replica}"),
            Event::ReplicaAdded { replica, .. } => format!("replica_added replica={replica}"),
            Event::ReplicaStopped { replica } => format!("replica_stopped replica={replica}"),
            Event::ReplicaLeaving { replica } => format!("replica_leaving replica={replica}"),
            Event::Stepped {
                replica,
                served,
                report,
            } => {
                let mut text = format!(
                    "stepped replica={replica} waiting={} kv={} served=",
                    report.waiting,
                    report.kv.get()
                );
                for one in served {
                    // Writing to a string does not fail.
                    let _ = write!(text, "{}:{}+{},", one.id, one.prompt, one.output);
                }
                text
            }
            Event::EngineEnded { id, ending, usage } => format!(
                "engine_ended request={id} ending={ending:?} prompt={} cached={} output={}",
                usage.prompt, usage.cached, usage.output
            ),
            Event::ClientEnded { id, ending } => {
                format!("client_ended request={id} ending={ending:?}")
            }
            Event::ReplicaUp { replica, capacity } => format!(
                "replica_up replica={replica} sequences={} kv={}",
                capacity.sequences,
                capacity.kv.get()
            ),
            Event::ReplicaDown { replica } => format!("replica_down replica={replica}"),
            Event::Reconfigured(_) => "reconfigured".to_owned(),
            Event::Priced(_) => "priced".to_owned(),
            Event::Recalled { model, .. } => format!("recalled model={model}"),
            Event::Remembered { tenant, .. } => format!("remembered tenant={tenant}"),
            Event::Books(books) => format!("books={books:?}"),
            Event::Drain { bound } => format!("drain bound_us={}", bound.get()),
            Event::Wake => "wake".to_owned(),
        };
        self.write("<", &text, now);
    }

    pub(super) fn effect(&mut self, effect: &Effect, now: Time) {
        let text = match effect {
            Effect::Dispatch(dispatch) => format!(
                "dispatch request={} replica={} because={} queued_us={} output_max={}",
                dispatch.id,
                dispatch.replica,
                dispatch.because.label(),
                dispatch.queued.get(),
                dispatch.output_max
            ),
            Effect::Refuse(refusal) => format!(
                "refuse request={} reason={} retry_after_us={}",
                refusal.id,
                refusal.outcome.row().reason,
                shown(refusal.retry_after.map(Micros::get))
            ),
            Effect::Cancel {
                id,
                replica,
                outcome,
            } => format!(
                "cancel request={id} replica={replica} reason={}",
                outcome.row().reason
            ),
            Effect::Start { replica } => format!("start replica={replica}"),
            Effect::Stop { replica } => format!("stop replica={replica}"),
            Effect::Retired { replica } => format!("retired replica={replica}"),
            Effect::Failed { id, failure, .. } => {
                format!("failed request={id} failure={failure:?}")
            }
            Effect::Withdraw { id, replica } => {
                format!("withdraw request={id} replica={replica}")
            }
            Effect::Mark(progress) => format!(
                "mark request={} output={}",
                progress.id, progress.usage.output
            ),
            Effect::Record(record) => format!(
                "record request={} outcome={} prompt={} cached={} output={}",
                record.id,
                record.outcome.row().reason,
                record.usage.prompt,
                record.usage.cached,
                record.usage.output
            ),
            Effect::Weighed(weighed) => format!(
                "weighed request={} verdict={:?} promised_us={} came_us={}",
                weighed.row.id,
                weighed.row.judged.verdict,
                shown(weighed.row.judged.bounds[0].map(|bound| bound.promised.get())),
                shown(weighed.row.seen.ttft.map(Micros::get))
            ),
            Effect::Fit(fit) => format!(
                "fit model={} lessons={}",
                fit.model,
                fit.task.lessons().count()
            ),
            Effect::Drained => "drained".to_owned(),
        };
        self.write(">", &text, now);
    }

    pub(super) fn fault(&mut self, name: &str, kind: FaultKind, now: Time) {
        self.write("!", &format!("{name} {kind:?}"), now);
    }

    fn write(&mut self, mark: &str, text: &str, now: Time) {
        let micros = now.as_micros();
        self.line.clear();
        let (secs, rest) = (micros / 1_000_000, micros % 1_000_000);
        let _ = writeln!(self.line, "{secs}.{rest:06} {mark} {text}");
        (self.write)(&self.line);
    }
}

fn shown(number: Option<impl std::fmt::Display>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}
