use super::{
    super::{
        fake::{Fake, Interrupts},
        tree::Tree,
    },
    *,
};
use crate::linux::netlink::netdev::Napi;

const EIO: i32 = libc::EIO;
const UNSUPPORTED: i32 = libc::EOPNOTSUPP;

/// eth0, number 8, a NIC with an interrupt.
struct World {
    tree: Tree,
    fake: Fake,
    originals: Originals,
    moderation: Moderation,
    told: NetdevQueues,
}

impl World {
    /// Its driver knows no timer of its own, if there are no `interrupts`.
    fn new(interrupts: Option<Interrupts>) -> World {
        World::with_file(interrupts, "m.cores")
    }

    fn with_file(interrupts: Option<Interrupts>, file: &str) -> World {
        let (tree, fake) = (Tree::new(), Fake::default());
        tree.device("eth0", 1, false);
        tree.hardware("eth0", "", 0, &[38]);
        tree.irq(38, "eth0-TxRx-0", "0-7", "0");
        for (name, text) in
            [("ifindex", "8\n"), ("gro_flush_timeout", "0\n"), ("napi_defer_hard_irqs", "0\n")]
        {
            tree.write(&format!("sys/class/net/eth0/{name}"), text);
        }
        fake.get().interrupts.extend(interrupts.map(|interrupts| ("eth0".to_owned(), interrupts)));
        let originals = Originals::read(tree.path(file));
        World { tree, fake, originals, moderation: Moderation::new(50), told: NetdevQueues::default() }
    }

    fn look(&mut self) -> Moderated {
        let port = Asked { device: "eth0", ifindex: 8, told: &self.told };
        self.moderation.look(&self.tree.roots(), &self.fake, &mut self.originals, &port)
    }

    /// As after `kill -9`.
    fn restart(&mut self, us: u32) {
        (self.originals, self.moderation) = (Originals::read(self.tree.path("m.cores")), Moderation::new(us));
    }

    fn put_back(&mut self) -> Vec<String> {
        self.originals.put_back(&self.tree.roots(), &self.fake)
    }

    fn now(&self) -> (u32, bool) {
        let Coalescing { us, adaptive } = self.fake.get().interrupts["eth0"].now;
        (us, adaptive)
    }

    fn set(&self, us: u32, adaptive: bool) {
        self.change(|interrupts| interrupts.now = Coalescing { us, adaptive });
    }

    fn change(&self, change: impl FnOnce(&mut Interrupts)) {
        change(self.fake.get().interrupts.get_mut("eth0").unwrap());
    }

    /// `gro_flush_timeout` and `napi_defer_hard_irqs`.
    fn napi(&self) -> [String; 2] {
        ["gro_flush_timeout", "napi_defer_hard_irqs"]
            .map(|name| self.tree.read(&format!("sys/class/net/eth0/{name}")).trim().to_owned())
    }
}

fn device(us: u32) -> Moderated {
    Moderated::By(Setting::Device(Coalescing { us, adaptive: false }))
}

fn napi(us: u64) -> Moderated {
    Moderated::By(Setting::Napi { timeout_ns: us * 1000, defers: 1 })
}

fn not(why: &str) -> Moderated {
    Moderated::Not(why.into())
}

#[test]
fn a_device_that_can_holds_its_interrupts_back_and_has_what_it_had_in_the_end() {
    for (us, adaptive) in [(8, true), (3, false), (100, false), (0, false)] {
        let mut world = World::new(Some(Interrupts::new(us, adaptive)));
        for _ in 0..2 {
            assert_eq!((world.look(), world.now()), (device(50), (50, false)));
        }
        assert_eq!(world.napi(), ["0", "0"]);
        // Killed; the next one goes on, with another latency too.
        world.restart(50);
        assert_eq!((world.look(), world.now()), (device(50), (50, false)));
        world.restart(20);
        assert_eq!((world.look(), world.now()), (device(20), (20, false)));
        assert_eq!(world.put_back(), [""; 0]);
        assert_eq!(world.now(), (us, adaptive));
        assert!(!world.tree.path("m.cores").exists());
    }
}

#[test]
fn a_device_that_cannot_leaves_it_to_napi() {
    let refusing = |change: fn(&mut Interrupts)| {
        let mut interrupts = Interrupts::new(0, false);
        change(&mut interrupts);
        Some(interrupts)
    };
    for interrupts in [
        None,
        refusing(|it| it.refuses = UNSUPPORTED),
        refusing(|it| it.ignores = true),
        refusing(|it| (it.refuses, it.half) = (libc::EINVAL, true)),
    ] {
        let mut world = World::new(interrupts);
        for _ in 0..2 {
            assert_eq!(
                (world.look(), world.napi()),
                (napi(50), ["50000".into(), "1".into()]),
                "{interrupts:?}"
            );
        }
        assert!(interrupts.is_none() || world.now() == (0, false), "{interrupts:?}");
        world.restart(20);
        assert_eq!((world.look(), world.napi()), (napi(20), ["20000".into(), "1".into()]));
        world.restart(20);
        assert_eq!(world.put_back(), [""; 0]);
        assert_eq!(world.napi(), ["0", "0"]);
    }
}

