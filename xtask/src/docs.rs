//! Numbers in documents come from committed results: this writes them, or checks that they are
//! current.
//!
//! A document marks a place with a comment and `<!-- end -->`; what stands between is generated
//! from a table of CSV under `results/`. It measures nothing and reads nothing else.
//!
//! - `<!-- table results/x.csv -->`: the whole table; with `a,b` after the file, those columns
//! - `<!-- value results/x.csv KEY COLUMN -->`: a cell of the line whose first field is KEY
//! - `<!-- ratio results/x.csv KEY COLUMN KEY COLUMN 2 -->`: one cell over another, to two places

mod sheet;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};

use self::sheet::Sheet;
use crate::tidy::{checkout_root, listed_files};

/// Whether stale documents are written anew or reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    Write,
    Report,
}

const END: &str = "<!-- end -->";
const KINDS: [&str; 3] = ["table", "value", "ratio"];

/// Brings the generated places of every document up to date, or says which are not.
pub(crate) fn run(stale: Stale) -> anyhow::Result<ExitCode> {
    let root = checkout_root()?;
    let (mut documents, mut places, mut stale_ones) = (0, 0, 0);
    for path in listed_files(&root)?
        .iter()
        .filter(|path| path.ends_with(".md"))
    {
        let Ok(text) = std::fs::read_to_string(root.join(path)) else {
            continue; // Deleted but still in the index.
        };
        let sheet = |name: &str| read_sheet(&root, name);
        let (current, count) = generated(&text, &sheet).with_context(|| path.clone())?;
        documents += usize::from(count > 0);
        places += count;
        if current == text {
            continue;
        }
        stale_ones += 1;
        match stale {
            Stale::Write => {
                std::fs::write(root.join(path), current).with_context(|| path.clone())?;
                eprintln!("docs: {path} written");
            }
            Stale::Report => eprintln!("{path}: not what its results say; run `cargo xtask docs`"),
        }
    }
    eprintln!("docs: {places} generated places in {documents} documents, {stale_ones} stale");
    Ok(if stale_ones > 0 && stale == Stale::Report {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn read_sheet(root: &Path, name: &str) -> anyhow::Result<Sheet> {
    ensure!(
        name.starts_with("results/") && !name.contains(".."),
        "`{name}` is not under results/"
    );
    let text = std::fs::read_to_string(root.join(name)).with_context(|| name.to_owned())?;
    Sheet::read(&text).with_context(|| name.to_owned())
}

/// The text with every marked place generated anew, and how many there are.
fn generated(
    text: &str,
    sheet: &dyn Fn(&str) -> anyhow::Result<Sheet>,
) -> anyhow::Result<(String, usize)> {
    let (mut done, mut rest, mut count) = (String::with_capacity(text.len()), text, 0);
    while let Some((before, order, after)) = next_place(rest)? {
        let (_, behind) = after
            .split_once(END)
            .with_context(|| format!("`<!-- {order} -->` has no `{END}`"))?;
        done += before;
        done += &format!("<!-- {order} -->{}{END}", content(order, sheet)?);
        rest = behind;
        count += 1;
    }
    done += rest;
    Ok((done, count))
}

/// What stands before the next marked place, its order, and what follows its mark.
fn next_place(text: &str) -> anyhow::Result<Option<(&str, &str, &str)>> {
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find("<!-- ")) {
        let start = from + found;
        let (before, rest) = text.split_at(start);
        let inside = rest.trim_start_matches("<!-- ");
        let Some((order, after)) = inside.split_once(" -->") else {
            bail!("a comment has no end");
        };
        let kind = order.split(' ').next().unwrap_or_default();
        // In a code block it is an example.
        let is_example = before.matches("```").count() % 2 == 1 || before.ends_with('`');
        if KINDS.contains(&kind) && !is_example {
            return Ok(Some((before, order, after)));
        }
        from = start + 1;
    }
    Ok(None)
}

fn content(order: &str, sheet: &dyn Fn(&str) -> anyhow::Result<Sheet>) -> anyhow::Result<String> {
    let words: Vec<&str> = order.split(' ').collect();
    match words.as_slice() {
        ["table", name] => Ok(format!("\n{}", sheet(name)?.table(&[])?)),
        ["table", name, columns] => {
            let columns: Vec<&str> = columns.split(',').collect();
            Ok(format!("\n{}", sheet(name)?.table(&columns)?))
        }
        ["value", name, key, column] => Ok(grouped(sheet(name)?.cell(key, column)?)),
        ["ratio", name, key, column, other_key, other_column, places] => {
            let sheet = sheet(name)?;
            let number = |key: &str, column: &str| -> anyhow::Result<f64> {
                let cell = sheet.cell(key, column)?;
                cell.parse()
                    .with_context(|| format!("`{cell}` in {key} {column} is no number"))
            };
            let (above, below) = (number(key, column)?, number(other_key, other_column)?);
            ensure!(below > 0.0, "{other_key} {other_column} is not above 0");
            let places: usize = places.parse().context("the number of places")?;
            Ok(format!("{:.places$}", above / below))
        }
        _ => bail!("`{order}` is no order; see the head of xtask/src/docs.rs"),
    }
}

/// `12469` as `12,469`; what is no whole number of four digits or more stays as it is.
pub(crate) fn grouped(cell: &str) -> String {
    if cell.len() < 4 || !cell.bytes().all(|byte| byte.is_ascii_digit()) {
        return cell.to_owned();
    }
    let mut text = String::new();
    for (index, digit) in cell.char_indices() {
        if index > 0 && (cell.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet(name: &str) -> anyhow::Result<Sheet> {
        ensure!(name == "results/x.csv", "no {name}");
        Sheet::read("key,tokens_per_s,note\nfair,2469,\"a, b\"\nfifo,2511,c\n")
    }

    fn done(text: &str) -> anyhow::Result<(String, usize)> {
        generated(text, &sheet)
    }

    #[test]
    fn values_ratios_and_tables_come_from_the_results() {
        let text = "It gives <!-- value results/x.csv fair tokens_per_s -->1<!-- end --> of \
                    <!-- ratio results/x.csv fair tokens_per_s fifo tokens_per_s 3 --><!-- end -->.\n\
                    <!-- table results/x.csv key,note -->old<!-- end -->\n<!-- a remark -->\n";
        let (current, count) = done(text).unwrap();
        assert_eq!(count, 3);
        assert!(current.contains("fair tokens_per_s -->2,469<!-- end --> of"));
        assert!(current.contains("-->0.983<!-- end -->."));
        assert!(current.contains(
            "-->\n| key | note |\n|---|---|\n| fair | a, b |\n| fifo | c |\n<!-- end -->"
        ));
        assert!(current.ends_with("<!-- a remark -->\n"));
        assert_eq!(done(&current).unwrap().0, current, "what is current stays");
    }

    #[test]
    fn an_order_that_cannot_be_carried_out_is_named() {
        let refused = |text: &str| format!("{:#}", done(text).unwrap_err());
        assert!(
            refused("<!-- value results/y.csv a b --><!-- end -->").contains("no results/y.csv")
        );
        assert!(
            refused("<!-- value results/x.csv none note --><!-- end -->")
                .contains("no line `none`")
        );
        assert!(
            refused("<!-- value results/x.csv fair none --><!-- end -->")
                .contains("no column `none`")
        );
        assert!(
            refused("<!-- value results/x.csv fair note -->").contains("has no `<!-- end -->`")
        );
        assert!(refused("<!-- value x --><!-- end -->").contains("is no order"));
        let words = "<!-- ratio results/x.csv fair note fifo tokens_per_s 2 --><!-- end -->";
        assert!(refused(words).contains("is no number"));
    }

    #[test]
    fn examples_in_code_are_left_alone() {
        let text = "```\n<!-- value results/none.csv a b -->\n```\n`<!-- table x -->`\n";
        assert_eq!(done(text).unwrap(), (text.to_owned(), 0));
    }

    #[test]
    fn thousands_are_told_apart() {
        for (cell, shown) in [
            ("999", "999"),
            ("1000", "1,000"),
            ("1234567", "1,234,567"),
            ("12.5", "12.5"),
            ("-", "-"),
        ] {
            assert_eq!(grouped(cell), shown);
        }
    }
}
