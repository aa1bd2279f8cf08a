use super::{
    super::{affinity::CoreMask, fake::Fake},
    *,
};
use logic::cores::Ring as Entries;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

const PATIENCE: Duration = Duration::from_millis(1);

/// Fake rings by device and core: what each look sees, in order. The last state stays.
#[derive(Clone, Default)]
struct Rings(Arc<Mutex<Looks>>);

type Looks = BTreeMap<(u32, CoreId), Vec<Transmit>>;

impl Look for Rings {
    fn look(&self, ifindex: u32, core: CoreId) -> io::Result<Option<Transmit>> {
        let mut all = self.0.lock().unwrap();
        let Some(looks) = all.get_mut(&(ifindex, core)) else { return Ok(None) };
        Ok(Some(if looks.len() > 1 { looks.remove(0) } else { looks[0] }))
    }
}

/// A core's ring, one of two, with `waiting` packets. `taker` is the core that empties it.
fn ring(waiting: u32, taker: Option<CoreId>) -> Transmit {
    let ring =
        Entries { size: 256, head: 100, tail: 100 + waiting, is_empty: waiting == 0, is_taking: false };
    Transmit { rings: 2, ring: Some(ring), taker }
}

fn emptied(transmit: Transmit) -> Transmit {
    let ring = transmit.ring.map(|ring| Entries { head: ring.tail, is_empty: true, ..ring });
    Transmit { ring, ..transmit }
}

fn drains(rings: &Rings, several: bool) -> Drains {
    let mut drains = Drains::new(Some(Box::new(rings.clone())));
    // The clock advances by 50 us each time it is read, so other work on the machine does not matter.
    let looks = AtomicU32::new(0);
    drains.now = Box::new(move || Duration::from_micros(50) * looks.fetch_add(1, Relaxed));
    drains.leave_by(vec![Exit { ifindex: 8, several }]);
    drains.begin_round();
    drains
}

fn me() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Moves a queue from core 1 to core 2. Returns where this thread was during the move, and how the wait ended.
fn go(drains: &mut Drains) -> (Vec<CoreId>, Outcome) {
    let fake = Fake::default();
    fake.allow(me(), &[0, 1, 2, 3].into()).unwrap();
    let leaving = Leaving { from: [1, 2].into(), to: 2, confined: true, ..Leaving::default() };
    let told = drains.around(&fake, &leaving, |_| PATIENCE, || fake.cores(me()));
    assert_eq!(fake.cores(me()), [0, 1, 2, 3], "the thread is not back where it was");
    told
}

#[test]
fn a_queue_waits_on_its_new_core_until_the_old_ring_is_empty() {
    let rings = Rings::default();
    let full = ring(9, None);
    rings.0.lock().unwrap().insert((8, 1), vec![full, full, full, emptied(full)]);
    let mut drains = drains(&rings, true);
    let (on, outcome) = go(&mut drains);
    assert_eq!(on, [2]);
    assert!(matches!(outcome, Outcome::Left(took) if took < PATIENCE), "{outcome:?}");
    assert_eq!((drains.told.left, drains.told.remained), (1, 0));
    assert!(drains.has_time());
}

#[test]
fn a_queue_waits_on_its_old_core_if_the_new_one_empties_the_ring() {
    let rings = Rings::default();
    let full = ring(9, Some(2));
    rings.0.lock().unwrap().insert((8, 1), vec![full, full, emptied(full)]);
    assert_eq!(go(&mut drains(&rings, true)).0, [1]);
}

#[test]
fn a_move_waits_no_longer_than_rx_queues_have_room() {
    let rings = Rings::default();
    rings.0.lock().unwrap().insert((8, 1), vec![ring(9, None)]);
    let mut drains = drains(&rings, true);
    let (on, outcome) = go(&mut drains);
    assert_eq!(outcome, Outcome::Remains("1050 us were not enough".into()));
    // Two such waits use up the time of a round.
    assert!(drains.has_time());
    go(&mut drains);
    assert!(!drains.has_time() && drains.told.remained == 2 && on == [2]);
}

#[test]
fn a_move_that_changes_no_tx_queue_does_not_wait() {
    let rings = Rings::default();
    let alike = |several, transmit: Option<Transmit>| {
        let looks = transmit.map(|transmit| ((8, 1), vec![transmit]));
        *rings.0.lock().unwrap() = looks.into_iter().collect();
        go(&mut drains(&rings, several)).1
    };
    assert_eq!(alike(true, Some(Transmit { rings: 1, ..ring(9, None) })), Outcome::Alike);
    assert_eq!(alike(true, Some(Transmit { ring: None, ..ring(9, None) })), Outcome::Alike);
    assert_eq!(alike(false, None), Outcome::Alike);
    let Outcome::Left(took) = alike(true, None) else { panic!("no wait for a ring that cannot be seen") };
    assert!((UNSEEN..PATIENCE).contains(&took), "{took:?}");
}

#[test]
fn a_core_that_cannot_be_occupied_is_reported() {
    struct Refuses;
    impl Affinity for Refuses {
        fn allowed(&self, _: u32) -> io::Result<CoreMask> {
            Ok([1].iter().collect())
        }
        fn allow(&self, _: u32, _: &BTreeSet<CoreId>) -> io::Result<()> {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        }
    }
    let rings = Rings::default();
    rings.0.lock().unwrap().insert((8, 1), vec![ring(9, None)]);
    let leaving = Leaving { from: [1].into(), to: 2, confined: true, ..Leaving::default() };
    let (moved, outcome) = drains(&rings, true).around(&Refuses, &leaving, |_| PATIENCE, || true);
    assert!(moved && matches!(outcome, Outcome::Remains(why) if why.contains("core 2 cannot be occupied")));
}
