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

/// eth0, number 8, is a NIC with an interrupt.
struct World {
    tree: Tree,
    fake: Fake,
    knobs: Knobs,
    moderation: Moderation,
    told: NetdevQueues,
}

impl World {
    /// `None`: the driver has no timer of its own.
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
        let knobs = Knobs::open(tree.path(file), tree.roots(), fake.clone());
        World { tree, fake, knobs, moderation: Moderation::new(50), told: NetdevQueues::default() }
    }

    fn look(&mut self) -> Moderated {
        let port = Asked { device: "eth0", ifindex: 8, told: &self.told };
        self.moderation.look(&mut self.knobs, &port).unwrap()
    }

    /// Starts another daemon, as after `kill -9`.
    fn restart(&mut self, us: u32) {
        self.knobs = Knobs::open(self.tree.path("m.cores"), self.tree.roots(), self.fake.clone());
        self.moderation = Moderation::new(us);
    }

    fn put_back(&mut self) -> Vec<String> {
        self.knobs.put_back()
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

fn timer() -> Knob {
    let what = What::Moderation { ifindex: 8, means: Means::Device };
    Knob { device: "eth0".into(), what }
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
fn the_timer_of_the_device_is_set_and_restored() {
    for (us, adaptive) in [(8, true), (3, false), (100, false), (0, false)] {
        let mut world = World::new(Some(Interrupts::new(us, adaptive)));
        for _ in 0..2 {
            assert_eq!((world.look(), world.now()), (device(50), (50, false)));
        }
        assert_eq!(world.napi(), ["0", "0"]);
        // After a kill, the next daemon goes on, also with another time.
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
fn the_timer_of_napi_is_set_if_the_device_has_none() {
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
fn the_original_stays_saved_if_a_daemon_ends_while_it_sets_the_timer() {
    let mut world = World::new(Some(Interrupts::new(8, true)));
    let was = Value::Setting(Setting::Device(Coalescing { us: 8, adaptive: true }));
    world.knobs.save(&timer(), &was, None).unwrap();
    world.set(48, false);
    // The daemon ended before it had read how the driver rounded 50. The next one goes on, or restores.
    world.restart(50);
    assert_eq!(world.look(), device(50));
    assert_eq!(world.put_back(), [""; 0]);
    assert_eq!(world.now(), (8, true));
    world.knobs.save(&timer(), &was, None).unwrap();
    world.set(48, false);
    assert_eq!(world.put_back(), [""; 0]);
    assert_eq!(world.now(), (8, true));
}

#[test]
fn drivers_may_round_and_restart() {
    let mut world = World::new(Some(Interrupts { step: 8, ..Interrupts::new(0, true) }));
    assert_eq!((world.look(), world.look()), (device(48), device(48)));
    // After down and up, moderation is adaptive again, and the driver has chosen some time.
    world.set(0, true);
    world.change(|it| it.now.us = 24);
    assert_eq!((world.look(), world.now()), (device(48), (48, false)));
    assert_eq!(world.put_back(), [""; 0]);
    assert_eq!(world.now(), (0, true));
}

#[test]
fn a_setting_of_somebody_else_is_left_alone() {
    let mut world = World::new(Some(Interrupts::new(8, true)));
    world.look();
    world.set(200, false);
    for _ in 0..2 {
        assert_eq!((world.look(), world.now()), (not(CHANGED), (200, false)));
    }
    assert_eq!(world.put_back(), [""; 0]);
    assert_eq!(world.now(), (200, false));
    // If NAPI's timer is set at the start, somebody else has set it.
    for (name, text) in [("gro_flush_timeout", "20000\n"), ("napi_defer_hard_irqs", "2\n")] {
        let mut world = World::new(None);
        world.tree.write(&format!("sys/class/net/eth0/{name}"), text);
        let before = world.napi();
        assert_eq!((world.look(), world.napi()), (not(SOMEBODY), before.clone()));
        assert_eq!(world.put_back(), [""; 0]);
        assert_eq!(world.napi(), before);
    }
    // The same holds if only one NAPI instance has a timer, because the device's setting would overwrite all instances.
    let mut world = World::new(None);
    world.told.napis = Some(vec![Napi { id: 500, irq: Some(38), pid: None, threaded: None, defers: true }]);
    assert_eq!((world.look(), world.napi()), (not(SOMEBODY), ["0".into(), "0".into()]));
}

#[test]
fn a_timer_of_napi_that_millrace_set_is_its_own() {
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
    // Only netlink may know of an interrupt.
    world.told.napis = Some(vec![Napi { id: 500, irq: Some(38), pid: None, threaded: None, defers: false }]);
    assert_eq!(world.look(), device(50));
}

#[test]
fn a_failure_is_reported_and_tried_again() {
    let mut world = World::with_file(Some(Interrupts::new(8, true)), "nowhere/m.cores");
    assert!(matches!(world.look(), Moderated::Not(why) if why.contains("No such file")));
    assert_eq!(world.now(), (8, true), "set although the original could not be saved");
    // A device that is down may return any error.
    let mut world = World::new(Some(Interrupts { refuses: EIO, ..Interrupts::new(8, true) }));
    assert!(matches!(world.look(), Moderated::Not(why) if why.contains("os error 5")));
    assert_eq!((world.now(), world.napi()), ((8, true), ["0".into(), "0".into()]));
    world.change(|it| it.refuses = 0);
    assert_eq!(world.look(), device(50));
    let gone = world.fake.get().interrupts.remove("eth0").unwrap();
    assert_eq!(world.look(), not(UNTOLD));
    world.fake.get().interrupts.insert("eth0".into(), gone);
    assert_eq!(world.look(), device(50));
    // A setting that cannot be restored stays saved.
    world.change(|it| it.refuses = EIO);
    assert!(world.put_back()[0].starts_with("the interrupt moderation of eth0 is not restored: "));
    world.change(|it| it.refuses = 0);
    world.restart(50);
    assert_eq!((world.put_back(), world.now()), (vec![], (8, true)));
}

/// This happens while a driver resets its device.
#[test]
fn the_original_stays_saved_while_a_driver_answers_nothing() {
    let mut world = World::new(Some(Interrupts::new(8, true)));
    world.look();
    world.fake.get().is_silent = libc::ENODEV;
    world.knobs.forget_gone().unwrap();
    assert!(matches!(world.look(), Moderated::Not(_)));
    assert_eq!(world.put_back().len(), 1);
    world.fake.get().is_silent = 0;
    assert_eq!((world.put_back(), world.now()), (vec![], (8, true)));
}

#[test]
fn a_setting_that_is_half_restored_is_restored_later() {
    let mut world = World::new(Some(Interrupts::new(8, true)));
    world.look();
    world.change(|it| it.never_adapts = true);
    assert_eq!((world.put_back().len(), world.now()), (1, (8, false)));
    world.change(|it| it.never_adapts = false);
    world.restart(50);
    assert_eq!((world.put_back(), world.now()), (vec![], (8, true)));
}

#[test]
fn a_setting_that_was_about_to_be_made_is_ours_until_somebody_changes_it() {
    let mut world = World::new(Some(Interrupts::new(8, false)));
    let was = Value::Setting(Setting::Device(Coalescing { us: 8, adaptive: false }));
    world.knobs.save(&timer(), &was, None).unwrap();
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
    world.knobs.forget_gone().unwrap();
    assert_eq!(world.put_back(), [""; 0]);
    assert_eq!(world.fake.get().interrupts["wan0"].now, Coalescing { us: 8, adaptive: true });
}

/// The times of NAPI's timer and the device's would add up.
#[test]
fn a_device_that_keeps_its_own_time_gets_no_napi_timer() {
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
fn a_queue_that_fills_sooner_is_reported() {
    let world = World::new(None);
    let set = Setting::Napi { timeout_ns: 50_000, defers: 1 };
    let told = |entries| overflows(&world.tree.roots(), "eth0", entries, set);
    assert_eq!(told(Some(256)), None, "no speed is known");
    world.tree.write("sys/class/net/eth0/speed", "10000\n");
    assert!(
        told(Some(512)).unwrap().contains("the smallest packets fill the 512 entries of a queue in 34 µs")
    );
    assert_eq!((told(Some(1024)), told(Some(0)), told(None)), (None, None, None));
    world.tree.write("sys/class/net/eth0/speed", "-1\n");
    assert_eq!(told(Some(512)), None);
}