#[test]
fn what_was_stays_written_down_where_a_daemon_ends_in_the_middle() {
    let mut world = World::new(Some(Interrupts::new(8, true)));
    let was = Setting::Device(Coalescing { us: 8, adaptive: true });
    world.originals.note_moderation("eth0", 8, None, was).unwrap();
    world.set(48, false);
    // It ended before it had seen what the driver made of 50. The next one goes on, or puts back.
    world.restart(50);
    assert_eq!(world.look(), device(50));
    assert_eq!(world.put_back(), [""; 0]);
    assert_eq!(world.now(), (8, true));
    world.originals.note_moderation("eth0", 8, None, was).unwrap();
    world.set(48, false);
    assert_eq!(world.put_back(), [""; 0]);
    assert_eq!(world.now(), (8, true));
}

#[test]
fn drivers_round_and_begin_anew() {
    let mut world = World::new(Some(Interrupts { step: 8, ..Interrupts::new(0, true) }));
    assert_eq!((world.look(), world.look()), (device(48), device(48)));
    // Down and up: it adapts again, which gives it some time or other.
    world.set(0, true);
    world.change(|it| it.now.us = 24);
    assert_eq!((world.look(), world.now()), (device(48), (48, false)));
    assert_eq!(world.put_back(), [""; 0]);
    assert_eq!(world.now(), (0, true));
}

#[test]
fn what_somebody_sets_is_left_alone() {
    let mut world = World::new(Some(Interrupts::new(8, true)));
    world.look();
    world.set(200, false);
    for _ in 0..2 {
        assert_eq!((world.look(), world.now()), (not(CHANGED), (200, false)));
    }
    assert_eq!(world.put_back(), [""; 0]);
    assert_eq!(world.now(), (200, false));
    // What NAPI has of somebody is his from the start.
    for (name, text) in [("gro_flush_timeout", "20000\n"), ("napi_defer_hard_irqs", "2\n")] {
        let mut world = World::new(None);
        world.tree.write(&format!("sys/class/net/eth0/{name}"), text);
        let before = world.napi();
        assert_eq!((world.look(), world.napi()), (not(SOMEBODY), before.clone()));
        assert_eq!(world.put_back(), [""; 0]);
        assert_eq!(world.napi(), before);
    }
    // So it is if only one of its instances has: setting the device's would set them all.
    let mut world = World::new(None);
    world.told.napis = Some(vec![Napi { id: 500, irq: Some(38), pid: None, threaded: None, defers: true }]);
    assert_eq!((world.look(), world.napi()), (not(SOMEBODY), ["0".into(), "0".into()]));
}

#[test]
fn napi_of_one_that_we_have_set_is_ours() {
    let mut world = World::new(None);
    world.look();
    world.told.napis = Some(vec![Napi { id: 500, irq: Some(38), pid: None, threaded: None, defers: true }]);
    assert_eq!(world.look(), napi(50));
    world.restart(50);
    assert_eq!(world.look(), napi(50));
}

#[test]
fn without_interrupts_there_is_nothing_to_hold_back() {
    let mut world = World::new(Some(Interrupts::new(8, true)));
    world.tree.remove("proc/irq/38");
    assert_eq!((world.look(), world.now()), (not(SOFTWARE), (8, true)));
    // It may be known by netlink alone.
    world.told.napis = Some(vec![Napi { id: 500, irq: Some(38), pid: None, threaded: None, defers: false }]);
    assert_eq!(world.look(), device(50));
}

#[test]
fn what_cannot_be_done_is_told_and_tried_again() {
    let mut world = World::with_file(Some(Interrupts::new(8, true)), "nowhere/m.cores");
    assert!(matches!(world.look(), Moderated::Not(why) if why.contains("No such file")));
    assert_eq!(world.now(), (8, true), "what was is not written down");
    // A device that is down may fail in many ways.
    let mut world = World::new(Some(Interrupts { refuses: EIO, ..Interrupts::new(8, true) }));
    assert!(matches!(world.look(), Moderated::Not(why) if why.contains("os error 5")));
    assert_eq!((world.now(), world.napi()), ((8, true), ["0".into(), "0".into()]));
    world.change(|it| it.refuses = 0);
    assert_eq!(world.look(), device(50));
    let gone = world.fake.get().interrupts.remove("eth0").unwrap();
    assert_eq!(world.look(), not(UNTOLD));
    world.fake.get().interrupts.insert("eth0".into(), gone);
    assert_eq!(world.look(), device(50));
    // What cannot be put back stays written down.
    world.change(|it| it.refuses = EIO);
    assert!(world.put_back()[0].starts_with("wake-ups of eth0 are not as they were: "));
    world.change(|it| it.refuses = 0);
    world.restart(50);
    assert_eq!((world.put_back(), world.now()), (vec![], (8, true)));
}

