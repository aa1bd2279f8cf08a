//! Everything read again, in another thread and with sockets of its own, for comparison.

use super::{
    Quota,
    space::{Peers, Space},
    survey,
    sysctl::Sysctls,
};
use crate::netns::Place;
use logic::observe::{Dump, Event, Namespace, NamespaceId};
use std::{io, sync::Arc, time::Instant};

/// Reads the namespaces that were observed when it was made. It keeps none of them alive.
pub struct Reader {
    pub(super) places: Vec<(NamespaceId, Place, Namespace)>,
    pub(super) peers: Arc<Peers>,
    pub(super) quota: Quota,
}

impl Reader {
    /// Everything about all of them. Programs on devices are not looked for.
    ///
    /// # Errors
    /// What the kernel says, and of which namespace.
    pub fn read(self) -> io::Result<Vec<(NamespaceId, Dump)>> {
        let places = self.places.iter();
        let read = |(id, place, namespace): &(NamespaceId, Place, Namespace)| {
            let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", namespace.name));
            self.read_one(*id, place, namespace).map(|dump| (*id, dump)).map_err(named)
        };
        places.map(read).collect()
    }

    fn read_one(&self, id: NamespaceId, place: &Place, namespace: &Namespace) -> io::Result<Dump> {
        let sysctls = place.inside(Sysctls::open)??;
        let quota = self.quota.of(id);
        let mut space = Space::new(id, place.clone(), namespace.clone(), (None, sysctls), quota);
        let (mut out, now) = (Vec::new(), Instant::now());
        let wanted = space.begin_visit(&self.peers, now).unwrap_or_default();
        let found = survey::visit(place, &wanted, id, &self.peers, &quota);
        if let Some(Err(error)) = &found.state {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        space.end_visit(found, &mut out, now);
        let dump = out.into_iter().find_map(|event| match event {
            Event::Dump(_, dump) => Some(*dump),
            _ => None,
        });
        dump.ok_or_else(|| io::Error::other("nothing was read"))
    }
}
