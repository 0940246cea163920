//! What a pool's admission has learned, as plain numbers: to be written down, and taken on by
//! another gateway before the same engine.
//!
//! Nothing of it is an instruction, and numbers that cannot be are left out when it is taken on, so
//! whoever hands it in can make bounds wide or narrow for a while and nothing else.

use super::super::calibrate::{Calibrator, Group, Level, Score, Scores};
use super::super::cost::Fit;
use super::super::trees::Trees;
use super::Admission;
use crate::units::Tokens;

/// What was learned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Dispatch to first token.
    pub prefill: FitState,
    /// Time between tokens.
    pub decode: FitState,
    /// The TTFT of those that waited, the time between tokens, the whole.
    pub door: [CalibratorState; 3],
    /// From a replica to the first token.
    pub stage: CalibratorState,
    /// The last answers, in tokens, oldest first.
    pub outputs: Vec<u64>,
    /// The last prompts, likewise.
    pub prompts: Vec<u64>,
    /// The model of what estimates miss.
    pub model: Trees,
}

/// Sums that a line is drawn through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FitState {
    /// Of 1, x, y, x² and xy, each fading.
    pub sums: [u128; 5],
}

/// Scores, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CalibratorState {
    /// Of all requests.
    pub pool: Vec<u32>,
    /// By group, and the level it has come to.
    pub groups: Vec<(Vec<u32>, Option<i32>)>,
}

impl Admission {
    /// What has been learned.
    pub fn state(&self) -> State {
        State {
            prefill: FitState::of(&self.costs.prefill),
            decode: FitState::of(&self.costs.decode),
            door: self.door.each_ref().map(CalibratorState::of),
            stage: CalibratorState::of(&self.stage),
            outputs: self.lengths.pool.iter().map(Tokens::get).collect(),
            prompts: self.prompts.iter().map(Tokens::get).collect(),
            model: self.model.clone(),
        }
    }

    /// Takes on what another has learned, in place of what it has itself.
    pub fn recall(&mut self, state: State) {
        self.costs.prefill = state.prefill.fit();
        self.costs.decode = state.decode.fit();
        let [ttft, tpot, e2e] = state.door.map(CalibratorState::calibrator);
        self.door[1] = tpot;
        self.door[2] = e2e;
        // Scores by trees mean nothing without them.
        if self.slo.fitted_for().is_some() || state.model.is_empty() {
            self.door[0] = ttft;
            self.model = state.model;
        }
        self.stage = state.stage.calibrator();
        for output in state.outputs {
            self.lengths.pool.push(Tokens::new(output));
        }
        for prompt in state.prompts {
            self.prompts.push(Tokens::new(prompt));
        }
    }
}

impl FitState {
    fn of(fit: &Fit) -> Self {
        Self {
            sums: [fit.n, fit.x, fit.y, fit.xx, fit.xy],
        }
    }

    /// No sum is larger than a fit could have made it.
    fn fit(self) -> Fit {
        /// Measurements that are remembered, times their scale.
        const N: u128 = 1 << 23;
        let [n, x, y, xx, xy] = self.sums;
        Fit {
            n: n.min(N),
            x: x.min(N << 32),
            y: y.min(N << 32),
            xx: xx.min(N << 64),
            xy: xy.min(N << 64),
            at: None,
        }
    }
}

impl CalibratorState {
    fn of(calibrator: &Calibrator) -> Self {
        let numbers = |scores: &Scores| scores.iter().map(Score::get).collect::<Vec<_>>();
        let group = |scores: &Scores| (numbers(scores), scores.level.map(|level| level.0));
        Self {
            pool: numbers(&calibrator.pool),
            groups: calibrator.groups.iter().map(group).collect(),
        }
    }

    fn calibrator(self) -> Calibrator {
        let mut calibrator = Calibrator::default();
        let score = |number: u32| Score::new(number.clamp(1, Score::MOST.get()));
        for number in self.pool {
            calibrator.pool.push(score(number));
        }
        for (group, (numbers, level)) in Group::all().zip(self.groups) {
            let scores = &mut calibrator.groups[group.number()];
            for number in numbers {
                scores.push(score(number));
            }
            scores.level = level.map(Level::bounded);
        }
        calibrator
    }
}
