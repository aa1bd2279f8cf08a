//! Changes of the machine between two looks, as events for people.

use super::{
    CoreId, QueueId,
    local::Following,
    look::{CoresSnapshot, FoundQueue},
    placing::Happened,
    queues::Control,
};
use std::collections::BTreeMap;

/// The changes from `before` to `after`, in the order cores, queues, local delivery, wake-ups. The first look
/// yields only the last two.
pub fn noticed(before: Option<&CoresSnapshot>, after: &CoresSnapshot) -> Vec<Happened> {
    let mut all = Vec::new();
    if let Some(before) = before {
        all.extend(cores(before, after));
        all.extend(queues(before, after));
    }
    all.extend(local(before.and_then(|before| before.following), after.following));
    all.extend(moderated(before, after));
    all.into_iter().map(|happened| Happened { at: after.began, ..happened }).collect()
}

pub(super) fn happened(queue: Option<QueueId>, from: Vec<CoreId>, to: Vec<CoreId>, why: String) -> Happened {
    Happened { queue, from, to, why, ..Happened::default() }
}

fn cores(before: &CoresSnapshot, after: &CoresSnapshot) -> Vec<Happened> {
    let (then, now) = (before.machine.online(), after.machine.online());
    let gone = then.difference(&now);
    let gone = gone.map(|&core| happened(None, vec![core], vec![], format!("core {core} has gone offline")));
    let come = now.difference(&then);
    let online = come.map(|&core| happened(None, vec![], vec![core], format!("core {core} is online")));
    let taken = after.kept.iter().filter(|(core, group)| before.kept.get(core) != Some(group));
    let taken = taken.map(|(core, group)| {
        happened(None, vec![*core], vec![], format!("control group {group} keeps core {core} for itself"))
    });
    let given_back = before.kept.iter().filter(|(core, _)| !after.kept.contains_key(core));
    let given_back = given_back.map(|(core, group)| {
        happened(None, vec![], vec![*core], format!("control group {group} gave core {core} back"))
    });
    gone.chain(online).chain(taken).chain(given_back).collect()
}

fn queues(before: &CoresSnapshot, after: &CoresSnapshot) -> Vec<Happened> {
    let by_id = |found: &CoresSnapshot| -> BTreeMap<QueueId, FoundQueue> {
        found.queues.iter().map(|queue| (queue.source.id, *queue)).collect()
    };
    let (then, now) = (by_id(before), by_id(after));
    let place = |queue: &FoundQueue| Vec::from_iter(queue.source.core);
    let gone = then.iter().filter(|(id, _)| !now.contains_key(id));
    let gone = gone.map(|(id, queue)| happened(Some(*id), place(queue), vec![], "the queue is gone".into()));
    let other = now.iter().filter_map(|(id, queue)| {
        let Some(old) = then.get(id) else {
            return Some(happened(Some(*id), vec![], place(queue), "the queue is new".into()));
        };
        let (old_control, control) = (old.source.control, queue.source.control);
        let why = format!("it is now moved by {}, no longer by {}", mover(control), mover(old_control));
        (old_control != control).then(|| happened(Some(*id), place(old), place(queue), why))
    });
    gone.chain(other).collect()
}

fn mover(control: Control) -> String {
    match control {
        Control::Thread { pid } => format!("thread {pid}"),
        Control::Interrupt { irq } => format!("interrupt {irq}"),
        Control::None { why } => format!("nothing ({why})"),
    }
}

fn local(before: Option<Following>, after: Option<Following>) -> Option<Happened> {
    let Following { follow, queues, .. } = after.filter(|_| before != after)?;
    let why =
        format!("local packets of {follow} of {queues} queues go to the cores where their sockets are read");
    Some(happened(None, vec![], vec![], why))
}

