//! Keeps neighbours that only the fast path uses alive, at Linux's own pace.
//!
//! Linux does not see packets that the fast path sends. An entry in use therefore goes `NUD_STALE` when it was last
//! confirmed `base_reachable_time` ago. Linux itself would go on to `NUD_DELAY` at once if it had sent within the last
//! `delay_first_probe_time` (neigh_timer_handler(), net/core/neighbour.c). From `NUD_STALE` it would go on with its
//! next packet (neigh_event_send()). This module does both with `NTF_USE`: the first as soon as the message reports
//! stale, the second within [`LOOK`]. Linux's timers do the rest. Linux probes, and finds a neighbour that is gone or
//! has another MAC address as soon as without Millrace.

use super::{
    Control,
    seam::{Kernel, Observe},
};
use logic::{mirror::StaleNeighbour, observe::Event, plan::InterfaceId};
use std::{collections::BTreeSet, net::IpAddr, time::Duration};

/// How long a use counts: `delay_first_probe_time`, unless someone has changed it.
const RECENT: Duration = Duration::from_secs(5);
/// The interval between looks at stale neighbours.
const LOOK: Duration = Duration::from_millis(500);
/// Neighbours probed in one round.
const PROBES: usize = 1024;

/// The neighbours that the fast path has used.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// Uses between the last two times that all were fetched.
    recent: BTreeSet<(InterfaceId, IpAddr)>,
    asked: Duration,
    looked: Duration,
    /// A neighbour has gone stale since the last look.
    news: bool,
}

impl Uses {
    /// Takes note of an event.
    pub fn observe(&mut self, event: &Event) {
        self.news |= matches!(event, Event::Neighbour(_, neighbour) if neighbour.stale);
    }

    /// The time of the next look.
    pub fn due(&self, any_stale: bool) -> Duration {
        let all = self.asked + RECENT;
        if any_stale { all.min(self.looked + LOOK) } else { all }
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Makes the kernel keep neighbours alive that only the fast path uses.
    pub(super) fn keep_alive(&mut self, now: Duration) {
        if now.saturating_sub(self.uses.asked) >= RECENT {
            self.uses.asked = now;
            self.uses.recent = self.generation.tables.take_used().into_iter().collect();
        }
        if !std::mem::take(&mut self.uses.news) && now.saturating_sub(self.uses.looked) < LOOK {
            return;
        }
        self.uses.looked = now;
        let mut used = Vec::new();
        for stale in self.world.mirror.stale_neighbours() {
            let key = (stale.interface, stale.address);
            if self.generation.tables.take_use_of(key.0, key.1) | self.uses.recent.remove(&key) {
                used.push(stale);
            }
            if used.len() == PROBES {
                self.uses.news = true;
                break;
            }
        }
        for StaleNeighbour { namespace, ifindex, address, .. } in used {
            if let Err(error) = self.observer.probe_neighbour(namespace, ifindex, address) {
                tracing::debug!("cannot probe neighbour {address}: {error:#}");
            }
        }
    }
}
