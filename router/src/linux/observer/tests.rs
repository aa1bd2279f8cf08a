//! Tests of the observer with an empty namespace of its own.

use super::{visits::pause_after, *};
use logic::{cause::Cause, observe::Settings};

#[test]
fn slow_looks_are_rare_but_happen() {
    let ms = Duration::from_millis;
    assert_eq!([ms(0), ms(5), ms(20), ms(900)].map(pause_after), [0, 2000, 8000, 30_000].map(ms));
}

#[test]
fn an_observer_can_be_sent_to_another_thread() {
    fn sendable<T: Send>() {}
    sendable::<Observer>();
}

#[test]
fn an_error_about_a_missing_router_names_those_that_exist() {
    let error = Error::NoNamespace("nope".into(), io::ErrorKind::NotFound.into()).to_string();
    assert!(error.contains("those with a name are: ") || error.contains("give pid:NUMBER"), "{error}");
}

fn incomplete(settings: &Settings) -> bool {
    let told = |list: &[Cause]| list.iter().any(|h| h.starts_with("mirror incomplete: "));
    assert_eq!(told(&settings.hazards4), told(&settings.hazards6));
    told(&settings.hazards4)
}

fn until<T>(observer: &mut Observer, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        let events = observer.poll(Duration::from_millis(50)).unwrap();
        if let Some(found) = events.iter().find_map(&mut wanted) {
            return found;
        }
    }
    panic!("the event did not come within 10 s");
}

fn settings(event: &Event) -> Option<bool> {
    match event {
        Event::Settings(HOST, settings) => Some(incomplete(settings)),
        Event::Dump(HOST, dump) => Some(incomplete(&dump.settings)),
        _ => None,
    }
}

/// An observer without ports, in a namespace of its own.
fn alone(test: impl FnOnce(Observer) + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: moves only this thread, which ends here.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            let mut observer = Observer::new(ObserverConfig::default()).unwrap();
            assert!(!until(&mut observer, settings), "the first dump");
            assert_eq!(observer.conditions(), []);
            test(observer);
        });
    });
}

/// A place that leads nowhere.
fn nowhere(place: &NamespaceRef) -> NamespaceRef {
    NamespaceRef::new(place.key(), place.cookie(), "/dev/null".into())
}

#[test]
#[ignore = "needs root"]
fn a_namespace_whose_dump_fails_is_not_trusted_until_one_succeeds() {
    alone(|mut observer| {
        let space = observer.spaces.get_mut(&HOST).unwrap();
        let elsewhere = nowhere(&space.place);
        let place = std::mem::replace(&mut space.place, elsewhere);
        space.due.dump = Some(Instant::now());
        assert!(until(&mut observer, settings), "reported at once");
        for _ in 0..10 {
            let again = observer.poll(Duration::from_millis(100)).unwrap();
            assert_eq!(again.iter().find_map(settings).filter(|incomplete| !incomplete), None);
        }
        assert_eq!(observer.conditions()[0].subject, "router host");
        observer.spaces.get_mut(&HOST).unwrap().place = place;
        assert!(!until(&mut observer, |e| settings(e).filter(|incomplete| !incomplete)));
        assert_eq!(observer.conditions(), []);
    });
}

#[test]
#[ignore = "needs root"]
fn a_policy_is_reported_as_read_after_its_events() {
    alone(|mut observer| {
        for (command, shapes) in [("add", true), ("del", false)] {
            let tc = ["qdisc", command, "dev", "lo", "root", "pfifo", "limit", "5"];
            assert!(std::process::Command::new("tc").args(tc).status().unwrap().success());
            observer.read_policy(HOST);
            // A second request: the visit under way does not count.
            observer.read_policy(HOST);
            let (mut lo, mut read) = (!shapes, Vec::new());
            let end = Instant::now() + Duration::from_secs(10);
            while read.is_empty() && Instant::now() < end {
                for event in observer.poll(Duration::from_millis(50)).unwrap() {
                    if let Event::Link(HOST, link) = event {
                        lo = link.hazards.iter().any(|hazard| hazard.contains("pfifo"));
                    }
                }
                read = observer.policies_read();
            }
            assert_eq!((lo, read.len()), (shapes, 1));
            assert_eq!((read[0].namespace, &read[0].error), (HOST, &None));
            observer.poll(Duration::from_millis(200)).unwrap();
            assert_eq!(observer.policies_read(), []);
        }
        observer.read_policy(77);
        assert_eq!(observer.policies_read()[0].namespace, 77, "a namespace that is gone has no policies");
    });
}

#[test]
#[ignore = "needs root"]
fn nothing_is_trusted_if_programs_cannot_be_counted() {
    alone(|mut observer| {
        let space = observer.spaces.get_mut(&HOST).unwrap();
        let elsewhere = nowhere(&space.place);
        let place = std::mem::replace(&mut space.place, elsewhere);
        space.count_programs();
        assert!(until(&mut observer, settings));
        let conditions = observer.conditions();
        let holds = |text: &str| conditions.iter().any(|condition| condition.text.starts_with(text));
        assert!(holds("BPF programs on devices: "), "{conditions:?}");
        observer.spaces.get_mut(&HOST).unwrap().place = place;
        let space = observer.spaces.get_mut(&HOST).unwrap();
        space.count_programs();
        assert!(!until(&mut observer, |e| settings(e).filter(|incomplete| !incomplete)));
        assert_eq!(observer.conditions(), []);
    });
}

#[test]
#[ignore = "needs root"]
fn after_lost_events_nothing_is_trusted_until_the_next_dump() {
    alone(|mut observer| {
        observer.set_receive_buffer(HOST, 4096).unwrap();
        let many = "for i in $(seq 2000); do echo route add blackhole 10.0.$((i / 250)).$((i % 250))/32; done | ip -batch -";
        let done = std::process::Command::new("sh").args(["-c", many]).status().unwrap();
        assert!(done.success());
        let mut told = Vec::new();
        until(&mut observer, |e| {
            told.extend(settings(e));
            matches!(e, Event::Dump(..)).then_some(())
        });
        assert_eq!(told, [true, false]);
    });
}
