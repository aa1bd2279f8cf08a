//! Hostile namespaces: nothing of ours keeps one alive, and one delays no other.

use crate::bed::*;
use logic::{
    net::Prefix4,
    observe::{Event, NamespaceId},
};
use router::linux::{
    netns,
    observer::{HOST, Observer, ObserverConfig, Quota},
};
use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes that does not hang.
pub const HANG: Duration = Duration::from_secs(30);

fn observer_with(quota: Quota) -> Watcher {
    let config = ObserverConfig { ports: vec!["port0".parse().unwrap()], quota, ..Default::default() };
    Watcher { observer: Observer::new(config).unwrap(), pending: VecDeque::new() }
}

/// Makes a tenant on the port, and returns its name.
fn tenant(bed: &Bed, short: &str, mac: &str) -> String {
    let name = bed.namespace(short);
    sh(&format!(
        "ip link add link port0 name m0 address {mac} netns {name} type macvlan mode bridge; \
         ip -n {name} link set lo up; ip -n {name} addr add 192.0.2.1/24 dev m0; ip -n {name} link set m0 up"
    ));
    name
}

fn dumped(watcher: &mut Watcher, name: &str) -> NamespaceId {
    let id = until(watcher, "namespace", |e| match e {
        Event::Namespace(id, n) if n.name == name => Some(*id),
        _ => None,
    });
    until(watcher, "its dump", |e| matches!(e, Event::Dump(i, _) if *i == id).then_some(()));
    id
}

/// Whether the MAC address is free on the port again. Waits for the kernel, which takes a namespace apart in
/// its own time. A macvlan claims its address only when it is set up.
fn is_freed(mac: &str) -> bool {
    let probe = format!(
        "ip link add link port0 name probe0 address {mac} type macvlan mode bridge && \
         {{ ip link set probe0 up; rc=$?; ip link del probe0; exit $rc; }}"
    );
    let end = Instant::now() + HANG;
    while Instant::now() < end {
        if Command::new("sh").args(["-c", &probe]).stderr(Stdio::null()).status().unwrap().success() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Nobody calls the observer between the end of the namespace and the return of its MAC address, so it cannot
/// let go of anything that it holds.
#[test]
#[ignore = "needs root"]
fn a_container_started_again_at_once_gets_its_mac_address_ten_times_out_of_ten() {
    with_bed(|bed| {
        let mac = "02:00:00:00:00:77";
        let mut observer = observer();
        settle(&mut observer);
        let mut ids = Vec::new();
        for round in 0..10 {
            let name = tenant(bed, "again", mac);
            let id = dumped(&mut observer, &name);
            settle(&mut observer);
            sh(&format!("ip -n {name} route add 10.{round}.0.0/16 via 192.0.2.2"));
            until(&mut observer, "route of the namespace", |e| {
                matches!(e, Event::Route4(i, ..) if *i == id).then_some(())
            });
            sh(&format!("ip netns del {name}"));
            assert!(is_freed(mac), "round {round}: the namespace is kept alive");
            ids.push(id);
        }
        let last = *ids.last().unwrap();
        until(&mut observer, "end of the namespace", |e| {
            matches!(e, Event::NamespaceGone(i) if *i == last).then_some(())
        });
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), 10, "numbers of different routers: {ids:?}");
    });
}

#[test]
#[ignore = "needs root"]
fn a_namespace_without_a_name_is_not_kept_alive() {
    with_bed(|bed| {
        let mac = "02:00:00:00:00:78";
        let mut observer = observer();
        settle(&mut observer);
        let pid = bed.unnamed();
        sh(&format!("ip link add link port0 name m0 address {mac} netns {pid} type macvlan mode bridge"));
        sh(&format!("nsenter -t {pid} -n ip link set m0 up"));
        let id = dumped(&mut observer, &format!("pid:{pid}"));
        settle(&mut observer);
        bed.end_processes();
        assert!(is_freed(mac), "the namespace is kept alive");
        until(&mut observer, "end of the namespace", |e| {
            matches!(e, Event::NamespaceGone(i) if *i == id).then_some(())
        });
    });
}

/// What the settings of a namespace say about limits, in a dump or in an event of their own.
fn over_limits(event: &Event, of: NamespaceId) -> Option<Option<String>> {
    let settings = match event {
        Event::Settings(id, settings) if *id == of => settings,
        Event::Dump(id, dump) if *id == of => &dump.settings,
        _ => return None,
    };
    Some(settings.hazards4.iter().find(|h| h.contains("over its limits")).map(ToString::to_string))
}

