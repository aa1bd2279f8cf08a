//! Devices of ports that vanish and come back.

use crate::{
    common::{ifindex, in_new_namespace, run},
    notices::udp_frame,
    slower,
    world::{FlowWorld, XDP_DROP, XDP_REDIRECT},
};
use logic::flow::{Action, Field, FlowCommand, Instructions, Match, RulePort, kernel};
use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

#[test]
#[ignore = "needs root"]
fn a_port_that_comes_back_with_the_same_index_is_sent_to_again() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let frame = udp_frame(64, 60);
        let from = |port: u32| Match::ANY.with(Field::InPort, port);
        w.change(FlowCommand::Add, 0, 1, from(1), Instructions::apply([Action::output(RulePort(2))]));
        w.change(FlowCommand::Add, 0, 1, from(3), Instructions::apply([Action::output(RulePort::FLOOD)]));
        w.finish();
        assert_eq!(w.run(2, &frame).action, XDP_REDIRECT);
        assert_eq!(w.last().verdict, u16::from(kernel::verdict::BROADCAST));
        let set = u32::from(w.last().port);
        let reached = |w: &mut FlowWorld| (w.run(0, &frame).action, w.memory.ports_of_set(set));
        let all = vec![RulePort(1), RulePort(2), RulePort(3)];
        assert_eq!(reached(&mut w), (XDP_REDIRECT, all.clone()));
        let before = ifindex("p1");
        let mut elsewhere =
            Command::new("unshare").args(["-n", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
        thread::sleep(Duration::from_millis(300));
        let (there, here) = (elsewhere.id(), rustix::thread::gettid().as_raw_nonzero());
        run(&format!("ip link set p1 netns {there}"));
        run(&format!("nsenter -t {there} -n ip link set p1 netns {here}"));
        drop(elsewhere.stdin.take());
        elsewhere.wait().unwrap();
        assert_eq!(ifindex("p1"), before);
        assert_eq!(
            reached(&mut w),
            (XDP_DROP, vec![RulePort(1), RulePort(3)]),
            "the kernel empties the slots of a device that leaves"
        );
        w.show_ports();
        assert_eq!(reached(&mut w), (XDP_REDIRECT, all));
    });
}

/// Changes of rules and ports wait for nothing.
#[test]
#[ignore = "needs root"]
fn changes_of_ports_and_their_sets_do_not_wait_for_programs() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        // The rows of all sets are made in advance, each in some tens of milliseconds.
        thread::sleep(Duration::from_secs(4));
        let began = Instant::now();
        for ports in 1_u16..16 {
            let outputs =
                (1..=4).filter(|port| ports >> (port - 1) & 1 != 0).map(|p| Action::output(RulePort(p)));
            let matching = Match::ANY.with(Field::EthType, ports);
            w.change(FlowCommand::Add, 0, 1, matching, Instructions::apply(outputs.collect::<Vec<_>>()));
        }
        let sets = began.elapsed();
        let began = Instant::now();
        (0..5).for_each(|_| w.show_ports());
        let ports = began.elapsed();
        // There are 11 sets. With a grace period for each set, the ports would take 55 of them.
        let most = Duration::from_millis(150) * slower();
        assert!(sets < most && ports < most, "sets took {sets:?}, ports {ports:?}, more than {most:?}");
        w.finish();
        for id in w.control.rules.tables().ids() {
            assert!(!w.control.rules.is_slow(id), "rule {id:?} is slow");
        }
    });
}
