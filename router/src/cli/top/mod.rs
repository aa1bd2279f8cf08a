//! `millrace top`: cores, queues, routers, interfaces, flow rules, talkers and paths, live.
//!
//! | file | holds |
//! |---|---|
//! | `reading.rs`, `ticks.rs` | one reading: the answers of the daemon and /proc/stat at one moment |
//! | `model.rs` | rates and rows, computed from two readings; pure |
//! | `draw.rs`, `columns.rs` | rows as lines, and lines on a terminal; pure |
//! | `state.rs` | the view and settings that the user chose, and the keys that change them |
//! | `mod.rs`, `terminal.rs` | the loop; the terminal; threads for keys, signals and readings |

mod columns;
mod draw;
mod model;
mod reading;
mod state;
mod terminal;
mod ticks;

use super::print;
use crate::base::instance::Instance;
use anyhow::{Context, Result, bail};
use clap::Args;
use model::Model;
use ratatui::crossterm::terminal::size;
use reading::{Reader, Reading};
use state::{Period, Selection};
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    sync::mpsc::RecvTimeoutError,
    thread,
    time::{Duration, Instant},
};
use terminal::{Event, Events, Screen};

pub const HELP: &str = "\
Keys:
  1 to 7, Tab               cores, queues, routers, interfaces, flows, talkers, paths
  arrows, PgUp, PgDn, Home, End   scroll
  +, -                      read less often, more often
  space                     pause; the daemon is not asked meanwhile
  q, Esc, Ctrl-C            quit

The bar of a core shows the time for forwarding (#), the rest of the kernel (+) and applications (=), and time
that the host of a virtual machine gave to others (!). Forwarding of queues that nothing moves counts as the
kernel's. NO_COLOR=1 switches colours off. docs/howto/monitoring.md explains every column.";

#[derive(Debug, Args)]
pub struct Top {
    /// Time between two readings.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Period,
    /// Print all views as text, with the rates of one interval, and exit; needs no terminal.
    #[arg(long)]
    once: bool,
}

impl Top {
    pub fn run(self, instance: Instance) -> Result<ExitCode> {
        let mut reader = Reader::new(instance);
        if self.once {
            return once(&mut reader, self.interval.0);
        }
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            bail!("this is not a terminal: `millrace top --once` prints all views once, as text");
        }
        let code = live(reader, Selection::new(self.interval))?;
        Ok(ExitCode::from(code))
    }
}

fn once(reader: &mut Reader, interval: Duration) -> Result<ExitCode> {
    let told = |reading: Reading| match reading.daemon {
        Ok(_) => Ok(reading),
        Err(error) => bail!(error),
    };
    let before = told(reader.read(None))?;
    thread::sleep(interval);
    let now = told(reader.read(None))?;
    let width = match io::stdout().is_terminal() {
        true => size().map_or(80, |(columns, _)| columns.into()),
        false => usize::MAX,
    };
    print(&draw::text(&Model::new(Some(&before), &now), width))?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the views until a key or a signal ends it; returns the exit code.
fn live(reader: Reader, mut state: Selection) -> Result<u8> {
    let mut screen = Screen::open().context("opening the terminal")?;
    let events = Events::start(reader)?;
    let mut last: Option<Reading> = None;
    let mut model = None;
    let mut asked = events.ask(state.view);
    let mut asked_at = Instant::now();
    loop {
        screen.draw(|frame| draw::frame(frame, model.as_ref(), &mut state))?;
        let due = (!asked && !state.paused).then(|| state.period.saturating_sub(asked_at.elapsed()));
        match events.next(due) {
            Err(RecvTimeoutError::Timeout) => {
                asked = events.ask(state.view);
                asked_at = Instant::now();
            }
            Ok(Event::Read(reading)) => {
                asked = false;
                model = Some(Model::new(last.as_ref(), &reading));
                last = Some(*reading);
            }
            Ok(Event::Key(key)) if !state.press(key) => return Ok(0),
            Ok(Event::Key(_) | Event::Resized) => {}
            Ok(Event::End(code)) => return Ok(code),
            Err(RecvTimeoutError::Disconnected) => return Ok(1),
        }
    }
}
