//! What the kernel plane needs of the kernel that it runs on. `make test-vm` runs this on the oldest one
//! supported, Debian 12's 6.1. There `MILLRACE_VM_NIC` names a virtio-net device of the virtual machine.

mod common;

use common::{SMALL, frame::Frame, ifindex, in_new_namespace, run};
use logic::{
    net::{Mac, Tag},
    reason::Reason,
};
use router::{
    base::instance::Instance,
    daemon::{kernel::Bpf, seam::Kernel},
    plane::{Charge, Grace, Mode, Plane, PortLink, Settings, Step},
    user_plane::seam::Device,
};
use std::{env, path::PathBuf, time::Duration};

const SOMEONE: Mac = Mac([2, 0, 0, 0, 0, 1]);
const XDP_PASS: u32 = 2;

fn plane() -> Plane {
    Plane::load(Settings {
        capacity: SMALL,
        interface_rows: 64,
        sample_interval: 1,
        exception_pps: 1000,
        control_pps: 1000,
        queue_rows: false,
        help: false,
    })
    .unwrap_or_else(|e| panic!("{e:#}"))
}

fn veth() -> u32 {
    run("ip link add mk0 type veth peer name mk1");
    ifindex("mk0")
}

/// A directory of bpffs, removed with its pins when it is dropped.
struct Pins(PathBuf);

impl Pins {
    fn new(name: &str) -> Pins {
        let pins = Pins(PathBuf::from(format!("/sys/fs/bpf/{name}-test-{}", std::process::id())));
        if !mounted("/sys/fs/bpf") {
            run("mount -t bpf bpf /sys/fs/bpf");
        }
        std::fs::create_dir(&pins.0).unwrap();
        pins
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mounted(path: &str) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|l| l.split(' ').nth(1) == Some(path))
}

/// The verifier accepts the program. The coarse clock closes and opens the gate.
#[test]
#[ignore = "needs root"]
fn program_loads_and_runs() {
    in_new_namespace(|| {
        let device = veth();
        let mut plane = plane();
        plane.set_port(0, device, true, true).unwrap();
        let frame = Frame::udp4(SOMEONE, "192.0.2.1", "198.51.100.1").bytes();

        assert_eq!(plane.run(device, &frame).unwrap().action, XDP_PASS);
        plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
        let up = plane.run(device, &frame).unwrap();
        assert_eq!((up.action, up.frame), (XDP_PASS, frame));

        let counters = plane.counters().unwrap();
        let charged = |reason| counters.charges.get(&(Charge::Port(0), reason)).copied();
        assert_eq!(
            (charged(Reason::Fallback), charged(Reason::NotOurMac)),
            (Some(1), Some(1)),
            "packets with fallback, and with not_our_mac: {counters:?}"
        );
    });
}

#[test]
#[ignore = "needs root"]
fn explaining_copy_loads_and_reports_the_steps() {
    in_new_namespace(|| {
        let device = veth();
        let plane = plane();
        plane.set_port(3, device, true, true).unwrap();
        plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
        let tags = [Tag { vid: 200, service: true }, Tag { vid: 7, service: false }];
        let frame = Frame::udp6(SOMEONE, "2001:db8::1", "2001:db8::2").tagged(&tags).bytes();

        let (_, steps) = plane.explain(device, &frame).unwrap();
        let expected = [
            Step::Port { id: 3, ready: true },
            Step::Parsed { vlan: common::frame::vlan(&tags).key(), ether_type: 0x86dd },
            Step::Verdict { reason: Some(Reason::NotOurMac), action: XDP_PASS },
        ];
        assert_eq!(steps, expected);
        assert_eq!(plane.counters().unwrap().packets, 0);
    });
}

/// `xdp.frags` programs and bpf_xdp_get_buff_len: Linux 5.18.
#[test]
#[ignore = "needs root"]
fn frame_of_several_buffers_goes_up_whole() {
    in_new_namespace(|| {
        let device = veth();
        let mut plane = plane();
        plane.set_port(0, device, true, true).unwrap();
        plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
        let frame = Frame::udp4(SOMEONE, "192.0.2.1", "198.51.100.1").padded(9000).bytes();
        let up = plane.run(device, &frame).unwrap();
        assert_eq!((up.action, up.frame == frame), (XDP_PASS, true));
    });
}

/// A link is pinned, found again, given another program, and removed on request.
#[test]
#[ignore = "needs root"]
fn link_lives_in_its_pin() {
    in_new_namespace(|| {
        let device = veth();
        let pins = Pins::new("link");
        let path = pins.0.join("link-mk0");
        let first = plane();
        let link = PortLink::attach(first.program(), device, Mode::Native).unwrap();
        link.pin(&path).unwrap();
        drop(link);

        let refused = PortLink::attach(first.program(), device, Mode::Native).unwrap_err();
        assert!(refused.to_string().contains("already runs"), "another error: {refused:#}");
        let link = PortLink::open(&path).unwrap().expect("the pinned link");
        assert_eq!((link.ifindex(), link.mode()), (device, Mode::Native));
        link.replace(plane().program()).unwrap();
        link.detach().unwrap();
        assert!(PortLink::open(&path).unwrap().is_none(), "a detached link has no device");
        assert!(!run("ip link show mk0").contains("xdp"), "the program is still attached");
        PortLink::attach(first.program(), device, Mode::Generic).unwrap().detach().unwrap();
    });
}

