//! Contents of a report, before it becomes HTML or Markdown.

use std::fmt::Write;

/// A piece of a report.
#[derive(Clone, Debug)]
pub(super) enum Block {
    /// Heading, 1 to 3.
    Heading(usize, String),
    Text(String),
    /// Notices that the reader must see.
    Notices(Vec<String>),
    Table(Table),
    /// Only in HTML; its numbers are also in a table.
    Picture(String),
}

/// A table of text cells.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Number of columns with words; those after them hold numbers.
    pub words: usize,
    /// Folded until the reader opens it.
    pub folded: bool,
}

/// One self-contained file.
pub(super) fn html(title: &str, blocks: &[Block]) -> String {
    let style = concat!(include_str!("page.css"), include_str!("chart.css"));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n",
        escape(title)
    );
    for block in blocks {
        let _ = match block {
            Block::Heading(level, text) => writeln!(out, "<h{level}>{}</h{level}>", escape(text)),
            Block::Text(text) => writeln!(out, "<p>{}</p>", escape(text)),
            Block::Notices(list) => {
                let items: String = list.iter().map(|item| format!("<li>{}</li>", escape(item))).collect();
                writeln!(out, "<ul class=\"notices\">{items}</ul>")
            }
            Block::Picture(svg) => writeln!(out, "<div class=\"picture\">{svg}</div>"),
            Block::Table(table) => writeln!(out, "{}", html_table(table)),
        };
    }
    out + "</main>\n</body>\n</html>\n"
}

fn html_table(table: &Table) -> String {
    let cell = |tag: &str, at: usize, text: &String| {
        let class = if at < table.words { "" } else { " class=\"number\"" };
        format!("<{tag}{class}>{}</{tag}>", escape(text))
    };
    let row = |tag: &str, cells: &[String]| -> String {
        let cells: String = cells.iter().enumerate().map(|(at, text)| cell(tag, at, text)).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = table.rows.iter().map(|cells| row("td", cells)).collect();
    let head = row("th", &table.head);
    let open = if table.folded { "" } else { " open" };
    format!(
        "<details{open}><summary>{}</summary>\n<div class=\"table\"><table>\n<thead>{head}</thead>\n\
         <tbody>{rows}</tbody>\n</table></div></details>",
        escape(&table.title)
    )
}

/// For readers without pictures.
pub(super) fn markdown(blocks: &[Block]) -> String {
    let mut out = String::new();
    for block in blocks {
        let _ = match block {
            Block::Heading(level, text) => writeln!(out, "{} {}\n", "#".repeat(*level), plain(text)),
            Block::Text(text) => writeln!(out, "{}\n", plain(text)),
            Block::Notices(list) => {
                let items: String = list.iter().map(|item| format!("* {}\n", plain(item))).collect();
                writeln!(out, "{items}")
            }
            Block::Picture(_) => Ok(()),
            Block::Table(table) => writeln!(out, "{}", markdown_table(table)),
        };
    }
    out
}

fn markdown_table(table: &Table) -> String {
    let row = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|text| plain(text)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule: String =
        (0..table.head.len()).map(|at| if at < table.words { "---|" } else { "---:|" }).collect();
    let rows: String = table.rows.iter().map(|cells| row(cells)).collect();
    format!("{}:\n\n{}|{rule}\n{rows}", plain(&table.title), row(&table.head))
}

/// Escapes text for HTML and SVG elements and attributes. Control characters, which XML cannot hold, become U+FFFD.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            character if character.is_control() => out.push('\u{fffd}'),
            character => out.push(character),
        }
    }
    out
}

/// Escapes text for one line of Markdown, so that it has no other meaning.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '`' | '*' | '_' | '|' | '<' | '>' | '[' | ']' | '#' => out.extend(['\\', character]),
            character if character.is_control() => out.push(' '),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: &str = "<script>alert(\"1\")</script> | *a_b* `c`\n# d & 'e'";

    fn blocks() -> Vec<Block> {
        let table = Table {
            title: NASTY.into(),
            head: vec!["subject".into(), "Mpps".into()],
            rows: vec![vec![NASTY.into(), "1.0".into()]],
            words: 1,
            folded: true,
        };
        let text = || NASTY.to_string();
        vec![
            Block::Heading(2, text()),
            Block::Text(text()),
            Block::Notices(vec![text()]),
            Block::Table(table),
        ]
    }

    #[test]
    fn text_stays_text() {
        let page = html(NASTY, &blocks());
        assert!(!page.contains("<script") && !page.contains("'e'"), "{page}");
        assert_eq!(page.matches("&lt;script&gt;alert(&quot;1&quot;)").count(), 6);
        assert_eq!(escape("\u{0}\u{1b}é"), "\u{fffd}\u{fffd}é");
    }

    #[test]
    fn cells_stay_in_their_cells() {
        let text = markdown(&blocks());
        assert!(text.contains(
            "| \\<script\\>alert(\"1\")\\</script\\> \\| \\*a\\_b\\* \\`c\\` \\# d & 'e' | 1.0 |\n"
        ));
        assert!(text.contains("| subject | Mpps |\n|---|---:|\n"), "{text}");
        assert!(text.starts_with("## \\<script"));
    }

    #[test]
    fn a_page_loads_nothing_from_the_network() {
        let page = html("t", &blocks());
        assert!(["http", "src=", "@import", "url("].iter().all(|word| !page.contains(word)));
        assert!(page.contains("prefers-color-scheme: dark") && page.contains("width=device-width"));
    }
}
