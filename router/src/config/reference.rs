//! Compares `docs/reference/config.md` and `docs/reference/experimental.md` with the keys of the configuration.

use super::{Config, paths};
use crate::base::reference::{Shape, file, quoted, shapes, tables};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

fn page(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap()
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("/m.toml"), text).map_err(|error| error.to_string())
}

/// The table of a heading such as "`[policing]`", by its name in the file. Keys at the top level have none.
fn section(heading: &str) -> Option<Vec<&str>> {
    match heading {
        "Top level" => Some(Vec::new()),
        "Classes" => Some(vec!["path", "class"]),
        _ => Some(vec![heading.strip_prefix("`[")?.strip_suffix("]`")?.trim_matches(['[', ']'])]),
    }
}

/// Files that have this line in this table, and are right without it.
fn with(section: &[&str], line: &str) -> Vec<String> {
    let path = "[workers]\ncores = \"0-3\"\n[[path]]\nname = \"p\"\n";
    let sa = "chain = [\"check\", ELEMENT, \"check\", \"route\", \"ttl\", \"rewrite\"]\notherwise = \"drop\"\n[[sa]]\n\
              name = \"s\"\nspi = 999\nmode = \"tunnel\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\nkey_env = \"KEY\"\n";
    // The line replaces those of the same key.
    let merged = |before: &str| {
        let key = |line: &str| line.split(" = ").next().map(String::from);
        let before: Vec<_> = before.lines().filter(|l| line.is_empty() || key(l) != key(line)).collect();
        before.join("\n") + "\n" + line + "\n"
    };
    match section {
        [] => vec![line.into()],
        ["path"] => vec![merged(&format!("{path}chain = [\"discard\"]\n"))],
        ["path", "class"] => {
            vec![format!("{path}chain = [\"discard\"]\nclass = {{ {line} }}\n")]
        }
        ["sa"] => {
            let sa = |element: &str, more: &str| {
                merged(&(path.to_string() + &sa.replace("ELEMENT", element) + more))
            };
            vec![
                sa("{ element = \"esp_encrypt\", sa = \"s\" }", "sequence_file = \"f\"\n"),
                sa("{ element = \"esp_decrypt\", sas = [\"s\"] }", ""),
            ]
        }
        [table] => vec![format!("[{table}]\n{line}\n")],
        _ => panic!("{section:?}"),
    }
}

/// The values between which a range such as "1 to 1000" extends.
pub(super) fn range(text: &str) -> Option<(i64, i64)> {
    let words: Vec<_> = text.split([' ', ',', ';', ':', '(', ')']).collect();
    words.windows(3).find(|w| w[1] == "to").and_then(|w| Some((w[0].parse().ok()?, w[2].parse().ok()?)))
}

/// A value as text of the file, as this key takes it.
fn line(key: &str, value: &str, shape: &Shape) -> String {
    match shape {
        Shape { is_list: true, .. } => format!("{key} = [{value}]"),
        Shape { is_map: true, .. } => format!("{key} = {{ x = {value} }}"),
        _ => format!("{key} = {value}"),
    }
}

