//! A frontier as an SVG: throughput to the right, latency upwards on a logarithmic scale.
//!
//! It says what is compared; how lines and axes look is the chart's affair.

pub(crate) mod chart;

use self::chart::{Axis, Chart, Line, Scale, Spot};

/// A plot of tokens a second against a 99th percentile.
#[derive(Clone, Debug, PartialEq)]
pub struct Frontier {
    /// What stands above it.
    pub title: String,
    /// Up to [`Frontier::SERIES_MAX`] of them have a look of their own.
    pub series: Vec<Series>,
}

/// Points that belong together, joined in the order given.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points.
    pub points: Vec<Point>,
}

/// One measured run.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Output tokens a second, of all tenants.
    pub tokens_per_s: f64,
    /// The quiet tenant's 99th percentile of TTFT, in milliseconds.
    pub p99_ms: f64,
    /// What stands beside it.
    pub label: String,
}

impl Frontier {
    /// Series with a look of their own; later ones repeat the looks.
    pub const SERIES_MAX: usize = chart::COLOURS.len();

    /// The plot as SVG. Points that are not finite and positive are left out.
    pub fn to_svg(&self) -> String {
        let line = |(look, series): (usize, &Series)| {
            let spot = |(place, point): (usize, &Point)| {
                // The first point of a series carries its name, since there is no legend.
                let label = match (place, point.label.as_str()) {
                    (0, "") => series.name.clone(),
                    (0, label) => format!("{} {label}", series.name),
                    (_, label) => label.to_owned(),
                };
                Spot {
                    label,
                    ..Spot::at(point.tokens_per_s, point.p99_ms)
                }
            };
            Line {
                name: series.name.clone(),
                look,
                spots: series.points.iter().enumerate().map(spot).collect(),
                bare: false,
            }
        };
        let chart = Chart {
            title: self.title.clone(),
            x: Axis {
                label: "output tokens/s, all tenants".to_owned(),
                scale: Scale::Linear,
            },
            y: Axis {
                label: "watched tenant's TTFT p99, ms".to_owned(),
                scale: Scale::Log,
            },
            lines: self.series.iter().enumerate().map(line).collect(),
            diagonal: false,
        };
        chart.to_svg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(tokens_per_s: f64, p99_ms: f64, label: &str) -> Point {
        Point {
            tokens_per_s,
            p99_ms,
            label: label.to_owned(),
        }
    }

    fn frontier() -> Frontier {
        let windows = vec![point(1_900.0, 45.0, "16"), point(2_540.0, 66.0, "64")];
        let fifo = vec![
            point(2_566.0, 26_000.0, "R&D"),
            point(f64::NAN, 1.0, "nothing"),
        ];
        let series = |name: &str, points| Series {
            name: name.to_owned(),
            points,
        };
        Frontier {
            title: "A flood".to_owned(),
            series: vec![series("windows", windows), series("<fifo>", fifo)],
        }
    }

    #[test]
    fn every_point_that_can_be_drawn_is_labelled_and_no_label_breaks_the_file() {
        let svg = frontier().to_svg();
        assert!(svg.contains(">windows 16</text>") && svg.contains("&lt;fifo&gt; R&amp;D"));
        assert!(!svg.contains("nothing") && !svg.contains("NaN"));
        assert_eq!(svg.matches("<polyline").count(), 1);
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn a_frontier_without_points_is_still_a_plot() {
        let empty = Frontier {
            title: "none".to_owned(),
            series: Vec::new(),
        };
        let svg = empty.to_svg();
        assert!(svg.contains(">10</text>") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
