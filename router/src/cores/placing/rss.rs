//! The queues in use follow the cores that forward: a fake NIC, and periods in virtual time.

use super::{super::spreads::Spreader, tests::World, *};
use crate::linux::{
    classifier::{Classifier as _, Ntuple, fake::Nic},
    spreading::Spreading,
};
use logic::cores::in_use::{Resize, WhyResize};

const LIGHT: [(u32, u64, u64); 4] = [(70, 1, 0), (71, 0, 0), (72, 0, 0), (73, 1, 0)];
/// All that a core has, and waiting.
const HEAVY: [(u32, u64, u64); 4] = [(70, 3, 7), (71, 3, 7), (72, 2, 8), (73, 2, 8)];

/// eth0 with eight queues, whose threads 70..78 are on all four cores in turn.
fn world(nic: &Nic) -> World {
    with_queues(nic, 8)
}

/// The same with another number of queues.
fn with_queues(nic: &Nic, queues: u32) -> World {
    let mut world = World::new("");
    world.tree.device("eth0", queues as usize, true);
    let pids = 70..70 + queues;
    pids.clone().for_each(|pid| world.thread(pid, &(pid % 4).to_string()));
    world.netlink.threads(&pids.collect::<Vec<_>>());
    let file = world.tree.path("m.spreading");
    let spreading = Spreading::open(Box::new(Ntuple(nic.clone())), file, |_| true);
    world.looker.ports.spreader = Spreader::new(spreading);
    world
}

fn table(nic: &Nic) -> Vec<u32> {
    Ntuple(nic).indirection("eth0").unwrap()
}

fn places(world: &World) -> Vec<CoreId> {
    (70..78).flat_map(|pid| world.cores(pid)).collect()
}

#[test]
fn queues_in_use_shrink_and_grow_with_the_cores_that_forward() {
    let nic = Nic::new(8, 64, false);
    let mut world = world(&nic);
    let told = world.periods(900, &LIGHT);
    assert_eq!((table(&nic), told.contains("spread over")), ((0..8).collect(), false), "{told}");
    let told = world.periods(400, &LIGHT);
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(
        told.contains(
            "packets of eth0 are spread over 4 queues, no longer over 8: for 10 s these would have been enough"
        ),
        "{told}"
    );
    assert_eq!(table(&nic), [0, 1, 2, 3, 0, 1, 2, 3]);
    let home = places(&world)[0];
    assert_eq!(places(&world), [home; 8]);
    let indices =
        |world: &World| world.placing.last.view.queues.iter().map(|q| q.id.index).collect::<Vec<_>>();
    assert_eq!(indices(&world), [0, 1, 2, 3]);
    // A core is added. Unused queues go along, so that no flow changes its core when they are used.
    let mut told = String::new();
    let mut along = None;
    while table(&nic).iter().max() == Some(&3) {
        let before = places(&world);
        told += &world.periods(1, &HEAVY);
        assert!(world.now < Duration::from_secs(20), "{told}");
        along = (before[..4] == before[4..]).then_some(before);
    }
    let along = along.expect("unused queues did not go along");
    assert_eq!(BTreeSet::from_iter(&along).len(), 2, "{told}");
    assert_eq!(places(&world), along);
    assert!(told.contains("over 8 queues, no longer over 4: 2 cores forward its packets"), "{told}");
    assert_eq!((table(&nic), nic.tables().len()), ((0..8).collect(), 2));
    // A core is added after 20 ms, and the table changes within 50 ms.
    let began = told.lines().next().unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
    let ended = told.lines().last().unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(ended - began <= 60, "{told}");
    world.periods(1, &HEAVY);
    assert_eq!(indices(&world), [0, 1, 2, 3, 4, 5, 6, 7]);
    world.looker.put_back();
    assert!(!world.tree.path("m.spreading").exists());
}

