//! Rules that accept the addresses of a set, whose elements expire.

use super::{
    FEW, Story, common, connection,
    router::{Placement, Rules},
    worlds::Worlds,
};
use fastrand::Rng;
use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

/// Enough for all connections to become fast.
const TIMEOUT_S: u64 = 30;

#[test]
#[ignore = "needs root"]
fn connections_are_fast_until_an_element_of_a_set_expires() {
    common::in_new_namespace(|| {
        let mut connections = connection::all(Rules::Filter);
        connections.retain(|c| c.is_ipv4());
        connections.iter_mut().enumerate().for_each(|(at, c)| c.number = at);
        let worlds = Worlds::new(Placement::Host, Rules::Filter);
        let mut story = Story { worlds, rng: Rng::with_seed(20_261_128), connections };
        story.begin_all();
        story.worlds.nft(
            "add set inet filter allowed { type ipv4_addr; flags timeout; }
             flush chain inet filter forward
             add chain inet filter forward { policy drop; }
             add rule inet filter forward ct status dnat accept
             add rule inet filter forward ip saddr @allowed accept",
        );
        story.allow();
        story.until_fast();
        story.random_packets("the elements are there", FEW);
        story.until_elements_expire();
        story.connections.iter_mut().for_each(|c| c.is_fast = false);
        story.nothing_comes_out();
        story.worlds.until_not_fast(&story.connections);
        story.random_packets("some time after the elements have expired", FEW);
        story.worlds.compare_tracked("the elements have expired");
        story.allow();
        story.until_fast();
        story.worlds.stop();
    });
}

impl Story {
    /// Adds the addresses of all connections to the set for some time.
    fn allow(&self) {
        let ends = self.connections.iter().flat_map(|c| &c.ways);
        let addresses: BTreeSet<_> = ends.map(|way| way.arrives[0].ip().to_string()).collect();
        let elements: Vec<_> = addresses.iter().map(|a| format!("{a} timeout {TIMEOUT_S}s")).collect();
        self.worlds.nft(&format!("add element inet filter allowed {{ {} }}", elements.join(", ")));
    }

    fn nothing_comes_out(&mut self) {
        self.send_small(|_| true, &[0, 1]);
        assert_eq!(self.worlds.take_out().map(|out| out.len()), [0, 0]);
    }

    fn until_elements_expire(&self) {
        let end = Instant::now() + Duration::from_secs(2 * TIMEOUT_S);
        for router in [&self.worlds.linux, &self.worlds.millrace] {
            while router.run("nft list set inet filter allowed").contains("elements") {
                assert!(Instant::now() < end, "elements do not expire");
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
