//! The exact order of runs. Also compares with a slow version whose passes do not wrap.

use crate::paths::stride::{Full, MOST_TASKS, MOST_TICKETS, MOST_UNITS, ONE, Stride, Task};
use proptest::prelude::*;

/// The tasks that run, in runs of one unit each. A is the first task.
fn order(stride: &mut Stride, runs: usize) -> String {
    let run = |stride: &mut Stride| {
        let task = stride.pick().expect("a task is awake");
        assert_eq!(stride.pick(), Some(task), "picked again until it is charged");
        stride.charge(task, 1);
        char::from(b'A' + task.index() as u8)
    };
    (0..runs).map(|_| run(stride)).collect()
}

fn stride<const N: usize>(tickets: [u32; N]) -> (Stride, [Task; N]) {
    let mut stride = Stride::default();
    let tasks = tickets.map(|tickets| stride.add(tickets).unwrap());
    (stride, tasks)
}

#[test]
fn four_two_and_one_ticket() {
    let (mut stride, _) = stride([4, 2, 1]);
    assert_eq!(order(&mut stride, 21), "ABCAABAABCAABAABCAABA");
}

#[test]
fn a_new_task_starts_at_the_global_pass_and_a_removed_one_leaves_its_part() {
    let (mut stride, [_, b, _]) = stride([4, 2, 1]);
    assert_eq!(order(&mut stride, 9), "ABCAABAAB");
    // A is at 5, B at 6, C at 4, and so is the global pass, in quarters of a ticket's stride.
    stride.add(4).unwrap();
    assert_eq!(order(&mut stride, 9), "CDADABDAD");
    // All at 8.
    stride.remove(b);
    assert_eq!(order(&mut stride, 9), "ACDADADAD");
    // All at 12, the global pass is 11. The new task takes the number of the one that left.
    assert_eq!(stride.add(2), Ok(b));
    assert_eq!(order(&mut stride, 12), "BACDABDADABD");
}

#[test]
fn an_idle_task_saves_nothing_and_its_part_goes_to_the_others() {
    let (mut stride, [a, b, c]) = stride([1, 1, 1]);
    assert_eq!(order(&mut stride, 4), "ABCA");
    stride.sleep(b);
    assert_eq!(order(&mut stride, 6), "CACACA");
    stride.wake(b);
    // C is one behind A. B starts where A ran.
    assert_eq!(order(&mut stride, 6), "BCABCA");
    for task in [a, b, c] {
        stride.sleep(task);
    }
    assert_eq!((stride.pick(), stride.is_empty()), (None, false));
    stride.wake(c);
    assert_eq!(order(&mut stride, 2), "CC");
}

#[test]
fn a_sleeping_task_still_has_to_wait_for_its_last_run() {
    let (mut stride, [a, b]) = stride([1, 1]);
    let first = stride.pick().unwrap();
    stride.charge(first, 5);
    stride.sleep(a);
    stride.wake(a);
    assert_eq!(order(&mut stride, 7), "BBBBBAB");
    // It is charged when the others have come as far.
    stride.charge(a, 5);
    stride.sleep(a);
    assert_eq!(order(&mut stride, 10), "BBBBBBBBBB");
    stride.wake(a);
    // Where B ran last, so A is one behind.
    assert_eq!(order(&mut stride, 4), "AABA");
    // Charged while it sleeps.
    stride.sleep(b);
    stride.charge(b, 3);
    stride.wake(b);
    assert_eq!(order(&mut stride, 5), "AAABA");
}

#[test]
fn other_tickets_change_what_is_still_owed() {
    let (mut stride, [a, _]) = stride([1, 1]);
    let first = stride.pick().unwrap();
    stride.charge(first, 8);
    stride.set_tickets(a, 4);
    assert_eq!(stride.tickets(a), 4);
    assert_eq!(order(&mut stride, 8), "BBABAAAA");
}

#[test]
fn a_scheduler_takes_64_tasks_and_tickets_have_bounds() {
    let (mut stride, tasks) = stride([7; MOST_TASKS]);
    assert_eq!(stride.add(1), Err(Full));
    stride.remove(tasks[40]);
    assert_eq!(stride.add(0), Ok(tasks[40]));
    assert_eq!(stride.tickets(tasks[40]), 1);
    stride.set_tickets(tasks[40], u32::MAX);
    assert_eq!(stride.tickets(tasks[40]), MOST_TICKETS);
    assert_eq!(Full.to_string(), "64 tasks share this core already, it takes no more");
}