/// The thread that moves queues has a real-time priority, so others wait for it.
#[test]
fn unused_queues_go_along_a_few_at_a_time() {
    let nic = Nic::new(64, 64, false);
    let mut world = with_queues(&nic, 64);
    // Those in use are on core 0, the others on core 3.
    (70..134).for_each(|pid| _ = world.fake.get().of.insert(pid, [if pid < 74 { 0 } else { 3 }].into()));
    world.periods(1, &LIGHT);
    let why = WhyResize::Fewer(Duration::ZERO);
    world.looker.ports.resize(world.now, &Resize { port: 1, from: 64, to: 4, why }).unwrap();
    world.placing.take(Arc::new(world.looker.look(world.now, false)));
    let core = |world: &World, id: &QueueId| world.cores(70 + u32::from(id.index));
    let mut astray = Vec::new();
    for _ in 0..12 {
        world.periods(1, &LIGHT);
        let goes_with = &world.placing.last.goes_with;
        astray.push(goes_with.iter().filter(|(id, with)| core(&world, id) != core(&world, with)).count());
    }
    assert!(astray[0] > 3 * MOST_IDLE && astray[11] == 0, "{astray:?}");
    // The first round also moved queues in use.
    assert!(astray[1..].windows(2).all(|pair| pair[0] - pair[1] <= MOST_IDLE), "{astray:?}");
}

#[test]
fn the_time_of_an_unused_queue_counts_for_the_queue_it_goes_with() {
    let nic = Nic::new(8, 64, false);
    let mut world = world(&nic);
    world.periods(1300, &LIGHT);
    // Somebody's rules send packets to unused queues.
    world.periods(2, &[(70, 1, 0), (71, 2, 0), (75, 5, 0)]);
    let ran: Vec<f64> =
        world.placing.last.view.queues.iter().map(|queue| (queue.ran * 10.0).round()).collect();
    assert_eq!(ran, [1.0, 7.0, 0.0, 0.0]);
    // A queue that cannot be moved counts separately.
    world.fake.get().refuses = libc::EPERM;
    world.fake.get().of.insert(75, [3].into());
    world.periods(110, &LIGHT);
    let indices: Vec<_> = world.placing.last.view.queues.iter().map(|q| (q.id.index, q.core)).collect();
    assert!(indices.contains(&(5, 3)), "{indices:?}");
}

#[test]
fn a_table_that_somebody_else_changes_is_left_alone_and_reported() {
    let nic = Nic::new(8, 64, false);
    let mut world = world(&nic);
    world.periods(1300, &LIGHT);
    let made = [0, 1, 2, 3, 4, 4, 4, 4];
    Ntuple(&nic).set_indirection("eth0", &made).unwrap();
    world.periods(1100, &LIGHT);
    let told: Vec<String> =
        world.looker.ports.spreader.take_news(world.now).into_iter().map(|told| told.why).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("packets of eth0 are spread over 5 queues: somebody else has changed the table")
    );
    assert_eq!(world.placing.last.view.queues.len(), 8, "not all queues are placed separately");
    assert!(!world.periods(3000, &HEAVY).contains("spread over"));
    world.looker.put_back();
    assert_eq!(table(&nic), made);
}

#[test]
fn a_driver_that_refuses_is_asked_again() {
    let nic = Nic::new(8, 64, false);
    let mut world = world(&nic);
    nic.refuse_tables(Some(libc::EOPNOTSUPP));
    let told = world.periods(2000, &LIGHT);
    let refusals = told.matches("packets of eth0 stay spread over 8 queues, not over 4: ").count();
    assert_eq!(refusals, 1, "{told}");
    nic.refuse_tables(None);
    world.periods(1100, &LIGHT);
    assert_eq!((table(&nic), world.conditions()), (vec![0, 1, 2, 3, 0, 1, 2, 3], vec![]));
    // A refusal is a problem for as long as more queues are wanted.
    nic.refuse_tables(Some(libc::EOPNOTSUPP));
    let told = world.periods(500, &HEAVY);
    assert_eq!(told.matches("packets of eth0 stay spread over 4 queues, not over 8: ").count(), 1, "{told}");
    assert!(
        world.conditions().iter().any(|condition| condition.contains("queues, not over 8")),
        "{:?}",
        world.conditions()
    );
    world.periods(800, &LIGHT);
    assert_eq!((table(&nic), world.conditions()), (vec![0, 1, 2, 3, 0, 1, 2, 3], vec![]));
}