#[test]
fn the_page_has_all_keys_with_their_values_and_defaults() {
    let page = page("docs/reference/config.md");
    let shapes = shapes::<Config>();
    let mut shown = BTreeMap::<Vec<&str>, BTreeSet<String>>::new();
    let tables = tables(&page);
    let mut faults = Vec::new();
    for table in tables.iter().filter(|table| table.columns[0].starts_with("key")) {
        let Some(section) = section(&table.heading) else { continue };
        for row in &table.rows {
            for key in quoted(&row[0]) {
                shown.entry(section.clone()).or_default().insert(key.into());
                let Some(shape) = shapes.get(&[&section[..], &[key]].concat()) else {
                    faults.push(format!("{section:?}: there is no key {key}"));
                    continue;
                };
                let tried = |value: &str| {
                    let results =
                        with(&section, &line(key, value, shape)).into_iter().map(|text| parse(&text));
                    results.collect::<Vec<_>>()
                };
                // Values in the text, and the ends of a range, are allowed; values beyond these ends are not.
                let mut allowed: Vec<_> =
                    quoted(&row[1]).filter(|v| v.starts_with('"')).map(String::from).collect();
                if let Some((least, most)) = range(&row[1]) {
                    allowed.extend([least, most].map(|value| value.to_string()));
                    for value in [least - 1, most + 1] {
                        if tried(&value.to_string()).iter().any(Result::is_ok) {
                            faults.push(format!("{section:?}: {key} = {value} is allowed"));
                        }
                    }
                }
                for value in allowed {
                    let results = tried(&value);
                    if results.iter().all(Result::is_err) {
                        faults.push(format!("{section:?}: {key} = {value} is refused: {:?}", results[0]));
                    }
                }
                // A default that is a value changes nothing.
                let default = row[2].split(';').next().unwrap_or_default().trim_matches('`');
                let is_value = table.columns[2] == "default"
                    && (default.starts_with('"')
                        || ["true", "false"].contains(&default)
                        || default.parse::<i64>().is_ok());
                if is_value {
                    let without = with(&section, "").into_iter().map(|text| parse(&text));
                    if !tried(default)
                        .into_iter()
                        .zip(without)
                        .any(|(with, without)| with.is_ok() && with == without)
                    {
                        faults.push(format!("{section:?}: {key} = {default} is not the default"));
                    }
                }
            }
        }
    }
    for (path, shape) in shapes.iter().filter(|(path, shape)| path.len() < 2 && !shape.fields.is_empty()) {
        let is_table =
            |key: &&&str| shapes[&[&path[..], &[**key]].concat()].fields.is_empty() || path.len() == 1;
        let keys: BTreeSet<_> = shape.fields.iter().filter(is_table).map(|key| key.to_string()).collect();
        if shown.get(path) != Some(&keys) {
            faults.push(format!("{path:?}: {:?} in place of {keys:?}", shown.get(path)));
        }
    }
    let class: BTreeSet<_> =
        shapes[&vec!["path", "class"]].fields.iter().map(|key| key.to_string()).collect();
    assert_eq!(shown[&vec!["path", "class"]], class);
    assert!(faults.is_empty(), "docs/reference/config.md:\n{}", faults.join("\n"));
}

/// Values of keys for which the page has no example.
const MORE: [(&str, &str); 23] = [
    ("api.readers", "\"monitoring\""),
    ("ports", "[\"a\"]"),
    ("routers", "[\"a\"]"),
    ("sas_later", "[]"),
    ("flows.file", "\"/a\""),
    ("cores.allowed", "\"1\""),
    ("cores.high", "90"),
    ("cores.low", "60"),
    ("cores.serve", "\"/a\""),
    ("cores.fixed", "{ a = [0] }"),
    ("cores.workloads", "[{ name = \"a\", cores = \"1\" }]"),
    ("shares.weights", "{ a = 2 }"),
    ("openflow.controllers", "[\"tcp:192.0.2.1\"]"),
    ("openflow.datapath_id", "\"0000000000000001\""),
    ("openflow.tls", "{ key = \"a\", certificate = \"b\", ca = \"c\" }"),
    ("openflow.proxy_ports", "[\"a\"]"),
    ("metrics.listen", "\"[::1]:9111\""),
    ("web.listen", "\"[::1]:9112\""),
    ("export.sflow", "[\"192.0.2.7:6343\"]"),
    ("export.ipfix", "[\"[2001:db8::7]:4739\"]"),
    ("export.agent", "\"192.0.2.1\""),
    ("workers.cores", "\"1\""),
    ("workers.calibration", "\"/a\""),
];

