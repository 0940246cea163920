//! Compares fitters of gradient-boosted quantiles on what a simulated gateway has learned:
//!
//! ```text
//! cargo run --release -p tollgate-sim --example fits -- TRACE_DIR 1 rows.csv
//! cargo run --release --manifest-path scripts/quantile-crates/Cargo.toml -- rows.csv
//! ```
//!
//! Walking forward: each is fitted to the 4,096 rows before a moment, on one thread, and bounds the
//! 512 after it, one by one. The target is the binary logarithm of what came over what was planned.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lightgbm3::{Booster, Dataset};
use perpetual::objective::Objective;
use perpetual::{Matrix, PerpetualBooster};
use tollgate_policy::slo::Alpha;
use tollgate_policy::slo::calibrate::Group;
use tollgate_policy::slo::fit::Task;
use tollgate_policy::slo::lessons::Lesson;
use tollgate_policy::slo::trees::FEATURES;
use tollgate_policy::tenant::Class;
use tollgate_policy::units::{Micros, Tokens};

const WINDOW: usize = 4_096;
const STRIDE: usize = 512;
const WARMUP: usize = 1_024;

/// Bounds, in microseconds, of the rows that come next; and how long it took to fit.
type Fitter = fn(&[Lesson], &[Lesson]) -> (Vec<f64>, Duration, Duration);

fn main() {
    let path = std::env::args().nth(1).expect("which rows.csv?");
    let rows = read(&std::fs::read_to_string(path).expect("rows"));
    println!("{} rows\n", rows.len());
    println!("| fitter | kept % | pinball ms | bound/outcome | fit ms | one bound us |");
    println!("|---|---|---|---|---|---|");
    let fitters: [(&str, Fitter); 4] = [
        ("one factor", factor),
        ("tollgate", ours),
        ("perpetual", perpetual),
        ("lightgbm3", lightgbm),
    ];
    for (name, fitter) in fitters {
        walk(name, fitter, &rows);
    }
}

fn read(text: &str) -> Vec<Lesson> {
    let row = |line: &str| {
        let cells: Vec<u64> = line.split(',').map(|cell| cell.parse().unwrap()).collect();
        Lesson {
            features: std::array::from_fn(|n| cells[n]),
            planned: Micros::new(cells[FEATURES.len()]),
            came: Micros::new(cells[FEATURES.len() + 1]),
            group: Group::of(Class::Standard, Tokens::new(1), 0),
        }
    };
    text.lines().skip(1).map(row).collect()
}

fn walk(name: &str, fitter: Fitter, rows: &[Lesson]) {
    let (mut n, mut kept, mut loss, mut fits) = (0.0, 0.0, 0.0, 0.0);
    let (mut widths, mut fitting, mut bounding) = (Vec::new(), 0.0, 0.0);
    for from in (WARMUP..rows.len()).step_by(STRIDE) {
        let next = &rows[from..rows.len().min(from + STRIDE)];
        let (bounds, fit, bound) = fitter(&rows[from.saturating_sub(WINDOW)..from], next);
        fits += 1.0;
        fitting += fit.as_secs_f64();
        bounding += bound.as_secs_f64();
        for (bound, row) in bounds.iter().zip(next) {
            let came = row.came.get() as f64;
            n += 1.0;
            kept += f64::from(u8::from(came <= *bound));
            loss += 0.9 * (came - bound).max(0.0) + 0.1 * (bound - came).max(0.0);
            widths.push(bound / came);
        }
    }
    widths.sort_by(f64::total_cmp);
    println!(
        "| {name} | {:.1} | {:.1} | {:.3} | {:.1} | {:.2} |",
        100.0 * kept / n,
        loss / n / 1e3,
        widths[widths.len() / 2],
        1e3 * fitting / fits,
        1e6 * bounding / n
    );
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let made = work();
    (made, start.elapsed())
}

fn factor(known: &[Lesson], next: &[Lesson]) -> (Vec<f64>, Duration, Duration) {
    let task = Task::new(Alpha::TENTH, vec![Arc::from(known)]);
    let (factor, fit) = timed(|| task.plain_factor());
    let (bounds, bound) = timed(|| {
        let each = next
            .iter()
            .map(|row| factor.times(row.planned).get() as f64);
        each.collect()
    });
    (bounds, fit, bound)
}

/// The fit is of three models: two of them score the lessons that they have not seen.
fn ours(known: &[Lesson], next: &[Lesson]) -> (Vec<f64>, Duration, Duration) {
    let task = Task::new(Alpha::TENTH, vec![Arc::from(known)]);
    let (fitted, fit) = timed(|| task.fit());
    let (bounds, bound) = timed(|| {
        let each = next.iter();
        let each = each.map(|row| fitted.trees.put_right(&row.features, row.planned).get() as f64);
        each.collect()
    });
    (bounds, fit, bound)
}

fn target(row: &Lesson) -> f64 {
    (row.came.get().max(1) as f64 / row.planned.get().max(1) as f64).log2()
}

fn bound_of(row: &Lesson, log: f64) -> f64 {
    row.planned.get() as f64 * log.exp2()
}

fn perpetual(known: &[Lesson], next: &[Lesson]) -> (Vec<f64>, Duration, Duration) {
    // Column by column.
    let columns = |rows: &[Lesson]| -> Vec<f64> {
        let column = |n: usize| rows.iter().map(move |row| row.features[n] as f64);
        (0..FEATURES.len()).flat_map(column).collect()
    };
    let (data, y) = (columns(known), known.iter().map(target).collect::<Vec<_>>());
    let (model, fit) = timed(|| {
        let mut model = PerpetualBooster::default()
            .set_objective(Objective::QuantileLoss {
                quantile: Some(0.9),
            })
            .set_budget(0.5)
            .set_num_threads(Some(1));
        let matrix = Matrix::new(&data, known.len(), FEATURES.len());
        model.fit(&matrix, &y, None, None).expect("a fit");
        model
    });
    let (bounds, bound) = timed(|| {
        let each = next.iter().map(|row| {
            let one = columns(std::slice::from_ref(row));
            let log = model.predict(&Matrix::new(&one, 1, FEATURES.len()), false);
            bound_of(row, log[0])
        });
        each.collect()
    });
    (bounds, fit, bound)
}

fn lightgbm(known: &[Lesson], next: &[Lesson]) -> (Vec<f64>, Duration, Duration) {
    let floats = |row: &Lesson| row.features.map(|one| one as f64).to_vec();
    let data: Vec<Vec<f64>> = known.iter().map(floats).collect();
    let y: Vec<f32> = known.iter().map(|row| target(row) as f32).collect();
    let (model, fit) = timed(|| {
        let data = Dataset::from_vec_of_vec(data, y, true).expect("rows");
        let params = serde_json::json!({
            "objective": "quantile", "alpha": 0.9, "num_iterations": 40, "max_depth": 3,
            "num_leaves": 8, "learning_rate": 0.15, "min_data_in_leaf": 48, "max_bin": 31,
            "num_threads": 1, "verbosity": -1,
        });
        Booster::train(data, &params).expect("a fit")
    });
    let (bounds, bound) = timed(|| {
        let each = next.iter().map(|row| {
            let width = i32::try_from(FEATURES.len()).expect("a few");
            let log = model.predict_with_params(&floats(row), width, true, "num_threads=1");
            bound_of(row, log.expect("a bound")[0])
        });
        each.collect()
    });
    (bounds, fit, bound)
}
