//! What a namespace holds that the fast path would bypass, found by asking the kernel, told as sentences that name the
//! thing and the way out.
//!
//! | file | what | told of changes by |
//! |---|---|---|
//! | [`netfilter`] | nftables base chains | nfnetlink group |
//! | [`xfrm`] | IPsec policies | XFRM group |
//! | [`rules`] | policy routing rules | rtnetlink groups |
//! | [`traffic`] | qdiscs and filters | rtnetlink group |
//! | [`bpf`] | tcx and netfilter programs | nobody: polled |
//! | here | legacy iptables tables, IPVS | nobody: polled |
//!
//! Hooks for input and output do not matter: packets for the box itself take the kernel's way. Connection tracking
//! registers its hooks only when a rule wants them, so the rule's own hook stands for it.

pub mod bpf;
pub mod netfilter;
pub mod rules;
pub mod traffic;
pub mod xfrm;

use crate::{
    foreign::{Quoted, Shown},
    netlink::socket::Socket,
    observer::sysctl::Sysctls,
};
use logic::observe::Settings;
use std::{collections::BTreeMap, io};

/// Sentences for IPv4 and for IPv6.
pub type ByFamily = [Vec<String>; 2];

/// Receive buffers of the subscriptions: an overrun is itself a sign that something changed.
const LISTEN_BUFFER_BYTES: usize = 256 << 10;

/// A protocol beside rtnetlink: a socket for questions, one that tells of changes.
pub struct Side {
    requests: Socket,
    /// Readable when something changed.
    pub events: Socket,
}

impl Side {
    /// `Ok(None)`: the kernel lacks it.
    fn open(protocol: i32, group: u32) -> io::Result<Option<Side>> {
        let requests = match Socket::requests(protocol) {
            Err(e) if e.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(None),
            other => other?,
        };
        let events = Socket::subscription(protocol, &[group], LISTEN_BUFFER_BYTES)?;
        Ok(Some(Side { requests, events }))
    }

    /// Throws away what waits; if there is too much for once, `events` stays readable.
    pub fn discard(&mut self) {
        self.events.discard();
    }
}

/// The hazards of one namespace.
pub struct Hazards {
    /// `None`: the kernel lacks it.
    pub netfilter: Option<Side>,
    pub xfrm: Option<Side>,
    chains: netfilter::Sentences,
    namespace: Vec<ByFamily>,
    legacy: [Vec<String>; 2],
    ipvs: bool,
    traffic: BTreeMap<u32, Vec<traffic::Finding>>,
    /// Programs on tcx, per device.
    tcx: BTreeMap<u32, u32>,
    /// BPF netfilter programs anywhere: the kernel does not say in which namespace.
    programs: ByFamily,
}

impl Hazards {
    /// Opens sockets in the calling thread's namespace.
    ///
    /// # Errors
    /// What the kernel says, except that it lacks something: there can be no hazard of that kind then.
    pub fn open() -> io::Result<Hazards> {
        Ok(Hazards {
            netfilter: Side::open(libc::NETLINK_NETFILTER, netfilter::GROUP)?,
            xfrm: Side::open(libc::NETLINK_XFRM, xfrm::GROUP)?,
            chains: Default::default(),
            namespace: Vec::new(),
            legacy: Default::default(),
            ipvs: false,
            traffic: BTreeMap::new(),
            tcx: BTreeMap::new(),
            programs: Default::default(),
        })
    }

    /// Rules, netfilter, XFRM, legacy tables. False: something could not be read, was taken for a hazard, and should be
    /// tried again.
    pub fn read_namespace(&mut self, route: &mut Socket, sysctls: &Sysctls) -> bool {
        let netfilter = self.netfilter.as_mut().map(|side| netfilter::read(&mut side.requests));
        let netfilter = netfilter.unwrap_or_else(|| Ok(Default::default()));
        let xfrm = self.xfrm.as_mut().map(|side| xfrm::read(&mut side.requests));
        let xfrm = xfrm.unwrap_or_else(|| Ok(Default::default()));
        let rules = rules::read(route);
        let complete = netfilter.is_ok() && xfrm.is_ok() && rules.is_ok();
        self.chains = netfilter
            .unwrap_or_else(|error| netfilter::Sentences::doubt(&doubt("nftables rulesets", &error)));
        self.namespace = vec![or_doubt(xfrm, "IPsec policies"), or_doubt(rules, "policy rules")];
        self.read_polled(sysctls);
        complete
    }

    /// Qdiscs and filters.
    ///
    /// # Errors
    /// What the kernel says; what was known is kept.
    pub fn read_traffic(&mut self, route: &mut Socket) -> io::Result<()> {
        self.traffic = traffic::read(route)?;
        Ok(())
    }

    /// What costs nothing to look at.
    pub fn read_polled(&mut self, sysctls: &Sysctls) {
        self.legacy = sysctls.legacy_tables();
        self.ipvs = sysctls.has_ipvs_services();
    }

    /// Programs on tcx, as counted elsewhere; is that news?
    pub fn set_tcx(&mut self, counted: BTreeMap<u32, u32>) -> bool {
        let news = self.tcx != counted;
        self.tcx = counted;
        news
    }

    /// BPF netfilter programs, as listed elsewhere.
    pub fn set_programs(&mut self, programs: &ByFamily) {
        if self.programs != *programs {
            self.programs.clone_from(programs);
        }
    }

    /// The device is gone.
    pub fn forget_link(&mut self, ifindex: u32) {
        self.traffic.remove(&ifindex);
        self.tcx.remove(&ifindex);
    }

