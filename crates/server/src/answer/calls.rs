//! Calls of tools in a streamed answer: letters of text become talk, openings of calls, and pieces
//! of their arguments.

use tollgate_wire::{CallOpening, CallReader, ChunkWriter, Logprob, Piece, Said};

use crate::prepare::Reading;

/// What a stream knows of the calls in its choices.
#[derive(Debug)]
pub(crate) struct Calls {
    reading: Reading,
    /// The answer's id, of which those of calls are made.
    answer: String,
    /// By choice.
    choices: Vec<Choice>,
}

#[derive(Debug)]
struct Choice {
    reader: CallReader,
    /// Of text that is held back.
    logprobs: Vec<Logprob>,
    /// Tokens of it.
    tokens: u32,
}

/// Whose text is to be shown, and how.
#[derive(Debug)]
pub(crate) struct Spoken<'a> {
    pub(crate) choice: u32,
    pub(crate) text: &'a str,
    pub(crate) tokens: u32,
    /// Characters of the choice before it.
    pub(crate) offset: usize,
    pub(crate) logprobs: Option<Vec<Logprob>>,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Tokens whose text went out; none while it is held back.
    pub(crate) tokens: Option<u32>,
    /// Characters of talk.
    pub(crate) characters: usize,
}

impl Calls {
    pub(crate) fn new(reading: Reading, answer: String, choices: usize) -> Self {
        let choice = || Choice {
            reader: reading.reader(),
            logprobs: Vec::new(),
            tokens: 0,
        };
        let choices = (0..choices).map(|_| choice()).collect();
        Self {
            reading,
            answer,
            choices,
        }
    }

    /// Writes what a piece of text says, as far as that is known.
    pub(crate) fn write(
        &mut self,
        spoken: Spoken<'_>,
        writer: &ChunkWriter,
        out: &mut Vec<u8>,
    ) -> Written {
        let at = place(spoken.choice);
        let Some(choice) = self.choices.get_mut(at) else {
            return Written::default();
        };
        let mut said = Vec::new();
        choice.reader.push(spoken.text, &mut said);
        choice.tokens += spoken.tokens;
        let with_logprobs = spoken.logprobs.is_some();
        choice
            .logprobs
            .extend(spoken.logprobs.into_iter().flatten());
        self.say(
            said,
            spoken.choice,
            (spoken.offset, with_logprobs),
            (writer, out),
        )
    }

    /// Writes what was held back; whether the choice has calls.
    pub(crate) fn finish(&mut self, choice: u32, writer: &ChunkWriter, out: &mut Vec<u8>) -> bool {
        let Some(one) = self.choices.get_mut(place(choice)) else {
            return false;
        };
        let mut said = Vec::new();
        one.reader.finish(&mut said);
        let called = one.reader.calls() > 0;
        let with_logprobs = !one.logprobs.is_empty();
        self.say(said, choice, (0, with_logprobs), (writer, out));
        called
    }

    fn say(
        &mut self,
        said: Vec<Said>,
        choice: u32,
        (offset, with_logprobs): (usize, bool),
        (writer, out): (&ChunkWriter, &mut Vec<u8>),
    ) -> Written {
        let Some(one) = self.choices.get_mut(place(choice)) else {
            return Written::default();
        };
        let mut written = Written::default();
        for what in said {
            written.tokens = Some(written.tokens.unwrap_or(0) + std::mem::take(&mut one.tokens));
            // Of calls nobody is told how likely they were: what is held belongs to what is said.
            let logprobs = std::mem::take(&mut one.logprobs);
            match what {
                Said::Text(text) => {
                    let piece = Piece {
                        choice,
                        text: &text,
                        offset: offset + written.characters,
                        logprobs: with_logprobs.then_some(&logprobs),
                    };
                    writer.content(piece, out);
                    written.characters += text.chars().count();
                }
                Said::Call { index, name } => {
                    let id = self.reading.call_id(&self.answer, choice, index);
                    let opening = CallOpening {
                        index,
                        id: &id,
                        name: &name,
                    };
                    writer.call(choice, opening, out);
                }
                Said::Arguments { index, json } => writer.arguments(choice, index, &json, out),
            }
        }
        written
    }
}

fn place(choice: u32) -> usize {
    usize::try_from(choice).unwrap_or(usize::MAX)
}
