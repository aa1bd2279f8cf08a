//! Raw results as JSON lines. The first line says what ran where; then comes one line for each measurement. Nothing is
//! averaged.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    command, cpu,
    figure::{Figure, Published},
};

/// Destination of a command's results.
#[derive(Clone, Debug)]
pub struct Output {
    /// A file, or none.
    pub path: Option<PathBuf>,
    /// The command line.
    pub command: Vec<String>,
}

impl Output {
    /// Checks that results can be written, before an hour of measuring. Fails if not, or if the file is one of the
    /// `inputs`. An existing file is not changed.
    pub fn check(&self, inputs: &[PathBuf]) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if let Some(input) = inputs.iter().find(|input| is_same_file(path, input)) {
            bail!(
                "raw results cannot be written to {}: that is {}, which is read; name another file",
                path.display(),
                input.display()
            );
        }
        ensure!(
            !path.is_dir(),
            "raw results cannot be written to {}: it is a directory; name a file, as in --json {}",
            path.display(),
            path.join("results.jsonl").display()
        );
        let directory = path.parent().filter(|directory| *directory != Path::new(""));
        if let Some(directory) = directory {
            ensure!(
                directory.is_dir(),
                "raw results cannot be written to {}: there is no directory {1}; `mkdir -p {1}` makes it",
                path.display(),
                directory.display()
            );
        }
        let is_new = !path.exists();
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.with_context(|| format!("raw results cannot be written to {}", path.display()))?;
        if is_new {
            std::fs::remove_file(path).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// When it was last written to, if ever.
    pub fn modified(&self) -> Option<SystemTime> {
        std::fs::metadata(self.path.as_ref()?).and_then(|file| file.modified()).ok()
    }

    /// A recorder of lines. The first line is that of [`run`].
    pub fn recorder(&self) -> Result<Recorder> {
        let Some(path) = &self.path else { return Ok(Recorder::none()) };
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let mut recorder = Recorder { file: Some(file), each: None };
        recorder.line(&run(&self.command)?)?;
        Ok(recorder)
    }

    /// Writes one document, an object, and adds [`run`] to it. Replaces an earlier document.
    pub fn document(&self, mut document: Value) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        document["run"] = run(&self.command)?;
        let text = serde_json::to_string_pretty(&document)? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// The same, with a list "lines", whose elements each take one line of the file.
    pub fn document_of_lines(&self, mut document: Value, lines: &[Value]) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        document["run"] = run(&self.command)?;
        let text = with_lines(&document, lines)?;
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}

fn with_lines(document: &Value, lines: &[Value]) -> Result<String> {
    let text = serde_json::to_string_pretty(document)?;
    let all: Vec<String> = lines.iter().map(|line| format!("    {line}")).collect();
    let head = text.strip_suffix("\n}").context("a document must be an object that is not empty")?;
    Ok(format!("{head},\n  \"lines\": [\n{}\n  ]\n}}\n", all.join(",\n")))
}

/// Do both paths lead to the same file?
fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    one == other || place(one).is_some_and(|one| place(other) == Some(one))
}

type Each = dyn FnMut(&Value) -> Result<()>;

/// Writes results to a file, hands them on, or does neither.
pub struct Recorder {
    file: Option<File>,
    each: Option<Box<Each>>,
}

impl Recorder {
    /// Keeps nothing.
    pub fn none() -> Self {
        Self { file: None, each: None }
    }

    /// Hands each line to `each` instead of a file.
    pub fn each(each: impl FnMut(&Value) -> Result<()> + 'static) -> Self {
        Self { file: None, each: Some(Box::new(each)) }
    }

    /// Writes one line at once, so that measurements survive an interrupted run.
    pub fn line(&mut self, value: &Value) -> Result<()> {
        if let Some(file) = &mut self.file {
            writeln!(file, "{value}").context("writing results")?;
        }
        self.each.as_mut().map_or(Ok(()), |each| each(value))
    }

    /// A picture of lines of this file, for [`crate::report`] to draw.
    pub fn figure(&mut self, figure: &Figure) -> Result<()> {
        self.line(&serde_json::to_value(figure)?)
    }