/// Changes each key to each value that the page shows.
#[test]
fn the_page_says_which_keys_a_running_daemon_cannot_change() {
    let page = page("docs/reference/config.md");
    let (mut now, mut restart, mut with_workers) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut untried = Vec::new();
    for table in tables(&page).iter().filter(|table| table.columns[0].starts_with("key")) {
        let Some(section) = section(&table.heading) else { continue };
        for (row, key) in table.rows.iter().flat_map(|row| quoted(&row[0]).map(move |key| (row, key))) {
            let name = [&section[..], &[key]].concat().join(".");
            let more = MORE.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
            let ends =
                range(&row[1]).into_iter().flat_map(|(least, most)| [least.to_string(), most.to_string()]);
            let plain = row[1].split(", ").map(String::from);
            let values = quoted(&row[1]).map(String::from).chain(plain).chain(ends).chain(more);
            let mut is_tried = false;
            for value in values {
                let files = with(&section, &format!("{key} = {value}"));
                for (text, without) in files.into_iter().zip(with(&section, "")) {
                    let (Ok(before), Ok(after)) = (parse(&without), parse(&text)) else { continue };
                    let changes = before.changes(&after, false);
                    with_workers.extend(before.changes(&after, true).restart);
                    let is_of_key = |changed: &str| changed == name || section.first() == Some(&changed);
                    let all: Vec<&str> = changes.now.iter().chain(&changes.restart).copied().collect();
                    assert!(all.iter().all(|changed| is_of_key(changed)), "{text}: {all:?}");
                    assert_eq!(all.is_empty(), before == after, "{text}: {all:?}");
                    is_tried |= !all.is_empty();
                    now.extend(changes.now);
                    restart.extend(changes.restart);
                }
            }
            if !is_tried && !["path", "class", "sa"].contains(section.last().unwrap_or(&"")) {
                untried.push(name);
            }
        }
    }
    assert_eq!(untried, ["sas_later"], "it is a part of `sa`");
    let (_, said) = page.split_once("cannot change these keys:").unwrap();
    let said = said.split_once(".\n").unwrap().0;
    let said: BTreeSet<&str> = quoted(said).map(|key| key.trim_matches(['[', ']'])).collect();
    let whole = |key: &'static str| match key.split_once('.') {
        Some((table @ "experimental", _)) => table,
        _ => key,
    };
    assert!(now.iter().all(|key| whole(key) == *key));
    assert_eq!(said, restart.difference(&now).map(|key| whole(key)).collect());
    let row = page
        .lines()
        .find(|line| line.ends_with("| if there has been a `[[path]]` since the start |"))
        .unwrap();
    let said: BTreeSet<&str> =
        quoted(row).map(|key| key.trim_matches(['[', ']'])).filter(|key| *key != "path").collect();
    let table = |key: &&'static str| key.split_once('.').map_or(*key, |(table, _)| table);
    assert_eq!(said, with_workers.difference(&restart).map(table).collect());
}