#[test]
#[ignore = "needs root"]
fn a_namespace_over_a_limit_is_left_to_the_kernel_until_it_is_within() {
    with_bed(|bed| {
        let quota = Quota { interfaces: 20, routes: 100, neighbours: 100, ..Quota::default() };
        let mut observer = observer_with(quota);
        settle(&mut observer);
        let red = tenant(bed, "red", "02:00:00:00:00:01");
        let id = dumped(&mut observer, &red);
        let many = |n: u32, line: &dyn Fn(u32) -> String| (0..n).map(line).collect::<Vec<_>>().join("\n");
        let links = |verb: &str| {
            let line = |i| format!("link {verb} v{i}{}", if verb == "add" { " type veth" } else { "" });
            many(15, &line)
        };
        let routes = |verb: &str| many(200, &|i| format!("route {verb} 10.0.{i}.0/24 via 192.0.2.2"));
        let neighbours = |verb: &str| {
            let mac = if verb == "add" { " lladdr 2:0:0:0:0:9" } else { "" };
            many(200, &|i| format!("neigh {verb} 192.0.2.{}{mac} dev m0", i + 2))
        };
        // Each of 20 routes has 100 next hops, and counts as 7.
        let wide = |verb: &str| {
            let hops: String = (0..100).map(|i| format!(" nexthop via 192.0.2.{}", i + 2)).collect();
            many(20, &|i| format!("route {verb} 10.0.{i}.0/24{hops}"))
        };
        let cases = [
            ("network devices", links("add"), links("del")),
            ("routes", routes("add"), routes("del")),
            ("routes", wide("add"), wide("del")),
            ("neighbours", neighbours("add"), neighbours("del")),
        ];
        for (what, exceed, mend) in cases {
            sh(&format!("ip -n {red} -force -batch - <<'END'\n{exceed}\nEND"));
            let told = until(&mut observer, what, |e| over_limits(e, id).flatten());
            assert!(
                told.contains("it has more than ") && told.contains(what),
                "the limit of {what} is not named: {told}"
            );
            let conditions = observer.conditions();
            assert!(
                conditions.iter().any(|c| c.subject == format!("router {red}") && c.text.contains(what)),
                "no condition names {what}: {conditions:?}"
            );
            // The changes of others are still seen.
            sh("ip addr add 198.51.100.1/32 dev port0; ip addr del 198.51.100.1/32 dev port0");
            until(&mut observer, "change of the host", |e| {
                matches!(e, Event::Link(HOST, _) | Event::Route4(HOST, ..)).then_some(())
            });
            sh(&format!("ip -n {red} -force -batch - <<'END'\n{mend}\nEND"));
            patiently(&mut observer, "return within the limits", |e| {
                over_limits(e, id).filter(Option::is_none)
            });
        }
    });
}

/// A tenant with a user namespace can make as many network namespaces as it likes. Those of root are not
/// limited.
#[test]
#[ignore = "needs root"]
fn only_a_limited_number_of_the_namespaces_of_a_user_is_watched() {
    with_bed(|bed| {
        let mut observer = observer_with(Quota { namespaces: 2, ..Quota::default() });
        settle(&mut observer);
        let mut named = BTreeMap::new();
        let mut watched = |observer: &mut Watcher, expected: usize, refused: Option<usize>| {
            let end = Instant::now() + HANG;
            loop {
                for event in observer.poll(Duration::from_millis(50)).unwrap() {
                    match event {
                        Event::Namespace(id, namespace) => drop(named.insert(id, namespace.name)),
                        Event::NamespaceGone(id) => drop(named.remove(&id)),
                        _ => (),
                    }
                }
                let crowd = |t: &&router::base::conditions::Condition| {
                    t.subject == "router namespaces of the user with number 65534"
                };
                let conditions = observer.conditions();
                let crowd = conditions.iter().find(crowd).map(|condition| condition.text.clone());
                let says = match (&crowd, refused) {
                    (Some(text), Some(n)) => text.starts_with(&format!("{n} may have devices on ports")),
                    (text, n) => text.is_none() && n.is_none(),
                };
                if says && named.len() == expected {
                    return named.values().cloned().collect::<Vec<_>>();
                }
                assert!(
                    Instant::now() < end,
                    "not {expected} namespaces and {refused:?} refused: {named:?} {conditions:?}"
                );
            }
        };
        let add = |pid: u32| {
            sh(&format!("ip link add link port0 name m0 netns {pid} type macvlan mode bridge"));
            format!("pid:{pid}")
        };
        let of_user: Vec<u32> = (0..4).map(|_| bed.unnamed_of_a_user()).collect();
        of_user.iter().for_each(|pid| drop(add(*pid)));
        watched(&mut observer, 2, Some(2));
        for count in 3..7 {
            let root = add(bed.unnamed());
            assert!(watched(&mut observer, count, Some(2)).contains(&root));
        }
        // A namespace that ends makes room for another.
        let names = watched(&mut observer, 6, Some(2));
        let [first, second]: [u32; 2] = of_user
            .iter()
            .filter(|pid| names.contains(&format!("pid:{pid}")))
            .copied()
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        bed.end_process(first);
        assert!(watched(&mut observer, 6, Some(1)).contains(&format!("pid:{second}")));
        for pid in of_user.iter().filter(|pid| ![first, second].contains(pid)) {
            bed.end_process(*pid);
        }
        let names = watched(&mut observer, 5, None);
        assert!(names.contains(&format!("pid:{second}")), "process {second} is not watched: {names:?}");
    });
}

