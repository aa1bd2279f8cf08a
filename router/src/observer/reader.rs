//! Everything read again, in another thread and with sockets of its own, for comparison.

use super::space::{Peers, Space};
use crate::{multipath::MultipathKeys, netns::Key};
use logic::observe::{Dump, Namespace, NamespaceId};
use std::{fs::File, io, sync::Arc};

/// The subscription that comes with a namespace is never read here.
const UNUSED_BUFFER_BYTES: usize = 4096;

/// Reads the namespaces that were observed when it was made. It keeps them alive: not to be kept.
pub struct Reader {
    pub(super) places: Vec<(NamespaceId, Key, Arc<File>, Namespace)>,
    pub(super) peers: Peers,
    pub(super) multipath_keys: MultipathKeys,
}

impl Reader {
    /// Everything about all of them. Programs on devices are not looked for.
    ///
    /// # Errors
    /// What the kernel says, and of which namespace.
    pub fn read(self) -> io::Result<Vec<(NamespaceId, Dump)>> {
        let read = |(id, key, file, namespace): (NamespaceId, Key, Arc<File>, Namespace)| {
            let name = namespace.name.clone();
            Space::open(id, key, file, namespace, UNUSED_BUFFER_BYTES, self.multipath_keys)
                .and_then(|mut space| space.dump(&self.peers))
                .map(|dump| (id, dump))
                .map_err(|e| io::Error::new(e.kind(), format!("{name}: {e}")))
        };
        self.places.into_iter().map(read).collect()
    }
}
