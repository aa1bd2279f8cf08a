//! Packets that the attached program hands to another core.

use crate::{
    common::{in_new_namespace, run, wire::Wire},
    world::FlowWorld,
};
use logic::flow::{
    Action, CoreChoice, Field, FlowCommand, Instructions, Match, RulePort,
    kernel::{self, FlowMemory},
};
use router::plane::online_cpus;
use std::{
    sync::atomic::Ordering::Acquire,
    thread,
    time::{Duration, Instant},
};

/// All packets are counted on the core that the rule names, and by the rules that the reference names.
#[test]
#[ignore = "needs root"]
fn packets_are_counted_on_the_core_that_is_named() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        for device in ["p0", "q0", "p1", "q1"] {
            run(&format!("ip link set {device} up"));
        }
        let _link = w.attach(0);
        let wire = Wire::open("q0");
        let cores: Vec<u16> = online_cpus().unwrap().into_iter().map(|cpu| cpu as u16).collect();
        w.control.rules.set_cores(Some(cores.iter().copied().collect()));
        // IEEE 802 local experimental 2: nobody else sends it.
        let mut frame = [0; 60];
        frame[12..14].copy_from_slice(&[0x88, 0xb6]);
        let ours = Match::ANY.with(Field::EthType, 0x88b6_u16);
        for &core in &cores {
            let actions = [Action::SetCore(CoreChoice::This(core)), Action::output(RulePort(2))];
            w.change(FlowCommand::Add, 0, 1, ours, Instructions::apply(actions));
            w.finish();
            let row = kernel::row(w.control.rules.tables().ids().next().unwrap());
            let counted = |w: &FlowWorld| -> Vec<u64> {
                let counters = w.memory.counters();
                w.memory.counters_of(row).map(|at| counters[at].load(Acquire)).collect()
            };
            let mut expected = counted(&w);
            (0..1000).for_each(|_| wire.send(&frame));
            expected[usize::from(core)] += 1000;
            let start = Instant::now();
            while counted(&w) != expected {
                assert!(
                    start.elapsed() < Duration::from_secs(10),
                    "packets of each core: {:?}, not {expected:?}",
                    counted(&w)
                );
                thread::sleep(Duration::from_millis(1));
            }
            let done = w.reference(RulePort(1), &frame);
            assert_eq!(done.rows, [row]);
            assert_eq!(done.outputs[0].core, Some(CoreChoice::This(core)));
        }
    });
}