/// Packets for the namespace's address must not leave the box, so its devices are reported from the start. It
/// comes back although it sends nothing more.
#[test]
#[ignore = "needs root"]
fn a_namespace_that_is_over_a_limit_when_it_is_first_read_is_known_by_its_devices() {
    with_bed(|bed| {
        let red = tenant(bed, "red", "02:00:00:00:00:01");
        let line =
            |verb: &str| (0..200).map(|i| format!("route {verb} 10.0.{i}.0/24 via 192.0.2.2\n")).collect();
        let [add, del]: [String; 2] = ["add", "del"].map(line);
        sh(&format!("ip -n {red} -batch - <<'END'\n{add}END"));
        let mut observer = observer_with(Quota { routes: 100, ..Quota::default() });
        let (id, macs) = until(&mut observer, "its dump", |e| match e {
            Event::Dump(id, dump) if *id != HOST => {
                Some((*id, dump.links.iter().map(|link| link.mac.to_string()).collect::<Vec<_>>()))
            }
            _ => None,
        });
        assert!(macs.contains(&"02:00:00:00:00:01".to_owned()), "its MAC address is missing: {macs:?}");
        // Its address changes while its routes are not read.
        sh(&format!("ip -n {red} link set m0 address 02:00:00:00:00:09"));
        patiently(&mut observer, "new MAC address", |e| match e {
            Event::Link(i, link) if *i == id => (link.mac.to_string() == "02:00:00:00:00:09").then_some(()),
            _ => None,
        });
        sh(&format!("ip -n {red} -batch - <<'END'\n{del}END"));
        patiently(&mut observer, "return within the limits", |e| over_limits(e, id).filter(Option::is_none));
    });
}

/// Waits for the dump of the namespace of this name. A namespace that has ended may have the name for a
/// moment, as its number is the same.
fn dumped_last(watcher: &mut Watcher, name: &str) -> NamespaceId {
    let mut names = BTreeMap::new();
    patiently(watcher, "dump of the namespace", |e| {
        match e {
            Event::Namespace(id, namespace) => drop(names.insert(*id, namespace.name.clone())),
            Event::NamespaceGone(id) => drop(names.remove(id)),
            Event::Dump(id, _) => return names.get(id).filter(|known| *known == name).map(|_| *id),
            _ => (),
        }
        None
    })
}

/// Waits until the next namespace would get `number`, which belonged to a namespace that ended. The kernel gives the
/// lowest free number to the next namespace of any kind. The returned UTS namespaces hold the lower numbers.
fn make_next(number: u64) -> Vec<File> {
    let next = || {
        // SAFETY: moves only this thread, which ends here.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWUTS) }, 0, "{}", std::io::Error::last_os_error());
        File::open("/proc/thread-self/ns/uts").unwrap()
    };
    let hold = || {
        let mut held = Vec::new();
        while held.len() < 900 {
            let namespace = next();
            let its = namespace.metadata().unwrap().ino();
            if its == number {
                // The thread leaves this namespace and its file is closed, so it ends.
                drop((next(), namespace));
                break;
            }
            if its > number {
                thread::sleep(Duration::from_millis(5));
            }
            held.push(namespace);
        }
        held
    };
    thread::scope(|scope| scope.spawn(hold).join().unwrap())
}

