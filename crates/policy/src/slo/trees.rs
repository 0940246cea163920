//! A fitted model of what an estimate misses, as plain data: small trees whose leaves add up to the
//! logarithm of a factor.
//!
//! It is fitted in [`super::fit`] and only evaluated here. Whatever it says, the bound holds: it is
//! calibrated on what comes of it.

use super::facts::{Aged, Estimate, Facts};
use crate::units::{Micros, count};

/// What a tree may ask of a request, in the order of [`features`].
pub const FEATURES: [&str; 17] = [
    "estimate_us",
    "prompt",
    "uncached",
    "output_median",
    "output_most",
    "ahead",
    "work_ahead",
    "running",
    "slots",
    "waiting",
    "kv_free_percent",
    "prefill_ahead",
    "gap_us",
    "recent_gap_us",
    "idle_us",
    "age_us",
    "ending_per_place",
];

/// Numbers for [`FEATURES`].
pub type Features = [u64; FEATURES.len()];

/// The numbers that [`FEATURES`] names.
pub fn features(facts: &Facts, plan: &Estimate) -> Features {
    let pool = &facts.pool;
    let micros = |aged: Option<Aged>| aged.map_or(0, |aged| aged.value.get());
    [
        plan.first.get(),
        facts.prompt.get(),
        (facts.prompt - facts.cached).get(),
        facts.output_median.get(),
        facts.output_most.get(),
        facts.ahead,
        facts.work_ahead.get(),
        u64::from(pool.running),
        u64::from(pool.slots),
        pool.waiting,
        u64::from(pool.kv_free),
        pool.prefill_ahead.get(),
        micros(pool.gap),
        micros(pool.recent_gap),
        pool.idle.get(),
        pool.age.get(),
        pool.ending / facts.ahead.saturating_add(1),
    ]
}

/// One place in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// Go on at one of two later nodes of the same tree.
    Split {
        /// Which feature, by its place in [`FEATURES`].
        feature: u8,
        /// Up to this it goes left.
        most: u64,
        /// Where left is. invariant: later than this node.
        left: u16,
        /// Where right is. invariant: later than this node.
        right: u16,
    },
    /// What this tree adds to the binary logarithm of the factor, in thousandths.
    Leaf(i32),
}

/// Trees that add up. invariant: what [`Trees::new`] checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trees {
    trees: Vec<Vec<Node>>,
}

/// Something is wrong with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTrees {
    /// There are too many.
    #[error(
        "the model has more than {} trees, or one of more than {} nodes",
        Trees::MAX,
        Trees::NODES_MAX
    )]
    TooLarge,
    /// It asks for something that nobody knows.
    #[error("tree {tree} asks for feature {feature}; there are {}", FEATURES.len())]
    NoFeature {
        /// In which tree.
        tree: usize,
        /// What it asks for.
        feature: u8,
    },
    /// It does not end, or leads nowhere.
    #[error("node {node} of tree {tree} does not lead to a later node")]
    Leads {
        /// In which tree.
        tree: usize,
        /// From where.
        node: usize,
    },
}

impl Trees {
    /// Most trees.
    pub const MAX: usize = 256;

    /// Most nodes of one.
    pub const NODES_MAX: usize = 255;

    /// The largest factor either way is two to the power of this many thousandths.
    const LOG_MOST: i32 = 4_000;

    /// A model, if it can be evaluated.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(trees: Vec<Vec<Node>>) -> Result<Self, BadTrees> {
        let large = |tree: &Vec<Node>| tree.is_empty() || tree.len() > Self::NODES_MAX;
        if trees.len() > Self::MAX || trees.iter().any(large) {
            return Err(BadTrees::TooLarge);
        }
        for (tree, nodes) in trees.iter().enumerate() {
            for (node, one) in nodes.iter().enumerate() {
                let Node::Split {
                    feature,
                    left,
                    right,
                    ..
                } = *one
                else {
                    continue;
                };
                if usize::from(feature) >= FEATURES.len() {
                    return Err(BadTrees::NoFeature { tree, feature });
                }
                let leads = |to: u16| usize::from(to) > node && usize::from(to) < nodes.len();
                if !leads(left) || !leads(right) {
                    return Err(BadTrees::Leads { tree, node });
                }
            }
        }
        Ok(Self { trees })
    }

    /// Its trees.
    pub fn as_slice(&self) -> &[Vec<Node>] {
        &self.trees
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// An estimate whose first token is put right. What comes after that is calibrated by itself.
    pub fn apply(&self, facts: &Facts, plan: Estimate) -> Estimate {
        if self.trees.is_empty() {
            return plan;
        }
        Estimate {
            first: self.put_right(&features(facts, &plan), plan.first),
            ..plan
        }
    }

    /// What was planned for a request of these features, put right.
    pub fn put_right(&self, features: &Features, planned: Micros) -> Micros {
        scaled(planned, self.log(features))
    }

    /// The binary logarithm, in thousandths, of the factor for these features.
    pub(super) fn log(&self, features: &Features) -> i32 {
        let each = self.trees.iter().map(|tree| walk(tree, features));
        let log = each.fold(0_i32, i32::saturating_add);
        log.clamp(-Self::LOG_MOST, Self::LOG_MOST)
    }
}

