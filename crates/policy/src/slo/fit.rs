//! Fits trees to what plans have missed: boosting on histograms of features, by pinball loss, so
//! that what they say is a quantile (Friedman 2001; Koenker and Bassett 1978).
//!
//! It is a pure function of whole numbers, so the same lessons give the same trees on every
//! machine. It takes some tens of milliseconds and is no part of a decision: drivers run it beside
//! the data path and hand in what comes of it. Scores that trees get are of lessons they were not
//! fitted to, so a model that has learned by heart is found out.

use std::sync::Arc;

use super::calibrate::{Calibration, Calibrator, Score};
use super::lessons::Lesson;
use super::terms::Alpha;
use super::trees::{FEATURES, Features, Node, Trees, scaled};
use crate::units::{Micros, count};

/// Lessons to fit trees to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub(super) alpha: Alpha,
    /// The oldest first.
    pub(super) chunks: Vec<Arc<[Lesson]>>,
    /// Lessons that there were, forgotten ones included.
    pub(super) seen: u64,
}

/// What came of a fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fitted {
    /// What plans are put right by from now on; none where none are better than the plan alone.
    pub trees: Trees,
    /// Lessons it rests on.
    pub lessons: u64,
    /// Pinball loss of bounds by the trees, in thousandths of that of bounds by the plan alone.
    pub loss: u64,
    /// How the lessons are scored by the trees.
    pub(super) scores: Calibrator,
    pub(super) seen: u64,
}

/// Trees that are fitted one after the other.
const ROUNDS: usize = 60;

/// Splits from the root to a leaf at most.
const DEPTH: usize = 3;

/// Lessons of a leaf at the least: below that there is no ninth decile to speak of.
const LEAF_MIN: usize = 96;

/// Parts of a hundred of what is missed that one tree puts right.
const RATE: i32 = 10;

/// Trees must have less loss than so many thousandths of the plan's.
const LOSS_MOST: u64 = 990;

/// Lessons on end that are left out together, every second time: what is near is alike.
const FOLD: usize = 128;

impl Task {
    /// A fit for so many misses to these lessons, the oldest first.
    pub fn new(alpha: Alpha, chunks: Vec<Arc<[Lesson]>>) -> Self {
        let seen = chunks.iter().map(|chunk| count(chunk.len())).sum();
        Self {
            alpha,
            chunks,
            seen,
        }
    }

    /// Fits trees to the lessons.
    pub fn fit(&self) -> Fitted {
        let lessons: Vec<Lesson> = self.lessons().copied().collect();
        let table = Table::of(&lessons);
        let boost = |keep: &dyn Fn(usize) -> bool| Boosted::of(&table, self.alpha, keep);
        let trees = Trees::new(boost(&|_| true).trees).unwrap_or_default();
        let folds = [0, 1].map(|fold| boost(&move |n| n / FOLD % 2 == fold));
        // Each lesson by the trees that have not seen it.
        let logs = |n: usize| folds[1 - n / FOLD % 2].logs.get(n).copied();
        let unseen: Vec<i32> = (0..lessons.len()).map(|n| logs(n).unwrap_or(0)).collect();
        let scores = scored(&lessons, |n| unseen.get(n).copied().unwrap_or(0));
        let plain = scored(&lessons, |_| 0);
        let own = self.loss(&lessons, &scores, |n| unseen.get(n).copied().unwrap_or(0));
        let loss = (own * 1_000).checked_div(self.loss(&lessons, &plain, |_| 0));
        let loss = loss.and_then(|loss| u64::try_from(loss).ok());
        let loss = loss.unwrap_or(1_000);
        let is_better = loss <= LOSS_MOST && !trees.is_empty();
        Fitted {
            trees: if is_better { trees } else { Trees::default() },
            lessons: count(lessons.len()),
            loss,
            scores: if is_better { scores } else { plain },
            seen: self.seen,
        }
    }

    /// These trees, in place of any that would be fitted.
    pub fn given(&self, trees: Trees) -> Fitted {
        let lessons: Vec<Lesson> = self.lessons().copied().collect();
        let log = |n: usize| lessons.get(n).map_or(0, |one| trees.log(&one.features));
        let scores = scored(&lessons, log);
        Fitted {
            lessons: count(lessons.len()),
            loss: 1_000,
            scores,
            seen: self.seen,
            trees,
        }
    }

    /// The lessons, the oldest first.
    pub fn lessons(&self) -> impl Iterator<Item = &Lesson> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// By what plans are taken times for as many to be kept as are to be, by one factor for all.
    pub fn plain_factor(&self) -> Score {
        let each = self.lessons().map(|one| Score::of(one.came, one.planned));
        let mut scores: Vec<Score> = each.collect();
        scores.sort_unstable();
        let kept = 1_000 - usize::from(self.alpha.get());
        let rank = (scores.len() * kept).div_ceil(1_000).max(1) - 1;
        scores.get(rank).copied().unwrap_or(Score::ONE)
    }

