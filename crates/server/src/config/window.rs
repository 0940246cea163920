//! The `window` and `classes` keys of a model: what its replicas may hold.

use std::num::NonZeroU32;

use tollgate_policy::units::Tokens;
use tollgate_policy::window::{Bounds, Knob, Thresholds};

use super::decode::{Cursor, Fields};

/// Reads `window` and `classes`, wherever they are not left out.
pub(super) fn read(fields: &mut Fields<'_, '_>) -> Bounds {
    let thresholds = fields.optional("classes", |value| thresholds(&value));
    let bounds = fields
        .optional("window", |value| bounds(&value))
        .unwrap_or_default();
    Bounds {
        thresholds: thresholds.unwrap_or_default(),
        ..bounds
    }
}

fn bounds(section: &Cursor<'_>) -> Option<Bounds> {
    section.mapping(|fields| {
        let concurrency = fields.optional("concurrency", |value| value.knob(1..=256));
        let headroom = fields.optional("headroom", |value| value.knob(0..=256));
        let prefill = fields.optional("prefill", |value| value.knob(1..=1_000_000));
        let bounds = Bounds {
            concurrency: match concurrency {
                Some(Knob::Fixed(most)) => NonZeroU32::new(most).map_or(Knob::Auto, Knob::Fixed),
                Some(Knob::Auto) | None => Knob::Auto,
            },
            headroom: headroom.unwrap_or_default(),
            prefill: match prefill {
                Some(Knob::Fixed(most)) => Knob::Fixed(Tokens::new(most)),
                Some(Knob::Auto) | None => Knob::Auto,
            },
            paced: false,
            reach: 0,
            guests: 0,
            thresholds: Thresholds::default(),
        };
        check(bounds, fields);
        bounds
    })
}

/// Reports a window of which nothing is left for those that have their share.
fn check(bounds: Bounds, fields: &Fields<'_, '_>) {
    if let (Knob::Fixed(most), Knob::Fixed(kept)) = (bounds.concurrency, bounds.headroom)
        && kept >= most.get()
    {
        fields.report(
            "headroom",
            format!("is {kept}, which leaves nothing of concurrency {most} to the others"),
        );
    }
}

fn thresholds(section: &Cursor<'_>) -> Option<Thresholds> {
    let default = Thresholds::default();
    section.mapping(|fields| {
        let mut part = |key, low, default| {
            let read = fields.optional(key, |value| value.percent(low..=100));
            read.unwrap_or(default)
        };
        let thresholds = Thresholds {
            reserved: part("reserved", 1, default.reserved),
            standard: part("standard", 1, default.standard),
            best_effort: part("best_effort", 1, default.best_effort),
            best_effort_min: part("best_effort_min", 0, default.best_effort_min),
        };
        check_order(thresholds, fields);
        thresholds
    })
}

/// Reports a weaker promise that gets more than a stronger one.
fn check_order(thresholds: Thresholds, fields: &Fields<'_, '_>) {
    let falling = [
        ("reserved", thresholds.reserved),
        ("standard", thresholds.standard),
        ("best_effort", thresholds.best_effort),
        ("best_effort_min", thresholds.best_effort_min),
    ];
    for pair in falling.windows(2) {
        if let [(stronger, most), (weaker, part)] = pair
            && part > most
        {
            fields.report(weaker, format!("is {part}%, more than {stronger} {most}%"));
        }
    }
}
