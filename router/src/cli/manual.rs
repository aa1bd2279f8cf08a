//! Man pages and completions, for packages.
//!
//! A man page of each command is made of its help, and millrace.toml(5) of `docs/reference/config.md`. Of Markdown, it knows
//! what that page has: headings, paragraphs, lists, code, tables and links.

use super::Cli;
use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory, ValueEnum};
use clap_complete::Shell;
use clap_mangen::{
    Man,
    roff::{Inline, Roff, bold, roman},
};
#[cfg(test)]
use std::path::Path;
use std::{fs, path::PathBuf};

/// Where packages put the book.
const BOOK: &str = "/usr/share/doc/millrace/docs";

#[derive(Debug, Args)]
pub(super) struct Manual {
    /// The directory.
    directory: PathBuf,
    /// The page about the configuration.
    #[arg(long, value_name = "FILE", default_value = "docs/reference/config.md")]
    config_page: PathBuf,
}

impl Manual {
    pub(super) fn run(self) -> Result<()> {
        let page = fs::read_to_string(&self.config_page)
            .with_context(|| format!("cannot read {}", self.config_page.display()))?;
        let put = |name: &str, content: &[u8]| {
            let file = self.directory.join(name);
            fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))
        };
        let mut root = Cli::command().disable_help_subcommand(true);
        root.build();
        for (name, text) in pages(&root)? {
            put(&format!("{name}.8"), &text)?;
        }
        put("millrace.toml.5", config_page(&page).as_bytes())?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "millrace", &mut text);
            let name = shell.to_possible_value().map_or_else(String::new, |value| value.get_name().into());
            put(&format!("millrace.{name}"), &text)?;
        }
        Ok(())
    }
}

/// The man pages of a command and of those below it, by name.
fn pages(command: &Command) -> Result<Vec<(String, Vec<u8>)>> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let version = format!("Millrace {}", env!("CARGO_PKG_VERSION"));
    // Its own section of the help would join the lines of examples.
    let man = Man::new(command.clone().display_name(&*name).after_help("").after_long_help(""))
        .section("8")
        // An empty date would be no argument at all.
        .date(" ")
        .source(version)
        .manual("System administration");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    let below: Vec<_> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
    let mut rest = Roff::default();
    if !below.is_empty() {
        rest.control("SH", ["COMMANDS"]);
        for sub in &below {
            let page = format!("{name}-{}(8)", sub.get_name());
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            rest.control("TP", []).text([bold(page)]).text([roman(about)]);
        }
    }
    if let Some(help) = command.get_after_help() {
        rest.control("SH", ["NOTES"]).control("nf", []);
        for line in help.to_string().lines() {
            rest.text([roman(line)]);
        }
        rest.control("fi", []);
    }
    rest.control("SH", ["SEE ALSO"]);
    rest.text([roman(format!("millrace(8), millrace.toml(5), and the book in {BOOK}"))]);
    rest.to_writer(&mut text)?;
    let mut all = vec![(name, text)];
    for sub in below {
        all.extend(pages(sub)?);
    }
    Ok(all)
}

/// millrace.toml(5).
fn config_page(page: &str) -> String {
    let version = format!("Millrace {}", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::default();
    roff.control("TH", ["millrace.toml", "5", " ", &version, "File formats"]);
    roff.control("SH", ["NAME"]).text([roman("millrace.toml - the configuration of Millrace")]);
    roff.control("SH", ["DESCRIPTION"]);
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let paragraph = |first: &str, lines: &mut std::iter::Peekable<std::str::Lines<'_>>| {
            let mut text = first.to_owned();
            while let Some(more) = lines.next_if(|next| is_of_paragraph(next)) {
                text = text + " " + more.trim();
            }
            text
        };
        if let Some(heading) = line.strip_prefix("## ") {
            roff.control("SH", [&*plain(heading).to_uppercase()]);
        } else if let Some(heading) = line.strip_prefix("### ") {
            roff.control("SS", [&*plain(heading)]);
        } else if line.starts_with("```") {
            code(&mut roff, lines.by_ref().take_while(|line| !line.starts_with("```")));
        } else if let Some(first) = line.strip_prefix("    ") {
            let rest = std::iter::from_fn(|| lines.next_if(|next| next.starts_with("    ")));
            code(&mut roff, std::iter::once(first).chain(rest.map(|line| &line[4..])));
        } else if line.starts_with('|') {
            let head = cells(line);
            let rows = std::iter::from_fn(|| lines.next_if(|next| next.starts_with('|')));
            for row in rows.filter(|row| !row.starts_with("|---")) {
                entry(&mut roff, &head, &cells(row));
            }
        } else if let Some(first) = line.strip_prefix("* ") {
            let text = paragraph(first, &mut lines);
            roff.control("IP", ["\\(bu", "2"]).text(inlines(&text));
        } else if is_of_paragraph(line) {
            let text = paragraph(line, &mut lines);
            roff.control("PP", []).text(inlines(&text));
        }
    }
    roff.control("SH", ["FILES"]).control("TP", []).text([bold("/etc/millrace/millrace.toml")]);
    roff.text([roman("the configuration of the service")]);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(format!("millrace(8), millrace-run(8), millrace-reload(8), and the book in {BOOK}"))]);
    roff.render()
}

