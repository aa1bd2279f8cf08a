//! Another configuration while the daemon runs.

use super::*;
use crate::{api::status::ReloadReport, config::Rate};

/// Threads beside the loop that accept everything, or say why not. They remember the ports that they got.
#[derive(Default)]
struct Threads {
    refuses: Option<String>,
    ports: Vec<Vec<PortId>>,
}

impl super::super::seam::Beside for Threads {
    fn reload(&mut self, _: &Changes, _: &Config, ports: &NumberedPorts) -> Result<()> {
        if let Some(why) = &self.refuses {
            bail!("{why}");
        }
        self.ports.push(ports.keys().copied().collect());
        Ok(())
    }
}

impl Case {
    fn reload(&mut self, config: Config) -> Result<ReloadReport, String> {
        self.control.reload(config, &mut Threads::default()).unwrap().map_err(|error| error.text)
    }

    fn policing(&self) -> Vec<u32> {
        self.linux.0.loaded.borrow().clone()
    }
}

fn policed(exception_pps: u32) -> Config {
    let mut config = config();
    config.policing.exception_pps = Rate(exception_pps);
    config
}

fn changed(keys: &[&str]) -> Result<ReloadReport, String> {
    Ok(ReloadReport { changed: keys.iter().map(|key| key.to_string()).collect() })
}

#[test]
fn policing_comes_with_a_generation_that_is_filled_before_it_is_attached() {
    let mut case = start();
    assert_eq!(case.reload(policed(7)), changed(&["policing.exception_pps"]));
    assert_eq!(case.policing(), [100_000, 7]);
    let attached = case.linux.0.attached.borrow();
    let last = attached.last().unwrap();
    assert!(last.filled && last.deadline > case.linux.0.now.get() && last.devices == ["eth1", "eth2"]);
    drop(attached);
    assert_eq!(case.status().generation, 2);
    // Counters go on.
    assert_eq!(case.linux.0.published.borrow().iter().copied().collect::<Vec<_>>(), [2]);
    assert_eq!(case.reload(policed(7)), changed(&[]));
    assert_eq!(case.status().generation, 2, "nothing has changed");
}

#[test]
fn a_failed_reload_changes_nothing() {
    let mut case = start();
    let attached = case.linux.0.attached.borrow().len();
    case.linux.0.unloadable.set(true);
    let said = case.reload(policed(7)).unwrap_err();
    assert_eq!(said, "nothing was changed: out of memory");
    case.linux.0.unloadable.set(false);
    let mut refusing = Threads { refuses: Some("no such file".into()), ..Threads::default() };
    let said = case.control.reload(policed(7), &mut refusing).unwrap().unwrap_err().text;
    assert_eq!(said, "nothing was changed: no such file");
    let restart = Config { generic: true, ..policed(7) };
    let said = case.reload(restart).unwrap_err();
    assert!(said.contains("cannot change generic; restart the daemon"), "{said}");
    let said = case.reload(Config { ports: Vec::new(), ..policed(7) }).unwrap_err();
    assert!(said.starts_with("nothing was changed: no port is given"), "{said}");
    assert_eq!((case.control.config.clone(), case.status().generation), (config(), 1));
    assert_eq!(case.linux.0.attached.borrow().len(), attached);
}

#[test]
fn a_reload_sets_weights() {
    let mut case = start();
    let mut weighty = config();
    weighty.shares.weights.insert("host".into(), Weight(7));
    assert_eq!(case.reload(weighty), changed(&["shares.weights"]));
    assert_eq!(case.status().routers[0].weight, 7);
}