    /// Sentences about a device.
    pub fn of_link(&self, ifindex: u32, device: &str, namespace: &str) -> Vec<String> {
        let found = self.traffic.get(&ifindex).into_iter().flatten();
        let mut sentences: Vec<String> = found.map(|f| f.sentence(device, namespace)).collect();
        if let Some(count) = self.tcx.get(&ifindex) {
            sentences.push(tcx_sentence(*count, device, namespace));
        }
        sentences.extend(self.chains.of_device(device).map(|sentence| in_namespace(sentence, namespace)));
        sentences
    }

    /// Sentences about the namespace as a whole; the multipath policy is not set.
    pub fn of_namespace(&self, namespace: &str) -> Settings {
        let mut all: ByFamily = Default::default();
        for (i, sentences) in all.iter_mut().enumerate() {
            let found = [&self.chains.namespace].into_iter().chain(&self.namespace).chain([&self.programs]);
            let found = found.flat_map(|found| &found[i]);
            sentences.extend(found.map(|sentence| in_namespace(sentence, namespace)));
            sentences.extend(self.legacy[i].iter().map(|table| legacy_sentence(i, table)));
            sentences.extend(self.ipvs.then(|| ipvs_sentence(namespace)));
        }
        let [hazards4, hazards6] = all;
        Settings { hazards4, hazards6, ..Settings::default() }
    }
}

/// Stands in a sentence where a command begins that has to run in the namespace.
const IN_NAMESPACE: &str = "\u{1}";

fn in_namespace(sentence: &str, namespace: &str) -> String {
    sentence.replace(IN_NAMESPACE, &command(namespace, ""))
}

/// A shell command that runs in the namespace of this name. Names in `text` are [`Quoted`].
pub fn command(namespace: &str, text: &str) -> String {
    match (namespace, namespace.strip_prefix("pid:")) {
        ("host", _) => text.into(),
        (_, Some(pid)) => format!("nsenter -t {} -n {text}", Quoted(pid)),
        (name, _) if name.starts_with("netns:") => format!("(in {}) {text}", Shown(name)),
        // nsenter takes any name so, ip some as options.
        (name, _) if name.starts_with('-') => format!("nsenter --net=/run/netns/{} {text}", Quoted(name)),
        (name, _) => format!("ip netns exec {} {text}", Quoted(name)),
    }
}

fn tcx_sentence(count: u32, device: &str, namespace: &str) -> String {
    format!(
        "{} has {count} tcx program(s); find them with: {}",
        Shown(device),
        command(namespace, &format!("bpftool net show dev {}", Quoted(device)))
    )
}

fn legacy_sentence(family: usize, table: &str) -> String {
    let (tool, module) = [("iptables", "iptable"), ("ip6tables", "ip6table")][family];
    let (table, name) = (Shown(table), Quoted(table));
    format!(
        "legacy {tool} table {table} is loaded, which hooks forwarding even when it is empty; \
         unload it with: rmmod {module}_{name} (or recreate the namespace, where it is built in)"
    )
}

fn ipvs_sentence(namespace: &str) -> String {
    format!(
        "IPVS has virtual services, which take packets that look forwarded; remove them with: {}",
        command(namespace, "ipvsadm --clear")
    )
}

/// What cannot be read is taken for a hazard: better slow than wrong.
fn or_doubt(result: io::Result<ByFamily>, what: &str) -> ByFamily {
    result.unwrap_or_else(|error| {
        let sentence = doubt(what, &error);
        [vec![sentence.clone()], vec![sentence]]
    })
}

fn doubt(what: &str, error: &io::Error) -> String {
    format!("{what} could not be read: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_where_the_thing_is() {
        assert_eq!(command("host", "nft"), "nft");
        assert_eq!(command("pid:7", "nft"), "nsenter -t 7 -n nft");
        assert_eq!(command("red", "nft"), "ip netns exec red nft");
    }

    #[test]
    fn hostile_names_are_single_words_of_commands() {
        use crate::foreign::{HOSTILE, Pasted, assert_fit};
        let by_qdisc = traffic::Finding::Qdisc("tbf".into());
        let by_filters = traffic::Finding::Filters("clsact".into(), 0);
        let mut pasted = Pasted::default();
        for name in HOSTILE {
            let sentences = [
                (
                    by_qdisc.sentence(name, "host"),
                    "tc",
                    vec!["qdisc", "replace", "dev", name, "root", "pfifo_fast"],
                ),
                (by_filters.sentence(name, "host"), "tc", vec!["qdisc", "del", "dev", name, "clsact"]),
                (tcx_sentence(1, name, "host"), "bpftool", vec!["net", "show", "dev", name]),
            ];
            for (sentence, tool, words) in sentences {
                let (_, line) = sentence.split_once(" with: ").unwrap();
                pasted.add(&sentence, line, tool, &words);
            }
            assert_fit(&traffic::Finding::Qdisc(name.into()).sentence("a", "host"));
            assert_fit(&traffic::Finding::Filters(name.into(), 0).sentence("a", "host"));
            let line = command(name, &format!("tc filter del dev {}", Quoted(name)));
            let filter = ["tc", "filter", "del", "dev", name];
            match name.strip_prefix('-') {
                None => pasted.add(&line, &line, "ip", &[&["netns", "exec", name][..], &filter].concat()),
                Some(_) => {
                    let net = format!("--net=/run/netns/{name}");
                    pasted.add(&line, &line, "nsenter", &[&[&*net][..], &filter].concat());
                }
            }
            assert_fit(&command(&format!("netns:{name}"), ""));
            let legacy = legacy_sentence(0, name);
            let (_, line) = legacy.split_once(" with: ").unwrap();
            let line = line.split_once(" (or").unwrap().0;
            pasted.add(&legacy, line, "rmmod", &[&format!("iptable_{name}")]);
        }
        pasted.run();
    }
}
