//! Which batches a step is computed in, one after the other.
//!
//! Decides only what is computed together. Each token of the step is in one batch, and those of a
//! sequence are in their order.

use tollgate_policy::ids::SeqId;
use tollgate_policy::units::KvBlocks;

use crate::backend::StepWork;
use crate::job::Token;

/// Tokens of one sequence that are computed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    /// Whose work it is, by its place in the step.
    pub(super) of: usize,
    pub(super) seq: SeqId,
    /// The position of the first one.
    pub(super) start: u64,
    /// At least one.
    pub(super) tokens: &'a [Token],
    /// Whether the next token is sampled after the last of them.
    pub(super) samples: bool,
    /// Tokens that mean nothing, to be computed after them and taken back.
    pub(super) padding: usize,
}

impl<'a> Part<'a> {
    fn whole((of, work): (usize, &StepWork<'a>)) -> Self {
        Self {
            of,
            seq: work.seq,
            start: work.start.get(),
            tokens: work.tokens,
            samples: work.samples,
            padding: 0,
        }
    }

    /// Its tokens before a position, where it has some there and some after.
    fn cut(self, at: u64) -> (Self, Option<Self>) {
        let head = at.checked_sub(self.start);
        let head = head.and_then(|head| usize::try_from(head).ok());
        match head.and_then(|head| self.tokens.split_at_checked(head)) {
            Some((head, tail)) if !head.is_empty() && !tail.is_empty() => {
                let head = Self {
                    tokens: head,
                    samples: false,
                    ..self
                };
                let tail = Self {
                    start: at,
                    tokens: tail,
                    ..self
                };
                (head, Some(tail))
            }
            Some(_) | None => (self, None),
        }
    }
}

/// A text shorter than this is computed in one piece: the rounding is of few tokens.
const WHOLE_BELOW: u64 = 64;

/// Tokens that llama.cpp's attention on a CPU takes at once, where there are as many
/// (`ggml_fa_tile_config` in ggml-cpu's common.h).
const TILE: usize = 64;

/// Elsewhere each batch reads all weights once more, and nothing is won.
pub(super) const ON_CPU: bool = !cfg!(any(feature = "cuda", feature = "metal", feature = "vulkan"));

/// The batches of a step. `repeats` is whether a text that was found computed must say what it says
/// when it was not.
///
/// Answers, which have one token each, are computed apart from prompts. llama.cpp's attention on a
/// CPU takes tokens in tiles, and computes for a tile whatever one of its tokens sees. Tokens of a
/// prompt see one sequence; those of as many answers see everything, and in one batch with a prompt
/// they would be a tile of their own. By themselves they are too few for tiles.
///
/// llama.cpp rounds a little differently with each length of a piece. So that pieces are the same
/// with a hit in the prefix cache and without one, what comes after the longest possible hit is a
/// piece of its own. It is short, and is computed with the answers.
pub(super) fn of_step<'a>(work: &[StepWork<'a>], repeats: bool) -> Vec<Vec<Part<'a>>> {
    let parts = work.iter().enumerate().map(Part::whole);
    let Kinds {
        prompts,
        tails,
        answers,
    } = Kinds::of(parts, repeats);
    let count = |parts: &[Part<'_>]| parts.iter().map(|part| part.tokens.len()).sum::<usize>();
    let together =
        |first: &[Part<'_>], then: &[Part<'_>]| !ON_CPU || count(first) + count(then) < TILE;
    let batches = if tails.is_empty() && together(&prompts, &answers) {
        [[prompts, answers].concat(), tails, Vec::new()]
    } else if together(&tails, &answers) {
        [prompts, [tails, answers].concat(), Vec::new()]
    } else {
        [prompts, tails, answers]
    };
    let filled = batches.into_iter().filter(|batch| !batch.is_empty());
    filled.collect()
}

/// The batches of a step of sequences that have a KV each, of so many positions, in lanes.
///
/// llama.cpp takes a batch of these apart by itself: it computes as many tokens of each sequence as
/// the shortest one has, of all whose lanes follow each other, and then what is left. So answers
/// come first, with the first token of each prompt, and then the rest of the prompts; but for ends
/// of prompts, which are a piece of their own as above. Prompts that are nearly as long as the
/// longest are made as long: a few rows more cost less than a pass over all weights for what is
/// left of some.
pub(super) fn of_lanes<'a>(
    work: &[StepWork<'a>],
    repeats: bool,
    positions: u64,
    lane: impl Fn(SeqId) -> Option<SeqId>,
) -> Vec<Vec<Part<'a>>> {
    let mut parts: Vec<_> = work.iter().enumerate().map(Part::whole).collect();
    parts.sort_by_key(|part| lane(part.seq));
    let kinds = Kinds::of(parts.into_iter(), repeats);
    let mut batches = match kinds.tails.is_empty() {
        true => [[kinds.prompts, kinds.answers].concat(), Vec::new()],
        false => [kinds.prompts, [kinds.tails, kinds.answers].concat()],
    };
    for batch in &mut batches {
        batch.sort_by_key(|part| lane(part.seq));
        even_out(batch, positions);
    }
    let filled = batches.into_iter().filter(|batch| !batch.is_empty());
    filled.collect()
}

