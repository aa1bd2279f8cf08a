//! Text that others choose, for terminals, logs and shells.
//!
//! A tenant names devices, chains and processes, and a controller sends texts. Such a name may hold an escape sequence
//! that forges a terminal's output. It may also hold a command that a shell runs when somebody pastes the line.
//!
//! | use | for |
//! |---|---|
//! | [`Shown`] | a name within a sentence |
//! | [`Quoted`] | a name within a command line to paste: it stays one word |
//! | [`shown`], [`shown_lines`] | a whole sentence, or several lines |
//! | [`shown_json`] | JSON that is printed |
//! | [`parsed`] | JSON of the daemon: makes every string in it fit to show |
//! | [`LogLines`] | the log: one line for each event, whatever its texts are |

use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    io::{self, Write},
};

/// The most characters of a name that are shown. Longer names are cut, and end in dots.
const MOST_SHOWN: usize = 256;

/// A name in a form that a terminal may show, cut if it is very long.
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.chars();
        rest.by_ref().take(MOST_SHOWN).try_for_each(|c| show(c, f))?;
        if rest.next().is_some() { f.write_str("...") } else { Ok(()) }
    }
}

/// A name as one word of a shell's command line. Bash, ksh, zsh and busybox pass on its exact bytes. A shell without
/// `$'...'` (dash) passes on other bytes in place of those that no terminal may show, but still one word.
///
/// A word that begins with a dash keeps it: the command must take it after a keyword or `--`.
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = |c: char| c.is_ascii_alphanumeric() || "_./:@%+,-".contains(c);
        if !self.0.is_empty() && self.0.chars().all(bare) {
            return f.write_str(self.0);
        }
        if self.0.chars().all(is_plain) {
            return write!(f, "'{}'", self.0.replace('\'', r"'\''"));
        }
        f.write_str("$'")?;
        for c in self.0.chars() {
            match c {
                // Not as \': a shell without this quoting would take that for the end.
                '\'' | '\\' => write!(f, "\\{:03o}", u32::from(c))?,
                c if is_plain(c) => f.write_char(c)?,
                c => c.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(f, "\\{byte:03o}"))?,
            }
        }
        f.write_char('\'')
    }
}

/// A sentence in a form that a terminal may show, on one line. A second call changes nothing more.
pub fn shown(text: &str) -> String {
    let mut fit = String::with_capacity(text.len());
    // Writing to a String cannot fail.
    let _ = text.chars().try_for_each(|c| show(c, &mut fit));
    fit
}

/// Several lines of ours in a form that a terminal may show. Names in them have already lost their newlines.
pub fn shown_lines(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| c == '\n' || is_plain(c)) {
        return text.into();
    }
    text.split('\n').map(shown).collect::<Vec<_>>().join("\n").into()
}

/// The same JSON, with JSON escapes for characters that no terminal may show. It parses to the same value.
pub fn shown_json(json: &str) -> String {
    let mut fit = String::with_capacity(json.len());
    for c in json.chars() {
        match c == '\n' || is_plain(c) {
            true => fit.push(c),
            // Only strings hold such characters.
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| fit += &format!("\\u{unit:04x}")),
        }
    }
    fit
}

/// Parses JSON that the daemon wrote, and makes every string in it fit to show.
///
/// # Errors
/// The text is no JSON, or not of this type.
pub fn parsed<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<T> {
    // No string can then hold anything else.
    if json.iter().all(|b| matches!(b, b' '..=b'[' | b']'..=b'~')) {
        return serde_json::from_slice(json);
    }
    let mut value = serde_json::from_slice(json)?;
    make_fit(&mut value);
    serde_json::from_value(value)
}

fn make_fit(value: &mut Value) {
    match value {
        Value::String(text) if !text.chars().all(is_plain) => *text = shown(text),
        Value::Array(values) => values.iter_mut().for_each(make_fit),
        Value::Object(fields) => {
            let unfit: Vec<_> = fields.keys().filter(|name| !name.chars().all(is_plain)).cloned().collect();
            for name in unfit {
                let value = fields.remove(&name).unwrap_or_default();
                fields.insert(shown(&name), value);
            }
            fields.values_mut().for_each(make_fit);
        }
        _ => {}
    }
}

/// Standard error for a log that writes one event at a time. Each event becomes one line that a terminal may show.
pub struct LogLines;

impl Write for LogLines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = shown(text.strip_suffix('\n').unwrap_or(&text)) + "\n";
        io::stderr().lock().write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn show(c: char, to: &mut impl fmt::Write) -> fmt::Result {
    if is_plain(c) { to.write_char(c) } else { write!(to, "{}", c.escape_default()) }
}

/// Does a terminal show the character unchanged and in its place? Letters, digits, punctuation and symbols are plain.
/// Control characters, marks that change the direction of writing, and invisible characters are not.
fn is_plain(c: char) -> bool {
    match c {
        ' '..='~' => true,
        // Invisible letters.
        '\u{ad}' | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' => false,
        '\u{a1}'..='\u{bf}' | '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}' => true,
        '\u{2190}'..='\u{2bff}' | '\u{1f300}'..='\u{1faff}' => true,
        c => c > '\u{a0}' && c.is_alphanumeric(),
    }
}

