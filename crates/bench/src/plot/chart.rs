//! Lines over an axis as SVG: bands over seeds, linear or logarithmic, readable in print.
//!
//! Shapes and dashes tell the lines apart as well as colours do. The picture is small, so that its
//! text stays readable at the width of a phone. What the lines mean is not known here.

use std::fmt::Write as _;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 50.0;

/// Dark enough for paper, and told apart by those who see few colours (Okabe and Ito's palette).
pub(crate) const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#b0578d", "#000000", "#8a6d00",
];

const DASHES: [&str; 3] = ["", " stroke-dasharray=\"7 3\"", " stroke-dasharray=\"2 3\""];

/// A picture of lines.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
    /// A thin line through points at which the height is the place: what is offered.
    pub(crate) diagonal: bool,
}

/// One axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) scale: Scale,
}

/// How numbers lie along an axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scale {
    /// From zero.
    Linear,
    /// In decades.
    Log,
    /// At 0, 1, 2 and so on, under these words.
    Words(Vec<String>),
}

/// Points that belong together, joined in the order given.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Decides colour, shape and dashes.
    pub(crate) look: usize,
    pub(crate) spots: Vec<Spot>,
    /// Joined without marks.
    pub(crate) bare: bool,
}

/// One point, with the range that it stands for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spot {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// What stands beside it; empty for nothing.
    pub(crate) label: String,
}

impl Spot {
    /// A point without a range.
    pub(crate) fn at(x: f64, y: f64) -> Self {
        Self {
            x,
            y,
            low: y,
            high: y,
            label: String::new(),
        }
    }
}

impl Chart {
    /// The picture. Points that its scales cannot show are left out.
    pub(crate) fn to_svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             role=\"img\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
        );
        put(
            &mut svg,
            format_args!("<title>{}</title>", escaped(&self.title)),
        );
        put(
            &mut svg,
            format_args!("<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>"),
        );
        text(
            &mut svg,
            (8.0, 20.0),
            "font-size=\"15\" font-weight=\"bold\"",
            &self.title,
        );
        let drawn: Vec<Line> = self.lines.iter().map(|line| self.drawable(line)).collect();
        let spots = || drawn.iter().flat_map(|line| &line.spots);
        let x = Placed::of(
            &self.x.scale,
            spots().flat_map(|spot| [spot.x]),
            (LEFT, WIDTH - RIGHT),
        );
        let y = Placed::of(
            &self.y.scale,
            spots().flat_map(|spot| [spot.y, spot.low, spot.high]),
            (HEIGHT - BOTTOM, TOP),
        );
        self.axes(&mut svg, &x, &y);
        if self.diagonal && self.y.scale == Scale::Linear {
            let most = x.most.min(y.most);
            let (from, to) = ((x.at(0.0), y.at(0.0)), (x.at(most), y.at(most)));
            line(
                &mut svg,
                from,
                to,
                "stroke=\"#888\" stroke-dasharray=\"1 4\"",
            );
        }
        for line in &drawn {
            draw(&mut svg, line, &x, &y);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn drawable(&self, line: &Line) -> Line {
        let fits = |scale: &Scale, number: f64| {
            number.is_finite() && (*scale != Scale::Log || number > 0.0)
        };
        let keep = |spot: &&Spot| fits(&self.x.scale, spot.x) && fits(&self.y.scale, spot.y);
        let clean = |spot: &Spot| {
            let or_y = |number: f64| {
                if fits(&self.y.scale, number) {
                    number
                } else {
                    spot.y
                }
            };
            Spot {
                low: or_y(spot.low),
                high: or_y(spot.high),
                ..spot.clone()
            }
        };
        Line {
            spots: line.spots.iter().filter(keep).map(clean).collect(),
            ..line.clone()
        }
    }

    fn axes(&self, svg: &mut String, x: &Placed, y: &Placed) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for (at, label) in x.ticks(&self.x.scale) {
            let at = x.at(at);
            line(svg, (at, TOP), (at, bottom), "stroke=\"#e4e4e4\"");
            text(svg, (at, bottom + 16.0), "text-anchor=\"middle\"", &label);
        }
        for (at, label) in y.ticks(&self.y.scale) {
            let at = y.at(at);
            line(svg, (LEFT, at), (right, at), "stroke=\"#d0d0d0\"");
            text(svg, (LEFT - 6.0, at + 4.0), "text-anchor=\"end\"", &label);
        }
        let middle = f64::midpoint(LEFT, right);
        text(
            svg,
            (middle, bottom + 36.0),
            "text-anchor=\"middle\"",
            &self.x.label,
        );
        let turned = "text-anchor=\"middle\" transform=\"rotate(-90)\"";
        let upright = (-f64::midpoint(TOP, bottom), 14.0);
        text(svg, upright, turned, &self.y.label);
    }
}