#[test]
fn passes_wrap_while_some_tasks_sleep_for_long() {
    let (mut stride, [_, _, c]) = stride([1, 1, 1]);
    let run = |stride: &mut Stride| {
        let task = stride.pick().unwrap();
        stride.charge(task, MOST_UNITS);
        task.index()
    };
    // A quarter of 2^64 each.
    assert_eq!([(); 9].map(|()| run(&mut stride)), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    for runs in 1..40 {
        stride.sleep(c);
        let ran: Vec<usize> = (0..runs).map(|_| run(&mut stride)).collect();
        assert!(ran.windows(2).all(|two| two[0] != two[1]) && !ran.contains(&2), "{ran:?}");
        stride.wake(c);
        let mut next = [(); 3].map(|()| run(&mut stride));
        next.sort_unstable();
        assert_eq!(next, [0, 1, 2], "after {runs} runs");
    }
}

/// The same, slowly: passes in 128 bits, which do not wrap.
#[derive(Default)]
struct Oracle {
    global: u128,
    tasks: Vec<Option<Slow>>,
}

#[derive(Clone, Copy)]
struct Slow {
    pass: u128,
    stride: u128,
    is_awake: bool,
}

impl Oracle {
    fn stride(tickets: u32) -> u128 {
        (f64::from(ONE) / f64::from(tickets.clamp(1, MOST_TICKETS))).round() as u128
    }

    fn pick(&mut self) -> Option<usize> {
        let awake = self
            .tasks
            .iter()
            .enumerate()
            .filter_map(|(i, task)| Some((i, task.filter(|task| task.is_awake)?)));
        let (pass, first) = awake.map(|(i, task)| (task.pass, i)).min()?;
        self.global = pass;
        Some(first)
    }
}

#[derive(Clone, Debug)]
enum Do {
    Add(u32),
    Remove(usize),
    Sleep(usize),
    Wake(usize),
    Tickets(usize, u32),
    Run(u64),
}

fn what() -> impl Strategy<Value = Do> {
    let tickets = || prop_oneof![1u32..5, 1u32..=MOST_TICKETS];
    let units = prop_oneof![0u64..5, 0u64..200_000, Just(MOST_UNITS), Just(u64::MAX)];
    prop_oneof![
        1 => tickets().prop_map(Do::Add),
        1 => (0usize..6).prop_map(Do::Remove),
        2 => (0usize..6).prop_map(Do::Sleep),
        2 => (0usize..6).prop_map(Do::Wake),
        1 => ((0usize..6), tickets()).prop_map(|(task, tickets)| Do::Tickets(task, tickets)),
        20 => units.prop_map(Do::Run),
    ]
}

proptest! {
    #[test]
    fn it_does_what_passes_that_do_not_wrap_would(todo in prop::collection::vec(what(), 1..400)) {
        let mut stride = Stride::default();
        let mut tasks = Vec::new();
        let mut slow = Oracle::default();
        for what in todo {
            match what {
                Do::Add(tickets) => {
                    if let Ok(task) = stride.add(tickets) {
                        let new = Slow { pass: slow.global, stride: Oracle::stride(tickets), is_awake: true };
                        if task.index() == slow.tasks.len() {
                            slow.tasks.push(Some(new));
                            tasks.push(task);
                        } else {
                            prop_assert!(slow.tasks[task.index()].is_none());
                            slow.tasks[task.index()] = Some(new);
                        }
                    }
                }
                Do::Run(units) => {
                    let picked = stride.pick();
                    prop_assert_eq!(picked.map(Task::index), slow.pick());
                    if let Some(task) = picked {
                        stride.charge(task, units);
                        let slow = slow.tasks[task.index()].as_mut().unwrap();
                        slow.pass += u128::from(units.clamp(1, MOST_UNITS)) * slow.stride;
                    }
                }
                Do::Remove(i) | Do::Sleep(i) | Do::Wake(i) | Do::Tickets(i, _) => {
                    let Some(Some(known)) = slow.tasks.get_mut(i) else { continue };
                    let task = tasks[i];
                    match what {
                        Do::Sleep(_) => {
                            stride.sleep(task);
                            known.is_awake = false;
                        }
                        Do::Wake(_) => {
                            stride.wake(task);
                            (known.is_awake, known.pass) = (true, known.pass.max(slow.global));
                        }
                        Do::Tickets(_, tickets) => {
                            stride.set_tickets(task, tickets);
                            let ahead = known.pass.saturating_sub(slow.global);
                            let now = Oracle::stride(tickets);
                            known.pass = slow.global + ahead * now / known.stride;
                            known.stride = now;
                        }
                        _ => {
                            stride.remove(task);
                            slow.tasks[i] = None;
                        }
                    }
                }
            }
        }
    }
}