/// The kernel gives the number of a namespace that ended to the next one. The end is noticed although its
/// message was lost.
#[test]
#[ignore = "needs root"]
fn a_namespace_that_takes_the_number_of_another_is_distinguished() {
    with_bed(|bed| {
        let mut observer = observer();
        settle(&mut observer);
        // Other programs make namespaces too, and can get the number.
        for round in 0..5 {
            let (red, mac) = (tenant(bed, &format!("red{round}"), "02:00:00:00:00:01"), "02:00:00:00:00:01");
            let id = dumped_last(&mut observer, &red);
            settle(&mut observer);
            observer.observer.set_receive_buffer(id, 4096).unwrap();
            let inode = |name: &str| std::fs::metadata(format!("/run/netns/{name}")).unwrap().ino();
            let number = inode(&red);
            let routes: String =
                (0..3000).map(|i| format!("route add blackhole 10.{}.{}.0/24\n", i / 250, i % 250)).collect();
            sh(&format!("ip -n {red} -batch - <<'END'\n{routes}END\nip netns del {red}"));
            assert!(is_freed(mac), "the namespace is kept alive");
            let lower = make_next(number);
            let blue = tenant(bed, &format!("blue{round}"), mac);
            if inode(&blue) == number {
                assert_ne!(dumped_last(&mut observer, &blue), id);
                return;
            }
            drop(lower);
            sh(&format!("ip netns del {blue}"));
            assert!(is_freed(mac), "the namespace is kept alive");
        }
        panic!("no new namespace got the number of the one that ended");
    });
}

/// One message can affect all devices of a namespace. Such messages are counted by their cost, and each
/// device is reported once a turn.
#[test]
#[ignore = "needs root"]
fn a_storm_of_settings_of_all_devices_delays_no_other() {
    with_bed(|bed| {
        // The messages alone would be within this limit, but not their cost.
        let quota = Quota { events_per_second: 1, events_at_once: 6000, ..Quota::default() };
        let mut observer = observer_with(quota);
        settle(&mut observer);
        let red = tenant(bed, "red", "02:00:00:00:00:01");
        let id = dumped(&mut observer, &red);
        let links: String = (0..250).map(|i| format!("link add d{i} type veth\n")).collect();
        sh(&format!("ip -n {red} -batch - <<'END'\n{links}END"));
        settle(&mut observer);
        let file = File::open(format!("/run/netns/{red}")).unwrap();
        netns::inside(&file, || {
            for i in 0..4000 {
                std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", if i % 2 == 0 { "1" } else { "0" })
                    .unwrap();
            }
        })
        .unwrap();
        sh("ip route add blackhole 172.16.0.0/24");
        let prefix: Prefix4 = "172.16.0.0/24".parse().unwrap();
        let mut of_red = 0;
        let end = Instant::now() + HANG;
        'seen: loop {
            assert!(Instant::now() < end, "the host's change was not seen within {HANG:?}");
            for event in observer.observer.poll(Duration::from_millis(100)).unwrap() {
                if matches!(&event, Event::Route4(HOST, _, route) if route.prefix == prefix) {
                    break 'seen;
                }
                of_red += usize::from(is_of(&event, id));
            }
        }
        assert!(of_red <= 2 * 502, "{of_red} events of the storm came before the host's change");
        let conditions = observer.observer.conditions();
        let mut over = conditions.iter().any(|c| c.text.contains("times a second"));
        while !over && Instant::now() < end {
            observer.observer.poll(Duration::from_millis(20)).unwrap();
            over = observer.observer.conditions().iter().any(|c| c.text.contains("times a second"));
        }
        assert!(over, "4000 messages about 500 devices each were not found to be over the limits");
    });
}

/// Like `until`, for events that may wait for a pause that doubles.
fn patiently<T>(watcher: &mut Watcher, what: &str, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    let end = Instant::now() + HANG;
    while Instant::now() < end {
        let mut events: Vec<Event> = watcher.pending.drain(..).collect();
        events.extend(watcher.observer.poll(Duration::from_millis(100)).unwrap());
        if let Some(found) = events.iter().find_map(&mut wanted) {
            return found;
        }
    }
    panic!("no {what} within {HANG:?}");
}