/// Each key with values of all kinds. An error names the file, the line and the key.
#[test]
fn wrong_values_of_every_key_are_refused_by_line_and_key() {
    const VALUES: [&str; 16] = [
        "true",
        "-1",
        "1.5",
        "nan",
        "9223372036854775807",
        "\"\"",
        "\"\\u0000\"",
        "\"5 parsecs\"",
        "\"\\u001b[31m\"",
        "[]",
        "[1]",
        "[[]]",
        "[{ a = 1 }]",
        "{}",
        "{ a = 1 }",
        "1979-05-27T07:32:00Z",
    ];
    let shapes = shapes::<Config>();
    let leaves = shapes.iter().filter(|(path, shape)| !path.is_empty() && shape.fields.is_empty());
    let mut keys = 0;
    for (path, _) in leaves {
        let (key, section) = path.split_last().unwrap();
        // Others are keys within a value.
        if section.len() > 1 && section != ["path", "class"] {
            continue;
        }
        let (mut refused, mut tried) = (0, 0);
        for value in VALUES {
            let line = format!("{key} = {value}");
            for text in with(section, &line) {
                let at = text.lines().position(|found| found.contains(&line)).unwrap() + 1;
                tried += 1;
                let Err(error) = parse(&text) else { continue };
                refused += 1;
                let place = format!("/m.toml:{at}: ");
                if !error.starts_with(&place) {
                    // The value is fine, and does not go with another key.
                    assert!(error.starts_with("/m.toml:") && error.contains(key), "{line}\n{text}\n{error}");
                    continue;
                }
                let name = if section.len() > 1 { section.join(".") } else { path.join(".") };
                let rest = error
                    .strip_prefix(&format!("{place}{name}: "))
                    .unwrap_or_else(|| panic!("{name}: {error}"));
                assert!(rest.len() > 10 && !rest.contains('`') && !rest.contains('\x1b'), "{name}: {error}");
            }
        }
        assert!(refused * 4 >= tried * 3, "{path:?}: {refused} of {tried} wrong values were refused");
        keys += 1;
    }
    assert!(keys > 80, "{keys}");
    for (section, line) in [
        (&[][..], "nonsense = 1"),
        (&["cores"][..], "higgh = 1"),
        (&["path"][..], "nonsense = 1"),
        (&["sa"][..], "x = 1"),
    ] {
        for text in with(section, line) {
            let error = parse(&text).unwrap_err();
            let at = text.lines().position(|found| found == line).unwrap() + 1;
            assert!(
                error.starts_with(&format!("/m.toml:{at}: ")) && error.contains("expected one of"),
                "{error}"
            );
        }
    }
}

#[test]
fn the_page_has_all_keys_of_files_for_captures() {
    let page = page("docs/reference/config.md");
    let tables = tables(&page);
    let table = tables.iter().find(|table| table.heading == "Files for captures").unwrap();
    let shown = table.rows.iter().flat_map(|row| {
        let (of, keys) = match row[0].strip_prefix("`[").and_then(|rest| rest.split_once("]` ")) {
            Some((of, keys)) => (of.trim_matches(['[', ']']), keys),
            None => ("", &row[0][..]),
        };
        quoted(keys).map(move |key| [of, key].map(String::from))
    });
    let mut known = BTreeSet::new();
    for (path, shape) in shapes::<paths::Settings>() {
        // `[[path]]` and `[[sa]]` are as in the daemon's file.
        match path[..] {
            [of] if !["path", "sa", "crypto"].contains(&of) && shape.fields.is_empty() => {
                _ = known.insert(["", of].map(String::from))
            }
            [of, key] if !["path", "sa"].contains(&of) => _ = known.insert([of, key].map(String::from)),
            _ => (),
        }
    }
    assert_eq!(shown.collect::<BTreeSet<_>>(), known);
}

/// The blocks of TOML on a page.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default())
}

#[test]
fn the_complete_file_is_accepted_and_its_defaults_are_right() {
    let page = page("docs/reference/config.md");
    let complete = blocks(&page).next().unwrap();
    let config = parse(complete).unwrap();
    assert_eq!((config.paths.len(), config.sas.sas.len()), (3, 2));
    // Without the lines that are defaults, the file has the same meaning.
    let (mut defaults, mut without) = (0, String::new());
    for line in complete.lines() {
        let is_default = line.contains("# default");
        defaults += usize::from(is_default);
        without += if is_default { "" } else { line };
        without.push('\n');
    }
    assert!(defaults > 10);
    assert_eq!(parse(&without).unwrap(), config);
    for captures in blocks(&page).skip(1) {
        paths::PathsConfig::parse(Path::new("/p.toml"), captures).unwrap();
    }
}

