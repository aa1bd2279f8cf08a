//! Queues whose packets wake threads. What they want of a core depends on the other queues there.

use super::*;

const PACKET_NS: f64 = 330.0;
const WAKE_NS: f64 = 7500.0;

#[derive(Debug)]
struct Waking {
    machine: Machine,
    /// Of each queue.
    pps: Vec<f64>,
    /// Wake-ups a second of a queue on a core that hardly works.
    wakeups: f64,
    /// Whether there are fewer on a core that others keep busy. If not, there are as many as if each queue had a core
    /// of its own.
    are_fewer: bool,
}

impl Waking {
    /// Queues on a core each, with the first load for a while and then the second for a second.
    fn new(before_pps: f64, pps: &[f64], wakeups: f64) -> Self {
        let cores = pps.len() as u16;
        let machine = Machine::new(cores, &(0..cores).collect::<Vec<_>>());
        let mut waking = Self { machine, pps: vec![before_pps; pps.len()], wakeups, are_fewer: true };
        assert_eq!(waking.until(1000), [""; 0]);
        waking.pps = pps.to_vec();
        waking
    }

    /// How busy a core is with packets that take `packets` of it and this many queues.
    fn busy(&self, packets: f64, queues: usize) -> f64 {
        let waking = queues as f64 * self.wakeups * WAKE_NS / 1e9;
        ((packets + waking) / (1.0 + waking)).max(packets)
    }

    fn period(&mut self) -> Vec<Event> {
        let mut cores: BTreeMap<CoreId, (f64, usize)> = BTreeMap::new();
        for (core, pps) in self.machine.homes().into_iter().zip(&self.pps) {
            let (packets, queues) = cores.entry(core).or_default();
            (*packets, *queues) = (*packets + pps * PACKET_NS / 1e9, *queues + 1);
        }
        for (index, core) in self.machine.homes().into_iter().enumerate() {
            let packets = self.pps[index] * PACKET_NS / 1e9;
            let (all, queues) = if self.are_fewer { cores[&core] } else { (packets, 1) };
            let wakeups_per_s = self.wakeups * (1.0 - self.busy(all, queues)).max(0.0);
            let counted = Counted { packets_per_s: self.pps[index], wakeups_per_s };
            self.machine.queues[index].counted = Some(counted);
            self.machine.wants[index] = packets + wakeups_per_s * WAKE_NS / 1e9;
        }
        self.machine.period()
    }

    fn until(&mut self, ms: u64) -> Vec<String> {
        let mut told = Vec::new();
        while self.machine.now < Duration::from_millis(ms) {
            let events = self.period();
            let at = self.machine.now.as_millis();
            told.extend(events.iter().map(|event| format!("{at} ms: {event}")));
        }
        told
    }

    fn percent(&self) -> Vec<f64> {
        self.machine.loads().values().map(|load| (load * 100.0).round()).collect()
    }
}

#[test]
fn four_queues_of_36_percent_share_two_cores() {
    let mut waking = Waking::new(1.5e6, &[500e3; 4], 40e3);
    waking.until(1010);
    assert_eq!(waking.percent(), [36.0; 4]);
    let told = waking.until(10_000);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(waking.percent(), [58.0; 2]);
    assert_eq!(waking.until(60_000), [""; 0]);
    // Each core gets its second queue back at once.
    waking.pps = vec![1.3e6; 4];
    let told = waking.until(60_020);
    assert!(told.len() == 2 && told[0].contains("above 85 %"), "{told:?}");
}

/// There was never another load: 36 and 36 % are 72.
#[test]
fn without_known_costs_wants_are_added() {
    let mut waking = Waking::new(500e3, &[500e3; 4], 40e3);
    assert_eq!(waking.until(10_000), [""; 0]);
}

/// Each queue has as much to do as if it was alone, and together they take 86 %.
#[test]
fn a_core_that_was_given_back_wrongly_is_taken_again_at_once_and_kept_for_long() {
    let mut waking = Waking::new(1.5e6, &[60e3; 3], 50e3);
    waking.are_fewer = false;
    let told = waking.until(15_000);
    let at = |event: &String| event.split(' ').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[1].contains("is given back") && told[2].contains("core 0 had 86 %"), "{told:?}");
    // What they wanted before was too much, too, so one more period is enough.
    assert_eq!(at(&told[2]) - at(&told[1]), 10);
    let mut undone = vec![at(&told[2])];
    for minute in 1..60 {
        // The cost of packets and wake-ups is seen again and again.
        waking.pps = vec![1.5e6; 3];
        waking.until(60_000 * minute - 1000);
        waking.pps = vec![60e3; 3];
        let told = waking.until(60_000 * minute + 30_000);
        undone.extend(told.iter().filter(|event| event.contains("had 86 %")).map(at));
    }
    assert!((3..=10).contains(&undone.len()), "{undone:?}");
    assert!(undone.windows(2).all(|pair| pair[1] - pair[0] > 16_000), "{undone:?}");
}

/// A load that fluctuates by a sixth, five times in two seconds, is on two cores and stays there.
#[test]
fn a_fluctuation_moves_nothing_again() {
    let mut waking = Waking::new(1.5e6, &[450e3; 4], 40e3);
    let mut moves = 0;
    for wave in 0..300 {
        waking.pps = vec![if wave % 2 == 0 { 450e3 } else { 525e3 }; 4];
        moves += waking.until(1000 + 200 * (wave + 1)).len();
    }
    assert_eq!((moves, waking.machine.loads().len()), (2, 2));
}
