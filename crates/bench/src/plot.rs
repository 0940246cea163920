//! A frontier as an SVG: throughput to the right, latency upwards on a logarithmic scale.
//!
//! Small, self-contained and readable in print: shapes tell the series apart as well as colours do.

use std::fmt::Write as _;

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

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 56.0;

/// Dark enough for paper, and told apart by those who see few colours (Okabe and Ito's palette).
const COLOURS: [&str; 5] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000"];

impl Frontier {
    /// Series with a look of their own; later ones repeat the looks.
    pub const SERIES_MAX: usize = COLOURS.len();

    /// The plot as SVG. Points that are not finite and positive are left out.
    pub fn to_svg(&self) -> String {
        let scale = Scale::of(self.points());
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
        );
        text(&mut svg, (LEFT, 22.0), "font-size=\"15\"", &self.title);
        scale.draw_axes(&mut svg);
        for (index, series) in self.series.iter().enumerate() {
            draw_series(&mut svg, &scale, index, series);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series
            .iter()
            .flat_map(|series| &series.points)
            .filter(|point| point.can_be_drawn())
    }
}

impl Point {
    fn can_be_drawn(&self) -> bool {
        let holds = |number: f64| number.is_finite() && number > 0.0;
        holds(self.tokens_per_s) && holds(self.p99_ms)
    }
}

/// Where values lie on the paper.
#[derive(Clone, Copy, Debug)]
struct Scale {
    tokens_step: f64,
    /// In steps.
    tokens_max: f64,
    /// Decades, whole numbers.
    low: f64,
    high: f64,
}

impl Scale {
    fn of<'a>(points: impl Iterator<Item = &'a Point>) -> Self {
        let (mut most, mut least_ms, mut most_ms) = (1.0_f64, f64::INFINITY, 0.0_f64);
        for point in points {
            most = most.max(point.tokens_per_s);
            least_ms = least_ms.min(point.p99_ms);
            most_ms = most_ms.max(point.p99_ms);
        }
        let (least_ms, most_ms) = if most_ms > 0.0 {
            (least_ms, most_ms)
        } else {
            (1.0, 10.0)
        };
        let rough = most * 1.08 / 6.0;
        let decade = 10_f64.powf(rough.log10().floor());
        let nice = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade);
        let tokens_step = nice
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let low = least_ms.log10().floor();
        let high = most_ms.log10().ceil().max(low + 1.0);
        Self {
            tokens_step,
            tokens_max: (most * 1.08 / tokens_step).ceil(),
            low,
            high,
        }
    }

    fn x(&self, tokens: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * tokens / (self.tokens_step * self.tokens_max)
    }

    fn y(&self, millis: f64) -> f64 {
        let share = (millis.log10() - self.low) / (self.high - self.low);
        HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share
    }

    fn draw_axes(&self, svg: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for step in 0..=(self.tokens_max as u32) {
            let tokens = f64::from(step) * self.tokens_step;
            let x = self.x(tokens);
            line(svg, (x, TOP), (x, bottom), "#ddd");
            text(
                svg,
                (x, bottom + 16.0),
                "text-anchor=\"middle\"",
                &tokens.to_string(),
            );
        }
        for decade in (self.low as i32)..=(self.high as i32) {
            let millis = 10_f64.powi(decade);
            let y = self.y(millis);
            line(svg, (LEFT, y), (right, y), "#bbb");
            text(
                svg,
                (LEFT - 6.0, y + 4.0),
                "text-anchor=\"end\"",
                &millis.to_string(),
            );
            for part in 2..10 {
                let y = self.y(millis * f64::from(part));
                if y > TOP {
                    line(svg, (LEFT, y), (right, y), "#eee");
                }
            }
        }
        let middle = f64::midpoint(LEFT, right);
        text(
            svg,
            (middle, bottom + 34.0),
            "text-anchor=\"middle\"",
            "tokens/s, all tenants",
        );
        let turned = "text-anchor=\"middle\" transform=\"rotate(-90)\"";
        let upright = (-f64::midpoint(TOP, bottom), 16.0);
        text(svg, upright, turned, "quiet tenant's TTFT p99, ms (log)");
    }
}

