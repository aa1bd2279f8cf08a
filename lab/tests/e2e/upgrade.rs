//! A daemon of another version, whose maps have another layout, replaces the daemon.

use std::{
    fs,
    sync::mpsc::{SyncSender, sync_channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Error, Result};
use lab::{testbed::Testbed, workload::Family};
use libbpf_rs::{MapCore, MapHandle};
use router::{
    base::{conditions::Conditions, instance::Instance},
    config::{Changes, Config, ports::NumberedPorts},
    daemon::{
        Control, Ended,
        api::{Query, Request},
        kernel::{self, Bpf},
        observing,
        seam::{Beside, Kernel},
    },
    linux::{multipath::MultipathKeys, observer::Waker},
    plane::{Counters, Mode, Plane, Settings},
    user_plane::{running::UserPlane, seam::Device},
};
use tokio::sync::oneshot;

use crate::{
    daemon::{Daemon, Leftovers},
    lifetime::forwarded_by_linux,
    load::{assert_forwards_right, benchmark, testbed, while_sending},
};

/// Bytes of a row of the counters in the other version. The present version has 64.
const COUNTER_BYTES: u32 = 128;

/// The kernel's side of a version whose maps have wider and fewer rows. It cannot read its own counters, but nothing
/// asks it to.
struct OtherVersion(Bpf);

impl Kernel for OtherVersion {
    type Plane = Plane;
    fn load(&mut self, mut settings: Settings) -> Result<Plane> {
        settings.interface_rows = 512;
        Plane::load_changed(settings, |open| {
            open.maps.counters.set_value_size(COUNTER_BYTES)?;
            open.maps.tx_ports.set_max_entries(128)
        })
    }
    fn attach(&mut self, plane: &Plane, devices: &[Device]) -> Result<(), (usize, Error)> {
        self.0.attach(plane, devices)
    }
    fn user_plane(&mut self, config: &Config) -> Result<UserPlane> {
        self.0.user_plane(config)
    }
    fn mode(&self, device: &Device) -> Option<Mode> {
        self.0.mode(device)
    }
    fn note(&self, port: &str) -> Option<String> {
        self.0.note(port)
    }
    fn publish(&mut self, plane: &mut Plane, generation: u64) -> Result<()> {
        self.0.publish(plane, generation)
    }
    fn previous(&mut self, generation: u64) -> Option<Counters> {
        self.0.previous(generation)
    }
    fn retire(&mut self, generation: u64) -> Result<()> {
        self.0.retire(generation)
    }
    fn remove(&mut self) -> Result<Vec<String>> {
        self.0.remove()
    }
    fn grace(&mut self) -> Result<Box<dyn FnMut() -> Result<()> + Send>> {
        self.0.grace()
    }
    fn now(&self) -> Duration {
        self.0.now()
    }
}

/// No threads beside the loop.
struct Alone;

impl Beside for Alone {
    fn reload(&mut self, _: &Changes, _: &Config, _: &NumberedPorts) -> Result<()> {
        Ok(())
    }
}

/// The loop of a daemon of that version, in a thread in the box.
struct OtherDaemon {
    thread: JoinHandle<Ended>,
    requests: SyncSender<Request>,
    waker: Waker,
}

impl OtherDaemon {
    fn start(testbed: &Testbed) -> Self {
        let instance = Instance::new(Some(testbed.name.parse().unwrap()));
        let config = Config {
            ports: ["eth1", "eth2"].map(|port| port.parse().unwrap()).into(),
            heartbeat: "10m".parse().unwrap(),
            ..Config::default()
        };
        let (requests, queue) = sync_channel(1);
        let (ready, is_ready) = sync_channel(1);
        let home = testbed.box_namespace.handle().unwrap();
        let thread = thread::spawn(move || {
            lab::sys::enter_network_namespace(std::os::fd::AsFd::as_fd(&home)).unwrap();
            let _held = kernel::ensure_bpffs().unwrap();
            let mut bpf = Bpf::new(&instance, false);
            bpf.adopt().unwrap();
            let bpf = OtherVersion(bpf);
            let (observer, waker) = observing::open(&config, MultipathKeys::read(config.ecmp)).unwrap();
            let (_switch, rules) = router::switch::start(&config, waker.clone()).unwrap();
            let control =
                Control::start(config, instance, bpf, observer, rules, None, Conditions::default()).unwrap();
            ready.send(waker).unwrap();
            control.run(&queue, &mut Alone).unwrap()
        });
        let waker = is_ready.recv().unwrap();
        Self { thread, requests, waker }
    }

    /// Leaves what a killed daemon leaves.
    fn leave(self) {
        let (reply, _answer) = oneshot::channel();
        self.requests.send(Request { query: Query::Leave, reply }).unwrap();
        self.waker.wake();
        assert_eq!(self.thread.join().unwrap(), Ended::Left { forwarding: true });
    }
}

/// Bytes of a row of the pinned counters.
fn counter_bytes(testbed: &Testbed) -> Vec<u32> {
    let files = fs::read_dir(format!("/sys/fs/bpf/millrace-{}", testbed.name)).unwrap().flatten();
    let counters = files.filter(|file| file.file_name().to_string_lossy().starts_with("counters-"));
    counters.map(|file| MapHandle::from_pinned_path(file.path()).unwrap().value_size()).collect()
}

#[test]
#[ignore = "needs root"]
fn another_version_with_other_maps_is_replaced_under_load_without_a_lost_packet() {
    let mut testbed = testbed(2);
    let _leftovers = Leftovers(testbed.name.clone());
    let workload = benchmark(Family::V4, 0..=2);
    let mut other = Some(OtherDaemon::start(&testbed));
    assert_eq!(counter_bytes(&testbed), [COUNTER_BYTES]);
    let mut present = None;
    let account = while_sending(&mut testbed, &workload, |testbed| {
        let by_linux = forwarded_by_linux(testbed);
        other.take().unwrap().leave();
        thread::sleep(Duration::from_secs(1));
        let ports = ["--port", "eth1", "--port", "eth2", "--heartbeat", "30s"];
        let mut daemon = Daemon::start(&testbed.box_namespace, &testbed.name, &ports);
        daemon.until_accelerated(3);
        assert_eq!(forwarded_by_linux(testbed), by_linux, "between the two nothing forwarded");
        present = Some(daemon);
    });
    account.assert_no_loss("another version");
    let daemon = present.unwrap();
    assert_eq!(counter_bytes(&testbed), [64], "the program in charge is the present one");
    let status = daemon.ask(&["status"]);
    assert_eq!(status["generation"], 2, "{status:#}");
    let forwarded = daemon.forwarded();
    assert!(forwarded > 1000, "the present program forwards nothing: {status:#}");
    assert_forwards_right(&mut testbed, &workload);
    daemon.assert_verified();
    daemon.stop();
}

/// Rounds of [`a_daemon_killed_at_any_point_costs_no_packet`]; `MILLRACE_ROUNDS` sets another number, and `MILLRACE_SEED` another
/// seed.
const ROUNDS: u64 = 8;

/// Daemons are killed at random points of their start and soon after it, some of them after the other version. What is
/// pinned forwards all the time, and the next daemon takes over from whatever there is.
#[test]
#[ignore = "needs root"]
fn a_daemon_killed_at_any_point_costs_no_packet() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (rounds, mut seed) =
        (variable("MILLRACE_ROUNDS").unwrap_or(ROUNDS), variable("MILLRACE_SEED").unwrap_or(1));
    let mut random = move |below: u64| {
        // Knuth's linear congruential generator (MMIX).
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut testbed = testbed(2);
    let _leftovers = Leftovers(testbed.name.clone());
    let workload = benchmark(Family::V4, 0..=2);
    let ports = ["--port", "eth1", "--port", "eth2", "--heartbeat", "10m"];
    let begun = Instant::now();
    let daemon = Daemon::start(&testbed.box_namespace, &testbed.name, &ports);
    let longest = (begun.elapsed() * 3 / 2).as_micros() as u64;
    daemon.kill();
    let mut last = None;
    let account = while_sending(&mut testbed, &workload, |testbed| {
        let by_linux = forwarded_by_linux(testbed);
        for round in 0..rounds {
            if round % 4 == 1 {
                OtherDaemon::start(testbed).leave();
            }
            let daemon = Daemon::launch(&testbed.box_namespace, &testbed.name, &ports);
            thread::sleep(Duration::from_micros(random(longest)));
            daemon.kill();
        }
        let mut daemon = Daemon::start(&testbed.box_namespace, &testbed.name, &ports);
        daemon.until_accelerated(3);
        assert_eq!(forwarded_by_linux(testbed), by_linux, "Linux forwarded meanwhile");
        last = Some(daemon);
    });
    account.assert_no_loss("daemons that were killed");
    let daemon = last.unwrap();
    assert_forwards_right(&mut testbed, &workload);
    daemon.assert_verified();
    daemon.stop();
    assert!(!fs::exists(format!("/sys/fs/bpf/millrace-{}", testbed.name)).unwrap());
}
