//! Notices engines that do not come back from a step.
//!
//! A thread can't be ended from outside. So what can be done is done around it: its replica takes
//! no more work, its requests end as failed, and a new engine takes its place once its thread has
//! come back after all. Or the process ends, if the operator wants that.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tollgate_engine::Progress;
use tollgate_policy::ids::ReplicaId;
use tollgate_policy::units::Time;

use super::{Fleet, Plan};
use crate::config::WhenStuck;
use crate::desk::Desk;

/// How often engines are looked at: the shortest step that counts as stuck takes twice as long.
const EVERY: Duration = Duration::from_millis(500);

/// The status of a process that ends for a stuck engine (`EX_SOFTWARE` in sysexits.h).
const STATUS: i32 = 70;

/// What was last seen of one engine.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    progress: Progress,
    since: Time,
    given_up: bool,
}

/// Watches every engine. Runs until the desk is gone.
pub(crate) async fn watch(fleet: Arc<Fleet>, desk: Weak<Desk>) {
    let mut seen = vec![Seen::default(); fleet.models.len()];
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        ticks.tick().await;
        let Some(desk) = desk.upgrade() else { return };
        for (id, seen) in fleet.ids().zip(&mut seen) {
            look(&fleet, &desk, id, seen);
        }
    }
}

fn look(fleet: &Fleet, desk: &Desk, id: ReplicaId, seen: &mut Seen) {
    let Some(Plan::Built(blueprint)) = fleet.plan(id) else {
        return;
    };
    let now = desk.clock().now();
    let progress = desk.progress(id).unwrap_or_default();
    if progress != seen.progress || !progress.is_busy() {
        *seen = Seen {
            progress,
            since: now,
            given_up: false,
        };
        return;
    }
    if seen.given_up || now.since(seen.since) < blueprint.stuck.after {
        return;
    }
    seen.given_up = true;
    let (replica, model) = (id.get(), blueprint.name.as_str());
    let after_s = blueprint.stuck.after.secs_up();
    tracing::error!(
        replica,
        model,
        after_s,
        "a step does not end; its requests have failed"
    );
    desk.give_up(id);
    match blueprint.stuck.then {
        WhenStuck::Wait => {}
        WhenStuck::Exit => {
            desk.books().journal().close();
            tracing::error!(replica, model, "the process exits, as stuck_step.then says");
            std::process::exit(STATUS);
        }
    }
}