fn draw_series(svg: &mut String, scale: &Scale, index: usize, series: &Series) {
    let colour = COLOURS
        .get(index % COLOURS.len())
        .copied()
        .unwrap_or("#000");
    let points: Vec<(&Point, (f64, f64))> = series
        .points
        .iter()
        .filter(|point| point.can_be_drawn())
        .map(|point| (point, (scale.x(point.tokens_per_s), scale.y(point.p99_ms))))
        .collect();
    let path: Vec<String> = points
        .iter()
        .map(|(_, (x, y))| format!("{x:.1},{y:.1}"))
        .collect();
    if path.len() > 1 {
        let path = path.join(" ");
        put(
            svg,
            format_args!("<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\"/>"),
        );
    }
    for (point, at) in &points {
        mark(svg, *at, index, colour);
        let (x, y) = *at;
        // To the left where the right edge is near.
        let near_edge = x > WIDTH - 140.0;
        let (x, anchor) = if near_edge {
            (x - 8.0, "end")
        } else {
            (x + 8.0, "start")
        };
        let style = format!("text-anchor=\"{anchor}\" font-size=\"11\"");
        text(svg, (x, y - 6.0), &style, &point.label);
    }
    let at = (LEFT + 12.0 + 118.0 * index as f64, HEIGHT - 8.0);
    mark(svg, (at.0, at.1 - 4.0), index, colour);
    text(svg, (at.0 + 9.0, at.1), "", &series.name);
}

/// A mark whose shape is the series' own.
fn mark(svg: &mut String, (x, y): (f64, f64), index: usize, colour: &str) {
    let shape = match index % 3 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"),
        1 => {
            let (x, y) = (x - 4.0, y - 4.0);
            format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"8\" height=\"8\" fill=\"{colour}\"/>")
        }
        _ => {
            format!("<path d=\"M{x:.1} {y:.1}m0 -5l5 9h-10z\" fill=\"{colour}\"/>")
        }
    };
    put(svg, format_args!("{shape}"));
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
    let ends = format!("x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"");
    put(svg, format_args!("<line {ends} stroke=\"{colour}\"/>"));
}

fn text(svg: &mut String, (x, y): (f64, f64), style: &str, content: &str) {
    let content = content
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    put(
        svg,
        format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{content}</text>"),
    );
}

fn put(svg: &mut String, element: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(svg, "{element}");
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
            point(2_566.0, 26_000.0, "R&D <fifo>"),
            point(f64::NAN, 1.0, "nothing"),
        ];
        let series = |name: &str, points| Series {
            name: name.to_owned(),
            points,
        };
        Frontier {
            title: "A flood".to_owned(),
            series: vec![series("windows", windows), series("fifo", fifo)],
        }
    }

    #[test]
    fn more_tokens_are_further_right_and_more_milliseconds_further_up() {
        let scale = Scale::of(frontier().points());
        assert!(scale.x(1_900.0) < scale.x(2_540.0) && scale.x(2_566.0) < WIDTH - RIGHT);
        assert!(scale.y(26_000.0) < scale.y(66.0) && scale.y(26_000.0) >= TOP);
        let (first, second, third) = (scale.y(10.0), scale.y(100.0), scale.y(1_000.0));
        assert!(
            ((first - second) - (second - third)).abs() < 1e-9,
            "a decade is a decade"
        );
    }

    #[test]
    fn every_point_that_can_be_drawn_is_labelled_and_no_label_breaks_the_file() {
        let svg = frontier().to_svg();
        assert!(svg.contains(">16</text>") && svg.contains("R&amp;D &lt;fifo&gt;"));
        assert!(!svg.contains("nothing") && !svg.contains("NaN"));
        assert_eq!(svg.matches("<polyline").count(), 1);
        assert_eq!(
            svg.matches("<circle").count(),
            3,
            "two points and the legend"
        );
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