#[test]
fn a_removed_port_is_detached_and_begins_at_zero_when_it_comes_back() {
    let mut case = start();
    let key = (Charge::Port(1), Reason::NoRoute);
    case.linux.0.counters.borrow_mut().charges.insert(key, 5);
    let named = |names: &[&str]| {
        let ports = names.iter().map(|name| name.parse().unwrap()).collect();
        Config { ports, ..config() }
    };
    assert_eq!(case.reload(named(&["eth1"])), changed(&["ports"]));
    // The observer reports its end.
    case.round(Ok(vec![Event::PortGone(1)]), 0.1);
    assert_eq!(case.linux.0.attached.borrow().last().unwrap().devices, ["eth1"]);
    assert_eq!(case.slots(), [0]);
    let ports = |case: &mut Case| {
        let ports = case.status().ports;
        ports.iter().map(|p| (p.id, p.port.clone(), p.unclassified.len())).collect::<Vec<_>>()
    };
    assert_eq!(ports(&mut case), [(0, "eth1".into(), 0)]);
    // Number 1 has been used, so eth3 gets 2.
    assert_eq!(case.reload(named(&["eth3", "eth1"])), changed(&["ports"]));
    case.round(Ok(vec![Event::Link(0, link(9, "eth3")), Event::Port(2, port(9))]), 0.1);
    assert_eq!(case.linux.0.attached.borrow().last().unwrap().devices, ["eth1", "eth3"]);
    assert_eq!(ports(&mut case), [(0, "eth1".into(), 0), (2, "eth3".into(), 0)]);
    assert_eq!(case.reload(named(&["eth1", "eth2", "eth3"])), changed(&["ports"]));
    case.round(Ok(vec![Event::Link(0, link(8, "eth2")), Event::Port(1, port(8))]), 0.1);
    assert_eq!(ports(&mut case)[1], (1, "eth2".into(), 0));
}

fn parsed(text: &str) -> Config {
    Config::parse(std::path::Path::new("m.toml"), text).unwrap()
}

fn path(name: &str, more: &str) -> String {
    let port = name[1..].parse::<u16>().map_or_else(|_| name.as_bytes()[0].into(), |n| 1000 + n);
    format!(
        "[[path]]\nname = \"{name}\"\nclass = {{ protocol = \"udp\", destination_port = {port} }}\nchain = [\"count\", \"discard\"]\n{more}\n"
    )
}

const WORKERS: &str = "ports = [\"eth1\", \"eth2\"]\n[workers]\ncores = \"0\"\n";

