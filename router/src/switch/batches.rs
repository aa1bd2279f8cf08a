//! Grace periods without making the switch thread wait: a helper thread waits, and says so.

use anyhow::{Context, Result};
use std::{
    sync::mpsc::{SyncSender, sync_channel},
    thread,
};

/// Returns when a grace period has passed.
pub type Wait = Box<dyn FnMut() -> Result<()> + Send>;

/// The helper thread; it ends when this is dropped.
pub struct Batches {
    to: SyncSender<()>,
}

impl Batches {
    /// `told` is called after each wait that was begun.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(mut wait: Wait, told: impl Fn(Result<()>) + Send + 'static) -> Result<Batches> {
        let (to, begun) = sync_channel(1);
        thread::Builder::new()
            .name("flow-grace".into())
            .spawn(move || begun.into_iter().for_each(|()| told(wait())))
            .context("starting the thread that waits for grace periods")?;
        Ok(Batches { to })
    }

    /// Begins to wait; one wait at a time.
    pub fn begin(&self) {
        let _ = self.to.try_send(());
    }
}