pub(super) fn walk(tree: &[Node], features: &Features) -> i32 {
    let mut at = 0;
    while let Some(node) = tree.get(at) {
        match *node {
            Node::Leaf(value) => return value,
            Node::Split {
                feature,
                most,
                left,
                right,
            } => {
                let value = features.get(usize::from(feature)).copied().unwrap_or(0);
                at = usize::from(if value <= most { left } else { right });
            }
        }
    }
    0
}

/// `span` times two to the power of so many thousandths.
pub(super) fn scaled(span: Micros, log: i32) -> Micros {
    let whole = log.div_euclid(1_000);
    let part = u128::from(log.rem_euclid(1_000).unsigned_abs());
    // 2^x between two whole powers by a parabola through 1, sqrt(2) and 2: off by 0.4% at most.
    let scale = 1_000_000 + part * 656_854 / 1_000 + part * part * 343_146 / 1_000_000;
    let long = u128::from(span.get()) * scale / 1_000_000;
    let long = match u32::try_from(whole) {
        Ok(up) => long << up,
        Err(_) => long >> whole.unsigned_abs(),
    };
    Micros::new(u64::try_from(long).unwrap_or(u64::MAX))
}

/// Nodes of all trees together: what a file says before them.
pub fn nodes(trees: &Trees) -> u64 {
    trees.trees.iter().map(|tree| count(tree.len())).sum()
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::facts;
    use super::*;

    #[test]
    fn leaves_add_up_to_the_logarithm_of_a_factor() {
        let span = Micros::new(1_000_000);
        for (log, wanted) in [(0, 1_000_000), (1_000, 2_000_000), (-2_000, 250_000)] {
            assert_eq!(scaled(span, log).get(), wanted);
        }
        assert!(scaled(span, 500).get().abs_diff(1_414_214) < 1_000);
        assert!(scaled(span, 250).get().abs_diff(1_189_207) < 4_000);
    }

    #[test]
    fn a_model_puts_an_estimate_right_by_what_it_asks() {
        let split = Node::Split {
            feature: 1,
            most: 500,
            left: 1,
            right: 2,
        };
        let tree = vec![split, Node::Leaf(0), Node::Leaf(500)];
        let model = Trees::new(vec![tree.clone(), tree]).unwrap();
        let before = Estimate::of(&facts()).unwrap();
        let after = model.apply(&facts(), before);
        assert_eq!(after.first, Micros::new(before.first.get() * 2));
        assert_eq!((after.last, after.tpot), (before.last, before.tpot));
        assert_eq!(Trees::default().apply(&facts(), before), before);
    }

    #[test]
    fn a_model_that_does_not_end_or_asks_for_nothing_known_is_refused() {
        let split = |feature, left, right| Node::Split {
            feature,
            most: 1,
            left,
            right,
        };
        let bad = |nodes| Trees::new(vec![nodes]).unwrap_err();
        let round = vec![split(0, 0, 1), Node::Leaf(1)];
        assert_eq!(bad(round), BadTrees::Leads { tree: 0, node: 0 });
        let unknown = vec![split(99, 1, 2), Node::Leaf(1), Node::Leaf(1)];
        assert_eq!(
            bad(unknown),
            BadTrees::NoFeature {
                tree: 0,
                feature: 99
            }
        );
        assert_eq!(bad(vec![]), BadTrees::TooLarge);
    }
}