/// Pads prompts of nearly the longest one's length, by a third of themselves at most.
fn even_out(parts: &mut [Part<'_>], positions: u64) {
    let lengths = parts.iter().map(|part| part.tokens.len());
    let longest = lengths.max().unwrap_or(0);
    for part in parts {
        let length = part.tokens.len();
        let fits = u64::try_from(longest).is_ok_and(|longest| part.start + longest <= positions);
        if length > 1 && length * 4 >= longest * 3 && fits {
            part.padding = longest - length;
        }
    }
}

/// What a step is made of.
#[derive(Default)]
struct Kinds<'a> {
    prompts: Vec<Part<'a>>,
    /// What comes after the longest hit that a prompt could have.
    tails: Vec<Part<'a>>,
    /// Of one token.
    answers: Vec<Part<'a>>,
}

impl<'a> Kinds<'a> {
    fn of(parts: impl Iterator<Item = Part<'a>>, repeats: bool) -> Self {
        let mut kinds = Self::default();
        for part in parts {
            if part.tokens.len() == 1 {
                kinds.answers.push(part);
                continue;
            }
            let (head, tail) = match longest_hit(&part).filter(|_| repeats) {
                Some(at) => part.cut(at),
                None => (part, None),
            };
            kinds.prompts.push(head);
            kinds.tails.extend(tail);
        }
        kinds
    }
}

/// Where the longest hit ends that the whole text could have, if all of it is known.
fn longest_hit(part: &Part<'_>) -> Option<u64> {
    let tokens = u64::try_from(part.tokens.len()).ok()?;
    let known = part.start + tokens;
    let slots = KvBlocks::SLOTS.get();
    (part.samples && known >= WHOLE_BELOW).then(|| (known - 1) / slots * slots)
}

#[cfg(test)]
mod tests {
    use tollgate_policy::units::Tokens;

    use super::*;

    const TEXT: [Token; 600] = [Token::new(7); 600];