    /// Pinball loss of the bounds that scores make of plans put right.
    fn loss(&self, lessons: &[Lesson], scores: &Calibrator, log: impl Fn(usize) -> i32) -> u128 {
        let alpha = u128::from(self.alpha.get());
        let each = lessons.iter().enumerate().map(|(n, lesson)| {
            let (factor, _) = scores.factor(lesson.group, self.alpha, Calibration::Rolling);
            let bound = factor.times(scaled(lesson.planned, log(n)));
            let (over, under) = (lesson.came - bound, bound - lesson.came);
            u128::from(over.get()) * (1_000 - alpha) + u128::from(under.get()) * alpha
        });
        each.sum()
    }
}

/// Lessons scored by plans that are put right by these logarithms.
fn scored(lessons: &[Lesson], log: impl Fn(usize) -> i32) -> Calibrator {
    let mut scores = Calibrator::default();
    for (n, lesson) in lessons.iter().enumerate() {
        let expected = scaled(lesson.planned, log(n));
        scores.scored(lesson.group, Score::of(lesson.came, expected));
    }
    scores
}

/// Bins of one feature at most.
const BINS: usize = 32;

/// Lessons by the bins of their features, and what their plans missed.
struct Table {
    /// By feature: up to which value each bin goes, all but the last.
    edges: [Vec<u64>; FEATURES.len()],
    bins: Vec<[u8; FEATURES.len()]>,
    /// Binary logarithm of what came over what was planned, in thousandths.
    missed: Vec<i32>,
}

impl Table {
    fn of(lessons: &[Lesson]) -> Self {
        let edges: [Vec<u64>; FEATURES.len()] = std::array::from_fn(|feature| {
            let of = |lesson: &Lesson| lesson.features.get(feature).copied();
            edges(lessons.iter().filter_map(of).collect())
        });
        let bin = |(value, edges): (&u64, &Vec<u64>)| {
            let bin = edges.partition_point(|edge| edge < value);
            u8::try_from(bin).unwrap_or(u8::MAX)
        };
        let binned = |features: &Features| {
            let mut bins = [0; FEATURES.len()];
            for (slot, pair) in bins.iter_mut().zip(features.iter().zip(&edges)) {
                *slot = bin(pair);
            }
            bins
        };
        let missed = |lesson: &Lesson| log2(lesson.came) - log2(lesson.planned);
        Self {
            bins: lessons.iter().map(|one| binned(&one.features)).collect(),
            missed: lessons.iter().map(missed).collect(),
            edges,
        }
    }
}

/// Values that part the others about evenly; none where all are one.
fn edges(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    let at = |n: usize| values.get(values.len() * n / BINS).copied();
    let mut edges: Vec<u64> = (1..BINS).filter_map(at).collect();
    edges.dedup();
    // Nothing is beyond the largest.
    edges.pop_if(|edge| Some(&*edge) == values.last());
    edges
}

/// Binary logarithm in thousandths, rounded down.
fn log2(span: Micros) -> i32 {
    const ONE: u64 = 1 << 31;
    let value = span.get().max(1);
    let whole = value.ilog2();
    let mut part = match whole.checked_sub(31) {
        Some(down) => value >> down,
        None => value << (31 - whole),
    };
    let mut bits = 0;
    for _ in 0..10 {
        part = (part * part) >> 31;
        bits *= 2;
        if part >= 2 * ONE {
            part >>= 1;
            bits += 1;
        }
    }
    i32::try_from(whole).unwrap_or(0) * 1_000 + bits * 1_000 / 1_024
}

/// Trees, and what they come to for each lesson, also those that they were not fitted to.
struct Boosted {
    trees: Vec<Vec<Node>>,
    logs: Vec<i32>,
}

impl Boosted {
    /// Trees fitted to the lessons that are kept.
    fn of(table: &Table, alpha: Alpha, keep: &dyn Fn(usize) -> bool) -> Self {
        let rows: Vec<usize> = (0..table.missed.len()).filter(|n| keep(*n)).collect();
        let mut left = table.missed.clone();
        let mut boosted = Self {
            trees: Vec::new(),
            logs: vec![0; left.len()],
        };
        // The first says what holds for all, and the others what does not.
        let all = quantile(&rows, &left, alpha);
        boosted.add(table, Tree::leaf(all), &mut left);
        for _ in 0..ROUNDS {
            let tree = Tree::grown(table, &left, alpha, rows.clone());
            if tree.nodes.len() < 2 {
                break;
            }
            boosted.add(table, tree, &mut left);
        }
        boosted
    }

    fn add(&mut self, table: &Table, tree: Tree, left: &mut [i32]) {
        for ((bins, log), left) in table.bins.iter().zip(&mut self.logs).zip(left) {
            let value = tree.walk(bins);
            *log = log.saturating_add(value);
            *left = left.saturating_sub(value);
        }
        self.trees.push(tree.nodes);
    }
}