/// Adds and deletes things in the namespace again and again, until `stop` is set.
fn storm(namespace: &str, lines: &str, stop: &AtomicBool) {
    let file = File::open(format!("/run/netns/{namespace}")).unwrap();
    netns::inside(&file, || {
        while !stop.load(Relaxed) {
            let mut child = Command::new("ip")
                .args(["-force", "-batch", "-"])
                .stdin(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut input = child.stdin.take().unwrap();
            let _ = std::io::Write::write_all(&mut input, lines.repeat(200).as_bytes());
            drop(input);
            child.wait().unwrap();
        }
    })
    .unwrap();
}

/// Changes are made in the host and in another tenant while a third namespace storms. Few events of the storm
/// may come between a change and its event, however long the storm lasts.
#[test]
#[ignore = "needs root"]
fn a_storm_in_one_namespace_delays_no_other() {
    with_bed(|bed| {
        let quota = Quota { events_per_second: 50, events_at_once: 2000, ..Quota::default() };
        let mut observer = observer_with(quota);
        settle(&mut observer);
        let [red, blue] =
            [("red", 1), ("blue", 2)].map(|(n, i)| tenant(bed, n, &format!("02:00:00:00:00:0{i}")));
        let (mut ids, mut left) = (BTreeMap::new(), 2);
        until(&mut observer, "tenants", |e| {
            if let Event::Namespace(id, n) = e {
                ids.insert(n.name.clone(), *id);
            }
            left -= i32::from(matches!(e, Event::Dump(id, _) if *id != HOST));
            (left == 0).then_some(())
        });
        settle(&mut observer);
        let (red_id, blue_id) = (ids[&red], ids[&blue]);
        let lines = "route add 10.0.0.0/8 via 192.0.2.2\nneigh replace 192.0.2.9 lladdr 2:0:0:0:0:9 dev m0\n\
                     link set m0 mtu 1400\nroute del 10.0.0.0/8\nneigh del 192.0.2.9 dev m0\nlink set m0 mtu 1500\n";
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| storm(&red, lines, &stop));
            let stopped = Stop(&stop);
            let mut storming = 0;
            for round in 0..200_u32 {
                let (place, of) = if round % 2 == 0 { ("", HOST) } else { (&*blue, blue_id) };
                let prefix = format!("172.16.{round}.0/24");
                let at = if place.is_empty() { String::new() } else { format!("-n {place} ") };
                sh(&format!("ip {at}route add blackhole {prefix}"));
                let prefix: Prefix4 = prefix.parse().unwrap();
                let (mut rounds, end) = (0, Instant::now() + HANG);
                loop {
                    assert!(Instant::now() < end, "round {round}: the change was not seen within {HANG:?}");
                    rounds += 1;
                    let events = observer.observer.poll(Duration::from_millis(100)).unwrap();
                    let of_red = |e: &&Event| is_of(e, red_id);
                    storming += events.iter().filter(of_red).count();
                    let found = events.iter().position(
                        |e| matches!(e, Event::Route4(id, _, route) if *id == of && route.prefix == prefix),
                    );
                    if let Some(at) = found {
                        // One turn of the tenant may come first.
                        let before = events[..at].iter().filter(of_red).count();
                        assert!(
                            before <= 1024,
                            "round {round}: {before} events of the storm came before the change"
                        );
                        break;
                    }
                    assert!(rounds < 20, "round {round}: the change was not seen in {rounds} polls");
                }
            }
            println!("{storming} events of the storm");
            assert!(storming > 0, "no event of the storm was seen");
            let is_reported = |observer: &Watcher| {
                let conditions = observer.conditions();
                conditions.iter().any(|c| c.text.contains("it changes more than 50 times a second"))
            };
            // The storm goes on until there were enough changes.
            let end = Instant::now() + HANG;
            while !is_reported(&observer) {
                assert!(Instant::now() < end, "the storm is not reported: {:?}", observer.conditions());
                observer.observer.poll(Duration::from_millis(100)).unwrap();
            }
            drop(stopped);
        });
        patiently(&mut observer, "calm after the storm", |e| over_limits(e, red_id).filter(Option::is_none));
    });
}

/// Sets the flag when it is dropped, for whatever reason.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn is_of(event: &Event, namespace: NamespaceId) -> bool {
    match event {
        Event::Route4(id, ..) | Event::Route6(id, ..) | Event::Neighbour(id, _) | Event::Link(id, _) => {
            *id == namespace
        }
        Event::LinkGone(id, _) | Event::Settings(id, _) | Event::Dump(id, _) => *id == namespace,
        _ => false,
    }
}
