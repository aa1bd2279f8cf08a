//! Columns of text, and the numbered notes below them.

/// The most characters of a cell. The whole text of a longer one becomes a note.
const LONGEST: usize = 48;
/// The characters that stay in the cell of a long name.
const KEPT: usize = 24;

/// Rows under a heading. Numbers are aligned to the right, text to the left; the end of a line is not padded. A column
/// whose cells are all empty is left out, except the first. Text that is too long for a cell becomes a note below.
pub struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Table {
    /// A table with these column heads.
    pub fn new(heads: &[&'static str]) -> Self {
        Self { heads: heads.to_vec(), rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row; an empty cell shows as `-`.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<_> = cells.into_iter().map(|cell| self.fit(cell)).collect();
        self.rows.push(cells);
    }

    /// Adds a note, unless there is one with this text; returns its sign for a cell: `[2]`.
    pub fn note(&mut self, text: &str) -> String {
        let known = self.notes.iter().position(|note| note == text);
        let number = known.unwrap_or_else(|| {
            self.notes.push(text.into());
            self.notes.len() - 1
        });
        format!("[{}]", number + 1)
    }

    /// The signs of several notes, as in [`Table::note`].
    pub fn notes(&mut self, texts: impl IntoIterator<Item = impl AsRef<str>>) -> String {
        texts.into_iter().map(|text| self.note(text.as_ref())).collect()
    }

    fn fit(&mut self, cell: String) -> String {
        if cell.chars().count() <= LONGEST {
            return cell;
        }
        let note = self.note(&cell);
        if cell.contains(' ') {
            return note;
        }
        cell.chars().take(KEPT).chain("~ ".chars()).chain(note.chars()).collect()
    }

    /// The lines, each with its newline; empty if there is no row.
    pub fn text(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let says = |c: &usize| *c == 0 || self.cells(*c).any(|cell| !cell.is_empty());
        let columns: Vec<usize> = (0..self.heads.len()).filter(says).collect();
        let shown: Vec<_> = columns
            .iter()
            .map(|&c| {
                let widest = self.cells(c).map(|cell| cell.chars().count().max(1)).max().unwrap_or(0);
                let is_right = self.cells(c).all(|cell| cell.is_empty() || is_number(cell));
                (c, widest.max(self.heads[c].len()), is_right)
            })
            .collect();
        let line = |cell: &dyn Fn(usize) -> String| {
            let cells = shown.iter().map(|&(c, width, right)| match right {
                true => format!("{:>width$}", cell(c)),
                false => format!("{:<width$}", cell(c)),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        let mut text = line(&|c| self.heads[c].to_owned());
        for row in &self.rows {
            text += &line(&|c| match row.get(c) {
                Some(cell) if !cell.is_empty() => cell.clone(),
                _ => "-".into(),
            });
        }
        for (i, note) in self.notes.iter().enumerate() {
            text += &format!("  [{}] {note}\n", i + 1);
        }
        text
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &str> {
        self.rows.iter().map(move |row| row.get(column).map_or("", String::as_str))
    }
}

/// A count, a share or a quantity with its unit: `12`, `~5 %`, `1.2 MiB`, `-0.5`. Addresses and lists are text.
fn is_number(cell: &str) -> bool {
    let cell = cell.strip_prefix('~').unwrap_or(cell);
    let end = cell.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-')).unwrap_or(cell.len());
    let (number, unit) = cell.split_at(end);
    let is_unit = unit.chars().all(|c| c.is_ascii_alphabetic() || " %/".contains(c));
    unit.len() <= 6 && is_unit && number.parse::<f64>().is_ok()
}

/// A number that people compare and add up. A column with nothing but 0 is left out.
pub fn count(count: u64) -> String {
    if count == 0 { String::new() } else { count.to_string() }
}

/// A fraction as percent; empty if it is not a number.
pub fn percent(fraction: f64) -> String {
    // Adding 0.0 turns -0 into 0.
    if fraction.is_finite() { format!("{:.0} %", (fraction * 100.0).round() + 0.0) } else { String::new() }
}

/// A quantity with this many digits after the point; empty if it is not a number.
pub fn number(value: f64, digits: usize) -> String {
    let half = 0.5 / 10_f64.powi(digits as i32);
    // A value that rounds to zero has no sign.
    let value = if value.abs() < half { 0.0 } else { value };
    if value.is_finite() { format!("{value:.digits$}") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", "PACKETS", "EMPTY", "ADDRESS", "WHY"]);
        assert_eq!(table.text(), "");
        let row = |cells: [&str; 5]| cells.map(String::from);
        table.row(row(["a", "5", "", "10.0.0.1", ""]));
        table.row(row(["longer", "12345678", "", "10.0.0.20", "some text"]));
        assert_eq!(
            table.text(),
            "NAME     PACKETS  ADDRESS    WHY\n\
             a              5  10.0.0.1   -\n\
             longer  12345678  10.0.0.20  some text\n"
        );
    }

    #[test]
    fn what_is_long_stands_below_once() {
        let mut table = Table::new(&["NAME", "WHY"]);
        let (long, other) = ("n".repeat(60), table.note("a reason"));
        table.row([long.clone(), other]);
        let (again, both) = (table.note("a reason"), table.notes(["a reason", "another"]));
        table.row(["b".into(), again]);
        table.row(["".into(), both]);
        let sentence = "a word ".repeat(9);
        table.row(["c".into(), sentence.clone()]);
        let cut = "n".repeat(24);
        assert_eq!(
            table.text(),
            format!(
                "NAME                           WHY\n\
                 {cut}~ [2]  [1]\n\
                 b                              [1]\n\
                 -                              [1][3]\n\
                 c                              [4]\n  \
                 [1] a reason\n  [2] {long}\n  [3] another\n  [4] {sentence}\n"
            )
        );
    }

    #[test]
    fn numbers_are_told_from_addresses() {
        for number in ["0", "12", "-0.5", "5 %", "~5 %", "1.2 MiB", "12 pps", "3 s", "18446744073709551615"] {
            assert!(is_number(number), "{number}");
        }
        for text in
            ["", "-", "10.0.0.1", "02:00:00:00:00:01", "0,2", "1+2", "eth1", "2001:db8::/32", "7 of 16"]
        {
            assert!(!is_number(text), "{text}");
        }
        assert_eq!([-0.001, 0.0, 0.004, 0.5, f64::NAN].map(percent), ["0 %", "0 %", "0 %", "50 %", ""]);
    }
}