/// The value that all but the promised few of these do not exceed.
fn quantile(rows: &[usize], left: &[i32], alpha: Alpha) -> i32 {
    let mut values: Vec<i32> = rows.iter().filter_map(|n| left.get(*n).copied()).collect();
    let kept = 1_000 - usize::from(alpha.get());
    let rank = (values.len() * kept).div_ceil(1_000).max(1) - 1;
    if rank >= values.len() {
        return 0;
    }
    *values.select_nth_unstable(rank).1
}

/// A tree that is being grown.
struct Tree {
    nodes: Vec<Node>,
    /// By node: up to which bin of its feature a split goes left.
    bins: Vec<u8>,
}

/// Lessons that have come to one place of a tree.
struct Part {
    at: usize,
    depth: usize,
    rows: Vec<usize>,
}

/// The best way found to part lessons in two.
#[derive(Clone, Copy)]
struct Cut {
    gain: i64,
    feature: usize,
    bin: usize,
}

impl Tree {
    fn leaf(value: i32) -> Self {
        Self {
            nodes: vec![Node::Leaf(value)],
            bins: vec![0],
        }
    }

    fn grown(table: &Table, left: &[i32], alpha: Alpha, rows: Vec<usize>) -> Self {
        let mut tree = Self::leaf(0);
        let mut parts = vec![Part {
            at: 0,
            depth: 0,
            rows,
        }];
        while let Some(part) = parts.pop() {
            let may = part.depth < DEPTH && part.rows.len() >= 2 * LEAF_MIN;
            let cut = may.then(|| best(table, left, alpha, &part.rows)).flatten();
            match cut {
                Some(cut) => parts.extend(tree.split(table, part, cut)),
                None => {
                    let value = quantile(&part.rows, left, alpha) * RATE / 100;
                    tree.nodes[part.at] = Node::Leaf(value);
                }
            }
        }
        tree
    }

    fn split(&mut self, table: &Table, part: Part, cut: Cut) -> [Part; 2] {
        let goes_left = |n: &usize| usize::from(table.bins[*n][cut.feature]) <= cut.bin;
        let (left, right): (Vec<usize>, Vec<usize>) = part.rows.iter().partition(|n| goes_left(n));
        let place = self.nodes.len();
        self.nodes[part.at] = Node::Split {
            feature: u8::try_from(cut.feature).unwrap_or(u8::MAX),
            most: table.edges[cut.feature][cut.bin],
            left: u16::try_from(place).unwrap_or(u16::MAX),
            right: u16::try_from(place + 1).unwrap_or(u16::MAX),
        };
        self.bins[part.at] = u8::try_from(cut.bin).unwrap_or(u8::MAX);
        self.nodes.extend([Node::Leaf(0), Node::Leaf(0)]);
        self.bins.extend([0, 0]);
        let depth = part.depth + 1;
        let part = |at, rows| Part { at, depth, rows };
        [part(place, left), part(place + 1, right)]
    }

    fn walk(&self, bins: &[u8; FEATURES.len()]) -> i32 {
        let mut at = 0;
        loop {
            match self.nodes[at] {
                Node::Leaf(value) => return value,
                Node::Split {
                    feature,
                    left,
                    right,
                    ..
                } => {
                    let goes_left = bins[usize::from(feature)] <= self.bins[at];
                    at = usize::from(if goes_left { left } else { right });
                }
            }
        }
    }
}

/// The cut after which the slopes of the loss are least alike on its two sides.
fn best(table: &Table, left: &[i32], alpha: Alpha, rows: &[usize]) -> Option<Cut> {
    let alpha = i64::from(alpha.get());
    let mut sums = [[(0_i64, 0_i64); BINS]; FEATURES.len()];
    let mut all = (0, 0);
    for n in rows {
        let slope = if left[*n] > 0 { 1_000 - alpha } else { -alpha };
        all = (all.0 + 1, all.1 + slope);
        for (sums, bin) in sums.iter_mut().zip(&table.bins[*n]) {
            let sum = &mut sums[usize::from(*bin)];
            *sum = (sum.0 + 1, sum.1 + slope);
        }
    }
    let least = i64::try_from(LEAF_MIN).unwrap_or(i64::MAX);
    let mut best: Option<Cut> = None;
    for (feature, (sums, edges)) in sums.iter().zip(&table.edges).enumerate() {
        let mut below = (0, 0);
        for (bin, sum) in sums.iter().enumerate().take(edges.len()) {
            below = (below.0 + sum.0, below.1 + sum.1);
            let above = (all.0 - below.0, all.1 - below.1);
            if below.0 < least || above.0 < least {
                continue;
            }
            let gain = below.1 * below.1 / below.0 + above.1 * above.1 / above.0;
            if best.is_none_or(|best| gain > best.gain) {
                best = Some(Cut { gain, feature, bin });
            }
        }
    }
    best.filter(|best| best.gain > all.1 * all.1 / all.0.max(1))
}

#[cfg(test)]
mod tests;
