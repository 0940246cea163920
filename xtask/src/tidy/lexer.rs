//! Splits Rust source into code, comments and string literals, line by line.
//!
//! It knows just enough of the grammar to tell what is code: line and nested block comments,
//! strings with escapes, raw strings, byte and C strings, chars and lifetimes. It does not parse
//! and never rejects: rustc has seen the file before or will after.

use super::File;

/// A Rust file with its code, comments and test regions told apart.
#[derive(Debug)]
pub(super) struct RustSource<'a> {
    pub(super) file: File<'a>,
    /// The lines with comments and the insides of literals blanked; columns are kept.
    pub(super) code: Vec<String>,
    /// The lines with everything but comments blanked.
    pub(super) comments: Vec<String>,
    /// Whether the line begins inside a string literal that an earlier line opened.
    pub(super) begins_in_string: Vec<bool>,
    /// Whether the line belongs to a test: a test file, or an item under `#[cfg(test)]`.
    pub(super) is_test: Vec<bool>,
}

impl<'a> RustSource<'a> {
    pub(super) fn read(file: File<'a>) -> Self {
        let mut lexer = Lexer::new(file.text);
        while lexer.at < lexer.chars.len() {
            lexer.step();
        }
        let mut source = Self {
            file,
            code: lines(&lexer.code),
            comments: lines(&lexer.comments),
            begins_in_string: lexer.begins_in_string,
            is_test: Vec::new(),
        };
        source.is_test = source.test_lines();
        source
    }

    fn test_lines(&self) -> Vec<bool> {
        let path = self.file.path;
        let whole_file = path.contains("/tests/") || path.ends_with("/tests.rs");
        let mut is_test = vec![whole_file; self.code.len()];
        for (start, line) in self.code.iter().enumerate() {
            if !line.contains("#[cfg(test)]") {
                continue;
            }
            let after = line
                .find("#[cfg(test)]")
                .map_or(0, |at| at + "#[cfg(test)]".len());
            let end = self.end_of_item(Position {
                line: start,
                column: after,
            });
            for flag in is_test.iter_mut().take(end.line + 1).skip(start) {
                *flag = true;
            }
        }
        is_test
    }

    /// Where the item that follows `from` ends: its closing brace, or its semicolon.
    fn end_of_item(&self, from: Position) -> Position {
        match self.body_after(from) {
            Some(open) => self.matching_brace(open),
            None => from,
        }
    }

    /// The first brace after `from` that is not inside brackets, unless a semicolon comes first.
    pub(super) fn body_after(&self, from: Position) -> Option<Position> {
        let mut depth = 0_usize;
        for (position, symbol) in self.symbols_from(from) {
            match symbol {
                '(' | '[' => depth += 1,
                ')' | ']' => depth = depth.saturating_sub(1),
                '{' if depth == 0 => return Some(position),
                ';' if depth == 0 => return None,
                _ => {}
            }
        }
        None
    }

    /// The brace that closes the one at `open`; the end of the file when there is none.
    pub(super) fn matching_brace(&self, open: Position) -> Position {
        let mut depth = 0_usize;
        for (position, symbol) in self.symbols_from(open) {
            match symbol {
                '{' => depth += 1,
                '}' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return position;
                    }
                }
                _ => {}
            }
        }
        Position {
            line: self.code.len().saturating_sub(1),
            column: 0,
        }
    }

    fn symbols_from(&self, from: Position) -> impl Iterator<Item = (Position, char)> {
        let lines = self.code.iter().enumerate().skip(from.line);
        lines.flat_map(move |(line, text)| {
            let skipped = if line == from.line { from.column } else { 0 };
            text.char_indices()
                .filter(move |(column, _)| *column >= skipped)
                .map(move |(column, symbol)| (Position { line, column }, symbol))
        })
    }
}

/// A place in the code: both counted from 0, the column in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// The identifiers of a line of code, with the byte column at which each begins.
pub(super) fn identifiers(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = 0;
    std::iter::from_fn(move || {
        let start = rest + line.get(rest..)?.find(is_identifier)?;
        let tail = line.get(start..)?;
        let length = tail
            .find(|symbol| !is_identifier(symbol))
            .unwrap_or(tail.len());
        rest = start + length;
        Some((start, tail.get(..length)?))
    })
}

fn is_identifier(symbol: char) -> bool {
    symbol.is_alphanumeric() || symbol == '_'
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// What a stretch of source goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    Comment,
    Literal,
}

#[derive(Debug)]
struct Lexer {
    chars: Vec<char>,
    at: usize,
    code: String,
    comments: String,
    begins_in_string: Vec<bool>,
}