/// The file that the Debian package installs. Its keys stand behind a `#` without a space.
#[test]
fn the_packaged_file_has_all_keys_and_changes_nothing() {
    let text = page("debian/millrace.toml");
    assert_eq!(parse(&text), Ok(Config::default()));
    let (mut defaults, mut shown, mut section) = (String::new(), BTreeSet::new(), String::new());
    let (keys, paths) = text.split_at(text.find("#[[path]]").unwrap());
    for line in keys.lines() {
        let code = line.strip_prefix('#').filter(|code| !code.starts_with(' ') && !code.is_empty());
        match code {
            None if line.starts_with('[') => {
                section = line.split(['[', ']']).nth(1).unwrap().into();
                defaults += &format!("{line}\n");
            }
            None => (),
            Some(code) => {
                let key = code.split(" = ").next().unwrap();
                shown.insert(format!("{section}.{key}").trim_start_matches('.').to_owned());
                let header = if section.is_empty() { "".into() } else { format!("[{section}]\n") };
                if !code.ends_with("# example") {
                    defaults += &format!("{code}\n");
                    continue;
                }
                let policy = if key == "fixed" { "policy = \"fixed\"\n" } else { "" };
                let alone = parse(&format!("{header}{policy}{code}"));
                // Only elements of paths can use SAs.
                if !["sas_later", "crypto"].contains(&key) {
                    assert!(alone.is_ok_and(|config| config != Config::default()), "{line}");
                }
            }
        }
    }
    assert_eq!(parse(&defaults), Ok(Config::default()), "{defaults}");
    let shapes = shapes::<Config>();
    let known = shapes[&vec![]].fields.iter().flat_map(|table| match &shapes[&vec![*table]] {
        shape if shape.fields.is_empty() => vec![table.to_string()],
        shape => shape.fields.iter().map(|key| format!("{table}.{key}")).collect(),
    });
    let known: BTreeSet<String> = known.collect();
    let of_lists = |key: &&String| key.starts_with("path.") || key.starts_with("sa.");
    let lists: BTreeSet<_> = known.iter().filter(of_lists).cloned().collect();
    assert_eq!(shown, known.difference(&lists).cloned().collect());
    // All paths and SAs together.
    let code: Vec<_> =
        paths.lines().filter_map(|l| l.strip_prefix('#')).filter(|l| !l.starts_with(' ')).collect();
    let code = code.join("\n");
    let config = parse(&format!("[workers]\ncores = \"4-5\"\n{code}")).unwrap();
    assert_eq!((config.paths.len(), config.sas.sas.len()), (3, 2));
    let mut of = "";
    let in_lists = code.lines().filter_map(|line| {
        if let Some(name) = line.strip_prefix("[[") {
            of = name.trim_end_matches("]]");
        }
        Some(format!("{of}.{}", line.split_once(" = ")?.0))
    });
    assert_eq!(in_lists.collect::<BTreeSet<_>>(), lists);
}

#[test]
fn the_page_of_experimental_mechanisms_has_all_keys_with_their_defaults() {
    let page = page("docs/reference/experimental.md");
    let known: BTreeSet<_> = shapes::<super::Experimental>()[&vec![]].fields.iter().copied().collect();
    let tables = tables(&page);
    let overview = tables.iter().find(|table| table.columns[0] == "key").unwrap();
    let shown: BTreeSet<_> = overview.rows.iter().flat_map(|row| quoted(&row[0])).collect();
    assert_eq!(shown, known);
    let mut in_blocks = BTreeSet::new();
    for block in blocks(&page) {
        parse(block).unwrap();
        in_blocks.extend(block.lines().filter_map(|line| line.split_once(" = ")).map(|(key, _)| key));
        for (line, default) in block.lines().filter_map(|line| line.split_once("default: ")) {
            let key = line.split(' ').next().unwrap();
            let text = format!("[experimental]\n{key} = {default}");
            // Without a value of its own, it stays as the machine has it.
            assert!(default.starts_with("as ") || parse(&text) == parse(""), "{line}{default}");
        }
    }
    assert_eq!(in_blocks, known);
}
