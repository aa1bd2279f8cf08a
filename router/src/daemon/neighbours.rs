//! Neighbours that only the fast path uses, looked after at Linux's own pace.
//!
//! Linux does not see what the fast path sends, so an entry in use goes `NUD_STALE` when it was last confirmed
//! `base_reachable_time` ago. Linux itself would go on to `NUD_DELAY` then if it had sent within the last
//! `delay_first_probe_time` (neigh_timer_handler(), net/core/neighbour.c), and from `NUD_STALE` with its next packet
//! (neigh_event_send()). Both are done here by `NTF_USE`: the first as soon as the message says stale, the second within
//! [`LOOK`]. Linux's timers do the rest: it probes, and a neighbour that is gone or has another MAC address is found out as
//! soon as without Millrace.

use super::{
    Control,
    seam::{Kernel, Observe},
};
use logic::{mirror::StaleNeighbour, observe::Event, plan::InterfaceId};
use std::{collections::BTreeSet, net::IpAddr, time::Duration};

/// How long a use counts: `delay_first_probe_time` unless someone has changed it.
const RECENT: Duration = Duration::from_secs(5);
/// How often stale neighbours are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Neighbours that are probed in one round.
const PROBES: usize = 1024;

/// Which neighbours the fast path has used.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// Between the last two times that all were asked for.
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

    /// When there is something to look at next.
    pub fn due(&self, any_stale: bool) -> Duration {
        let all = self.asked + RECENT;
        if any_stale { all.min(self.looked + LOOK) } else { all }
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Makes the kernel look after neighbours that only the fast path uses.
    pub(super) fn keep_alive(&mut self, now: Duration) {
        if now.saturating_sub(self.uses.asked) >= RECENT {
            self.uses.asked = now;
            self.uses.recent = self.generation.take_used().into_iter().collect();
        }
        if !std::mem::take(&mut self.uses.news) && now.saturating_sub(self.uses.looked) < LOOK {
            return;
        }
        self.uses.looked = now;
        let mut used = Vec::new();
        for stale in self.world.mirror.stale_neighbours() {
            let key = (stale.interface, stale.address);
            if self.generation.take_use_of(key.0, key.1) | self.uses.recent.remove(&key) {
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
