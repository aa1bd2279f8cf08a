//! A move waits for the poll that has taken what was sent before, too: until it is over, packets may be on their way up.

use super::{observe, pid, set_threaded, veth};
use crate::common::{be_urgent, frame::Frame, ifindex, in_new_namespace, run, wire::Wire};
use logic::net::Mac;
use router::{
    cores::{
        CoreId,
        affinity::{Affinity, Kernel},
        drain::{Drains, Exit, Leaving, MOST, Outcome},
    },
    plane::{TransmitRings, online_cpus},
};
use std::time::{Duration, Instant};

/// Taken by one poll, or two, and given to the stack when that ends (`gro_normal_batch`, net/core/gro.c, is 8).
const PACKETS: usize = 7;
/// What takes the stack long for each: with those that do it, some 60 us.
const DIVISIONS: u16 = 4000;
const SLOW: usize = 5;
const ROUNDS: usize = 100;

#[test]
#[ignore = "needs root"]
fn a_move_waits_until_the_poll_is_over_that_took_what_was_sent() {
    in_new_namespace(|| {
        let cores: Vec<CoreId> = online_cpus().unwrap().into_iter().map(|core| core as CoreId).collect();
        let &[first, second, ..] = &cores[..] else { return };
        run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        let roots = veth();
        // Else what sockets send does not go through rings.
        run("ethtool -K v1 tso off");
        set_threaded(&roots, true);
        let rings = TransmitRings::open().unwrap();
        let (from, to, v1) = (Wire::open("v1"), Wire::open("v0"), ifindex("v1"));
        let frame = Frame::udp4(Mac([2, 0, 0, 0, 0, 9]), "192.0.2.1", "192.0.2.9").bytes();
        let heard = || std::iter::from_fn(|| to.receive()).filter(|bytes| *bytes == frame).count();
        // The ring that its flow goes by, as if it was sent on this core; it is taken from there, too.
        let head = |core: CoreId| rings.look(v1, core).unwrap().unwrap().ring.unwrap().head;
        let before = head(first);
        from.send(&frame);
        let start = Instant::now();
        while heard() == 0 {
            assert!(start.elapsed() < Duration::from_secs(5));
        }
        let (left, other) = if head(first) != before { (first, second) } else { (second, first) };
        for queue in observe(&roots).queues {
            Kernel.allow(pid(&queue), &[left].into()).unwrap();
        }
        // Who came last is told first.
        let slow: Vec<Wire> = (0..SLOW).map(|_| Wire::open("v0")).collect();
        slow.iter().for_each(|wire| wire.refuse_slowly(DIVISIONS));
        be_urgent();
        let mut drains = Drains::new(Some(Box::new(rings)));
        drains.leave_by(vec![Exit { ifindex: v1, several: true }]);
        let leaving = Leaving { from: [left].into(), to: other, confined: true, ..Leaving::default() };
        let mut waited = 0;
        for _ in 0..ROUNDS {
            (0..PACKETS).for_each(|_| from.send(&frame));
            drains.begin_round();
            let ((), outcome) = drains.around(&Kernel, &leaving, |_| MOST, || ());
            let mut came = heard();
            match outcome {
                Outcome::Left(_) => {
                    waited += 1;
                    assert_eq!(came, PACKETS);
                }
                // The next round counts its own packets only.
                Outcome::Remains(_) => {
                    let start = Instant::now();
                    while came < PACKETS {
                        assert!(start.elapsed() < Duration::from_secs(5), "{came} packets came of {PACKETS}");
                        std::thread::sleep(Duration::from_micros(100));
                        came += heard();
                    }
                    assert_eq!(came, PACKETS);
                }
                Outcome::Alike => panic!("there are two rings"),
            }
        }
        assert!(waited > ROUNDS / 2, "{waited}, {:?}", drains.told);
    });
}
