//! Tool calls out of a model's text, as it comes: what is talk, which tool is called, and the
//! arguments piece by piece.
//!
//! Whatever turns out not to be a call of a tool that was offered is talk, character by character
//! as the model wrote it. The result is the same however the text was cut into pieces.

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallSyntax {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, or a list of such objects.
    Tagged,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}]`, and nothing after it.
    Listed,
    /// The whole text is `{"name": …, "parameters": …}`, a marker before it or not.
    Bare,
}

impl CallSyntax {
    const fn opening(self) -> &'static str {
        match self {
            Self::Tagged => "<tool_call>",
            Self::Listed => "[TOOL_CALLS]",
            Self::Bare => "<|python_tag|>",
        }
    }

    const fn closing(self) -> &'static str {
        match self {
            Self::Tagged => "</tool_call>",
            Self::Listed | Self::Bare => "",
        }
    }
}

/// A piece of what a text says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Talk; never empty.
    Text(String),
    /// A call begins; calls are numbered in order, from 0.
    Call {
        /// Which one.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of the arguments of the call that began last; never empty.
    Arguments {
        /// Which call.
        index: usize,
        /// JSON, in part.
        json: String,
    },
}

/// Reads one text.
#[derive(Clone, Debug)]
pub struct CallReader {
    syntax: CallSyntax,
    names: Vec<String>,
    /// Calls that begin after this many are talk.
    most: usize,
    calls: usize,
    state: State,
    /// What was read and may still be part of a marker or of a call.
    held: String,
}

#[derive(Clone, Debug)]
enum State {
    /// Talk. Whether nothing was said yet.
    Talk { blank: bool },
    /// Between the marker and a call, or after a call.
    Between { after: bool },
    /// Inside the object of a call; all of it is held until its name is known.
    Object(Object),
}

impl CallReader {
    /// Calls of these tools, at most so many, written like this.
    pub fn new(syntax: CallSyntax, names: Vec<String>, most: usize) -> Self {
        Self {
            syntax,
            names,
            most,
            calls: 0,
            state: State::Talk { blank: true },
            held: String::new(),
        }
    }

    /// Calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Takes the next piece of the text.
    pub fn push(&mut self, text: &str, said: &mut Vec<Said>) {
        for c in text.chars() {
            self.take(c, said);
        }
        self.let_go_of_arguments(said);
    }

    /// Ends the text: what was held back comes out.
    pub fn finish(&mut self, said: &mut Vec<Said>) {
        let over = State::Talk { blank: false };
        match std::mem::replace(&mut self.state, over) {
            State::Talk { .. } => self.say_held(said),
            State::Between { after: true } => self.held.clear(),
            State::Between { after: false } => self.say_held(said),
            State::Object(object) if object.is_told() => self.held.clear(),
            State::Object(_) => self.say_held(said),
        }
    }

    fn take(&mut self, c: char, said: &mut Vec<Said>) {
        match &mut self.state {
            State::Talk { blank } => {
                let blank = *blank;
                self.held.push(c);
                self.talk(c, blank, said);
            }
            State::Between { after } => {
                let after = *after;
                self.held.push(c);
                self.between(c, after, said);
            }
            State::Object(object) => {
                self.held.push(c);
                match object.take(c) {
                    Progress::More => {}
                    Progress::Wrong => self.give_up(said),
                    Progress::Named => self.name(said),
                    Progress::Over => self.close(said),
                }
            }
        }
    }

    /// One more character of talk is held.
    fn talk(&mut self, c: char, blank: bool, said: &mut Vec<Said>) {
        let opening = self.syntax.opening();
        if self.held.ends_with(opening) {
            // What is left of the marker stays held, in case no call follows.
            let talk: String = self.held.drain(..self.held.len() - opening.len()).collect();
            let only_space = talk.trim().is_empty();
            if !talk.is_empty() && !only_space {
                said.push(Said::Text(talk));
            }
            self.state = State::Between { after: false };
            return;
        }
        let bare = self.syntax == CallSyntax::Bare && blank;
        if bare && c == '{' && self.held.trim_start() == "{" {
            self.state = State::Object(Object::default());
            return;
        }
        let may_be_marker = (1..opening.len())
            .rev()
            .any(|length| self.held.ends_with(&opening[..length]));
        if may_be_marker || (blank && self.held.trim().is_empty()) {
            return;
        }
        self.state = State::Talk { blank: false };
        self.say_held(said);
    }

    fn between(&mut self, c: char, after: bool, said: &mut Vec<Said>) {
        let closing = self.syntax.closing();
        match c {
            '{' => {
                let rest = self
                    .held
                    .trim_start_matches([',', '[', ' ', '\n', '\r', '\t']);
                let opened = !after || rest == "{";
                if opened {
                    self.state = State::Object(Object::default());
                } else {
                    self.talk_on(said);
                }
            }
            _ if c.is_whitespace() || matches!(c, ',' | '[' | ']' | ';') => {}
            _ if after && !closing.is_empty() => {
                let rest = self.held.trim_start_matches([']', ' ', '\n', '\r', '\t']);
                if rest == closing {
                    self.held.clear();
                    self.state = State::Talk { blank: true };
                } else if !closing.starts_with(rest) {
                    self.talk_on(said);
                }
            }
            _ => self.talk_on(said),
        }
    }

    /// No call came: all that is held is talk.
    fn talk_on(&mut self, said: &mut Vec<Said>) {
        self.state = State::Talk { blank: false };
        self.say_held(said);
    }

    /// The object is none of a call. If it has begun as one, its arguments end here.
    fn give_up(&mut self, said: &mut Vec<Said>) {
        if let State::Object(object) = &self.state
            && object.is_told()
        {
            self.let_go_of_arguments(said);
            self.held.clear();
            self.state = State::Between { after: true };
            return;
        }
        self.talk_on(said);
    }

    fn name(&mut self, said: &mut Vec<Said>) {
        let State::Object(object) = &mut self.state else {
            return;
        };
        let known = |name: &&String| self.names.contains(name);
        match object.name.as_ref().filter(known) {
            Some(name) if self.calls < self.most => {
                said.push(Said::Call {
                    index: self.calls,
                    name: name.clone(),
                });
                self.calls += 1;
                object.told = Some(0);
            }
            Some(_) | None => self.give_up(said),
        }
    }

    /// The object is whole.
    fn close(&mut self, said: &mut Vec<Said>) {
        self.let_go_of_arguments(said);
        let State::Object(object) = &mut self.state else {
            return;
        };
        let Some(told) = object.told else {
            return self.talk_on(said);
        };
        if told == 0 {
            let json = object.arguments_at_the_end();
            let index = self.calls - 1;
            said.push(Said::Arguments { index, json });
        }
        self.held.clear();
        self.state = State::Between { after: true };
    }

    /// Arguments go out as they come, once it is known whose they are.
    fn let_go_of_arguments(&mut self, said: &mut Vec<Said>) {
        let State::Object(object) = &mut self.state else {
            return;
        };
        let Some(told) = &mut object.told else { return };
        self.held.clear();
        if !object.arguments.starts_with('{') || *told == object.arguments.len() {
            return;
        }
        let json = object.arguments[*told..].to_owned();
        *told = object.arguments.len();
        let index = self.calls - 1;
        said.push(Said::Arguments { index, json });
    }

    fn say_held(&mut self, said: &mut Vec<Said>) {
        let text = std::mem::take(&mut self.held);
        match said.last_mut() {
            _ if text.is_empty() => {}
            Some(Said::Text(last)) => last.push_str(&text),
            Some(_) | None => said.push(Said::Text(text)),
        }
    }
}

/// What one more character made of an object.
enum Progress {
    More,
    /// It is no JSON object.
    Wrong,
    /// Its name is whole.
    Named,
    /// It is whole.
    Over,
}

/// The object of one call, read character by character.
#[derive(Clone, Debug, Default)]
struct Object {
    place: Place,
    /// The key or the value under way, as written.
    raw: String,
    key: String,
    /// Brackets open inside the value.
    depth: usize,
    in_string: bool,
    escaped: bool,
    name: Option<String>,
    arguments: String,
    /// How much of the arguments went out, once the name did.
    told: Option<usize>,
}

/// Where in an object the next character stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before a key, or the end.
    #[default]
    BeforeKey,
    Key,
    Colon,
    BeforeValue,
    Value,
    AfterValue,
}

impl Object {
    fn is_told(&self) -> bool {
        self.told.is_some()
    }

    fn takes_arguments(&self) -> bool {
        matches!(self.key.as_str(), "arguments" | "parameters")
    }

    fn take(&mut self, c: char) -> Progress {
        match self.place {
            Place::BeforeKey => match c {
                '"' => self.begin(Place::Key, c),
                '}' => return Progress::Over,
                _ if c.is_whitespace() => {}
                _ => return Progress::Wrong,
            },
            Place::Key => {
                self.raw.push(c);
                if self.ends_string(c) {
                    self.key = unquoted(&self.raw);
                    self.place = Place::Colon;
                }
            }
            Place::Colon => match c {
                ':' => self.place = Place::BeforeValue,
                _ if c.is_whitespace() => {}
                _ => return Progress::Wrong,
            },
            Place::BeforeValue if c.is_whitespace() => {}
            Place::BeforeValue => {
                self.begin(Place::Value, c);
                return self.value(c);
            }
            Place::Value => {
                // What ends a bare word is not part of it.
                let bare = self.depth == 0 && !self.in_string;
                if bare && (matches!(c, ',' | '}') || c.is_whitespace()) {
                    self.end_value();
                    return self.after_value(c);
                }
                self.raw.push(c);
                return self.value(c);
            }
            Place::AfterValue => return self.after_value(c),
        }
        Progress::More
    }

    fn begin(&mut self, place: Place, c: char) {
        self.place = place;
        self.raw = c.to_string();
        self.in_string = c == '"';
        self.escaped = false;
        self.depth = 0;
        if place == Place::Value && self.takes_arguments() {
            self.arguments.clear();
        }
    }

    /// A character of a value, which is in `raw` already.
    fn value(&mut self, c: char) -> Progress {
        if self.takes_arguments() {
            self.arguments.push(c);
        }
        let begun = self.raw.len() > c.len_utf8();
        let ended = if self.in_string {
            begun && self.ends_string(c) && self.depth == 0
        } else {
            match c {
                '"' => self.in_string = true,
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            matches!(c, '}' | ']') && self.depth == 0
        };
        if !ended {
            return Progress::More;
        }
        self.end_value();
        if self.key == "name" && self.name.is_some() && self.told.is_none() {
            return Progress::Named;
        }
        Progress::More
    }

    fn end_value(&mut self) {
        self.place = Place::AfterValue;
        if self.key == "name" && self.name.is_none() {
            self.name = serde_json::from_str(&self.raw).ok();
        }
        self.raw.clear();
    }

    fn after_value(&mut self, c: char) -> Progress {
        match c {
            ',' => self.place = Place::BeforeKey,
            '}' => return Progress::Over,
            _ if c.is_whitespace() => {}
            _ => return Progress::Wrong,
        }
        Progress::More
    }

    /// Whether this character, inside a string, ends it.
    fn ends_string(&mut self, c: char) -> bool {
        if self.escaped {
            self.escaped = false;
            return false;
        }
        match c {
            '\\' => self.escaped = true,
            '"' => self.in_string = false,
            _ => {}
        }
        !self.in_string
    }

    /// Arguments that are no object: those written as a string are meant as what it says, and none
    /// are no arguments.
    fn arguments_at_the_end(&self) -> String {
        match serde_json::from_str(&self.arguments) {
            Ok(serde_json::Value::String(text)) if !text.trim().is_empty() => text,
            Ok(_) | Err(_) => "{}".to_owned(),
        }
    }
}

fn unquoted(raw: &str) -> String {
    serde_json::from_str(raw).unwrap_or_default()
}
