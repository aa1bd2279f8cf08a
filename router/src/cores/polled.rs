//! Ports that workers poll themselves ([`crate::user_plane::af_xdp::Polling::Busy`]). While a worker polls again and
//! again, an interrupt of the device would only take the queue away from it.
//!
//! NAPI keeps interrupts off between two polls if it has a timer (`Documentation/networking/napi.rst`, "Busy polling").
//! If nobody polls for that long, because the worker sleeps or another path has its core, the kernel polls once, and
//! lets the device interrupt again. [`super::moderation`] sets the timer while workers poll, and restores it. If
//! `experimental.moderation` is configured, only that is set.

use crate::base::guard::locked;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

/// The ports that are polled now, by number of the device. Workers set them, and the thread that looks reads them.
#[derive(Clone, Debug, Default)]
pub struct PolledPorts(Arc<Mutex<BTreeSet<u32>>>);

impl PolledPorts {
    pub fn set(&self, ifindexes: BTreeSet<u32>) {
        *locked(&self.0) = ifindexes;
    }

    pub fn has(&self, ifindex: u32) -> bool {
        locked(&self.0).contains(&ifindex)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            fake::{Fake, Interrupts},
            knobs::Knobs,
            moderation::{Asked, Moderated, Moderation},
            queues::NetdevQueues,
            tree::Tree,
        },
        *,
    };
    use crate::linux::ethtool::Coalescing;

    /// eth0, number 8, is a NIC whose driver moderates its interrupts adaptively.
    struct World {
        tree: Tree,
        fake: Fake,
        ports: PolledPorts,
        knobs: Knobs,
        moderation: Moderation,
    }

    impl World {
        fn new() -> World {
            let (tree, fake, ports) = (Tree::new(), Fake::default(), PolledPorts::default());
            tree.device("eth0", 1, false);
            tree.hardware("eth0", "", 0, &[38]);
            tree.irq(38, "eth0-TxRx-0", "0-7", "0");
            tree.write("sys/class/net/eth0/ifindex", "8\n");
            fake.get().interrupts.insert("eth0".into(), Interrupts::new(8, true));
            let knobs = Knobs::open(tree.path("m.cores"), tree.roots(), fake.clone());
            let moderation = Moderation::while_polled(ports.clone(), 150);
            let world = World { tree, fake, ports, knobs, moderation };
            world.set(["0", "0"]);
            world
        }

        /// Starts another daemon, as after `kill -9`.
        fn restart(&mut self) {
            self.ports.set(BTreeSet::new());
            self.knobs = Knobs::open(self.tree.path("m.cores"), self.tree.roots(), self.fake.clone());
            self.moderation = Moderation::while_polled(self.ports.clone(), 150);
        }

        fn look(&mut self) -> Option<Moderated> {
            let told = NetdevQueues::default();
            let port = Asked { device: "eth0", ifindex: 8, told: &told };
            self.moderation.look(&mut self.knobs, &port)
        }

        /// Looks at the port while workers poll it, or not. Returns the time of the timer; 0: it is not set.
        fn polled(&mut self, is: bool) -> Option<f64> {
            self.ports.set(if is { [8].into() } else { BTreeSet::new() });
            match self.look()? {
                Moderated::By(set) => Some(set.us()),
                Moderated::Not(_) => Some(0.0),
            }
        }

        fn end(&mut self) -> Vec<String> {
            self.moderation.end(&mut self.knobs)
        }

        fn set(&self, [timeout, defers]: [&str; 2]) {
            self.tree.write("sys/class/net/eth0/gro_flush_timeout", &format!("{timeout}\n"));
            self.tree.write("sys/class/net/eth0/napi_defer_hard_irqs", &format!("{defers}\n"));
        }

        /// Asserts `gro_flush_timeout` and `napi_defer_hard_irqs`, and that the device's own timer is unchanged.
        #[track_caller]
        fn has(&self, timer: [&str; 2]) {
            let now = ["gro_flush_timeout", "napi_defer_hard_irqs"]
                .map(|name| self.tree.read(&format!("sys/class/net/eth0/{name}")).trim().to_owned());
            assert_eq!(now, timer);
            assert_eq!(self.fake.get().interrupts["eth0"].now, Coalescing { us: 8, adaptive: true });
        }
    }

    #[test]
    fn interrupts_are_kept_off_as_long_as_workers_poll() {
        let mut world = World::new();
        assert_eq!(world.polled(false), None);
        world.has(["0", "0"]);
        for _ in 0..2 {
            assert_eq!((world.polled(true), world.polled(true)), (Some(150.0), Some(150.0)));
            world.has(["150000", "1"]);
            assert_eq!(world.polled(false), None);
            world.has(["0", "0"]);
            assert!(!world.tree.path("m.cores").exists());
        }
        // Workers end.
        world.polled(true);
        assert_eq!(world.end(), [""; 0]);
        world.has(["0", "0"]);
        assert_eq!(world.look(), None);
        world.has(["0", "0"]);
    }

    #[test]
    fn the_next_daemon_after_a_kill_restores_the_timer_or_goes_on() {
        let mut world = World::new();
        world.polled(true);
        world.restart();
        world.has(["150000", "1"]);
        // `millrace stop`.
        assert_eq!(world.knobs.put_back(), [""; 0]);
        world.has(["0", "0"]);
        world.restart();
        world.polled(true);
        world.restart();
        assert_eq!(world.polled(true), Some(150.0));
        assert_eq!(world.polled(false), None);
        world.has(["0", "0"]);
    }

    #[test]
    fn a_timer_of_somebody_else_is_left_alone() {
        let mut world = World::new();
        world.set(["20000", "2"]);
        assert_eq!(world.polled(true), Some(0.0));
        assert!(matches!(world.look(), Some(Moderated::Not(why)) if why.contains("somebody else has set")));
        assert_eq!((world.polled(false), world.end()), (None, vec![]));
        world.has(["20000", "2"]);
        // Somebody sets it while workers poll.
        let mut world = World::new();
        world.polled(true);
        world.set(["99000", "1"]);
        assert_eq!((world.polled(true), world.polled(false)), (Some(0.0), None));
        assert_eq!((world.end(), world.knobs.put_back()), (vec![], vec![]));
        world.has(["99000", "1"]);
    }

    #[test]
    fn a_port_without_interrupts_is_left_as_it_is() {
        let mut world = World::new();
        world.tree.remove("proc/irq/38");
        assert_eq!(world.polled(true), Some(0.0));
        world.has(["0", "0"]);
    }
}