    /// Values of a paper, to be drawn beside ours.
    pub fn published(&mut self, published: &Published) -> Result<()> {
        self.line(&serde_json::to_value(published)?)
    }
}

/// Parameters of a case for people, after its name: ` (routes 1000, destinations 4096)`; nothing if there are none. The
/// source of prefixes is only for the record.
pub fn in_words(parameters: &Value) -> String {
    let fields = parameters.as_object().into_iter().flatten();
    let said = fields.filter(|(name, value)| !value.is_null() && *name != "prefixes");
    let words = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{} {text}", name.replace('_', " ")),
        value => format!("{} {value}", name.replace('_', " ")),
    };
    let all: Vec<String> = said.map(words).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

/// Machine, kernel, revision, command line and time of this run.
fn run(command: &[String]) -> Result<Value> {
    let read =
        |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Ok(json!({
        "record": "run",
        "unix_seconds": SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        "cpu": model.map(|(_, name)| name),
        "cores": cpu::online()?,
        "kernel": format!("{} {}", read("/proc/sys/kernel/osrelease"), read("/proc/sys/kernel/version")),
        "revision": revision(),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "command": command,
    }))
}

/// The commit, with `+` if the tree differs from it.
fn revision() -> String {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty=+", "--exclude=*"]);
    command::run(&mut git).map_or("unknown".into(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_shown_in_words() {
        let parameters = json!({"routes": 1000, "family": "IPv4", "load_pps": null, "prefixes": "/a/file"});
        assert_eq!(in_words(&parameters), " (family IPv4, routes 1000)");
        assert_eq!([in_words(&json!({})), in_words(&Value::Null)], ["", ""]);
    }

    #[test]
    fn a_path_that_cannot_be_written_is_reported_first_and_nothing_is_left_or_lost() {
        let directory = tempfile::tempdir().unwrap();
        let output = |name: &str| Output { path: Some(directory.path().join(name)), command: Vec::new() };
        output("new.jsonl").check(&[]).unwrap();
        assert!(!directory.path().join("new.jsonl").exists());
        std::fs::write(directory.path().join("old.jsonl"), "old").unwrap();
        output("old.jsonl").check(&[]).unwrap();
        assert_eq!(std::fs::read_to_string(directory.path().join("old.jsonl")).unwrap(), "old");
        for bad in ["none/a.jsonl", "."] {
            let error = format!("{:#}", output(bad).check(&[]).unwrap_err());
            assert!(error.starts_with("raw results cannot be written to "), "{error}");
        }
        assert!(format!("{:#}", output(".").check(&[]).unwrap_err()).contains("/./results.jsonl"));
        Output { path: None, command: Vec::new() }.check(&[]).unwrap();
    }

    #[test]
    fn lines_of_a_document_are_lines_of_its_file() {
        let lines = [json!({"a": 1}), json!({"b": [2, 3]})];
        let text = with_lines(&json!({"run": {"cores": 2}, "x": null}), &lines).unwrap();
        assert_eq!(text.matches('\n').count(), 10, "{text}");
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, json!({"run": {"cores": 2}, "x": null, "lines": lines}));
    }

    #[test]
    fn an_input_is_not_overwritten_whatever_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("my.pcap"), "").unwrap();
        std::fs::hard_link(path("my.pcap"), path("hard")).unwrap();
        std::os::unix::fs::symlink("my.pcap", path("soft")).unwrap();
        let inputs = ["a.toml", "my.pcap", "none"].map(path);
        for name in ["my.pcap", "hard", "soft", "none"] {
            let error = Output { path: Some(path(name)), command: Vec::new() }.check(&inputs).unwrap_err();
            let read = path(if name == "none" { name } else { "my.pcap" });
            let expected = format!("to {}: that is {}, which is read", path(name).display(), read.display());
            assert!(error.to_string().contains(&expected), "{error}");
        }
        Output { path: Some(path("my.jsonl")), command: Vec::new() }.check(&inputs).unwrap();
    }
}
