//! The terminal, and events: keys, signals and readings. Each kind has a thread of its own, so a slow daemon does not hold up
//! the keys.

use super::{
    reading::{Reader, Reading},
    state::View,
};
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, KeyEvent},
};
use std::{
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel},
    thread,
    time::Duration,
};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
};

/// The terminal, in the mode for drawing. It is restored when this is dropped, and after a panic.
pub struct Screen(DefaultTerminal);

impl Screen {
    pub fn open() -> io::Result<Screen> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Screen(terminal)),
            Err(error) => {
                // It may have changed a part of the mode.
                let _ = ratatui::try_restore();
                Err(error)
            }
        }
    }

    pub fn draw(&mut self, with: impl FnOnce(&mut Frame)) -> io::Result<()> {
        self.0.draw(with).map(|_| ())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        // The terminal may be gone.
        let _ = ratatui::try_restore();
    }
}

/// An event.
pub enum Event {
    Key(KeyEvent),
    Resized,
    Read(Box<Reading>),
    /// A signal came, or the terminal is gone; with the exit code.
    End(u8),
}

/// The source of events.
pub struct Events {
    events: Receiver<Event>,
    reads: SyncSender<View>,
}

impl Events {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(mut reader: Reader) -> io::Result<Events> {
        let (to, events) = channel();
        let (reads, asked) = sync_channel(1);
        spawn("signals", &to, signals)?;
        spawn("keys", &to, keys)?;
        spawn("readings", &to, move |to| {
            // Until `Events` is dropped.
            while let Ok(view) = asked.recv() {
                let _ = to.send(Event::Read(Box::new(reader.read(Some(view)))));
            }
            Ok(0)
        })?;
        Ok(Events { events, reads })
    }

    /// Asks for a reading for a view. `false`: an earlier request still waits.
    pub fn ask(&self, view: View) -> bool {
        self.reads.try_send(view).is_ok()
    }

    /// Waits for the next event; `Timeout` after this time.
    pub fn next(&self, within: Option<Duration>) -> Result<Event, RecvTimeoutError> {
        match within {
            Some(time) => self.events.recv_timeout(time),
            None => self.events.recv().map_err(RecvTimeoutError::from),
        }
    }
}

/// Runs `body` in a thread. When it returns or panics, [`Event::End`] is sent.
fn spawn(
    name: &str,
    to: &Sender<Event>,
    body: impl FnOnce(&Sender<Event>) -> io::Result<u8> + Send + 'static,
) -> io::Result<()> {
    struct Ends(Sender<Event>, u8);
    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.send(Event::End(self.1));
        }
    }
    let to = to.clone();
    thread::Builder::new().name(name.into()).spawn(move || {
        let mut ends = Ends(to, 1);
        ends.1 = body(&ends.0).unwrap_or(1);
    })?;
    Ok(())
}

fn keys(to: &Sender<Event>) -> io::Result<u8> {
    loop {
        let sent = match event::read()? {
            event::Event::Key(key) => to.send(Event::Key(key)),
            event::Event::Resize(..) => to.send(Event::Resized),
            _ => Ok(()),
        };
        if sent.is_err() {
            return Ok(0);
        }
    }
}

/// Waits for a signal that would end the process. Returns the exit code, which is 128 plus its number, as in shells.
fn signals(_: &Sender<Event>) -> io::Result<u8> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut quit = signal(SignalKind::quit())?;
        let kind = tokio::select! {
            _ = hangup.recv() => SignalKind::hangup(),
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = terminate.recv() => SignalKind::terminate(),
            _ = quit.recv() => SignalKind::quit(),
        };
        Ok(128 + kind.as_raw_value() as u8)
    })
}