/// As of a device whose driver is resetting it.
#[test]
fn a_driver_that_answers_nothing_costs_no_original() {
    let mut world = World::new(Some(Interrupts::new(8, true)));
    world.look();
    world.fake.get().is_silent = libc::ENODEV;
    world.originals.forget_gone(&world.tree.roots(), &world.fake).unwrap();
    assert!(matches!(world.look(), Moderated::Not(_)));
    assert_eq!(world.put_back().len(), 1);
    world.fake.get().is_silent = 0;
    assert_eq!((world.put_back(), world.now()), (vec![], (8, true)));
}

#[test]
fn what_is_half_put_back_is_put_back_later() {
    let mut world = World::new(Some(Interrupts::new(8, true)));
    world.look();
    world.change(|it| it.never_adapts = true);
    assert_eq!((world.put_back().len(), world.now()), (1, (8, false)));
    world.change(|it| it.never_adapts = false);
    world.restart(50);
    assert_eq!((world.put_back(), world.now()), (vec![], (8, true)));
}

#[test]
fn what_was_about_to_be_set_and_is_is_ours_and_no_more() {
    let mut world = World::new(Some(Interrupts::new(8, false)));
    let was = Setting::Device(Coalescing { us: 8, adaptive: false });
    world.originals.note_moderation("eth0", 8, None, was).unwrap();
    world.set(50, false);
    world.restart(50);
    assert_eq!(world.look(), device(50));
    world.set(200, false);
    assert_eq!((world.look(), world.put_back(), world.now()), (not(CHANGED), vec![], (200, false)));
}

#[test]
fn a_device_is_known_by_its_number() {
    let mut world = World::new(Some(Interrupts::new(8, true)));
    world.look();
    let [old, new] = ["eth0", "wan0"].map(|name| world.tree.path(&format!("sys/class/net/{name}")));
    fs::rename(old, new).unwrap();
    let renamed = world.fake.get().interrupts.remove("eth0").unwrap();
    world.fake.get().interrupts.insert("wan0".into(), renamed);
    world.originals.forget_gone(&world.tree.roots(), &world.fake).unwrap();
    assert_eq!(world.put_back(), [""; 0]);
    assert_eq!(world.fake.get().interrupts["wan0"].now, Coalescing { us: 8, adaptive: true });
}

/// NAPI's timer would come on top of the device's.
#[test]
fn a_device_that_holds_back_by_itself_is_left_at_that() {
    let untouched = ["0".to_owned(), "0".to_owned()];
    let mut world = World::new(Some(Interrupts { step: 8, ..Interrupts::new(48, false) }));
    for _ in 0..2 {
        assert_eq!((world.look(), world.napi()), (device(48), untouched.clone()));
    }
    assert!(!world.tree.path("m.cores").exists());
    let mut world = World::new(Some(Interrupts { refuses: UNSUPPORTED, ..Interrupts::new(80, false) }));
    assert_eq!((world.look(), world.napi()), (not(KEPT), untouched));
}

#[test]
fn another_device_keeps_what_it_has() {
    let mut world = World::new(Some(Interrupts::new(8, true)));
    world.look();
    world.tree.write("sys/class/net/eth0/ifindex", "12\n");
    assert_eq!(world.put_back(), [""; 0]);
    assert_eq!(world.now(), (50, false));
}

#[test]
fn a_ring_that_is_full_before_is_told_of() {
    let world = World::new(None);
    let set = Setting::Napi { timeout_ns: 50_000, defers: 1 };
    let told = |entries| overflows(&world.tree.roots(), "eth0", entries, set);
    assert_eq!(told(Some(256)), None, "no speed is known");
    world.tree.write("sys/class/net/eth0/speed", "10000\n");
    assert!(told(Some(512)).unwrap().contains("which 10000 Mbit/s of the smallest packets fill in 34 µs"));
    assert_eq!((told(Some(1024)), told(Some(0)), told(None)), (None, None, None));
    world.tree.write("sys/class/net/eth0/speed", "-1\n");
    assert_eq!(told(Some(512)), None);
}
