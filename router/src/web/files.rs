//! The table of the files of the page.

/// A file that is compiled in.
#[derive(Clone, Copy, Debug)]
pub struct StaticFile {
    /// Its path in the URL.
    pub path: &'static str,
    pub content_type: &'static str,
    pub body: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! file {
    ($path:literal, $name:literal, $content_type:expr) => {
        StaticFile { path: $path, content_type: $content_type, body: include_str!(concat!("page/", $name)) }
    };
}

/// All files.
pub const FILES: [StaticFile; 17] = [
    file!("/", "index.html", HTML),
    file!("/style.css", "style.css", CSS),
    file!("/sections.css", "sections.css", CSS),
    file!("/icon.svg", "icon.svg", SVG),
    file!("/theme.js", "theme.js", SCRIPT),
    file!("/main.js", "main.js", SCRIPT),
    file!("/poll.js", "poll.js", SCRIPT),
    file!("/rates.js", "rates.js", SCRIPT),
    file!("/text.js", "text.js", SCRIPT),
    file!("/headline.js", "headline.js", SCRIPT),
    file!("/fast.js", "fast.js", SCRIPT),
    file!("/topology.js", "topology.js", SCRIPT),
    file!("/charts.js", "charts.js", SCRIPT),
    file!("/reasons.js", "reasons.js", SCRIPT),
    file!("/events.js", "events.js", SCRIPT),
    file!("/explain.js", "explain.js", SCRIPT),
    file!("/tables.js", "tables.js", SCRIPT),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, path::Path};

    #[test]
    fn every_file_of_the_page_is_served_and_names_only_such_files() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/web/page");
        let there: BTreeSet<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| format!("/{}", entry.unwrap().file_name().to_string_lossy()))
            .map(|path| if path == "/index.html" { "/".into() } else { path })
            .collect();
        let served: BTreeSet<_> = FILES.iter().map(|file| file.path.to_string()).collect();
        assert_eq!(there, served);
        for file in FILES {
            // Values of HTML attributes, and modules that a script imports.
            let named = ["src=\"", "href=\"", "from \"", "url("].iter().flat_map(|before| {
                file.body.match_indices(before).map(|(at, _)| &file.body[at + before.len()..])
            });
            for rest in named {
                let name = rest.split(['"', ')']).next().unwrap();
                let path = name.trim_start_matches(['.', '/']);
                assert!(
                    name.starts_with('#') || served.contains(&format!("/{path}")),
                    "{}: {name}",
                    file.path
                );
            }
        }
    }

    /// As `millrace status`, the page does not call a router slow for what Linux does not forward either.
    #[test]
    fn the_page_knows_the_causes_of_idle_routers() {
        let fast = FILES.iter().find(|file| file.path == "/fast.js").unwrap().body;
        let list = fast.split_once("const IDLE = [").unwrap().1.split_once(']').unwrap().0;
        let known: BTreeSet<_> = list.split(", ").map(|code| code.trim_matches('"')).collect();
        let idle = logic::cause::Code::ALL.iter().filter(|code| code.is_idle());
        assert_eq!(known, idle.map(|code| code.name()).collect());
    }

    /// Names of routers and interfaces are chosen by others, so they enter the page as text.
    #[test]
    fn no_script_makes_elements_or_programs_of_text() {
        let forbidden = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "DOMParser",
            "createContextualFragment",
            "eval(",
            "new Function",
            "http://www.w3.org/1999/xhtml",
            "https:",
        ];
        for file in FILES {
            for word in forbidden {
                assert!(!file.body.contains(word), "{}: {word}", file.path);
            }
        }
    }
}