/// A scale that knows its ends, on paper and in numbers.
#[derive(Clone, Copy, Debug)]
struct Placed {
    log: bool,
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

/// Steps of a linear axis, at most.
const STEPS: f64 = 5.0;

impl Placed {
    fn of(scale: &Scale, numbers: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Self {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for number in numbers {
            least = least.min(number);
            most = most.max(number);
        }
        let (least, most) = match scale {
            Scale::Linear => {
                let most = if most > 0.0 { most * 1.04 } else { 1.0 };
                let step = nice(most);
                (0.0, (most / step).ceil() * step)
            }
            Scale::Log if most > 0.0 => {
                let low = least.log10().floor();
                (low, most.log10().ceil().max(low + 1.0))
            }
            Scale::Log => (0.0, 1.0),
            Scale::Words(words) => (-0.3, words.len() as f64 - 0.7),
        };
        let log = *scale == Scale::Log;
        Self {
            log,
            least,
            most,
            from,
            to,
        }
    }

    fn at(&self, number: f64) -> f64 {
        let number = if self.log { number.log10() } else { number };
        let share = (number - self.least) / (self.most - self.least);
        self.from + (self.to - self.from) * share
    }

    fn ticks(&self, scale: &Scale) -> Vec<(f64, String)> {
        match scale {
            Scale::Linear => {
                let step = nice(self.most);
                let count = (self.most / step).round() as u32;
                (0..=count)
                    .map(|index| f64::from(index) * step)
                    .map(|number| (number, short(number)))
                    .collect()
            }
            Scale::Log => ((self.least as i32)..=(self.most as i32))
                .map(|decade| 10_f64.powi(decade))
                .map(|number| (number, short(number)))
                .collect(),
            Scale::Words(words) => (0_u32..)
                .map(f64::from)
                .zip(words)
                .map(|(at, word)| (at, word.clone()))
                .collect(),
        }
    }
}

/// A step of 1, 2 or 5 times a power of ten, of which a few reach `most`.
fn nice(most: f64) -> f64 {
    let rough = most / STEPS;
    let decade = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade);
    steps
        .into_iter()
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(rough)
}

/// A number of an axis, without the noise of binary fractions.
fn short(number: f64) -> String {
    let rounded = (number * 1e6).round() / 1e6;
    if rounded.abs() >= 10_000.0 {
        return format!("{}k", (rounded / 100.0).round() / 10.0);
    }
    rounded.to_string()
}

fn draw(svg: &mut String, line: &Line, x: &Placed, y: &Placed) {
    let colour = COLOURS
        .get(line.look % COLOURS.len())
        .copied()
        .unwrap_or("#000");
    let dashes = DASHES
        .get(line.look % DASHES.len())
        .copied()
        .unwrap_or_default();
    let at = |spot: &Spot, height: f64| format!("{:.1},{:.1}", x.at(spot.x), y.at(height));
    let there = line.spots.iter().map(|spot| at(spot, spot.high));
    let back = line.spots.iter().rev().map(|spot| at(spot, spot.low));
    if line.spots.len() > 1 {
        let band: Vec<String> = there.chain(back).collect();
        let band = band.join(" ");
        put(
            svg,
            format_args!("<polygon points=\"{band}\" fill=\"{colour}\" fill-opacity=\"0.14\"/>"),
        );
        let path: Vec<String> = line.spots.iter().map(|spot| at(spot, spot.y)).collect();
        let path = path.join(" ");
        let width = if line.bare { "1.4" } else { "1.8" };
        put(
            svg,
            format_args!(
                "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" \
                 stroke-width=\"{width}\"{dashes}/>"
            ),
        );
    }
    for spot in &line.spots {
        let place = (x.at(spot.x), y.at(spot.y));
        if !line.bare {
            mark(svg, place, line.look);
        }
        if line.spots.len() == 1 && spot.high > spot.low {
            let (low, high) = ((place.0, y.at(spot.low)), (place.0, y.at(spot.high)));
            self::line(svg, low, high, &format!("stroke=\"{colour}\""));
        }
        if !spot.label.is_empty() {
            label(svg, place, &spot.label, line.look);
        }
    }
}

/// A mark whose shape is the look's own.
pub(crate) fn mark(svg: &mut String, (x, y): (f64, f64), look: usize) {
    let colour = COLOURS.get(look % COLOURS.len()).copied().unwrap_or("#000");
    match look % 3 {
        0 => put(
            svg,
            format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"),
        ),
        1 => {
            let (x, y) = (x - 4.0, y - 4.0);
            put(
                svg,
                format_args!(
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"8\" height=\"8\" fill=\"{colour}\"/>"
                ),
            );
        }
        _ => put(
            svg,
            format_args!("<path d=\"M{x:.1} {y:.1}m0 -5l5 9h-10z\" fill=\"{colour}\"/>"),
        ),
    }
}

/// Above the point, or below it for every third look, so that lines that lie close keep their own;
/// to its left where the right edge is near, and to its right where the left one is.
fn label(svg: &mut String, (x, y): (f64, f64), label: &str, look: usize) {
    let (x, anchor) = if x > WIDTH - 110.0 {
        (x + 6.0, "end")
    } else if x < LEFT + 60.0 {
        (x - 6.0, "start")
    } else {
        (x, "middle")
    };
    let y = if look % 3 == 2 { y + 16.0 } else { y - 8.0 };
    let style = format!("text-anchor=\"{anchor}\" font-size=\"11\"");
    text(svg, (x, y), &style, label);
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), style: &str) {
    let ends = format!("x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"");
    put(svg, format_args!("<line {ends} {style}/>"));
}

fn text(svg: &mut String, (x, y): (f64, f64), style: &str, content: &str) {
    put(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{}</text>",
            escaped(content)
        ),
    );
}

