//! Rooms, the modules at the top of a crate, import only from rooms below them. So each can be read without those
//! above.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Rooms of `router`, from the top to the bottom. `fuzz` feeds parsers of all rooms.
const ROOMS: [&str; 16] = [
    "fuzz",
    "cli",
    "daemon",
    "switch",
    "user_plane",
    "cores",
    "firewall",
    "capture",
    "web",
    "export",
    "api",
    "config",
    "plane",
    "linux",
    "abi",
    "base",
];

/// The room of a source file. `None` if the file joins the rooms.
fn room(file: &Path) -> Option<String> {
    let first = file.iter().next()?.to_str()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!["lib", "main", "rooms"].contains(&name)).then(|| name.into())
}

/// Names that follow `crate::` in a text, including those in braces.
fn imports(text: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let mut found = BTreeSet::new();
    for (at, begin) in text.match_indices("crate::") {
        let rest = &text[at + begin.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut begins = true;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                c if begins && !c.is_whitespace() => {
                    found.insert(word(&group[at..]));
                    begins = false;
                }
                _ => (),
            }
        }
    }
    found
}

/// A file without its comments, and without the test module at its end: tests may use rooms above.
fn product(text: &str) -> String {
    let is_inline =
        |(at, _): &(usize, &str)| text[*at..].lines().nth(1).is_some_and(|line| line.ends_with('{'));
    let end = text.match_indices("#[cfg(test)]\nmod ").find(is_inline).map_or(text.len(), |(at, _)| at);
    text[..end].lines().map(|line| line.split("//").next().unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Which room imports which, and in which files.
fn edges(of_crate: &str) -> BTreeMap<(String, String), BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of_crate).join("src");
    let mut all = Vec::new();
    files(&root, &mut all);
    let rooms: BTreeSet<String> =
        all.iter().filter_map(|path| room(path.strip_prefix(&root).unwrap())).collect();
    let mut edges = BTreeMap::<(String, String), BTreeSet<String>>::new();
    for path in all {
        let file = path.strip_prefix(&root).unwrap();
        let is_test = file.iter().any(|part| part == "tests" || part == "tests.rs");
        let Some(from) = room(file).filter(|_| !is_test) else { continue };
        for to in imports(&product(&fs::read_to_string(&path).unwrap())) {
            if to != from && rooms.contains(&to) {
                edges.entry((from.clone(), to)).or_default().insert(file.display().to_string());
            }
        }
    }
    assert!(edges.len() > 10, "{of_crate}: {edges:?}");
    edges
}

#[test]
fn a_room_of_router_imports_only_from_rooms_below_it() {
    let height = |room: &str| {
        let place = ROOMS.iter().position(|known| *known == room);
        place.unwrap_or_else(|| panic!("{room} has no place in ROOMS"))
    };
    let mut edges = edges("router");
    edges.retain(|(from, to), _| height(to) < height(from));
    assert!(edges.is_empty(), "{edges:#?}");
}

/// Repeatedly removes rooms that import nothing any more. Rooms in a circle remain.
#[test]
fn no_rooms_of_logic_and_lab_import_each_other_in_a_circle() {
    for of_crate in ["logic", "lab"] {
        let mut edges = edges(of_crate);
        loop {
            let importing: BTreeSet<String> = edges.keys().map(|(from, _)| from.clone()).collect();
            let before = edges.len();
            edges.retain(|(_, to), _| importing.contains(to));
            if edges.len() == before {
                break;
            }
        }
        assert!(edges.is_empty(), "{of_crate}: {edges:#?}");
    }
}

#[test]
fn a_test_module_that_is_declared_early_hides_nothing() {
    let text =
        "#[cfg(test)]\nmod tests;\nuse crate::daemon;\n#[cfg(test)]\nmod more {\n    use crate::cli;\n}\n";
    assert_eq!(imports(&product(text)), ["daemon"].map(String::from).into());
}

#[test]
fn imports_are_found_in_braces_and_in_paths() {
    let text =
        "use crate::{\n    base::{clock, hex},\n    linux,\n};\nfn f() { crate::daemon::start::run() }";
    assert_eq!(imports(text), ["base", "daemon", "linux"].map(String::from).into());
}
