//! Reads result files. Lines that are not understood are reported, and reading continues.

use std::{
    io::{self, Read},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use flate2::read::MultiGzDecoder;
use serde_json::Value;

use super::document;
use crate::figure::{Figure, Published};

/// One run of one command.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Name of its file.
    pub file: String,
    /// The `run` record: machine and command.
    pub about: Option<Value>,
    /// Measurements, and records of skipped ones.
    pub lines: Vec<Value>,
    pub figures: Vec<Figure>,
    pub published: Vec<Published>,
    /// Faults of the file.
    pub notices: Vec<String>,
}

/// The endings of files with results.
const ENDINGS: [&str; 4] = [".json", ".jsonl", ".json.gz", ".jsonl.gz"];
/// The most bytes of a file, unpacked.
const MOST_BYTES: u64 = 256 << 20;

/// All results of a directory.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub runs: Vec<Run>,
    /// Files without results, with the reason.
    pub unread: Vec<(String, String)>,
}

/// Reads every `*.jsonl` and `*.json`, packed by gzip or not, in the order of names.
pub(super) fn directory(path: &Path) -> Result<Results> {
    let what = || format!("cannot read {}: a directory of results was expected", path.display());
    let entries = std::fs::read_dir(path).with_context(what)?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| ENDINGS.iter().any(|ending| file.to_string_lossy().ends_with(ending)));
    files.sort();
    let mut results = Results::default();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let read = bytes(&file).map_err(|error| error.to_string());
        let text = read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        match text.and_then(|text| runs(&name, &text)) {
            Ok(runs) => results.runs.extend(runs),
            Err(why) => results.unread.push((name, why)),
        }
    }
    let unread: String = results.unread.iter().map(|(name, why)| format!("\n  {name}: {why}")).collect();
    ensure!(
        !results.runs.is_empty(),
        "{}: no results in *.jsonl or *.json; `millrace-lab bench --out {0}` makes some{unread}",
        path.display()
    );
    Ok(results)
}

/// The bytes of a file, unpacked.
pub(super) fn bytes(file: &Path) -> io::Result<Vec<u8>> {
    let (is_packed, file) = (file.extension().is_some_and(|it| it == "gz"), std::fs::File::open(file)?);
    let reader: Box<dyn Read> = if is_packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut bytes = Vec::new();
    reader.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("it has more than {MOST_BYTES} bytes")));
    }
    Ok(bytes)
}

/// The runs in the text of a file: JSON lines that begin with a `run` record, or one document that holds one.
pub(super) fn runs(file: &str, text: &str) -> Result<Vec<Run>, String> {
    if let Ok(document) = serde_json::from_str::<Value>(text)
        && document.get("record").is_none()
    {
        return document::run(file, document).map(|run| vec![run]);
    }
    let mut runs = vec![Run { file: file.into(), ..Run::default() }];
    let mut malformed = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let value: Value = match serde_json::from_str(line) {
            Ok(value) => value,
            Err(error) => {
                // The lab writes whole lines, so only the last one can be cut.
                malformed.push(if at + 1 == lines.len() && error.is_eof() {
                    format!("line {}, the last, is incomplete: the run was interrupted", at + 1)
                } else {
                    format!("line {} is not JSON ({error})", at + 1)
                });
                continue;
            }
        };
        if let Err(why) = sort(&mut runs, value) {
            malformed.push(format!("line {} {why}", at + 1));
        }
    }
    if runs.iter().all(|run| run.about.is_none() && run.lines.is_empty()) {
        let first = malformed.first().map_or("it is empty", String::as_str);
        return Err(format!("no results of millrace-lab: {first}"));
    }
    let many = malformed.len();
    let last = runs.len() - 1;
    runs[last].notices.extend(malformed.into_iter().take(3));
    if many > 3 {
        runs[last].notices.push(format!("{} more lines could not be read", many - 3));
    }
    Ok(runs)
}

