use super::*;

fn core(id: CoreId) -> Core {
    Core { id, node: 0, physical: id, workloads: 0, other: 0.0 }
}

fn queue(index: u16, core: CoreId) -> Queue {
    let id = QueueId { port: 0, index };
    Queue { id, node: None, core, movable: true, ran: 0.1, waited: 0.0, parts: vec![] }
}

#[test]
fn queues_leave_cores_that_are_gone_or_forbidden() {
    let queues = vec![queue(0, 0), queue(1, 1), queue(2, 7), Queue { movable: false, ..queue(3, 7) }];
    let view = View { cores: vec![core(0), core(1), core(2)], queues };
    let settings = Settings { allowed: Some(BTreeSet::from([1, 2, 7])), ..Settings::default() };
    let decision = Allocator::default().decide(Duration::ZERO, &view, &settings);
    assert_eq!(decision.plan.home.into_values().collect::<Vec<_>>(), [1, 1, 1, 7]);
    let told: Vec<_> =
        decision.events.iter().map(|e| (e.queue.index, &e.from[..], &e.to[..], e.why)).collect();
    assert_eq!(told, [(0, &[0][..], &[1][..], Why::Forbidden), (2, &[7], &[1], Why::Offline)]);
}
