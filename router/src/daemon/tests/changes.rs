//! Log lines of changes.

use super::*;
use std::{io, sync::Mutex};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The lines since the last call, without time and place.
    fn lines(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        String::from_utf8(bytes).unwrap().lines().map(|line| line.trim().to_owned()).collect()
    }
}

fn logged(test: impl FnOnce(Case, &Log)) {
    let (log, case) = (Log::default(), start());
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .finish();
    tracing::subscriber::with_default(subscriber, || test(case, &log));
}

#[test]
fn leaving_the_fast_path_is_logged_once_and_so_is_the_return() {
    logged(|mut case, log| {
        (0..3).for_each(|_| case.round(Ok(vec![]), 1.0));
        assert_eq!(log.lines(), [""; 0], "nothing is wrong");
        case.round(Ok(vec![shaped(2, "eth2")]), 1.0);
        case.round(Ok(vec![a_rule()]), 0.1);
        case.round(Ok(vec![]), 0.2);
        let both = [
            "WARN router host is left to the kernel: IPv4: a rule",
            "WARN router host, interface eth2 is left to the kernel: a tbf qdisc",
        ];
        assert_eq!(log.lines(), both);
        (0..3).for_each(|_| case.round(Ok(vec![]), 1.0));
        assert_eq!(log.lines(), [""; 0], "logged once");
        case.round(Ok(vec![Event::Link(0, link(2, "eth2"))]), 1.0);
        case.round(Ok(vec![]), 0.3);
        assert_eq!(log.lines(), ["INFO router host, interface eth2 is on the fast path again"]);
    });
}

#[test]
fn a_port_that_loses_trust_is_logged() {
    logged(|mut case, log| {
        case.linux.0.problems.borrow_mut().insert(1, vec!["LRO is on".into()]);
        (0..3).for_each(|_| case.round(Ok(vec![]), 1.1));
        assert_eq!(log.lines(), ["WARN port eth2 is not trusted: LRO is on"]);
        case.linux.0.problems.borrow_mut().clear();
        (0..3).for_each(|_| case.round(Ok(vec![]), 1.1));
        assert_eq!(log.lines(), ["INFO port eth2 is trusted again"]);
    });
}

#[test]
fn a_device_that_is_ready_soon_is_not_logged() {
    logged(|mut case, log| {
        let kind = LinkKind::Macvlan(MacvlanMode::Bridge);
        let macvlan =
            |up| Event::Link(0, Link { kind: kind.clone(), below: Some((0, 2)), up, ..link(3, "m0") });
        case.round(Ok(vec![macvlan(false)]), 3.0);
        case.round(Ok(vec![macvlan(true)]), 0.1);
        (0..3).for_each(|_| case.round(Ok(vec![]), 1.0));
        assert_eq!(log.lines(), [""; 0]);
    });
}

#[test]
fn a_thousand_interfaces_are_a_few_lines() {
    logged(|mut case, log| {
        let kind = LinkKind::Macvlan(MacvlanMode::Bridge);
        let one = |i: u32| {
            let mac = Mac([2, 0, 0, 1, (i >> 8) as u8, i as u8]);
            Event::Link(
                0,
                Link {
                    kind: kind.clone(),
                    below: Some((0, 2)),
                    mac,
                    up: false,
                    ..link(10 + i, &format!("m{i}"))
                },
            )
        };
        case.round(Ok((0..1000).map(one).collect()), 3.0);
        case.round(Ok(vec![]), 1.0);
        let lines = log.lines();
        assert_eq!(lines.len(), 11, "{lines:?}");
        assert!(lines[10].contains("990 more"), "{lines:?}");
    });
}