/// Is this a line of text, or one that goes on with a list's item?
fn is_of_paragraph(line: &str) -> bool {
    let begins = |other| line.starts_with(other);
    !line.trim().is_empty() && !["#", "|", "* ", "```", "    "].into_iter().any(begins)
}

fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_matches('|').replace("\\|", "\0");
    line.split('|').map(|cell| cell.trim().replace('\0', "|")).collect()
}

/// A row of a table: its first cell, then the last one, then those between with the names of their columns.
fn entry(roff: &mut Roff, head: &[String], row: &[String]) {
    let [first, between @ .., last] = row else { return };
    roff.control("TP", []).text(inlines(first));
    let names = head.iter().skip(1);
    let more = names.zip(between).filter(|(_, cell)| !cell.is_empty());
    let more: String = more.map(|(name, cell)| format!(" {}: {cell}.", capitalised(name))).collect();
    let text = match more.is_empty() {
        true => capitalised(last),
        false => format!("{}.{more}", capitalised(last)),
    };
    roff.text(inlines(&text));
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn code<'a>(roff: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    roff.control("PP", []).control("RS", ["4"]).control("nf", []);
    for line in lines {
        roff.text([roman(line)]);
    }
    roff.control("fi", []).control("RE", []);
}

/// Text with code in bold, and links as the name of what they lead to.
fn inlines(text: &str) -> Vec<Inline> {
    let parts = unlinked(text);
    let parts = parts.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    parts.map(|(n, part)| if n % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

fn plain(text: &str) -> String {
    unlinked(text).replace('`', "")
}

/// `[name](target)` becomes `name`.
fn unlinked(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("](") {
        let (Some(open), Some(close)) = (before.rfind('['), link.find(')')) else { break };
        out = out + &before[..open] + &before[open + 1..];
        rest = &link[close + 1..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::reference::{file, quoted, tables};

    fn written() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let config_page = file("docs/reference/config.md");
        Manual { directory: directory.path().into(), config_page }.run().unwrap();
        directory
    }

    fn read(directory: &Path, name: &str) -> String {
        fs::read_to_string(directory.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    #[test]
    fn every_command_has_a_page_with_its_options_and_examples() {
        let written = written();
        let mut root = Cli::command();
        root.build();
        for command in root.get_subcommands().filter(|c| c.get_name() != "help") {
            let name = format!("millrace-{}.8", command.get_name());
            assert_eq!(written.path().join(&name).exists(), !command.is_hide_set(), "{name}");
        }
        let run = read(written.path(), "millrace-run.8");
        for part in [
            "\\-\\-heartbeat",
            ".nf\n",
            "heartbeat = \"3s\"",
            "millrace.toml(5)",
            ".TH millrace-run 8 \" \" \"Millrace",
        ] {
            assert!(run.contains(part), "{part}: {run}");
        }
        read(written.path(), "millrace-flows-add.8");
        let root = read(written.path(), "millrace.8");
        assert!(root.contains("millrace\\-reload(8)") && !root.contains("manual"), "{root}");
        for shell in ["bash", "zsh", "fish"] {
            let text = read(written.path(), &format!("millrace.{shell}"));
            assert!(text.contains("heartbeat") && text.contains("reload"), "{shell}");
        }
    }

    #[test]
    fn the_page_of_the_configuration_has_every_row_and_example() {
        let page = std::fs::read_to_string(file("docs/reference/config.md")).unwrap();
        let roff = config_page(&page);
        for table in tables(&page) {
            for row in table.rows {
                let words = quoted(&row[0]).map(|word| format!("\\fB{}\\fR", word.replace('-', "\\-")));
                for word in words {
                    assert!(roff.contains(&word), "{word}");
                }
            }
        }
        for line in page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap().lines() {
            let line = line.replace('-', "\\-").replace('\'', "\\*(Aq");
            assert!(roff.contains(&line), "{line}");
        }
        assert!(!roff.contains("](") && !roff.contains("|---"), "{roff}");
    }

    #[test]
    fn a_link_becomes_its_name() {
        assert_eq!(unlinked("see [a.md](../a.md#b) and [`c`](d), x[0]"), "see a.md and `c`, x[0]");
        assert_eq!(unlinked("no [link] here](x"), "no [link] here](x");
    }
}
