//! Asks an engine in another process how it is: whether it is there when the policy wants to know,
//! and then how busy it is, again and again. When it is asked, and what is said of its health, is
//! in `life.rs`.
//!
//! It reports; that an engine is used, or not any more, is the policy's to say.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tollgate_policy::gateway::{Event, Report};
use tollgate_policy::units::KvBlocks;
use tollgate_policy::window::Capacity;

use super::exchange::{Failed, get};
use super::model::{RemoteModel, Upstream};
use crate::books::metrics::{EngineSays, signed};
use crate::desk::Desk;
use crate::upstream::engines::{self, Gauges};

/// How long a page may take.
const PAGE_TIME: Duration = Duration::from_secs(5);

/// How often an engine is asked how busy it is.
const EVERY: Duration = Duration::from_millis(250);

/// The KV of an engine that does not say how much it has: so much that it bounds nothing.
const KV_UNKNOWN: KvBlocks = KvBlocks::new(1 << 40);

/// What the configuration says of each of a model's replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Requests at once, at most.
    pub(crate) sequences: u32,
    /// Its KV, where it is known better than from the engine.
    pub(crate) kv: Option<KvBlocks>,
}

/// Tells the policy how busy a replica is, for as long as the desk is there.
pub(crate) async fn report(
    model: Arc<RemoteModel>,
    upstream: Arc<Upstream>,
    limits: Limits,
    desk: Weak<Desk>,
) {
    let Some(path) = engines::gauges_path(model.config.kind) else {
        return;
    };
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        // An engine that does not answer has said nothing; that it is gone is for others to find.
        let gauges = page(&model, &upstream, path).await.unwrap_or_default();
        let Some(desk) = desk.upgrade() else { return };
        let replica = upstream.id;
        let total = capacity(gauges, limits).kv;
        let kv =
            (total != KV_UNKNOWN && gauges.kv_millionths.is_some()).then(|| gauges.kv_used(total));
        let says = EngineSays {
            running: gauges.running.map(i64::from),
            waiting: gauges.waiting.map(i64::from),
            kv_blocks: kv.map(|kv| signed(kv.get())),
        };
        desk.books()
            .metrics()
            .fleet()
            .heard(&model.label, replica, says);
        let Some(waiting) = gauges.waiting else {
            continue;
        };
        let kv = kv.unwrap_or_default();
        let report = Report { waiting, kv };
        desk.submit(Event::Reported { replica, report });
    }
}

/// What a replica can hold.
pub(super) fn capacity(gauges: Gauges, limits: Limits) -> Capacity {
    let own = gauges.sequences.unwrap_or(limits.sequences);
    Capacity {
        sequences: own.min(limits.sequences).max(1),
        kv: limits.kv.or(gauges.kv).unwrap_or(KV_UNKNOWN),
    }
}

/// Whether a replica is there, and what it can hold as far as it says.
pub(super) async fn probe(model: &RemoteModel, upstream: &Upstream) -> Result<Gauges, Failed> {
    is_well(model, upstream, PAGE_TIME).await?;
    let kind = model.config.kind;
    let mut gauges = Gauges::default();
    if let Some(path) = engines::gauges_path(kind) {
        gauges = page(model, upstream, path).await.unwrap_or_default();
    }
    if let Some(path) = engines::capacity_path(kind)
        && let Ok((_, body)) = get(upstream, head(model, upstream, path), PAGE_TIME).await
    {
        let page = String::from_utf8_lossy(&body);
        gauges = gauges.or(engines::read_capacity(kind, &page));
    }
    Ok(gauges)
}

/// Whether a replica says that it is well.
///
/// # Errors
/// It does not, or not in time.
pub(super) async fn is_well(
    model: &RemoteModel,
    upstream: &Upstream,
    within: Duration,
) -> Result<(), Failed> {
    let health = head(model, upstream, engines::health_path(model.config.kind));
    let (status, _) = get(upstream, health, within).await?;
    // Of a generic one nothing is known but that it answers: not every one lists its models.
    if status.is_server_error() {
        let failure = super::exchange::failure_of(status);
        return Err(Failed::new(failure, format!("its health is {status}")));
    }
    Ok(())
}

async fn page(model: &RemoteModel, upstream: &Upstream, path: &str) -> Result<Gauges, Failed> {
    let (_, body) = get(upstream, head(model, upstream, path), PAGE_TIME).await?;
    let page = String::from_utf8_lossy(&body);
    Ok(engines::read_gauges(model.config.kind, &page))
}

fn head(model: &RemoteModel, upstream: &Upstream, path: &str) -> Vec<u8> {
    let mut head = model.head(upstream, "GET", path);
    head.extend_from_slice(b"\r\n");
    head
}