impl Lexer {
    fn new(text: &str) -> Self {
        Self {
            chars: text.chars().collect(),
            at: 0,
            code: String::new(),
            comments: String::new(),
            begins_in_string: vec![false],
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Takes one token: a comment, a literal, an identifier or a symbol.
    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('/')) => self.line_comment(),
            (Some('/'), Some('*')) => self.block_comment(),
            (Some('"'), _) => self.string(),
            (Some('\''), _) => self.char_or_lifetime(),
            (Some(symbol), _) if is_identifier(symbol) => self.word(),
            _ => self.take(Part::Code),
        }
    }

    fn take(&mut self, part: Part) {
        let Some(symbol) = self.peek(0) else { return };
        self.at += 1;
        if symbol == '\n' {
            self.code.push('\n');
            self.comments.push('\n');
            self.begins_in_string.push(part == Part::Literal);
            return;
        }
        self.code
            .push(if part == Part::Code { symbol } else { ' ' });
        self.comments
            .push(if part == Part::Comment { symbol } else { ' ' });
    }

    fn take_many(&mut self, count: usize, part: Part) {
        for _ in 0..count {
            self.take(part);
        }
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|symbol| symbol != '\n') {
            self.take(Part::Comment);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while self.peek(0).is_some() {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => {
                    depth += 1;
                    self.take_many(2, Part::Comment);
                }
                (Some('*'), Some('/')) => {
                    depth -= 1;
                    self.take_many(2, Part::Comment);
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.take(Part::Comment),
            }
        }
    }

    fn string(&mut self) {
        self.take(Part::Code);
        while let Some(symbol) = self.peek(0) {
            match symbol {
                '\\' => self.take_many(2, Part::Literal),
                '"' => return self.take(Part::Code),
                _ => self.take(Part::Literal),
            }
        }
    }

    /// A quote opens a char when an escape follows, or when the quote after next closes it.
    fn char_or_lifetime(&mut self) {
        let is_char = self.peek(1) == Some('\\') || self.peek(2) == Some('\'');
        self.take(Part::Code);
        if !is_char {
            return;
        }
        if self.peek(0) == Some('\\') {
            self.take(Part::Literal);
        }
        self.take(Part::Literal);
        while self.peek(0).is_some_and(|symbol| symbol != '\'') {
            self.take(Part::Literal);
        }
        self.take(Part::Code);
    }

    /// An identifier or number; `r`, `br` and `cr` may open a raw string.
    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(is_identifier) {
            self.take(Part::Code);
        }
        let word: String = self.chars.iter().take(self.at).skip(start).collect();
        if !matches!(word.as_str(), "r" | "br" | "cr") {
            return;
        }
        let hashes = self
            .chars
            .iter()
            .skip(self.at)
            .take_while(|symbol| **symbol == '#')
            .count();
        if self.peek(hashes) == Some('"') {
            self.raw_string(hashes);
        }
    }

    fn raw_string(&mut self, hashes: usize) {
        self.take_many(hashes + 1, Part::Code);
        while let Some(symbol) = self.peek(0) {
            let closes = symbol == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#'));
            if closes {
                return self.take_many(hashes + 1, Part::Code);
            }
            self.take(Part::Literal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        RustSource::read(File {
            path: "src/lib.rs",
            text,
        })
        .code
        .join("\n")
    }

    #[test]
    fn comments_and_the_insides_of_strings_are_not_code() {
        assert_eq!(
            code("a /* b /* c */ d */ e // f"),
            "a                   e     "
        );
        assert_eq!(code(r#"f("x\"y", 'z')"#), r#"f("    ", ' ')"#);
        assert_eq!(code("f(r#\"a\"b\"#)"), "f(r#\"   \"#)");
        assert_eq!(code(r#"f(b"x", c"y")"#), r#"f(b" ", c" ")"#);
    }

    #[test]
    fn braces_in_literals_do_not_count_and_lifetimes_are_not_chars() {
        assert_eq!(
            code("fn f<'a>(x: &'a str) { '{'; \"}\" }"),
            "fn f<'a>(x: &'a str) { ' '; \" \" }"
        );
        assert_eq!(code(r"'\'' '\u{7d}' x"), r"'  ' '      ' x");
    }

    #[test]
    fn a_raw_identifier_does_not_open_a_string() {
        assert_eq!(code("let r#type = 1;"), "let r#type = 1;");
    }

    #[test]
    fn a_line_inside_a_string_is_known_as_such() {
        let text = "f(\"a\n  b\n\");\nc";
        let source = RustSource::read(File {
            path: "src/lib.rs",
            text,
        });
        assert_eq!(source.begins_in_string, [false, true, true, false]);
    }

    #[test]
    fn an_item_under_cfg_test_is_test_code_and_what_follows_is_not() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n";
        let source = RustSource::read(File {
            path: "src/lib.rs",
            text,
        });
        assert_eq!(source.is_test, [false, true, true, true, true, false]);
        let text = "#[cfg(test)]\nmod tests;\nfn c() {}\n";
        let source = RustSource::read(File {
            path: "src/lib.rs",
            text,
        });
        assert_eq!(source.is_test, [true, false, false]);
    }

    #[test]
    fn a_file_of_tests_is_all_test_code() {
        for path in ["crates/a/tests/b.rs", "crates/a/src/b/tests.rs"] {
            let source = RustSource::read(File {
                path,
                text: "fn a() {}\n",
            });
            assert_eq!(source.is_test, [true]);
        }
    }

    #[test]
    fn identifiers_come_with_their_columns() {
        let found: Vec<_> = identifiers("fn a_b(c: D2)").collect();
        assert_eq!(found, [(0, "fn"), (3, "a_b"), (7, "c"), (10, "D2")]);
    }
}
