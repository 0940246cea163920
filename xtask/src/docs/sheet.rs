//! A table of CSV: a header, and lines whose first field is their key.

use anyhow::{Context, ensure};

use super::grouped;

/// A table as it was read.
#[derive(Debug)]
pub(super) struct Sheet {
    columns: Vec<String>,
    lines: Vec<Vec<String>>,
}

impl Sheet {
    /// Reads fields apart by commas; in quotes they may hold some.
    pub(super) fn read(text: &str) -> anyhow::Result<Self> {
        let mut lines = text.lines().map(fields);
        let columns = lines.next().context("it is empty")?;
        let lines: Vec<Vec<String>> = lines.collect();
        for (index, line) in lines.iter().enumerate() {
            let (found, wanted) = (line.len(), columns.len());
            ensure!(
                found == wanted,
                "line {}: {found} fields, not {wanted}",
                index + 2
            );
        }
        Ok(Self { columns, lines })
    }

    /// A cell of the only line with this key.
    pub(super) fn cell(&self, key: &str, column: &str) -> anyhow::Result<&str> {
        let place = self.place(column)?;
        let mut found = self
            .lines
            .iter()
            .filter(|line| line.first().is_some_and(|first| first == key));
        let line = found
            .next()
            .with_context(|| format!("there is no line `{key}`"))?;
        ensure!(found.next().is_none(), "there are several lines `{key}`");
        Ok(line.get(place).map_or("", String::as_str))
    }

    /// Some columns, or all without any named, in Markdown. The names' underscores are spaces.
    pub(super) fn table(&self, columns: &[&str]) -> anyhow::Result<String> {
        let all = || (0..self.columns.len()).collect();
        let places: Vec<usize> = if columns.is_empty() {
            all()
        } else {
            columns
                .iter()
                .map(|column| self.place(column))
                .collect::<Result<_, _>>()?
        };
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let pick = |fields: &[String]| -> Vec<String> {
            let cells = places
                .iter()
                .map(|place| fields.get(*place).cloned().unwrap_or_default());
            cells.collect()
        };
        let names = pick(&self.columns)
            .iter()
            .map(|name| name.replace('_', " "))
            .collect();
        let mut table = line(names);
        table += &format!("|{}\n", "---|".repeat(places.len()));
        for fields in &self.lines {
            table += &line(pick(fields).iter().map(|cell| grouped(cell)).collect());
        }
        Ok(table)
    }

    fn place(&self, column: &str) -> anyhow::Result<usize> {
        let mut columns = self.columns.iter();
        let place = columns.position(|name| name == column);
        place.with_context(|| format!("there is no column `{column}`"))
    }
}

fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut field, mut in_quotes) = (Vec::new(), String::new(), false);
    for symbol in line.chars() {
        match symbol {
            '"' => in_quotes = !in_quotes,
            ',' if !in_quotes => fields.push(std::mem::take(&mut field)),
            other => field.push(other),
        }
    }
    fields.push(field);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_another_number_of_fields_is_named() {
        let refused = Sheet::read("a,b\n1,2\n1\n").unwrap_err().to_string();
        assert_eq!(refused, "line 3: 1 fields, not 2");
        assert!(Sheet::read("").is_err());
    }

    #[test]
    fn a_key_that_stands_twice_names_no_cell() {
        let sheet = Sheet::read("a,b\nx,1\nx,2\n").unwrap();
        assert!(
            sheet
                .cell("x", "b")
                .unwrap_err()
                .to_string()
                .contains("several")
        );
    }
}
