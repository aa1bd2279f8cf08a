//! The view and settings that the user chose, and the keys that change them.

use crate::{base::BadValue, config::parse_ms};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::{str::FromStr, time::Duration};

/// The times between two readings that `+` and `-` choose from, in milliseconds.
const PERIODS_MS: [u64; 7] = [200, 500, 1000, 2000, 5000, 10_000, 60_000];

/// Time between two readings, 200 ms to a minute: the daemon measures queues ten times a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period(pub Duration);

impl FromStr for Period {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        let bounds = PERIODS_MS[0]..=PERIODS_MS[PERIODS_MS.len() - 1];
        let ms = parse_ms(s).filter(|ms| bounds.contains(ms));
        ms.map(|ms| Self(Duration::from_millis(ms))).ok_or_else(|| {
            BadValue(format!("{s:?} is not allowed: a time from 200ms to 1m, such as \"500ms\" or \"2s\""))
        })
    }
}

/// A view of `millrace top`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    Cores,
    Queues,
    Routers,
    Interfaces,
    Flows,
    /// Connections with the most bits per second.
    Talkers,
    Paths,
}

impl View {
    pub const ALL: [View; 7] =
        [View::Cores, View::Queues, View::Routers, View::Interfaces, View::Flows, View::Talkers, View::Paths];

    pub fn name(self) -> &'static str {
        match self {
            View::Cores => "cores",
            View::Queues => "queues",
            View::Routers => "routers",
            View::Interfaces => "interfaces",
            View::Flows => "flows",
            View::Talkers => "talkers",
            View::Paths => "paths",
        }
    }
}

/// What the user chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    pub view: View,
    /// Lines above the first one shown.
    pub scroll: usize,
    /// The daemon is not asked.
    pub paused: bool,
    pub period: Duration,
    /// Lines of the view that fit the screen, as last drawn.
    pub page: usize,
}

impl Selection {
    pub fn new(period: Period) -> Selection {
        Selection { view: View::default(), scroll: 0, paused: false, period: period.0, page: 1 }
    }

    /// Obeys a key; `false`: quit.
    pub fn press(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c' | 'd') if control => return false,
            KeyCode::Char(digit @ '1'..='7') => self.look_at(View::ALL[digit as usize - '1' as usize]),
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(View::ALL.len() - 1),
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll = self.scroll.saturating_add(1),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(self.page),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(self.page),
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = usize::MAX,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('+' | '=') => self.period = longer(self.period),
            KeyCode::Char('-') => self.period = shorter(self.period),
            _ => {}
        }
        true
    }

    fn look_at(&mut self, view: View) {
        (self.view, self.scroll) = (view, 0);
    }

    fn turn(&mut self, by: usize) {
        self.look_at(View::ALL[(self.view as usize + by) % View::ALL.len()]);
    }
}

fn longer(period: Duration) -> Duration {
    let mut periods = PERIODS_MS.into_iter().map(Duration::from_millis);
    periods.find(|p| *p > period).unwrap_or(period)
}

fn shorter(period: Duration) -> Duration {
    let mut periods = PERIODS_MS.into_iter().rev().map(Duration::from_millis);
    periods.find(|p| *p < period).unwrap_or(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn periods_are_bounded() {
        for (text, expected) in [
            ("1s", Some(1000)),
            ("200ms", Some(200)),
            ("1m", Some(60_000)),
            ("199ms", None),
            ("61s", None),
            ("1h", None),
            ("1", None),
            ("", None),
            ("-1s", None),
        ] {
            assert_eq!(text.parse::<Period>().ok(), expected.map(|it| Period(ms(it))), "{text}");
        }
    }

    #[test]
    fn keys_choose() {
        let start = Selection::new(Period(ms(1000)));
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        let pressed = |codes: &[KeyCode]| {
            let mut state = Selection { page: 10, ..start };
            assert!(codes.iter().all(|code| state.press(key(*code))), "{codes:?}");
            Selection { page: 1, ..state }
        };
        use KeyCode::{BackTab, Char, Down, End, Home, PageDown, PageUp, Tab, Up};
        let table: [(&[KeyCode], Selection); 14] = [
            (&[Tab], Selection { view: View::Queues, ..start }),
            (&[BackTab], Selection { view: View::Paths, ..start }),
            (&[Tab, Tab, Tab, Tab, Tab, Tab, Tab], start),
            (&[Char('3')], Selection { view: View::Routers, ..start }),
            (&[Char('7')], Selection { view: View::Paths, ..start }),
            (&[Char('8'), Char('0'), Char('x'), Up, Home], start),
            (&[Down, Down, Up], Selection { scroll: 1, ..start }),
            (&[Down, Char('2')], Selection { view: View::Queues, ..start }),
            (&[PageDown, Down, PageUp], Selection { scroll: 1, ..start }),
            (&[End, Down, PageDown], Selection { scroll: usize::MAX, ..start }),
            (&[Char(' ')], Selection { paused: true, ..start }),
            (&[Char('+')], Selection { period: ms(2000), ..start }),
            (&[Char('-'), Char('-'), Char('-'), Char('-')], Selection { period: ms(200), ..start }),
            (&[Char('+'); 9], Selection { period: ms(60_000), ..start }),
        ];
        for (codes, expected) in table {
            assert_eq!(pressed(codes), expected, "{codes:?}");
        }
        let mut state = start;
        assert!(!state.press(key(KeyCode::Esc)) && !state.press(key(Char('q'))));
        assert!(!state.press(KeyEvent::new(Char('c'), KeyModifiers::CONTROL)));
        assert!(state.press(key(Char('c'))));
        let odd = Selection { period: ms(1500), ..start };
        for (code, period) in [('+', 2000), ('-', 1000)] {
            let mut state = odd;
            state.press(key(Char(code)));
            assert_eq!(state.period, ms(period));
        }
    }
}