/// Puts a line into the part of the run that it belongs to.
pub(super) fn sort(runs: &mut Vec<Run>, value: Value) -> Result<(), String> {
    let record = value.get("record").and_then(Value::as_str).ok_or("has no \"record\"")?.to_owned();
    let last = runs.len() - 1;
    let run = &mut runs[last];
    match record.as_str() {
        "run" if run.about.is_none() && run.lines.is_empty() => run.about = Some(value),
        "run" => {
            let next = Run { file: run.file.clone(), about: Some(value), ..Run::default() };
            runs.push(next);
        }
        "figure" => {
            run.figures
                .push(serde_json::from_value(value).map_err(|error| format!("is not a figure ({error})"))?);
        }
        "published" => {
            let published = serde_json::from_value(value);
            run.published.push(published.map_err(|error| format!("is not a published curve ({error})"))?);
        }
        _ => run.lines.push(value),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = r#"{"record":"run","cores":2}"#;
    const SAMPLE: &str =
        r#"{"record":"sample","case":"a","subject":"linux","repeat":0,"sample":{"loss":0.0}}"#;

    #[test]
    fn lines_are_sorted_by_record() {
        let figure = r#"{"record":"figure","name":"a","title":"A","y":{"at":"/sample/loss","label":"loss"}}"#;
        let published = r#"{"record":"published","figure":"a","series":"macvlan","points":[[1,2]]}"#;
        let text = [RUN, SAMPLE, figure, published, RUN, SAMPLE, SAMPLE].join("\n");
        let runs = runs("a.jsonl", &text).unwrap();
        let seen = |run: &Run| (run.about.is_some(), run.lines.len(), run.figures.len(), run.published.len());
        assert_eq!(runs.iter().map(seen).collect::<Vec<_>>(), [(true, 1, 1, 1), (true, 2, 0, 0)]);
        assert!(runs.iter().all(|run| run.notices.is_empty()));
    }

    #[test]
    fn an_interrupted_run_is_reported_and_its_whole_lines_are_kept() {
        let text = format!("{RUN}\n{SAMPLE}\n{}", &SAMPLE[..40]);
        let runs = runs("a.jsonl", &text).unwrap();
        assert_eq!(runs[0].lines.len(), 1);
        assert_eq!(runs[0].notices, ["line 3, the last, is incomplete: the run was interrupted"]);
    }

    #[test]
    fn bad_lines_are_reported_by_number() {
        let text = [RUN, "oops", SAMPLE, "[1]", r#"{"record":"figure"}"#, "x", "x"].join("\n");
        let runs = runs("a.jsonl", &text).unwrap();
        let notices = &runs[0].notices;
        assert_eq!((runs[0].lines.len(), notices.len()), (1, 4));
        assert!(notices[0].starts_with("line 2 is not JSON"), "{notices:?}");
        assert_eq!(notices[1], "line 4 has no \"record\"");
        assert!(notices[2].starts_with("line 5 is not a figure (missing field"), "{notices:?}");
        assert_eq!(notices[3], "2 more lines could not be read");
    }

    #[test]
    fn packed_files_are_read_like_others() {
        use flate2::{Compression, write::GzEncoder};
        let directory = tempfile::tempdir().unwrap();
        let text = format!("{RUN}\n{SAMPLE}\n");
        let file = std::fs::File::create(directory.path().join("a.jsonl.gz")).unwrap();
        let mut packed = GzEncoder::new(file, Compression::best());
        io::Write::write_all(&mut packed, text.as_bytes()).unwrap();
        packed.finish().unwrap();
        std::fs::write(directory.path().join("b.jsonl"), text).unwrap();
        std::fs::write(directory.path().join("c.jsonl.gz"), "no gzip").unwrap();
        let Results { runs, unread } = super::directory(directory.path()).unwrap();
        let seen: Vec<_> = runs.iter().map(|run| (run.file.as_str(), run.lines.len())).collect();
        assert_eq!(seen, [("a.jsonl.gz", 1), ("b.jsonl", 1)]);
        assert_eq!((unread.len(), unread[0].0.as_str()), (1, "c.jsonl.gz"), "{unread:?}");
    }

    #[test]
    fn files_of_others_are_refused_with_the_reason() {
        let refused = |text: &str| runs("a.json", text).unwrap_err();
        assert_eq!(refused(""), "no results of millrace-lab: it is empty");
        assert_eq!(refused("{}"), "no results of millrace-lab: a JSON document without \"run\"");
        assert!(refused("name,value\n1,2\n").starts_with("no results of millrace-lab: line 1 is not JSON"));
        assert_eq!(refused("{\"a\":1}\n{\"a\":2}\n"), "no results of millrace-lab: line 1 has no \"record\"");
    }

    #[test]
    fn a_directory_without_results_says_how_to_make_some() {
        let directory = tempfile::tempdir().unwrap();
        let error = super::directory(directory.path()).unwrap_err().to_string();
        assert!(error.contains("no results in") && error.contains("millrace-lab bench --out"), "{error}");
        std::fs::write(directory.path().join("b.json"), "[]").unwrap();
        let error = super::directory(directory.path()).unwrap_err().to_string();
        assert!(error.contains("b.json: no results of millrace-lab"), "{error}");
        std::fs::write(directory.path().join("a.jsonl"), RUN).unwrap();
        let results = super::directory(directory.path()).unwrap();
        assert_eq!((results.runs.len(), results.unread.len()), (1, 1));
        for name in ["none", "a.jsonl"] {
            let error = super::directory(&directory.path().join(name)).unwrap_err().to_string();
            assert!(error.ends_with(&format!("{name}: a directory of results was expected")), "{error}");
        }
    }
}
