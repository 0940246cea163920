//! YAML text as a tree whose nodes know where they stand.
//!
//! Scalars stay text: whoever reads a key knows what it should be, so a digest of digits only stays
//! a digest and a model called `no` stays a name. The tree is bounded in bytes, nodes and depth,
//! aliases included. It knows nothing of Tollgate's keys.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};

use super::problem::{Mark, Problem};

/// The longest configuration, in bytes: some ten thousand tenants, and no file given by mistake.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// The most nodes, those that aliases repeat included, so that a few lines cannot unfold into
/// gigabytes.
const NODES_MAX: usize = 500_000;

/// The deepest nesting; the schema needs 6. Reading and dropping a tree recurse, so this bounds the
/// stack.
const DEPTH_MAX: usize = 32;

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Where it begins.
    pub(super) at: Mark,
    /// What it is.
    pub(super) value: Value,
    /// Levels below and including this one.
    height: usize,
    /// Nodes below and including this one.
    count: usize,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// Text, quoted or not.
    Scalar(Scalar),
    /// A sequence.
    List(Vec<Node>),
    /// Keys and values in the order of the file, repeated keys included.
    Mapping(Vec<(Node, Node)>),
    /// Already reported: whoever reads it stays silent.
    Broken,
}

/// A scalar's text.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    /// What it says once its variables are replaced.
    pub(super) text: String,
    /// What the file says, where that differs.
    pub(super) written: Option<String>,
}

impl Node {
    /// A mapping without keys at the start of the file: what an empty file means.
    pub(super) fn empty() -> Self {
        Self {
            at: Mark::START,
            value: Value::Mapping(vec![]),
            height: 1,
            count: 1,
        }
    }
}

/// The one document in `text`; `None` when there is none.
///
/// # Errors
/// The first error of syntax: the text behind it has no certain meaning.
pub(super) fn load(text: &str) -> Result<Option<Node>, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.len() > TEXT_BYTES_MAX {
        let message = format!(
            "the file has {} bytes; at most {TEXT_BYTES_MAX} are read",
            text.len()
        );
        return Err(Mark::START.problem("", message));
    }
    let mut builder = Builder::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| syntax(text, &error))?;
        builder.handle(event, span)?;
    }
    Ok(builder.root)
}

/// The problem that a scanner's error is, with a hint where its cause is known.
fn syntax(text: &str, error: &ScanError) -> Problem {
    let at = mark(*error.marker());
    let line = text
        .lines()
        .nth(at.line.saturating_sub(1))
        .unwrap_or_default();
    let indent: String = line.chars().take_while(|c| c.is_whitespace()).collect();
    if indent.contains('\t') {
        return at.problem("", "a tab cannot indent; use spaces");
    }
    at.problem("", format!("this is not YAML: {}", error.info()))
}

fn mark(marker: Marker) -> Mark {
    Mark {
        line: marker.line().max(1),
        column: marker.col() + 1,
    }
}

/// A sequence or mapping that is not closed yet.
#[derive(Debug)]
struct Open {
    at: Mark,
    anchor: usize,
    items: Items,
}

#[derive(Debug)]
enum Items {
    List(Vec<Node>),
    Mapping {
        entries: Vec<(Node, Node)>,
        key: Option<Node>,
    },
}

/// Puts the parser's events together.
#[derive(Debug, Default)]
struct Builder {
    open: Vec<Open>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
}

impl Builder {
    fn handle(&mut self, event: Event<'_>, span: Span) -> Result<(), Problem> {
        let at = mark(span.start);
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(at.problem("", "a second document begins; use one document only"))
            }
            Event::DocumentStart(_) => Ok(()),
            Event::SequenceStart(anchor, tag) => {
                self.begin(at, anchor, tag.as_deref(), Items::List(vec![]))
            }
            Event::MappingStart(anchor, tag) => {
                let items = Items::Mapping {
                    entries: vec![],
                    key: None,
                };
                self.begin(at, anchor, tag.as_deref(), items)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Scalar(text, style, anchor, tag) => {
                refuse_tag(at, tag.as_deref())?;
                self.spend(at, 1)?;
                let null = matches!(style, ScalarStyle::Plain)
                    && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let value = match null {
                    true => Value::Null,
                    false => Value::Scalar(Scalar {
                        text: text.into_owned(),
                        written: None,
                    }),
                };
                self.place(
                    Node {
                        at,
                        value,
                        height: 1,
                        count: 1,
                    },
                    anchor,
                )
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(node) => {
                    let node = node.clone();
                    self.spend(at, node.count)?;
                    self.place(node, 0)
                }
                None => Err(at.problem("", "an alias stands inside the value it repeats")),
            },
        }
    }

    fn begin(
        &mut self,
        at: Mark,
        anchor: usize,
        tag: Option<&Tag>,
        items: Items,
    ) -> Result<(), Problem> {
        refuse_tag(at, tag)?;
        self.spend(at, 1)?;
        self.check_depth(at, 1)?;
        self.open.push(Open { at, anchor, items });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Problem> {
        let Some(Open { at, anchor, items }) = self.open.pop() else {
            return Ok(());
        };
        let (value, height, count) = match items {
            Items::List(list) => {
                let (height, count) = measure(list.iter());
                (Value::List(list), height, count)
            }
            Items::Mapping { entries, key: _ } => {
                let (height, count) = measure(entries.iter().flat_map(|(key, value)| [key, value]));
                (Value::Mapping(entries), height, count)
            }
        };
        self.place(
            Node {
                at,
                value,
                height,
                count,
            },
            anchor,
        )
    }

    /// Puts a finished node into what is open around it.
    fn place(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        self.check_depth(node.at, node.height)?;
        if anchor > 0 {
            self.spend(node.at, node.count)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.items) {
            None => self.root = Some(node),
            Some(Items::List(list)) => list.push(node),
            Some(Items::Mapping { entries, key }) => match key.take() {
                None => *key = Some(node),
                Some(key) => entries.push((key, node)),
            },
        }
        Ok(())
    }

    /// Counts nodes that are about to be kept.
    fn spend(&mut self, at: Mark, nodes: usize) -> Result<(), Problem> {
        self.nodes = self.nodes.saturating_add(nodes);
        match self.nodes > NODES_MAX {
            true => {
                let message =
                    format!("the file holds over {NODES_MAX} values, its aliases unfolded");
                Err(at.problem("", message))
            }
            false => Ok(()),
        }
    }

    fn check_depth(&self, at: Mark, height: usize) -> Result<(), Problem> {
        match self.open.len() + height > DEPTH_MAX {
            true => Err(at.problem("", format!("nesting is deeper than {DEPTH_MAX} levels"))),
            false => Ok(()),
        }
    }
}

/// Height and node count of a collection of `nodes`.
fn measure<'n>(nodes: impl Iterator<Item = &'n Node>) -> (usize, usize) {
    nodes.fold((1, 1), |(height, count), node| {
        (height.max(node.height + 1), count + node.count)
    })
}

/// Refuses tags that would change what a value means.
fn refuse_tag(at: Mark, tag: Option<&Tag>) -> Result<(), Problem> {
    match tag {
        Some(tag) if !tag.is_yaml_core_schema() => {
            Err(at.problem("", "a tag stands here; tags have no meaning in this file"))
        }
        Some(_) | None => Ok(()),
    }
}