/// Names for tests of everything that makes sentences or command lines.
#[cfg(test)]
pub const HOSTILE: [&str; 16] = [
    "$(touch RAN)",
    "`touch RAN`",
    "a;touch RAN",
    "a|touch RAN",
    "a&touch RAN",
    "a>RAN",
    "'",
    "'\u{1b};touch RAN;'",
    "\\';touch RAN;\u{1b}",
    "\"\u{7}",
    "a\ntouch RAN\n",
    "\u{1b}[2J\u{1b}]0;owned\u{7}",
    "\u{202e}gnp.exe",
    "-rf",
    "*",
    "\u{1}\u{9b}31m\u{fffd}",
];

/// Checks that a sentence is fit to show.
#[cfg(test)]
#[track_caller]
pub fn assert_fit(sentence: &str) {
    assert!(sentence.chars().all(is_plain), "{sentence:?}");
}

/// Command lines as somebody would paste them, with stand-ins for the programs that they run. All lines run in one
/// shell, because a forked process holds locks that other tests wait for.
#[cfg(test)]
#[derive(Default)]
pub struct Pasted {
    script: String,
    expected: Vec<Vec<String>>,
}

#[cfg(test)]
impl Pasted {
    /// Adds a line of a sentence that runs `tool`, and the words that the tool must get.
    #[track_caller]
    pub fn add(&mut self, sentence: &str, line: &str, tool: &str, words: &[&str]) {
        assert_fit(sentence);
        assert!(sentence.contains(line), "{sentence:?}: {line:?}");
        self.script += &format!("{tool}() {{ printf '%s\\0' \"$@\" END; }}\n{line}\n");
        self.expected.push(words.iter().map(|word| word.to_string()).collect());
    }

    /// Bash passes on the exact words. A shell without all of its quoting passes on as many words. Nothing else runs.
    pub fn run(self) {
        for shell in ["bash", "sh"] {
            let directory = tempfile::tempdir().unwrap();
            let mut command = std::process::Command::new(shell);
            command.args(["-c", &self.script]).current_dir(directory.path());
            let done = command.output().unwrap();
            assert!(done.status.success(), "{}: {done:?}", self.script);
            assert!(done.stderr.is_empty(), "{}: {done:?}", self.script);
            let ran: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
            assert!(ran.is_empty(), "{ran:?} {}", self.script);
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            let words: Vec<_> = text.split_terminator('\0').collect();
            let lines: Vec<_> = words.split(|word| *word == "END").collect();
            assert_eq!(lines.len(), self.expected.len() + 1, "{}", self.script);
            for (got, expected) in lines.into_iter().zip(&self.expected) {
                match shell {
                    "bash" => assert_eq!(got, expected),
                    _ => assert_eq!(got.len(), expected.len(), "{got:?} {expected:?}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn harmless_names_stay_as_they_are() {
        for name in ["eth0", "eth1.5", "pid:7", "Zürich", "東京", "a b", "→"] {
            assert_eq!(Shown(name).to_string(), name);
        }
        assert_eq!(Quoted("eth1.5").to_string(), "eth1.5");
        assert_eq!(Quoted("a b").to_string(), "'a b'");
        assert_eq!(Quoted("").to_string(), "''");
    }

    #[test]
    fn control_characters_are_escaped() {
        let shown = |text| Shown(text).to_string();
        assert_eq!(shown("a\u{1b}[2Jb"), r"a\u{1b}[2Jb");
        assert_eq!(shown("a\nb\tc\u{7f}\u{9b}"), r"a\nb\tc\u{7f}\u{9b}");
        assert_eq!(shown("\u{202e}x\u{2066}\u{200b}\u{2028}"), r"\u{202e}x\u{2066}\u{200b}\u{2028}");
        assert_eq!(shown(&"x".repeat(300)), "x".repeat(256) + "...");
        assert_eq!(shown_lines("a\nb\u{1b}c\n"), "a\nb\\u{1b}c\n");
    }

    #[test]
    fn names_reach_a_command_as_one_word() {
        let mut pasted = Pasted::default();
        for name in HOSTILE {
            let command = format!("stand_in dev {} up", Quoted(name));
            pasted.add(&command, &command, "stand_in", &["dev", name, "up"]);
        }
        pasted.run();
    }

    #[test]
    fn strings_of_the_daemon_are_made_fit() {
        let json = serde_json::json!({ "a": ["x\ny", { "\u{1b}": "\u{202e}" }], "n": 1.5, "z": null });
        let read: Value = parsed(json.to_string().as_bytes()).unwrap();
        assert_eq!(
            read,
            serde_json::json!({ "a": [r"x\ny", { r"\u{1b}": r"\u{202e}" }], "n": 1.5, "z": null })
        );
        let text = serde_json::to_string_pretty(&json).unwrap();
        let fit = shown_json(&text);
        assert!(fit.chars().all(|c| c == '\n' || is_plain(c)) && fit != text);
        assert_eq!(serde_json::from_str::<Value>(&fit).unwrap(), json);
        assert_eq!(parsed::<Vec<String>>(b"[\"a\", \"b\"]").unwrap(), ["a", "b"]);
        assert!(parsed::<Value>(b"{").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_fit_after_it_was_shown(text in any::<String>()) {
            let once = shown(&text);
            prop_assert!(once.chars().all(is_plain));
            prop_assert_eq!(shown(&once), once);
            prop_assert!(Quoted(&text).to_string().chars().all(is_plain));
        }
    }
}
