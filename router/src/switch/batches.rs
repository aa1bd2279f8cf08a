//! Grace periods: a helper thread waits for them and reports back, so that the switch thread need not wait.

use anyhow::{Context, Result};
use std::{
    sync::mpsc::{SyncSender, sync_channel},
    thread,
};

/// A function that returns when a grace period has passed.
pub type Wait = Box<dyn FnMut() -> Result<()> + Send>;

/// The helper thread; it ends when this is dropped.
pub struct Batches {
    to: SyncSender<()>,
}

impl Batches {
    /// Starts the thread. It calls `told` after each wait.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(mut wait: Wait, told: impl Fn(Result<()>) + Send + 'static) -> Result<Batches> {
        let (to, begun) = sync_channel(1);
        thread::Builder::new()
            .name("flow-grace".into())
            .spawn(move || begun.into_iter().for_each(|()| told(wait())))
            .context("starting the thread that waits for grace periods")?;
        Ok(Batches { to })
    }

    /// Begins a wait. There is one at a time.
    pub fn begin(&self) {
        let _ = self.to.try_send(());
    }
}
