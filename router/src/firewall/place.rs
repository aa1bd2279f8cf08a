//! Conntrack of one namespace.

use crate::linux::{
    conntrack::{
        ends::{self, Ends},
        settings::{SettingFiles, Settings},
        tracker::Tracker,
    },
    netns::NamespaceRef,
};
use std::io;

/// Room for reports of other namespaces, whose owners may make very many. If reports are lost, all connections are dropped.
const BYTES_OF_OTHERS: usize = 1 << 20;

/// A namespace whose ends of connections are heard. It keeps no namespace alive but the thread's own.
pub struct Place {
    namespace: NamespaceRef,
    pub ends: Ends,
    files: SettingFiles,
    pub settings: Settings,
    /// `None`: opened when it is needed, because it would keep the namespace alive.
    tracker: Option<Tracker>,
}

impl Place {
    /// Begins to listen. Only connections that begin from now on report their end.
    ///
    /// # Errors
    /// The namespace is gone, or the kernel lacks something.
    pub fn open(namespace: &NamespaceRef) -> io::Result<Place> {
        let is_own = NamespaceRef::own()?.key() == namespace.key();
        let files = if is_own { SettingFiles::open()? } else { namespace.inside(SettingFiles::open)?? };
        // This can fail because of what the owner has set, so it comes before anything that costs more.
        let settings = files.read()?;
        let (ends, tracker) = match is_own {
            true => (Ends::here(ends::RECEIVE_BUFFER_BYTES)?, Some(Tracker::open()?)),
            false => (Ends::of(&*namespace.open()?, BYTES_OF_OTHERS)?, None),
        };
        Ok(Place { namespace: namespace.clone(), ends, files, settings, tracker })
    }

    /// Reads the settings again. Returns whether they have changed.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn read_settings(&mut self) -> io::Result<bool> {
        let now = self.files.read()?;
        Ok(std::mem::replace(&mut self.settings, now) != now)
    }

    /// Sends requests to this namespace's conntrack.
    ///
    /// # Errors
    /// The namespace is gone, or those of `task`.
    pub fn ask<T>(&mut self, task: impl FnOnce(&mut Tracker, &Settings) -> io::Result<T>) -> io::Result<T> {
        match &mut self.tracker {
            Some(tracker) => task(tracker, &self.settings),
            None => task(&mut self.namespace.inside(Tracker::open)??, &self.settings),
        }
    }
}