/// Text that markup cannot break out of.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn put(svg: &mut String, element: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(svg, "{element}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(label: &str, scale: Scale) -> Axis {
        Axis {
            label: label.to_owned(),
            scale,
        }
    }

    fn chart(scale: Scale, spots: Vec<Spot>) -> Chart {
        Chart {
            title: "a <title>".to_owned(),
            x: axis("load", Scale::Linear),
            y: axis("ms", scale),
            lines: vec![Line {
                name: "one".to_owned(),
                spots,
                ..Line::default()
            }],
            diagonal: true,
        }
    }

    #[test]
    fn more_is_further_up_and_a_decade_is_a_decade() {
        let placed = Placed::of(&Scale::Log, [3.0, 900.0].into_iter(), (100.0, 0.0));
        let [one, ten, hundred] = [1.0, 10.0, 100.0].map(|number| placed.at(number));
        assert!(one > ten && ten > hundred);
        assert!(((one - ten) - (ten - hundred)).abs() < 1e-9);
        let linear = Placed::of(&Scale::Linear, [7.3].into_iter(), (0.0, 100.0));
        let ticks: Vec<f64> = linear
            .ticks(&Scale::Linear)
            .into_iter()
            .map(|(at, _)| at)
            .collect();
        assert_eq!(ticks, [0.0, 2.0, 4.0, 6.0, 8.0]);
    }

    #[test]
    fn what_a_scale_cannot_show_is_left_out_and_markup_stays_whole() {
        let wrong = [f64::NAN, f64::INFINITY, 0.0, -1.0].map(|y| Spot::at(1.0, y));
        let mut spots = wrong.to_vec();
        spots.push(Spot {
            low: 0.0,
            ..Spot::at(2.0, 50.0)
        });
        let svg = chart(Scale::Log, spots).to_svg();
        assert!(svg.contains("a &lt;title&gt;") && !svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!(svg.matches("<circle").count(), 1);
    }

    #[test]
    fn a_chart_without_points_is_still_a_chart() {
        for scale in [Scale::Linear, Scale::Log, Scale::Words(Vec::new())] {
            let svg = chart(scale, Vec::new()).to_svg();
            assert!(svg.contains("</svg>") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }
}