/// Flow rules, counters and workers know paths by number.
#[test]
fn paths_keep_their_numbers_and_those_of_others_are_not_given_away() {
    let with = |paths: &[&str]| parsed(&[&[WORKERS][..], paths].concat().concat());
    let (a, b, c) = (path("a", ""), path("b", "otherwise = \"drop\""), path("c", ""));
    let mut case = start_with(with(&[&a, &b]), linux()).unwrap();
    let classes = |case: &Case| {
        let set = case.linux.0.classes.borrow();
        set.last().unwrap().0.iter().map(|class| class.path).collect::<Vec<_>>()
    };
    let drops = |case: &Case| case.linux.0.drops.borrow().last().unwrap().clone();
    assert_eq!((classes(&case), drops(&case)), (vec![0, 1], [1].into()));
    assert_eq!(case.reload(with(&[&c, &a])), changed(&["path"]));
    // At once. Rules may still send packets to `b`.
    assert_eq!((classes(&case), drops(&case)), (vec![2, 0], [1].into()));
    let wanted = case.linux.0.wanted.borrow().last().unwrap().clone();
    assert_eq!(
        wanted.paths.iter().map(|(id, path)| (*id, &*path.name)).collect::<Vec<_>>(),
        [(0, "a"), (2, "c")]
    );
    let reports = case.status().paths;
    assert_eq!(reports.iter().map(|path| &*path.path).collect::<Vec<_>>(), ["c", "a"]);
    // The order counts.
    assert_eq!(case.reload(with(&[&a, &c])), changed(&["path"]));
    assert_eq!(classes(&case), [0, 2]);
    assert_eq!(case.reload(with(&[&a, &path("b", ""), &c])), changed(&["path"]));
    assert_eq!((classes(&case), drops(&case)), (vec![0, 1, 2], [].into()));
    let many: Vec<_> = (0..62).map(|n| path(&format!("n{n}"), "")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let said = case.reload(with(&many)).unwrap_err();
    assert!(said.starts_with("nothing was changed: no number is free for path n61"), "{said}");
    assert_eq!(classes(&case), [0, 1, 2]);
    assert_eq!(case.reload(with(&many[..61])), changed(&["path"]));
    assert_eq!(classes(&case), (3..64).collect::<Vec<_>>());
    assert_eq!(case.reload(with(&[])), changed(&["path"]));
    assert_eq!((classes(&case), case.linux.0.swapped.borrow().last()), (vec![], Some(&Some(false))));
}

#[test]
fn the_first_paths_come_with_workers_and_a_program_that_knows_paths() {
    let mut case = start();
    assert_eq!(case.linux.0.attached.borrow().last().unwrap().paths, None);
    let said = case.reload(parsed(&[WORKERS, &path("a", "")].concat()));
    assert_eq!(said, changed(&["workers.cores", "path"]));
    assert_eq!(case.linux.0.attached.borrow().last().unwrap().paths, Some(true), "from its first packet on");
    assert_eq!(case.linux.0.wanted.borrow().last().unwrap().paths[&0].name, "a");
    assert!(case.linux.0.tables_of_workers.borrow().is_some());
    let other =
        parsed(&["ports = [\"eth1\", \"eth2\"]\n[workers]\ncores = \"1\"\n", &path("a", "")].concat());
    let said = case.reload(other).unwrap_err();
    assert!(said.contains("cannot change workers.cores"), "{said}");
}

/// What must be encrypted must not meet the old chain, which does not encrypt.
#[test]
fn a_path_that_drops_gets_no_packet_while_its_chain_changes() {
    let chain = |elements: &str| {
        let text = [WORKERS, &path("a", "otherwise = \"drop\""), &path("b", "")].concat();
        parsed(&text.replace("chain = [\"count\", \"discard\"]", &format!("chain = [{elements}]")))
    };
    let mut case = start_with(chain("\"count\", \"discard\""), linux()).unwrap();
    let before = case.linux.0.classes.borrow().len();
    assert_eq!(case.reload(chain("\"discard\"")), changed(&["path"]));
    let set = case.linux.0.classes.borrow();
    let ids = |n: usize| set[n].0.iter().map(|class| class.path).collect::<Vec<_>>();
    assert_eq!((set.len(), ids(before), ids(before + 1)), (before + 2, vec![63, 1], vec![0, 1]));
    assert!(case.linux.0.drops.borrow().last().unwrap().contains(&63));
    assert_eq!(case.linux.0.wanted.borrow().last().unwrap().paths[&0].chain.len(), 1);
}

#[test]
fn a_capture_changes_only_with_its_file() {
    let with = |file: &str, bytes: u32| {
        let chain = format!(
            "chain = [{{ element = \"mirror\", file = \"{file}\", snap_bytes = {bytes} }}, \"discard\"]"
        );
        parsed(&[WORKERS, &path("a", "").replace("chain = [\"count\", \"discard\"]", &chain)].concat())
    };
    let mut case = start_with(with("/tmp/a.pcap", 100), linux()).unwrap();
    let said = case.reload(with("/tmp/a.pcap", 200)).unwrap_err();
    assert!(said.starts_with("nothing was changed: mirror /tmp/a.pcap: "), "{said}");
    assert_eq!(case.reload(with("/tmp/b.pcap", 200)), changed(&["path"]));
    let wanted = case.linux.0.wanted.borrow().last().unwrap().clone();
    assert_eq!(wanted.mirrors.iter().map(|m| m.file.to_str().unwrap()).collect::<Vec<_>>(), ["/tmp/b.pcap"]);
}

/// While a port that is gone is still attached, a new one gets another number.
#[test]
fn a_number_in_use_is_not_given_away() {
    let mut case = start();
    let mut threads = Threads::default();
    let ports = vec!["eth1".parse().unwrap(), "eth3".parse().unwrap()];
    case.control.reload(Config { ports, ..config() }, &mut threads).unwrap().unwrap();
    assert_eq!(threads.ports, [[0, 2]]);
    case.round(Ok(vec![Event::PortGone(1), Event::Link(0, link(9, "eth3")), Event::Port(2, port(9))]), 0.1);
    assert_eq!(case.slots(), [0, 2]);
    assert_eq!(case.status().ports.len(), 2);
}
