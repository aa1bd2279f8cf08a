//! A server of virtual machines behind a tunnel. The core that is named or chosen receives the packets, and decrypts
//! every one of them. These tests need root, and run in their own namespaces, one at a time.

use std::time::Duration;

use lab::steering::{
    BUSY, Bed, FREE, Steering, SteeringOutcome,
    machine::Guest,
    sender::{Flow, VXLAN_PORT},
};

/// A twentieth of what a core decrypts of large frames, or less.
const GENTLE_PPS: f64 = 500.0;
const TRIES: usize = 5;

fn flow(machine: u8, pps: f64, payload_bytes: u16) -> Flow {
    let source_port = 50_000 + u16::from(machine);
    Flow { machine, source_port, pps, payload_bytes, begins: Duration::ZERO }
}

fn rules(cores: [&str; 2]) -> Steering {
    Steering::Rules(cores.map(str::to_owned).to_vec())
}

fn measure(bed: &Bed, guests: [Guest; 2], pps: f64, payload_bytes: u16) -> SteeringOutcome {
    let flows = [1, 2].map(|machine| flow(machine, pps, payload_bytes));
    bed.measure(&guests, &flows, Duration::from_millis(300), Duration::from_millis(700)).unwrap()
}

/// The core that received the packets of each machine; `None` if several did.
fn cores(seen: &SteeringOutcome) -> [Option<usize>; 2] {
    [0, 1].map(|machine| {
        let by_core = &seen.machines[machine].by_core_pps;
        let busy: Vec<usize> = (0..by_core.len()).filter(|core| by_core[*core] > 0.0).collect();
        if let [core] = busy[..] { Some(core) } else { None }
    })
}

fn two_cores() -> bool {
    let there = lab::cpu::online().unwrap() >= 2;
    if !there {
        eprintln!("NOT TESTED: it needs two cores");
    }
    there
}

#[test]
#[ignore = "needs root"]
fn packets_are_received_and_decrypted_by_the_core_that_is_named() {
    if !two_cores() {
        return;
    }
    let mut bed = Bed::new(2).unwrap();
    let cases = [
        (Steering::Queue, FREE, [FREE, FREE]),
        (Steering::Queue, BUSY, [BUSY, BUSY]),
        (rules(["0", "1"]), BUSY, [0, 1]),
        (rules(["1", "0"]), BUSY, [1, 0]),
        (rules(["1", "1"]), FREE, [1, 1]),
    ];
    for (steering, queue, expected) in cases {
        bed.steer(&steering, queue).unwrap();
        let seen = measure(&bed, [Guest::Idle; 2], GENTLE_PPS, 64);
        assert_eq!(cores(&seen), expected.map(Some), "{steering:?} {seen:?}");
        for machine in &seen.machines {
            let decrypted: f64 = machine.by_core_pps.iter().sum();
            // Other work may have the machine for a while; packets are then lost in full rings.
            let arrived = machine.sent_pps * (1.0 - machine.loss);
            assert!(arrived > 0.0 && (decrypted / arrived - 1.0).abs() < 0.05, "{steering:?} {seen:?}");
        }
    }
}

#[test]
#[ignore = "needs root"]
fn flows_keep_off_the_core_of_a_machine_that_computes() {
    if !two_cores() {
        return;
    }
    let mut bed = Bed::new(2).unwrap();
    bed.steer(&rules(["choose", "choose_first"]), FREE).unwrap();
    let seen = measure(&bed, [Guest::Busy(BUSY), Guest::Idle], GENTLE_PPS, 64);
    assert_eq!(cores(&seen), [Some(FREE); 2], "{seen:?}");
    assert!(seen.machines[0].units_per_s > 0.0 && seen.machines[1].units_per_s == 0.0, "{seen:?}");
    // Hashes do not know machines, so some of that many flows are on its core.
    bed.steer(&Steering::Hash, FREE).unwrap();
    let flows: Vec<Flow> =
        (0..16).map(|n| Flow { source_port: VXLAN_PORT + 1 + n * 977, ..flow(1, 100.0, 64) }).collect();
    let seen = bed
        .measure(&[Guest::Busy(BUSY)], &flows, Duration::from_millis(300), Duration::from_millis(700))
        .unwrap();
    let by_core = &seen.machines[0].by_core_pps;
    assert!(by_core[FREE] > 0.0 && by_core[BUSY] > 0.0, "{seen:?}");
}

/// On a quiet machine (`make bench-goals`).
mod measure {
    use super::*;
    use lab::measure::median;

    #[test]
    #[ignore = "a measurement"]
    fn two_flows_that_are_too_much_for_one_core_lose_nothing_on_two() {
        if !two_cores() {
            return;
        }
        let mut bed = Bed::new(2).unwrap();
        // The rate of one flow on one core.
        bed.steer(&Steering::Queue, BUSY).unwrap();
        let flood = [flow(1, 100_000.0, 1400)];
        let most = bed
            .measure(&[Guest::Idle; 2], &flood, Duration::from_millis(300), Duration::from_millis(700))
            .unwrap();
        assert!(most.machines[0].loss > 0.1, "100 kpps of 1,400 bytes are no work: {most:?}");
        let each = 0.7 * most.machines[0].received_pps;
        let mut loss = |cores| {
            bed.steer(&rules(cores), FREE).unwrap();
            let losses = (0..TRIES).map(|_| {
                let seen = super::measure(&bed, [Guest::Idle; 2], each, 1400);
                seen.machines.iter().map(|machine| machine.loss).sum::<f64>() / 2.0
            });
            median(&losses.collect::<Vec<f64>>())
        };
        let (together, apart) = (loss(["1", "1"]), loss(["0", "1"]));
        assert!(together > 0.15 && apart < 0.05, "{together} {apart}");
    }
}
