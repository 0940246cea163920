//! The pictures of a page: which numbers of a study are drawn over what.

use super::score::{Band, Score};
use super::{Group, Study, same};
use crate::plot::chart::{Axis, Chart, Line, Scale, Spot};

/// Tenants that a timeline shows; the others are left to the table.
const TENANTS_MAX: usize = 6;

/// Quantiles of a study of one load.
const QUANTILES: [f64; 5] = [0.5, 0.75, 0.9, 0.95, 0.99];

/// A picture under its own heading, with the names that its legend needs.
pub(crate) struct Picture {
    pub(crate) svg: String,
    /// Names and looks; empty where the legend of the whole page says it.
    pub(crate) legend: Vec<(String, usize)>,
}

/// Goodput, and then the latencies.
pub(super) fn overview(study: &Study) -> Vec<Picture> {
    let groups = study.groups();
    let mut pictures = vec![over_load(
        study,
        &groups,
        Drawn {
            title: "Goodput against offered load",
            y: ("good requests/s", Scale::Linear),
            of: |score| Some(score.goodput_per_s),
            diagonal: true,
        },
    )];
    pictures.push(over_load(
        study,
        &groups,
        Drawn {
            title: "Output tokens per second",
            y: ("tokens/s", Scale::Linear),
            of: |score| Some(score.tokens_per_s),
            diagonal: false,
        },
    ));
    if loads(&groups) > 1 {
        let latency = |title, of| Drawn {
            title,
            y: ("ms", Scale::Log),
            of,
            diagonal: false,
        };
        let drawn = [
            latency("TTFT, median", |score: &Score| score.ttft.quantile(0.5)),
            latency("TTFT, 99th percentile", |score| score.ttft.quantile(0.99)),
            latency("ITL, median", |score| score.itl.quantile(0.5)),
            latency("ITL, 99th percentile", |score| score.itl.quantile(0.99)),
            latency("E2E, median", |score| score.e2e.quantile(0.5)),
            latency("E2E, 99th percentile", |score| score.e2e.quantile(0.99)),
        ];
        pictures.extend(drawn.map(|drawn| over_load(study, &groups, drawn)));
    } else {
        pictures.push(quantiles(study, &groups, "TTFT", |score, p| {
            score.ttft.quantile(p)
        }));
        pictures.push(quantiles(study, &groups, "ITL", |score, p| {
            score.itl.quantile(p)
        }));
        pictures.push(quantiles(study, &groups, "E2E", |score, p| {
            score.e2e.quantile(p)
        }));
    }
    pictures
}

