//! Columns that fit: on a narrow terminal, less important columns are left out, and long cells are cut.

use ratatui::text::{Line, Span};

/// Blanks between two columns.
const GAP: usize = 2;
/// Ends a cell that was cut.
const CUT: &str = "~";

/// How a column is shown.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub head: &'static str,
    /// Aligned to the right, as numbers are.
    pub right: bool,
    /// The width that cells can be cut to.
    pub enough: usize,
    /// If there is no room even for these widths, the column with the highest number is left out; one with 0 stays.
    pub leave: u8,
}

/// A head, and a line for each row, at most `width` wide; empty if there is no row.
/// No cell is blank: one without text gets a `-`.
pub fn lines(columns: &[Column], rows: Vec<Vec<Line<'static>>>, width: usize) -> Vec<Line<'static>> {
    if rows.is_empty() {
        return Vec::new();
    }
    let filled = |cell: Line<'static>| if cell.width() == 0 { Line::raw("-") } else { cell };
    let rows: Vec<Vec<_>> = rows.into_iter().map(|row| row.into_iter().map(filled).collect()).collect();
    let natural = |c: usize| {
        let cells = rows.iter().filter_map(|row| row.get(c)).map(Line::width);
        cells.max().unwrap_or(0).max(columns[c].head.len())
    };
    let natural: Vec<usize> = (0..columns.len()).map(natural).collect();
    let widths = fit(columns, &natural, width);
    let shown: Vec<usize> = (0..columns.len()).filter(|c| widths[*c].is_some()).collect();
    let heads = columns.iter().map(|column| Line::from(Span::raw(column.head).style(super::draw::HEAD)));
    let line = |mut cells: Vec<Line<'static>>| {
        let mut line = Line::default();
        for &c in &shown {
            let cell = cells.get_mut(c).map(std::mem::take).unwrap_or_default();
            let cell = cut(cell, widths[c].unwrap_or(0));
            let blank = " ".repeat(widths[c].unwrap_or(0).saturating_sub(cell.width()));
            let (left, right) =
                if columns[c].right { (blank, String::new()) } else { (String::new(), blank) };
            line.push_span(Span::raw(left));
            cell.spans.into_iter().for_each(|span| line.push_span(span));
            if shown.last() != Some(&c) {
                line.push_span(Span::raw(right + &" ".repeat(GAP)));
            }
        }
        line
    };
    std::iter::once(heads.collect()).chain(rows).map(line).collect()
}

/// The width of each column; `None`: it is left out.
fn fit(columns: &[Column], natural: &[usize], width: usize) -> Vec<Option<usize>> {
    let mut widths: Vec<Option<usize>> =
        columns.iter().zip(natural).map(|(column, natural)| Some((*natural).min(column.enough))).collect();
    let used = |widths: &[Option<usize>]| {
        let shown = widths.iter().flatten();
        shown.fold(0_usize, |sum, width| sum + width + GAP).saturating_sub(GAP)
    };
    while used(&widths) > width {
        let shown = (0..columns.len()).filter(|c| widths[*c].is_some() && columns[*c].leave > 0);
        let Some(least) = shown.max_by_key(|c| columns[*c].leave) else { break };
        widths[least] = None;
    }
    let mut rest = width.saturating_sub(used(&widths));
    for (width, natural) in widths.iter_mut().zip(natural) {
        if let Some(width) = width {
            let more = natural.saturating_sub(*width).min(rest);
            (*width, rest) = (*width + more, rest - more);
        }
    }
    widths
}

/// Cuts a cell to `width`.
fn cut(cell: Line<'static>, width: usize) -> Line<'static> {
    if cell.width() <= width {
        return cell;
    }
    let mut room = width.saturating_sub(CUT.len());
    let mut short = Line::default();
    for span in cell.spans {
        let mut kept = String::new();
        let mut is_whole = true;
        for c in span.content.chars() {
            let wide = Span::raw(c.to_string()).width();
            is_whole = wide <= room;
            if !is_whole {
                break;
            }
            room -= wide;
            kept.push(c);
        }
        short.push_span(Span::styled(kept, span.style));
        if !is_whole {
            break;
        }
    }
    if width > 0 {
        short.push_span(CUT);
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_do_not_fit_are_left_out_or_cut() {
        let columns = [
            Column { head: "CORE", right: true, enough: 4, leave: 0 },
            Column { head: "QUEUES", right: false, enough: 6, leave: 1 },
            Column { head: "LOAD", right: true, enough: 4, leave: 2 },
        ];
        let table = [
            (80, "CORE  QUEUES         LOAD|   1  eth1/0 eth1/1  50 %|  12  -               5 %|"),
            (22, "CORE  QUEUES      LOAD|   1  eth1/0 et~  50 %|  12  -            5 %|"),
            (18, "CORE  QUEUES  LOAD|   1  eth1/~  50 %|  12  -        5 %|"),
            (17, "CORE  QUEUES|   1  eth1/0 eth~|  12  -|"),
            (12, "CORE  QUEUES|   1  eth1/~|  12  -|"),
            (11, "CORE|   1|  12|"),
            (0, "CORE|   1|  12|"),
        ];
        for (width, text) in table {
            let row = |cells: [&'static str; 3]| cells.map(Line::from).to_vec();
            let rows = vec![row(["1", "eth1/0 eth1/1", "50 %"]), row(["12", "", "5 %"])];
            let shown = lines(&columns, rows, width);
            assert_eq!(shown.iter().map(|line| format!("{line}|")).collect::<String>(), text, "{width}");
        }
        assert!(lines(&columns, Vec::new(), 80).is_empty());
    }
}
