//! `millrace top` on a terminal, which it restores.

use std::{
    io::{Read as _, Write as _},
    process::{Command, Stdio},
};

const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
const ENTERS: &str = "\x1b[?1049h";
const LEAVES: &str = "\x1b[?1049l";
/// The last word that the first screen with cores shows.
const SHOWN: &str = "stolen";

/// Runs `top`, and calls `end` once it shows a screen. Returns what went to the terminal, followed by the
/// exit code, and by `restored` if the terminal's settings are as before.
fn on_terminal(environment: &str, end: impl FnOnce(&str, &mut dyn FnMut(&str))) -> String {
    let shell = format!(
        "stty cols 80 rows 24; before=$(stty -g); \
         {environment} timeout --foreground 20 sh -c 'echo pid $$ .; exec {MILLRACE} top --instance nobody'; \
         echo code $?; test \"$before\" = \"$(stty -g)\" && echo restored"
    );
    let mut script = Command::new("script")
        .args(["-qec", &shell, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut shown) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(SHOWN.as_bytes()) && shown.read(&mut byte).unwrap() > 0 {
        text.push(byte[0]);
    }
    let mut press = |pressed: &str| {
        keys.write_all(pressed.as_bytes()).unwrap();
        keys.flush().unwrap();
    };
    end(&String::from_utf8_lossy(&text), &mut press);
    shown.read_to_end(&mut text).unwrap();
    script.wait().unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

fn is_left(text: &str, code: u8) -> bool {
    let inside = text.split(ENTERS).nth(1).and_then(|rest| rest.split_once(LEAVES));
    inside.is_some_and(|(inside, after)| {
        inside.contains("no daemon is running") && after.contains(&format!("code {code}\r\nrestored"))
    })
}

#[test]
fn a_key_or_a_signal_ends_top_and_restores_the_terminal() {
    for pressed in ["q", "2 +-\tq", "\x03"] {
        let text = on_terminal("", |_, press| press(pressed));
        assert!(is_left(&text, 0), "{pressed:?}: {text:?}");
    }
    let text = on_terminal("", |shown, _| {
        let pid = shown.split(' ').nth(1).unwrap();
        assert!(Command::new("kill").args(["-TERM", pid]).status().unwrap().success());
    });
    assert!(is_left(&text, 143), "{text:?}");
}

#[test]
fn colours_are_left_out_when_not_wanted() {
    let shown = |environment| on_terminal(environment, |_, press| press("q"));
    // The error is red.
    let is_coloured = |text: &str| text.contains("\x1b[38;5;1");
    assert!(is_coloured(&shown("env -u NO_COLOR")), "no colours without NO_COLOR");
    assert!(!is_coloured(&shown("NO_COLOR=1")), "colours with NO_COLOR=1");
}

#[test]
fn without_a_terminal_the_error_names_a_command_that_works() {
    let millrace = |words: &[&str]| {
        let words = [&["--instance", "nobody", "top"], words].concat();
        let output = Command::new(MILLRACE).args(words).stdin(Stdio::null()).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(millrace(&[]).contains("millrace top --once"));
    assert!(millrace(&["--once"]).contains("no daemon is running"));
}
