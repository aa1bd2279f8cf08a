//! SET_CORE "choose" with a running daemon, on the cores of this machine.

use crate::{
    bed::{Bed, routable},
    cores::{Controller, Maps, on_several_cores, since},
};
use logic::{
    cores::Role,
    flow::FlowCommand,
    openflow::{
        Message,
        extension::{CoreStats, Extension},
    },
};
use serde_json::Value;
use std::time::{Duration, Instant};

/// A packet of flow `n`.
fn flow(n: u16) -> Vec<u8> {
    routable(0, 1).ip4(|ip| ip[20..22].copy_from_slice(&n.to_be_bytes())).bytes()
}

/// Sends a packet of each of twenty flows, and returns how many each core handled.
fn spread(bed: &Bed, maps: &Maps) -> Vec<u64> {
    let before = maps.counted();
    for n in 0..20 {
        bed.wires[0].send(&flow(n));
        bed.comes_out(&[1], &flow(n));
    }
    since(&before, &maps.counted())[..2].to_vec()
}

/// Waits until the daemon has looked at its cores.
fn knows_cores(bed: &Bed) {
    bed.wait_for("cores", |_| {
        let told = bed.millrace(&["cores", "--json"]).stdout;
        serde_json::from_slice::<Value>(&told).is_ok_and(|report| report["cores"] != serde_json::json!([]))
    });
}

const RULE: &str = "in_port=1,ip,actions=set_core:choose,output:2";

fn said(controller: &mut Controller) -> Extension {
    match controller.hear() {
        Message::Experimenter(message) => Extension::decode(&message).unwrap(),
        other => panic!("no message of the extension: {other:?}"),
    }
}

/// Asks as a controller for the statistics of a core, until they are as wanted.
fn stats_of(controller: &mut Controller, core: u16, is: impl Fn(&CoreStats) -> bool) -> CoreStats {
    let start = Instant::now();
    loop {
        controller.say(&Message::Experimenter(Extension::CoreStatsRequest { core: Some(core) }.encode()));
        let Extension::CoreStats(stats) = said(controller) else { panic!("no CORE_STATS") };
        let [stats] = stats[..] else { panic!("not one core: {stats:?}") };
        if is(&stats) {
            return stats;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "core {core} after 10 s: {stats:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "needs root"]
fn flows_go_to_the_allowed_core_and_controllers_read_it_back() {
    on_several_cores(|| {
        // The setting `high` makes this independent of the machine's other load.
        let config =
            "[openflow]\ncontrollers = [\"ptcp:6653:127.0.0.1\"]\n[cores]\nallowed = \"1\"\nhigh = 100\n";
        let bed = Bed::new("g", config);
        knows_cores(&bed);
        bed.flows(&["add", RULE]);
        let maps = Maps::of(&bed);
        assert_eq!(spread(&bed, &maps), [0, 20]);
        assert_eq!(spread(&bed, &maps), [0, 20], "packets of each core, answered from the caches");
        let report: Value = serde_json::from_slice(&bed.millrace(&["cores", "--json"]).stdout).unwrap();
        let core = |n: usize| {
            ["flows", "priority_flows", "handed_packets"].map(|key| report["cores"][n][key].as_u64())
        };
        assert_eq!((core(0), core(1)), ([Some(0); 3], [Some(20), Some(0), Some(40)]));

        let mut controller = Controller::connect();
        controller
            .say(&Message::Experimenter(Extension::Subscribe { cores: true, workloads: false }.encode()));
        let Extension::Cores(cores) = said(&mut controller) else { panic!("no CORES") };
        assert_eq!(cores.cores.len(), router::plane::online_cpus().unwrap().len());
        controller.unsubscribe();
        let stats = stats_of(&mut controller, 1, |stats| stats.load.is_some());
        assert_eq!((stats.number, stats.packets, stats.dropped, stats.flows, stats.first), (1, 40, 0, 20, 0));
        assert!(
            stats.role.is_some_and(|role| role != Role::Forward && role != Role::Both),
            "core 1 has no queue, but its role is {:?}",
            stats.role
        );
        let before = maps.counted();
        bed.flows(&["del"]);
        // The core table does the same.
        assert_eq!(
            controller.core_table(FlowCommand::Add, "in_port=1,ip,actions=set_core:choose_first"),
            None
        );
        bed.flows(&["add", "in_port=1,ip,actions=output:2"]);
        spread(&bed, &maps);
        assert_eq!(since(&before, &maps.counted())[0], 0);
        let stats = stats_of(&mut controller, 1, |_| true);
        assert_eq!((stats.packets, stats.first), (60, 20));
    });
}

#[test]
#[ignore = "needs root"]
fn flows_keep_off_a_core_with_a_workload() {
    on_several_cores(|| {
        let config = "[openflow]\ncontrollers = [\"ptcp:6653:127.0.0.1\"]\n[cores]\nallowed = \"0,1\"\nhigh = 100\n\
                      workloads = [{ name = \"db\", cores = \"1\" }]\n";
        let bed = Bed::new("h", config);
        knows_cores(&bed);
        bed.flows(&["add", RULE]);
        let maps = Maps::of(&bed);
        assert_eq!(spread(&bed, &maps), [20, 0]);
        let mut controller = Controller::connect();
        controller
            .say(&Message::Experimenter(Extension::Subscribe { cores: false, workloads: true }.encode()));
        let start = Instant::now();
        loop {
            let Extension::WorkloadStart(workload) = said(&mut controller) else { panic!("no workload") };
            if workload.id == u32::MAX {
                assert_eq!((workload.tenant, workload.cores), (0, vec![1]));
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "the configured workload was not reported");
        }
        controller.unsubscribe();
        let stats = stats_of(&mut controller, 1, |stats| stats.workloads > 0);
        assert!(matches!(stats.role, Some(Role::Serve | Role::Both)), "the core does not serve: {stats:?}");
    });
}