/// How many different loads there are.
fn loads(groups: &[Group<'_>]) -> usize {
    let mut all: Vec<f64> = groups.iter().map(|group| group.load_per_s).collect();
    all.sort_by(f64::total_cmp);
    all.dedup_by(|one, other| same(*one, *other));
    all.len()
}

/// One number of a score, drawn over the loads.
struct Drawn {
    title: &'static str,
    y: (&'static str, Scale),
    of: fn(&Score) -> Option<f64>,
    diagonal: bool,
}

fn over_load(study: &Study, groups: &[Group<'_>], drawn: Drawn) -> Picture {
    let spot = |group: &Group<'_>| {
        let band = Band::of(group.scores.iter().filter_map(|score| (drawn.of)(score)))?;
        Some(spot(group.load_per_s, band))
    };
    let (label, scale) = drawn.y;
    picture(Chart {
        title: drawn.title.to_owned(),
        x: axis("offered, requests/s", Scale::Linear),
        y: axis(label, scale),
        lines: lines(study, groups, |own| {
            own.iter().copied().filter_map(spot).collect()
        }),
        diagonal: drawn.diagonal,
    })
}

fn quantiles(
    study: &Study,
    groups: &[Group<'_>],
    what: &str,
    of: fn(&Score, f64) -> Option<f64>,
) -> Picture {
    let words = QUANTILES.map(|p| format!("p{:.0}", p * 100.0)).to_vec();
    let of_group = |group: &&Group<'_>| {
        let places = (0_u32..).map(f64::from).zip(QUANTILES);
        let spots = places.filter_map(|(place, p)| {
            let band = Band::of(group.scores.iter().filter_map(|score| of(score, p)))?;
            Some(spot(place, band))
        });
        spots.collect::<Vec<Spot>>()
    };
    picture(Chart {
        title: format!("{what}, quantiles"),
        x: axis("", Scale::Words(words)),
        y: axis("ms", Scale::Log),
        lines: lines(study, groups, |own| own.iter().flat_map(of_group).collect()),
        diagonal: false,
    })
}

/// Throughput against the watched tenant's TTFT: what one costs in the other.
pub(super) fn frontier(study: &Study) -> Option<Picture> {
    let groups = study.groups();
    let watched = watched(&groups)?;
    let p99 = |score: &&Score| {
        let tenant = score.tenants.iter().find(|tenant| tenant.name == watched)?;
        tenant.ttft.quantile(0.99)
    };
    let of_group = |group: &Group<'_>| {
        let tokens = Band::of(group.scores.iter().map(|score| score.tokens_per_s))?;
        let wait = Band::of(group.scores.iter().filter_map(p99))?;
        Some(Spot {
            label: format!("{}/s", group.load_per_s),
            ..spot(tokens.middle, wait)
        })
    };
    // Labels of all points would lie on one another where an engine is full.
    let ends = |own: &[&Group<'_>]| {
        let mut spots: Vec<Spot> = own.iter().copied().filter_map(of_group).collect();
        let last = spots.len().saturating_sub(1);
        let inner = spots.iter_mut().take(last).skip(1);
        inner.for_each(|spot| spot.label.clear());
        spots
    };
    Some(picture(Chart {
        title: format!("What throughput costs `{watched}`"),
        x: axis("output tokens/s, all tenants", Scale::Linear),
        y: axis("its TTFT p99, ms", Scale::Log),
        lines: lines(study, &groups, ends),
        diagonal: false,
    }))
}

/// The tenant that asks least, and so is the one that others could crowd out.
pub(super) fn watched(groups: &[Group<'_>]) -> Option<String> {
    let score = groups.first()?.scores.first()?;
    let least = score
        .tenants
        .iter()
        .filter(|tenant| tenant.due > 0)
        .min_by_key(|tenant| tenant.due)?;
    Some(least.name.clone())
}

/// The first seed of each series at its highest load: what each tenant waited, and was served.
pub(super) fn timelines(study: &Study) -> Vec<(String, Vec<Picture>)> {
    let groups = study.groups();
    let of_series = |name: &&str| {
        let group = groups.iter().rev().find(|group| group.series == *name)?;
        let score = group.scores.first()?;
        let heading = format!("{name} at {} requests/s", group.load_per_s);
        Some((heading, vec![waits(score), served(score)]))
    };
    study.series().iter().filter_map(of_series).collect()
}

fn busiest(score: &Score) -> Vec<usize> {
    let mut order: Vec<usize> = (0..score.tenants.len()).collect();
    let due = |index: &usize| score.tenants.get(*index).map_or(0, |tenant| tenant.due);
    order.sort_by_key(|index| (std::cmp::Reverse(due(index)), *index));
    // The one that asks least is the one to look at; it is always among them.
    if order.len() > TENANTS_MAX
        && let Some(quiet) = order.iter().rposition(|index| due(index) > 0)
    {
        order.swap(TENANTS_MAX - 1, quiet);
    }
    order.truncate(TENANTS_MAX);
    order
}

fn waits(score: &Score) -> Picture {
    let line = |(look, index): (usize, usize)| {
        let tenant = score.tenants.get(index)?;
        let spots = tenant.timeline.iter().map(|(at, ms)| Spot::at(*at, *ms));
        Some(named(&tenant.name, look, spots.collect()))
    };
    let lines: Vec<Line> = busiest(score)
        .into_iter()
        .enumerate()
        .filter_map(line)
        .collect();
    own_legend(Chart {
        title: "TTFT over time, median by window".to_owned(),
        x: axis("due at, s", Scale::Linear),
        y: axis("ms", Scale::Log),
        lines,
        diagonal: false,
    })
}

fn served(score: &Score) -> Picture {
    let line = |(look, index): (usize, usize)| {
        let tenant = score.tenants.get(index)?;
        let (_, served) = score.service.tenants.iter().find(|(of, _)| *of == index)?;
        let spots = score
            .service
            .at_s
            .iter()
            .zip(served)
            .map(|(at, served)| Spot::at(*at, *served));
        Some(named(&tenant.name, look, spots.collect()))
    };
    let lines: Vec<Line> = busiest(score)
        .into_iter()
        .enumerate()
        .filter_map(line)
        .collect();
    own_legend(Chart {
        title: "Service so far: prompt + 2 x output".to_owned(),
        x: axis("s", Scale::Linear),
        y: axis("tokens", Scale::Linear),
        lines,
        diagonal: false,
    })
}

fn named(name: &str, look: usize, spots: Vec<Spot>) -> Line {
    Line {
        name: name.to_owned(),
        look,
        spots,
        bare: true,
    }
}

fn spot(x: f64, band: Band) -> Spot {
    Spot {
        x,
        y: band.middle,
        low: band.low,
        high: band.high,
        label: String::new(),
    }
}

fn axis(label: &str, scale: Scale) -> Axis {
    Axis {
        label: label.to_owned(),
        scale,
    }
}

fn lines(
    study: &Study,
    groups: &[Group<'_>],
    spots: impl Fn(&[&Group<'_>]) -> Vec<Spot>,
) -> Vec<Line> {
    let line = |(look, name): (usize, &&str)| {
        let own: Vec<&Group<'_>> = groups
            .iter()
            .filter(|group| group.series == *name)
            .collect();
        Line {
            name: (*name).to_owned(),
            look,
            spots: spots(&own),
            bare: false,
        }
    };
    study.series().iter().enumerate().map(line).collect()
}

fn picture(chart: Chart) -> Picture {
    Picture {
        svg: chart.to_svg(),
        legend: Vec::new(),
    }
}

fn own_legend(chart: Chart) -> Picture {
    let legend = chart
        .lines
        .iter()
        .map(|line| (line.name.clone(), line.look))
        .collect();
    Picture {
        svg: chart.to_svg(),
        legend,
    }
}