/// The next generation pins its maps over those of the last.
#[test]
#[ignore = "needs root"]
fn maps_are_pinned_over_older_ones() {
    in_new_namespace(|| {
        let pins = Pins::new("maps");
        plane().pin(&pins.0, 7).unwrap();
        let mut plane = plane();
        plane.pin(&pins.0, 7).unwrap();
        plane.pin(&pins.0, 7).unwrap();
        let mut names: Vec<_> =
            pins.0.read_dir().unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        let listeners = ["cpumap_enqueue", "cpumap_kthread", "devmap_xmit", "exception", "redirect_err"];
        let listeners = listeners.map(|tracepoint| format!("losses-xdp_{tracepoint}"));
        let maps = ["charges-7", "control", "counters-7"].map(String::from);
        assert_eq!(names, [&maps[..], &listeners].concat());
    });
}

/// The number of the program that a device runs.
fn program_of(device: &str) -> Option<u32> {
    let text = run(&format!("ip link show {device}"));
    let (_, id) = text.split_once("prog/xdp id ")?;
    id.split_whitespace().next()?.parse().ok()
}

/// On an error every device runs what it ran before, and nothing new is attached or pinned.
#[test]
#[ignore = "needs root"]
fn attaching_is_all_or_nothing() {
    in_new_namespace(|| {
        let pins = Pins::new("unused");
        let names = ["ma.5", "mb.5", "mc.5", "md.5"];
        let devices = names.map(|name| {
            run(&format!("ip link add {name} type veth peer name peer-{name}"));
            Device { name: name.into(), ifindex: ifindex(name) }
        });
        let instance = Instance::new(Some(format!("test-{}", std::process::id()).parse().unwrap()));
        let mut bpf = Bpf::new(&instance, false);
        let (first, second, foreign) = (plane(), plane(), plane());
        bpf.attach(&first, &devices[..2]).unwrap_or_else(|(_, e)| panic!("{e:#}"));
        let before = names.map(program_of);
        assert!(before[0].is_some() && before[0] == before[1], "programs of the devices: {before:?}");
        assert_eq!(bpf.pinned_ports(), names[..2]);

        // Somebody else has attached a program to a new device.
        let _other = PortLink::attach(foreign.program(), devices[3].ifindex, Mode::Native).unwrap();
        let (i, error) = bpf.attach(&second, &devices).unwrap_err();
        assert!(i == 3 && format!("{error:#}").contains("which is not ours"), "device {i}: {error:#}");
        assert_eq!(names[..3].iter().map(|name| program_of(name)).collect::<Vec<_>>(), before[..3]);
        assert_eq!(bpf.pinned_ports(), names[..2]);

        // A link that was detached without our knowledge takes no program.
        let pin = format!("/sys/fs/bpf/{}/link-mb%2e5", instance.label());
        PortLink::open(pin.as_ref()).unwrap().unwrap().detach().unwrap();
        let (i, error) = bpf.attach(&second, &devices[..3]).unwrap_err();
        assert!(i == 1, "device {i}: {error:#}");
        assert_eq!((program_of(names[0]), program_of(names[2])), (before[0], None));
        bpf.remove().unwrap();
        assert_eq!((program_of(names[0]), bpf.pinned_ports().len()), (None, 0));
        drop(pins);
    });
}

/// Interface numbers repeat across namespaces, so they do not show who owns a program.
#[test]
#[ignore = "needs root"]
fn the_owner_of_a_program_is_known_by_the_program() {
    in_new_namespace(|| {
        let ifindex = veth();
        let device = Device { name: "mk0".into(), ifindex };
        let _mounted = Pins::new("unused-owner");
        let instance = Instance::new(Some(format!("owner-{}", std::process::id()).parse().unwrap()));
        let mut bpf = Bpf::new(&instance, false);
        bpf.attach(&plane(), &[device]).unwrap_or_else(|(_, e)| panic!("{e:#}"));
        let refusal = move || {
            let attached = PortLink::attach(plane().program(), ifindex, Mode::Native);
            attached.unwrap_err().to_string()
        };
        assert!(refusal().contains(&instance.label()), "the error does not name the instance: {}", refusal());
        in_new_namespace(move || {
            run(&format!("ip link add name twin index {ifindex} type veth peer name far"));
            let _link = PortLink::attach(plane().program(), ifindex, Mode::Native).unwrap();
            assert!(refusal().contains("which is not ours"), "another error: {}", refusal());
        });
        bpf.remove().unwrap();
    });
}

#[test]
#[ignore = "needs root"]
fn grace_period_ends() {
    in_new_namespace(|| {
        let grace = Grace::new().unwrap();
        (0..3).for_each(|_| grace.wait().unwrap());
    });
}

/// XDP as in a cloud: virtio-net, which needs a spare TX queue for each CPU. Unlike a veth, this driver has
/// real interrupts.
#[test]
#[ignore = "needs root"]
fn attaches_to_virtio_net_in_native_mode() {
    let Ok(nic) = env::var("MILLRACE_VM_NIC") else {
        eprintln!("SKIPPED: only in the virtual machine of `make test-vm`");
        return;
    };
    let device = ifindex(&nic);
    let plane = plane();
    let link = PortLink::attach(plane.program(), device, Mode::Native).unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(link.mode(), Mode::Native);
    assert!(run(&format!("ip link show {nic}")).contains(" xdp "));
    plane.set_port(0, device, true, true).unwrap();
    link.detach().unwrap();
}
