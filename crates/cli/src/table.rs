//! Rows as columns that stand under each other, or as CSV.

/// Rows under a heading.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Self {
        let heading = heading.iter().map(|name| (*name).to_owned()).collect();
        Self {
            rows: vec![heading],
        }
    }

    pub(crate) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// For people: numbers to the right, texts to the left.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let cell = |row: &Vec<String>, at: usize| row.get(at).cloned().unwrap_or_default();
        let width = |at: usize| {
            let each = self.rows.iter().map(|row| cell(row, at).chars().count());
            each.max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let numeric = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        let right: Vec<_> = (0..columns)
            .map(|at| {
                let mut below = self.rows.iter().skip(1).map(|row| cell(row, at));
                self.rows.len() > 1
                    && below.all(|text| numeric(&text) && !text.contains(['-', ' ']))
            })
            .collect();
        let lines = self.rows.iter().map(|row| {
            let cells = widths
                .iter()
                .zip(&right)
                .enumerate()
                .map(|(at, (width, right))| {
                    let text = cell(row, at);
                    if *right {
                        format!("{text:>width$}")
                    } else {
                        format!("{text:<width$}")
                    }
                });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// For programs, as RFC 4180 has it.
    pub(crate) fn csv(&self) -> String {
        let cell = |text: &String| {
            if text.contains([',', '"', '\n', '\r']) {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text.clone()
            }
        };
        let line = |row: &Vec<String>| row.iter().map(cell).collect::<Vec<_>>().join(",");
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["model", "tokens"]);
        table.row(vec!["a".to_owned(), "12345".to_owned()]);
        table.row(vec!["b, \"c\"".to_owned(), "7".to_owned()]);
        table
    }

    #[test]
    fn numbers_stand_to_the_right_and_texts_to_the_left() {
        insta::assert_snapshot!(table().text(), @r#"
        model   tokens
        a        12345
        b, "c"       7
        "#);
    }

    #[test]
    fn a_cell_with_a_comma_is_quoted_in_csv() {
        insta::assert_snapshot!(table().csv(), @r#"
        model,tokens
        a,12345
        "b, ""c""",7
        "#);
    }
}
