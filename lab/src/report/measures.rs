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
    /// Cells for rows that do not state them. `$key` stands for the row's value of `key`.
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
        ensure!(
            unused.is_none(),
            "no column shows {:?} of the row {row:?}",
            unused.map_or("", String::as_str)
        );
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
                "command"
                    if last_command.is_some() && (cell.is_empty() || last_command.as_ref() == Some(cell)) =>
                {
                    *cell = SAME.into();
                }
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
        text += format!("{shown} {}", file.note).trim_end();
    }
    Ok(text)
}

/// `text` with its quotes read, and with `{NAME}` as the path of a file. `{?}` marks the text up to the next semicolon
/// if the value before it misses the goal. Adds the names of quoted files.
fn fill(text: &str, goal: &str, sources: &mut Sources<'_>, files: &mut Vec<String>) -> Result<String> {
    const MISSED: &str = ", **missed**";
    let (mut out, mut last, mut missed) = (String::new(), f64::NAN, false);
    for (nth, piece) in text.split(['{', '}']).enumerate() {
        if nth % 2 == 0 {
            let (clause, rest) = piece.split_at(piece.find(';').filter(|_| missed).unwrap_or(piece.len()));
            missed &= rest.is_empty();
            out += &[clause, if rest.is_empty() { "" } else { MISSED }, rest].concat();
        } else if piece == "?" {
            missed = !meets(last, goal)?;
        } else if let Some(file) = sources.files.get(piece) {
            std::fs::metadata(sources.directory.join(&file.path)).with_context(|| file.path.clone())?;
            out += &format!("`{}`", file.path);
        } else {
            let quoted = sources.quote(piece).with_context(|| format!("{{{piece}}}"))?;
            out += &quoted.text;
            last = quoted.value;
            files.extend(quoted.files);
        }
    }
    Ok(out + if missed { MISSED } else { "" })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
    }

    #[test]
    fn the_page_of_measures_is_what_its_table_and_the_raw_files_give() {
        let made = page(&file("lab/results.toml"), &file("lab/runs")).unwrap();
        let kept = std::fs::read_to_string(file("docs/measured.md")).unwrap();
        let mut lines = made.lines().zip(kept.lines());
        let differs = lines.find(|(made, kept)| made != kept);
        assert!(
            made == kept,
            "docs/measured.md is not what `make results` writes; first difference: {differs:#?}"
        );
    }

    #[test]
    fn figures_of_the_readme_are_on_the_page() {
        fn numbers(text: &str) -> Vec<&str> {
            let words = text.split(|c: char| !c.is_ascii_digit() && c != '.' && c != ',');
            words.map(|word| word.trim_matches(['.', ','])).filter(|word| !word.is_empty()).collect()
        }
        let [readme, page] =
            ["README.md", "docs/measured.md"].map(|name| std::fs::read_to_string(file(name)).unwrap());
        let rows: Vec<&str> = readme.lines().filter(|line| line.contains("| `millrace-lab ")).collect();
        assert!(rows.len() >= 5, "the table of figures was not found");
        for row in rows {
            let cells: Vec<&str> = row.split('|').collect();
            let figures = [numbers(cells[2])[0], numbers(cells[3])[0]];
            let has = |line: &str| figures.iter().all(|figure| numbers(line).contains(figure));
            assert!(page.lines().any(has), "no row of docs/measured.md has {figures:?} of README.md: {row}");
        }
    }

    /// Rows of docs/inside/policy.md, and what the raw file calls their changes.
    const POLICY_ROWS: [(&str, &[&str]); 20] = [
        ("nftables (", &["nft", "nft of a tenant", "iptables-nft", "iptables-legacy"]),
        ("`ip rule`, ", &["ip rule", "ip -6 rule", "tc filter", "tc qdisc"]),
        ("IPsec policy, ", &["xfrm policy", "xfrm default"]),
        ("`rp_filter`, `forwarding`, ", &["rp_filter", "forwarding", "disable_ipv6"]),
        ("tcx program by", &["tcx by a link"]),
        ("netfilter program by", &["netfilter program"]),
        ("XDP program by a BPF link", &["XDP by a link"]),
        ("XDP program by netlink", &["XDP by netlink"]),
        ("tcx program without", &["tcx without a link"]),
        ("bridge on", &["bridge on a port"]),
        ("macvlan on a port, in source mode", &["macvlan by source"]),
        ("macvlan on a port, with", &["macvlan as next hop"]),
        ("ipvlan on", &["ipvlan on a port"]),
        ("IPVS", &["IPVS"]),
        ("nftables |", &["nft"]),
        ("`ip rule` |", &["ip rule"]),
        ("tc filter |", &["tc filter"]),
        ("IPsec policy |", &["xfrm policy"]),
        ("legacy iptables |", &["iptables-legacy"]),
        ("`rp_filter`, `disable_ipv6` |", &["rp_filter", "disable_ipv6"]),
    ];

    /// Does a cell such as "8.2 (15)" show the median and the most of these windows? `None`: they were not measured.
    fn shows(cell: &str, windows: Option<&Vec<f64>>) -> bool {
        let Some(windows) = windows else { return cell == "not there" };
        let mut sorted = windows.clone();
        sorted.sort_by(f64::total_cmp);
        let (count, most) = (sorted.len(), sorted.last().copied().unwrap_or(0.0));
        let median = || (sorted[count / 2] + sorted[(count - 1) / 2]) / 2.0;
        let is = |shown: &str, value: f64| {
            let digits = shown.split_once('.').map_or(0, |(_, after)| after.len());
            format!("{value:.digits$}") == shown
        };
        let words: Vec<_> = cell.split([' ', '(', ')']).filter(|word| !word.is_empty()).collect();
        match words[..] {
            ["Linux", "forwarded"] => most == 0.0,
            ["none"] => count > 0 && most == 0.0,
            ["none", "in", rounds, _] => most == 0.0 && rounds == count.to_string(),
            ["up", "to", shown] => median() < most && is(shown, most),
            [shown] => count == 1 && is(shown, most),
            [middle, shown] => is(middle, median()) && is(shown, most),
            _ => false,
        }
    }

    #[test]
    fn windows_of_policy_changes_are_those_of_the_raw_file() {
        let raw = super::super::read::bytes(&file("lab/runs/2026-11-26-policy-windows.jsonl.gz")).unwrap();
        let mut measured = BTreeMap::<(String, String, String), Vec<f64>>::new();
        for line in String::from_utf8(raw).unwrap().lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let Some(rounds) = line["ms"].as_array() else { continue };
            let kernel = line["kernel"].as_str().unwrap().split('.').take(2).collect::<Vec<_>>().join(".");
            let [daemon, change] = ["daemon", "change"].map(|key| line[key].as_str().unwrap().to_string());
            // The page leaves out rounds in which Linux forwarded already.
            let fast = rounds.iter().filter(|round| round["by_linux"].as_u64().unwrap_or(0) == 0);
            let windows = fast.map(|round| round["last_by_old"].as_f64().unwrap());
            measured.entry((kernel, daemon, change)).or_default().extend(windows);
        }
        let page = std::fs::read_to_string(file("docs/inside/policy.md")).unwrap();
        let (_, page) = page.split_once("## Windows, measured").unwrap();
        let (page, _) = page.split_once("\n## ").unwrap();
        let (mut daemon, mut compared) = ("", 0);
        for row in page.lines().filter_map(|line| line.strip_prefix("| ")) {
            let cells: Vec<_> = row.trim_end_matches('|').split(" | ").map(str::trim).collect();
            if cells[0].starts_with("change") {
                daemon = if cells[0] == "change" { "killed, heartbeat 3s" } else { "runs" };
                continue;
            }
            let known = POLICY_ROWS.iter().find(|(begin, _)| row.starts_with(begin));
            let (_, changes) = known.unwrap_or_else(|| panic!("{row}"));
            for (kernel, cell) in ["6.18", "6.12", "6.1"].into_iter().zip(&cells[1..]) {
                for change in *changes {
                    let windows = measured.get(&(kernel.into(), daemon.into(), change.to_string()));
                    assert!(shows(cell, windows), "{kernel}: {row}: {cell:?} is not {change}: {windows:?}");
                    compared += 1;
                }
            }
        }
        assert_eq!(compared, 96);
    }

    fn filled(table: &str) -> Result<String, String> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.txt"), "left 7 ms, right 9 ms\n").unwrap();
        let path = directory.path().join("results.toml");
        let head =
            "machines = {}\nshort = {}\nfile.a = { path = 'a.txt', machine = 'X', note = '(by hand)' }\n";
        std::fs::write(&path, format!("{head}[[part]]\ntext = \"From {{a}}.\\n\"\n{table}")).unwrap();
        page(&path, directory.path()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn rows_quote_files_name_them_and_are_judged() {
        let page = filled(
            r##"columns = ["measure", "goal", "now: today", "command", "raw file"]
each = { now = '{a "$where # ms"}{?} ms; at least' }
row = [
    { measure = "one", goal = "< 8 ms", where = "left", command = "`x`" },
    { measure = "two", goal = "< 8 ms", where = "right" },
    { measure = "none", now = "never" },
]"##,
        );
        let expected = "From `a.txt`.

| measure | goal | today | command | raw file |
|---|---|---|---|---|
| one | < 8 ms | 7 ms; at least | `x` | X `a.txt` (by hand) |
| two | < 8 ms | 9 ms, **missed**; at least | the same | the same |
| none | | never | the same | |
";
        assert_eq!(page, Ok(expected.into()));
    }

    #[test]
    fn faults_of_the_table_name_the_row() {
        for (row, error) in [
            (
                r#"{ a = "{a 'b'}" }"#,
                "row \"{a 'b'}\": {a 'b'}: a.txt: `a 'b'`: a pattern has a # for the number",
            ),
            (r##"{ a = '{a "left # ms"}{?}', goal = "little" }"##, "the goal \"little\" cannot be judged"),
            (r#"{ b = "c" }"#, "no column shows \"b\" of the row"),
        ] {
            let message = filled(&format!("columns = ['a']\nrow = [{row}]")).unwrap_err();
            assert!(message.contains(error), "{message}");
        }
    }
}
