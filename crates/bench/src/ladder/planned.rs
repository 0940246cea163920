//! A cell on a virtual clock: the planner of the embedded engine, with steps of a given cost.

use serde_json::Value;
use tollgate_policy::units::{Micros, Time};
use tollgate_sim::rungs::{Answered, Rung, serve, serve_admitted};
use tollgate_sim::workload::Arrival;

use super::record::{Ran, Records};
use super::{Fell, Ladder, Place};
use crate::reply::Window;
use crate::rows::{Ending, Row, RowFile};

pub(super) fn run(ladder: &Ladder, place: &Place, records: &Records) -> Result<Ran, Fell> {
    let workload = ladder
        .workload(place.load_per_s, place.seed)
        .map_err(|error| Fell::Failed(error.to_string()))?;
    let arrivals: Vec<Arrival> = workload.arrivals().collect();
    let sent_until = Time::START + ladder.timing.duration;
    let until = sent_until + ladder.timing.drain;
    let answered = match place.rung.terms(ladder.slo.terms()) {
        None => serve(place.rung, ladder.machine, &arrivals, until),
        Some(terms) => {
            let ends = (place.seed, ladder.timing.drain);
            serve_admitted(terms, ladder.machine, &workload, ends)
        }
    };
    let answered = answered.map_err(|error| Fell::Failed(error.to_string()))?;
    let window = Window {
        from: Time::START + ladder.timing.warm_up,
        until: sent_until,
    };
    let write = || {
        let mut file = RowFile::create(&records.rows_under_way(place), workload.tenants())?;
        for (arrival, answered) in arrivals.iter().zip(&answered) {
            file.write(&row(place.rung, (arrival, answered), window, until))?;
        }
        file.flush()
    };
    write().map_err(|error: std::io::Error| Fell::Failed(format!("cannot write rows: {error}")))?;
    Ok(Ran {
        record: Value::Object(serde_json::Map::new()),
        canary_ms: None,
    })
}

/// Whose word a refusal is.
const fn who_refused(rung: Rung) -> &'static str {
    match rung.admits() {
        Some(_) => "slo",
        None => "engine",
    }
}

fn row(rung: Rung, (arrival, answered): (&Arrival, &Answered), window: Window, until: Time) -> Row {
    let Answered {
        tokens,
        end,
        refused,
    } = answered;
    let ending = match end {
        Some(_) if *refused => Ending::Refused(who_refused(rung).to_owned()),
        Some(_) => Ending::Completed,
        None => Ending::Unfinished,
    };
    let gap = |pair: &[Time]| Some(pair.last()?.since(*pair.first()?));
    let gaps: Vec<Micros> = tokens
        .windows(2)
        .filter_map(gap)
        .take(Row::GAPS_MAX)
        .collect();
    let deltas = tokens.len() as u64;
    Row {
        tenant: arrival.tenant,
        intended: arrival.at,
        sent: Some(arrival.at),
        first_token: tokens.first().copied(),
        last_token: tokens.last().copied(),
        end: end.unwrap_or(until),
        status: None,
        prompt_asked: arrival.prompt.get(),
        output_asked: arrival.output.get(),
        prompt_tokens: Some(arrival.prompt.get()),
        output_tokens: (ending == Ending::Completed).then_some(deltas),
        ending,
        deltas,
        deltas_in_window: tokens.iter().filter(|at| window.holds(**at)).count() as u64,
        request_id: String::new(),
        gaps,
    }
}
