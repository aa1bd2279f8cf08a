//! A move also waits for the poll that took packets sent before. Until that poll ends, they may be on their
//! way to the stack.

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

/// One poll takes these packets, or two do, and gives them to the stack when it ends (`gro_normal_batch`,
/// net/core/gro.c, is 8).
const PACKETS: usize = 7;
/// How many divisions delay the stack for each packet. With the sockets that do them, this takes some 60 us.
const DIVISIONS: u16 = 4000;
const SLOW: usize = 5;
/// Moves that wait until the packets have left.
const ROUNDS: usize = 50;
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs root"]
fn a_move_waits_for_the_poll_that_took_packets_sent_before() {
    in_new_namespace(|| {
        let cores: Vec<CoreId> = online_cpus().unwrap().into_iter().map(|core| core as CoreId).collect();
        let &[first, second, ..] = &cores[..] else { return };
        run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        let roots = veth();
        // Otherwise packets of sockets do not go through rings.
        run("ethtool -K v1 tso off");
        set_threaded(&roots, true);
        let rings = TransmitRings::open().unwrap();
        let (from, to, v1) = (Wire::open("v1"), Wire::open("v0"), ifindex("v1"));
        let frame = Frame::udp4(Mac([2, 0, 0, 0, 0, 9]), "192.0.2.1", "192.0.2.9").bytes();
        let heard = || std::iter::from_fn(|| to.receive()).filter(|bytes| *bytes == frame).count();
        // The head of the ring of a core. The flow uses one of them, as if sent from that core, and its
        // packets are taken there too.
        let head = |core: CoreId| rings.look(v1, core).unwrap().unwrap().ring.unwrap().head;
        let before = head(first);
        from.send(&frame);
        let start = Instant::now();
        while heard() == 0 {
            assert!(start.elapsed() < Duration::from_secs(5), "the first packet did not arrive");
        }
        let (left, other) = if head(first) != before { (first, second) } else { (second, first) };
        for queue in observe(&roots).queues {
            Kernel.allow(pid(&queue), &[left].into()).unwrap();
        }
        // The socket that was opened last gets a packet first.
        let slow: Vec<Wire> = (0..SLOW).map(|_| Wire::open("v0")).collect();
        slow.iter().for_each(|wire| wire.refuse_slowly(DIVISIONS));
        be_urgent();
        let mut drains = Drains::new(Some(Box::new(rings)));
        drains.leave_by(vec![Exit { ifindex: v1, several: true }]);
        let leaving = Leaving { from: [left].into(), to: other, confined: true, ..Leaving::default() };
        let (mut waited, begun) = (0, Instant::now());
        // Beside other work, a poll may take longer than a move waits.
        while waited < ROUNDS {
            assert!(begun.elapsed() < PATIENCE, "only {waited} of {ROUNDS} moves waited: {:?}", drains.told);
            (0..PACKETS).for_each(|_| from.send(&frame));
            drains.begin_round();
            let ((), outcome) = drains.around(&Kernel, &leaving, |_| MOST, || ());
            let mut came = heard();
            match outcome {
                Outcome::Left(_) => {
                    waited += 1;
                    assert_eq!(came, PACKETS, "packets that came before the move ended");
                }
                // The next round counts its own packets only.
                Outcome::Remains(_) => {
                    let start = Instant::now();
                    while came < PACKETS {
                        assert!(
                            start.elapsed() < Duration::from_secs(5),
                            "only {came} of {PACKETS} packets came"
                        );
                        std::thread::sleep(Duration::from_micros(100));
                        came += heard();
                    }
                    assert_eq!(came, PACKETS);
                }
                Outcome::Alike => panic!("there are two rings"),
            }
        }
    });
}
