//! Columns of text.

/// Rows under a heading. Numbers are aligned to the right, text to the left; the end of a line is not padded.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|h| h.to_string()).collect()] }
    }

    /// Adds a row; an empty cell shows as `-`.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|c| if c.is_empty() { "-".into() } else { c }).collect());
    }

    /// The lines, each with its newline; empty if there is no row.
    pub fn text(&self) -> String {
        if self.rows.len() < 2 {
            return String::new();
        }
        let columns = self.rows[0].len();
        let width = |c: usize| {
            self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let is_number = |s: &String| s == "-" || s.starts_with(|c: char| c.is_ascii_digit());
        let right: Vec<_> =
            (0..columns).map(|c| self.rows[1..].iter().filter_map(|r| r.get(c)).all(is_number)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().enumerate().map(|(c, cell)| match right[c] {
                true => format!("{cell:>width$}", width = widths[c]),
                false => format!("{cell:<width$}", width = widths[c]),
            });
            text += cells.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", "PACKETS", "WHY"]);
        assert_eq!(table.text(), "");
        table.row(["a".into(), "5".into(), "".into()]);
        table.row(["longer".into(), "12345678".into(), "some text".into()]);
        assert_eq!(
            table.text(),
            "NAME     PACKETS  WHY\n\
             a              5  -\n\
             longer  12345678  some text\n"
        );
    }
}