fn moderated(before: Option<&CoresSnapshot>, after: &CoresSnapshot) -> Vec<Happened> {
    let known = |port| before.and_then(|before| before.moderated.get(port));
    let new = after.moderated.iter().filter(|(port, moderated)| known(*port) != Some(*moderated));
    new.map(|(port, moderated)| happened(None, vec![], vec![], format!("{port}: {moderated}"))).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::{
            machine::{CoreSite, Machine},
            moderation::{Moderated, Setting},
            queues::QueueSource,
            workloads::{Workload, WorkloadKind},
        },
        *,
    };
    use crate::linux::ethtool::Coalescing;
    use std::{sync::Arc, time::Duration};

    pub(in super::super) fn found(
        cores: &[CoreId],
        queues: &[(u16, u32)],
        workloads: &[(u32, CoreId)],
    ) -> CoresSnapshot {
        let site = |&id: &CoreId| CoreSite {
            id,
            node: 0,
            socket: 0,
            physical: id,
            isolated: false,
            nohz_full: false,
        };
        let queue = |&(index, pid): &(u16, u32)| {
            let (id, control) = (QueueId { port: 0, index }, Control::Thread { pid });
            let source = QueueSource { id, napi: None, control, core: Some(index), confined: true };
            FoundQueue { source, node: None, entries: None }
        };
        let workload = |&(id, core): &(u32, CoreId)| Workload {
            id,
            name: "db".into(),
            kind: WorkloadKind::Process,
            cores: [core].into(),
        };
        CoresSnapshot {
            began: Duration::from_secs(7),
            machine: Arc::new(Machine { cores: cores.iter().map(site).collect(), caches: Vec::new() }),
            queues: queues.iter().map(queue).collect(),
            exits: Vec::new(),
            workloads: Arc::new(workloads.iter().map(workload).collect()),
            kept: Arc::default(),
            served: None,
            following: None,
            balancer: None,
            parts: Vec::new(),
            may_split: false,
            spreads: BTreeMap::new(),
            moderated: BTreeMap::new(),
            awake: BTreeMap::new(),
            conditions: Vec::new(),
        }
    }

    #[test]
    fn cores_that_control_groups_keep_and_give_back_are_reported() {
        let kept = |kept: &[(CoreId, &str)]| CoresSnapshot {
            kept: Arc::new(kept.iter().map(|(core, group)| (*core, group.to_string())).collect()),
            ..found(&[0, 1], &[], &[])
        };
        let (one, other) = (kept(&[(0, "/a"), (1, "/a")]), kept(&[(1, "/b")]));
        let why = |before, after| -> Vec<String> {
            noticed(Some(before), after).into_iter().map(|happened| happened.why).collect()
        };
        assert_eq!(
            why(&one, &other),
            ["control group /b keeps core 1 for itself", "control group /a gave core 0 back"]
        );
        assert_eq!(why(&other, &other), [""; 0]);
    }

    #[test]
    fn cores_and_queues_that_come_go_or_change_are_reported() {
        let before = found(&[0, 1, 2], &[(0, 70), (1, 71)], &[(40, 1), (41, 2)]);
        assert_eq!((noticed(Some(&before), &before), noticed(None, &before)), (vec![], vec![]));
        let after = found(&[0, 2, 3], &[(1, 99), (2, 72)], &[(41, 3), (42, 0)]);
        let told = noticed(Some(&before), &after).into_iter().map(|happened| {
            assert_eq!((happened.at, happened.number), (Duration::from_secs(7), 0));
            (happened.queue.map(|queue| queue.index), happened.from, happened.to, happened.why)
        });
        let told: Vec<_> = told.collect();
        let line = |queue, from: &[CoreId], to: &[CoreId], why: &str| {
            (queue, from.to_vec(), to.to_vec(), why.to_owned())
        };
        assert_eq!(
            told,
            [
                line(None, &[1], &[], "core 1 has gone offline"),
                line(None, &[], &[3], "core 3 is online"),
                line(Some(0), &[0], &[], "the queue is gone"),
                line(Some(1), &[1], &[1], "it is now moved by thread 99, no longer by thread 71"),
                line(Some(2), &[], &[2], "the queue is new"),
            ]
        );
    }

    #[test]
    fn a_change_of_local_delivery_is_reported() {
        let following = |follow| CoresSnapshot {
            following: Some(Following { sockets: 65536, queues: 2, follow }),
            ..found(&[0], &[], &[])
        };
        let told = |before: Option<&CoresSnapshot>, follow| -> Vec<String> {
            noticed(before, &following(follow)).into_iter().map(|happened| happened.why).collect()
        };
        let line = |follow: u32| {
            format!("local packets of {follow} of 2 queues go to the cores where their sockets are read")
        };
        assert_eq!(told(None, 2), [line(2)]);
        assert_eq!(told(Some(&following(2)), 1), [line(1)]);
        assert_eq!(told(Some(&following(2)), 2), [""; 0]);
    }

    #[test]
    fn a_change_of_moderation_is_reported() {
        let moderated = |us| {
            let set = Setting::Device(Coalescing { us, adaptive: false });
            CoresSnapshot { moderated: [("eth1".into(), Moderated::By(set))].into(), ..found(&[0], &[], &[]) }
        };
        let told = |before: Option<&CoresSnapshot>, us| -> Vec<String> {
            noticed(before, &moderated(us)).into_iter().map(|happened| happened.why).collect()
        };
        assert_eq!(told(None, 50), ["eth1: packets wait up to 50 µs for others, by the device"]);
        assert_eq!(told(Some(&moderated(50)), 50), [""; 0]);
        assert_eq!(told(Some(&moderated(50)), 48).len(), 1);
    }
}
