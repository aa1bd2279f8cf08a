//! The page of measures, made of a table of them: text, and rows whose cells quote raw results in braces.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::quote::{RawFile, Sources};

/// `lab/results.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measures {
    machines: BTreeMap<String, String>,
    file: BTreeMap<String, RawFile>,
    short: BTreeMap<String, String>,
    part: Vec<Part>,
}

/// Text, and the table below it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    text: String,
    /// Titles of columns, or `key: title`.
    #[serde(default)]
    columns: Vec<String>,
    /// Cells of rows that do not state them. `$key` is what the row has there.
    #[serde(default)]
    each: Row,
    #[serde(default)]
    row: Vec<Row>,
}

type Row = BTreeMap<String, String>;

const SAME: &str = "the same";

/// The page as Markdown, from the table at `table` and the results in `directory`.
pub(super) fn page(table: &Path, directory: &Path) -> Result<String> {
    let text = std::fs::read_to_string(table).with_context(|| format!("cannot read {}", table.display()))?;
    let measures: Measures = toml::from_str(&text).with_context(|| format!("{}", table.display()))?;
    let mut sources = Sources {
        directory: directory.into(),
        files: &measures.file,
        short: &measures.short,
        machines: &measures.machines,
        read: BTreeMap::new(),
    };
    let mut page = String::new();
    for part in &measures.part {
        page += &fill(&part.text, "", &mut sources, &mut Vec::new())?;
        page += &rows(part, &mut sources)?;
        page.push('\n');
    }
    Ok(page.trim_end().to_owned() + "\n")
}

fn rows(part: &Part, sources: &mut Sources<'_>) -> Result<String> {
    let columns: Vec<(&str, &str)> =
        part.columns.iter().map(|title| title.split_once(": ").unwrap_or((title, title))).collect();
    let mut table = String::new();
    if !columns.is_empty() {
        let titles: Vec<&str> = columns.iter().map(|(_, title)| *title).collect();
        table += &format!("\n| {} |\n|{}\n", titles.join(" | "), "---|".repeat(columns.len()));
    }
    let (mut last_command, mut last_files) = (None, String::new());
    for row in &part.row {
        let texts = || row.values().chain(part.each.values());
        let unused = row.keys().find(|key| {
            *key != "goal"
                && columns.iter().all(|(column, _)| column != key)
                && !texts().any(|it| it.contains(&format!("${key}")))
        });
        ensure!(unused.is_none(), "a row has {unused:?}, and no column shows it: {row:?}");
        let stated = |key: &str| row.get(key).or_else(|| part.each.get(key)).map_or("", String::as_str);
        let mut cells = Vec::new();
        let mut files = Vec::new();
        for (key, _) in &columns {
            let mut text = stated(key).to_owned();
            for (key, value) in row {
                text = text.replace(&format!("${key}"), value);
            }
            let filled = fill(&text, stated("goal"), sources, &mut files);
            cells.push(filled.with_context(|| format!("row {:?}", stated(columns[0].0)))?);
        }
        for ((key, _), cell) in columns.iter().zip(&mut cells) {
            match *key {
                "command" if cell.is_empty() || last_command.as_ref() == Some(cell) => *cell = SAME.into(),
                "command" => last_command = Some(cell.clone()),
                "raw file" if cell.is_empty() => {
                    let named = names(&files, sources)?;
                    *cell = if named == last_files { SAME.into() } else { named.clone() };
                    last_files = named;
                }
                _ => {}
            }
        }
        let cell = |cell: &String| if cell.is_empty() { " |".into() } else { format!(" {cell} |") };
        table += &format!("|{}\n", cells.iter().map(cell).collect::<String>());
    }
    Ok(table)
}

/// Files as the last column names them.
fn names(files: &[String], sources: &Sources<'_>) -> Result<String> {
    let (mut text, mut machine) = (String::new(), "");
    for name in files {
        let file = sources.file(name)?;
        let shown = format!("`{}`", file.path);
        if text.contains(&shown) {
            continue;
        }
        text += if text.is_empty() { "" } else { "; " };
        if file.machine != machine {
            text += &format!("{} ", file.machine);
        }
        machine = &file.machine;
        text += &[&shown, file.note.as_str()].join(" ").trim_end();
    }
    Ok(text)
}

/// `text` with what its quotes name, and the names of files. `{?}` marks the part up to the next semicolon if the value
/// before it misses `goal`.
fn fill(text: &str, goal: &str, sources: &mut Sources<'_>, files: &mut Vec<String>) -> Result<String> {
    const MISSED: &str = ", **missed**";
    let (mut out, mut last, mut missed) = (String::new(), f64::NAN, false);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (quote, after) = after.split_once('}').with_context(|| format!("no }} after {{{after}"))?;
        out += &if missed { before.replacen(';', &format!("{MISSED};"), 1) } else { before.to_owned() };
        missed &= !before.contains(';');
        if quote == "?" {
            missed = !meets(last, goal)?;
        } else if let Some(file) = sources.files.get(quote) {
            std::fs::metadata(sources.directory.join(&file.path)).with_context(|| file.path.clone())?;
            out += &format!("`{}`", file.path);
        } else {
            let quoted = sources.quote(quote).with_context(|| format!("{{{quote}}}"))?;
            out += &quoted.text;
            last = quoted.value;
            files.extend(quoted.files);
        }
        rest = after;
    }
    let end = if missed && rest.contains(';') {
        rest.replacen(';', &format!("{MISSED};"), 1)
    } else {
        rest.to_owned()
    };
    Ok(out + &end + if missed && !rest.contains(';') { MISSED } else { "" })
}

/// Does a value, as shown, meet a goal such as `<= 1.05`?
fn meets(value: f64, goal: &str) -> Result<bool> {
    let words: Vec<&str> = goal.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.replace(',', "").parse::<f64>().ok());
    Ok(match (words.first(), number(0), number(1)) {
        (Some(&">="), _, Some(limit)) => value >= limit,
        (Some(&"<="), _, Some(limit)) => value <= limit,
        (Some(&"<"), _, Some(limit)) => value < limit,
        (_, Some(exact), _) => value == exact,
        _ => bail!("the goal {goal:?} cannot be judged"),
    })
}
