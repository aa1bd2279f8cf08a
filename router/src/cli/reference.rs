//! Compares `docs/reference/cli.md` with the commands. The parts of the page between `<!-- begin NAME -->` and
//! `<!-- end -->` are made of the commands' own help.

use super::{Cli, run};
use crate::{
    base::reference::{assert_current, with_part},
    config::Config,
};
use clap::{Arg, ArgAction, Command, CommandFactory};
use logic::cause::Code;
use std::{fmt::Write, path::Path};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/cli.md");
const CODES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/codes.md");

/// `--port DEVICE`, `ADDRESS` or `FLOW...`, as code.
fn syntax(arg: &Arg) -> String {
    let values: Vec<_> = arg.get_value_names().unwrap_or_default().iter().map(|v| v.to_string()).collect();
    let takes_value = arg.get_action().takes_values();
    let value = if takes_value { values.join(" ") } else { String::new() };
    let short = arg.get_short().map_or(String::new(), |c| format!(", `-{c}`"));
    let many = if matches!(arg.get_action(), ArgAction::Append) { "..." } else { "" };
    match arg.get_long() {
        Some(long) => format!("`{}`{short}", format!("--{long} {value}").trim_end()),
        None => format!("`{value}{many}`"),
    }
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_help().unwrap_or_else(|| panic!("{} has no help", syntax(arg)));
    let defaults = arg.get_default_values().iter().map(|value| value.to_str().unwrap());
    let takes_value = arg.get_action().takes_values();
    match defaults.filter(|value| takes_value && !value.is_empty()).collect::<Vec<_>>()[..] {
        [] => help.to_string(),
        ref values => format!("{help} [default: {}]", values.join(" ")),
    }
}

/// What a command does. A page of the reference that it names becomes a link.
fn about(command: &Command) -> String {
    let about =
        command.get_about().unwrap_or_else(|| panic!("{} has no help", command.get_name())).to_string();
    let page = |(before, rest): (&str, &str)| {
        let (name, after) = rest.split_once(".md").expect("the name of a page");
        format!("{before}[{name}.md]({name}.md){after}")
    };
    about.split_once("docs/reference/").map_or(about.clone(), page)
}

/// `millrace routes [OPTIONS] <ADDRESS|--verify>`
fn usage(command: &Command) -> String {
    command.clone().render_usage().to_string().trim_start_matches("Usage: ").into()
}

/// The arguments of a command that not all commands have.
fn own(command: &Command) -> impl Iterator<Item = &Arg> {
    let common = |arg: &Arg| ["instance", "json", "help", "version"].contains(&arg.get_id().as_str());
    command.get_arguments().filter(move |arg| !common(arg))
}

fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
}

fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<_> = head.iter().map(|cell| cell.to_string()).collect();
    let mut text = line(&head) + "|" + &"---|".repeat(head.len()) + "\n";
    text.extend(
        rows.into_iter().map(|row| line(&row.iter().map(|c| c.replace('|', "\\|")).collect::<Vec<_>>())),
    );
    text
}

/// The part of the page about all commands.
fn commands(root: &Command, page: &str) -> String {
    let row = |command: &Command| {
        let name = command.get_name();
        let mut headings = page.lines().filter_map(|line| line.strip_prefix("## `")?.strip_suffix('`'));
        let heading = headings.find(|heading| heading.split(' ').next() == Some(name));
        let linked = heading.map(|heading| format!("[`{heading}`](#{})", heading.replace(' ', "-")));
        vec![linked.unwrap_or_else(|| format!("`{name}`")), about(command)]
    };
    table(&["command", "purpose"], subcommands(root).map(row))
}

/// The part about options that all commands have, or nearly all.
fn common(root: &Command) -> String {
    fn without_json<'a>(command: &'a Command, found: &mut Vec<&'a str>) {
        let is_leaf = subcommands(command).next().is_none();
        if is_leaf && !command.get_arguments().any(|arg| arg.get_id() == "json") {
            found.push(command.get_name());
        }
        subcommands(command).for_each(|sub| without_json(sub, found));
    }
    let mut not = Vec::new();
    without_json(root, &mut not);
    let json =
        root.find_subcommand("status").unwrap().get_arguments().find(|a| a.get_id() == "json").unwrap();
    let but = format!("{}; not for `{}`", meaning(json), not.join("`, `"));
    let row = |arg: &Arg| vec![syntax(arg), meaning(arg)];
    let mut rows: Vec<_> = root.get_arguments().map(row).collect();
    rows.insert(1, vec![syntax(json), but]);
    table(&["option", "meaning"], rows)
}

/// The part about one command, and the commands below it; empty: it has no options of its own.
fn part(command: &Command) -> String {
    let mut text = String::new();
    let below: Vec<_> = subcommands(command).collect();
    if let [only] = below[..] {
        return part(only);
    }
    if below.is_empty() {
        let rows: Vec<_> = own(command).map(|arg| vec![syntax(arg), meaning(arg)]).collect();
        let usage = usage(command);
        if !usage.ends_with(&format!("{} [OPTIONS]", command.get_name())) {
            writeln!(text, "    {usage}\n").unwrap();
        }
        return if rows.is_empty() { text } else { text + &table(&["option", "meaning"], rows) };
    }
    assert_eq!(own(command).count(), 0);
    let row = |sub: &&Command| vec![format!("`{}`", usage(sub)), about(sub)];
    text += &table(&["command", "meaning"], below.iter().map(row));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for sub in &below {
        assert!(subcommands(sub).next().is_none());
        for arg in own(sub) {
            let (syntax, of, meaning) = (syntax(arg), format!("`{}`", sub.get_name()), meaning(arg));
            match rows.iter_mut().find(|row| row[0] == syntax && row[2] == meaning) {
                Some(row) => row[1] += &format!(", {of}"),
                None => rows.push(vec![syntax, of, meaning]),
            }
        }
    }
    text + "\n" + &table(&["option", "of", "meaning"], rows)
}

/// The page, with the parts that are made of the commands.
fn made(page: &str) -> String {
    let mut root = Cli::command();
    root.build();
    let mut parts = vec![("commands", commands(&root, page)), ("common", common(&root))];
    parts.extend(
        subcommands(&root).map(|sub| (sub.get_name(), part(sub))).filter(|(_, text)| !text.is_empty()),
    );
    let text = parts.iter().fold(page.to_string(), |text, (name, part)| with_part(&text, name, part));
    assert_eq!(text.matches("<!-- begin ").count(), parts.len(), "{PAGE} has a part of no command");
    text
}

#[test]
fn the_page_is_made_of_the_commands() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    assert_current(Path::new(PAGE), &made(&page));
}

#[test]
fn the_page_of_codes_has_each_code() {
    let page = std::fs::read_to_string(CODES).unwrap();
    let rows = Code::ALL.iter().map(|code| vec![format!("`{}`", code.name()), code.meaning().into()]);
    assert_current(Path::new(CODES), &with_part(&page, "codes", &table(&["code", "meaning"], rows)));
}

#[test]
fn the_help_of_run_shows_keys_that_exist() {
    let (_, examples) = run::HELP.split_once("with examples:\n").unwrap();
    let (examples, _) = examples.split_once("\n\n").unwrap();
    let config = Config::parse(Path::new("help"), examples).unwrap();
    assert_eq!(config.paths.len(), 1);
}