    fn work(seq: u32, start: u64, count: usize, samples: bool) -> StepWork<'static> {
        StepWork {
            seq: SeqId::new(seq),
            start: Tokens::new(start),
            tokens: &TEXT[..count],
            samples,
        }
    }

    /// By batch, the sequence, first position, tokens, and whether it samples, of each part.
    fn split(work: &[StepWork<'_>], repeats: bool) -> Vec<Vec<(u32, u64, usize, bool)>> {
        let told = |part: &Part<'_>| (part.seq.get(), part.start, part.tokens.len(), part.samples);
        let batches = of_step(work, repeats);
        batches
            .iter()
            .map(|one| one.iter().map(told).collect())
            .collect()
    }

    #[test]
    fn answers_are_computed_after_prompts_and_few_of_both_at_once() {
        let answers = [work(0, 90, 1, true), work(1, 70, 1, true)];
        let long = work(2, 0, 100, false);
        let apart = vec![
            vec![(2, 0, 100, false)],
            vec![(0, 90, 1, true), (1, 70, 1, true)],
        ];
        assert_eq!(split(&[answers[0], answers[1], long], false), apart);
        assert_eq!(split(&[long, answers[0], answers[1]], true), apart);
        let short = work(2, 0, 61, false);
        assert_eq!(split(&[answers[0], answers[1], short], true).len(), 1);
        assert_eq!(split(&answers, true).len(), 1);
        assert_eq!(split(&[], true), Vec::<Vec<_>>::new());
    }

    #[test]
    fn a_prompt_is_cut_where_a_cache_hit_would_end() {
        let pieces = |start: u64, count: usize| {
            let batches = split(&[work(0, start, count, true)], true);
            batches.iter().map(|one| one[0].2).collect::<Vec<_>>()
        };
        assert_eq!(pieces(0, 72), [64, 8]);
        assert_eq!(
            pieces(64, 8),
            [8],
            "with a hit and without, the last 8 by themselves"
        );
        assert_eq!(pieces(0, 65), [64, 1], "one token is left to compute");
        assert_eq!(pieces(0, 64), [48, 16], "a hit leaves at least one");
        assert_eq!(
            (pieces(0, 63), pieces(0, 9)),
            (vec![63], vec![9]),
            "too short to be cut"
        );
        let unfinished = split(&[work(0, 0, 72, false)], true);
        assert_eq!(unfinished, [[(0, 0, 72, false)]], "more of it comes");
        assert_eq!(
            split(&[work(0, 0, 72, true)], false).len(),
            1,
            "nothing is kept"
        );
    }

    #[test]
    fn the_end_of_a_prompt_is_computed_with_the_answers_unless_they_are_too_many() {
        let prompts = [work(8, 0, 76, true), work(9, 16, 76, true)];
        let tails = [(8, 64, 12, true), (9, 80, 12, true)];
        let heads = vec![(8, 0, 64, false), (9, 16, 64, false)];
        let answers = |count: u32| (0..count).map(|seq| work(seq, 40, 1, true));
        let step: Vec<_> = answers(8).chain(prompts).collect();
        let batches = split(&step, true);
        assert_eq!((batches.len(), &batches[0]), (2, &heads));
        assert_eq!((batches[1].len(), &batches[1][..2]), (10, &tails[..]));
        let step: Vec<_> = answers(40).chain(prompts).collect();
        let batches = split(&step, true);
        assert_eq!(
            (batches.len(), &batches[0], &batches[1]),
            (3, &heads, &tails.to_vec())
        );
        assert_eq!(batches[2].len(), 40);
    }

    /// By batch, the sequence, tokens, and padding of each part, where sequences have a lane each:
    /// that of their number, backwards.
    fn laned(
        work: &[StepWork<'_>],
        repeats: bool,
        positions: u64,
    ) -> Vec<Vec<(u32, usize, usize)>> {
        let told = |part: &Part<'_>| (part.seq.get(), part.tokens.len(), part.padding);
        let lane = |seq: SeqId| Some(SeqId::new(100 - seq.get()));
        let batches = of_lanes(work, repeats, positions, lane);
        batches
            .iter()
            .map(|one| one.iter().map(told).collect())
            .collect()
    }

    #[test]
    fn lanes_are_computed_in_their_order_and_prompts_of_nearly_one_length_as_one() {
        let answer = work(1, 90, 1, true);
        let prompts = [
            work(2, 0, 20, true),
            work(3, 0, 18, true),
            work(4, 0, 5, true),
        ];
        let step = [answer, prompts[0], prompts[1], prompts[2]];
        let padded = vec![vec![(4, 5, 0), (3, 18, 2), (2, 20, 0), (1, 1, 0)]];
        assert_eq!(laned(&step, true, 1_000), padded);
        let narrow = vec![vec![(4, 5, 0), (3, 18, 0), (2, 20, 0), (1, 1, 0)]];
        assert_eq!(laned(&step, true, 19), narrow, "no lane is that long");
        assert_eq!(laned(&[answer], true, 1_000), [[(1, 1, 0)]]);
    }

    #[test]
    fn the_end_of_a_prompt_is_computed_after_it_in_lanes_too() {
        let step = [work(1, 90, 1, true), work(2, 0, 76, true)];
        let apart = vec![vec![(2, 64, 0)], vec![(2, 12, 0), (1, 1, 0)]];
        assert_eq!(laned(&step, true, 1_000), apart);
        assert_eq!(laned(&step, false, 1_000), [[(2, 76, 0), (1, 1, 0)]]);
    }

    #[test]
    fn all_of_a_step_is_computed_once_and_sampled_once() {
        let step = [
            work(3, 5, 1, true),
            work(1, 0, 600, true),
            work(4, 30, 90, false),
        ];
        let lane = |seq: SeqId| Some(seq);
        for parts in [false, true]
            .into_iter()
            .flat_map(|repeats| [of_step(&step, repeats), of_lanes(&step, repeats, 700, lane)])
            .map(|batches| batches.concat())
        {
            for (of, work) in step.iter().enumerate() {
                let own: Vec<_> = parts.iter().filter(|part| part.of == of).collect();
                let mut next = work.start.get();
                for part in &own {
                    assert_eq!((part.seq, part.start), (work.seq, next));
                    next += u64::try_from(part.tokens.len()).unwrap();
                }
                assert_eq!(
                    next,
                    work.start.get() + u64::try_from(work.tokens.len()).unwrap()
                );
                let sampled = own.iter().filter(|part| part.samples).count();
                assert_eq!(sampled, usize::from(work.samples));
                assert_eq!(own.last().unwrap().samples, work.samples);
            }
        }
    }
}
