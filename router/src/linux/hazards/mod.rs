//! Hazards: things in a namespace that the fast path would bypass. They are read from the kernel and reported as
//! sentences that name the thing and the command that removes it.
//!
//! | file | hazards | changes are reported by |
//! |---|---|---|
//! | [`netfilter`] | nftables rules | nfnetlink group |
//! | [`xfrm`] | IPsec policies | XFRM group |
//! | [`rules`] | policy routing rules | rtnetlink groups |
//! | [`traffic`] | qdiscs and filters | rtnetlink group |
//! | [`bpf`] | tcx and netfilter programs | nothing: polled |
//! | here | IPVS; legacy iptables, if it cannot be read | nothing: polled |
//!
//! Hooks for input and output do not matter: packets for the box itself go to the kernel anyway. Connection tracking
//! registers its hooks only if a rule needs them, so the hook of that rule stands for it.

pub mod bpf;
pub mod netfilter;
pub mod rules;
pub mod traffic;
pub mod xfrm;

use crate::{
    base::foreign::{Quoted, Shown},
    linux::{netlink::socket::Socket, observer::sysctl::Polled},
};
use logic::{
    cause::{Cause, Code},
    firewall::ruleset::{Firewall, Ruleset, Table},
    observe::Settings,
};
use std::{collections::BTreeMap, io, sync::Arc, time::Instant};

/// Sentences for IPv4 and for IPv6.
pub type ByFamily = [Vec<Cause>; 2];

/// The most sentences in one list. A namespace can have any number of rules and chains, so one more sentence stands for
/// the rest.
const MOST_SENTENCES: usize = 16;

/// Rules, netfilter and XFRM of a namespace, or the error that prevented reading them.
pub struct Read {
    netfilter: io::Result<netfilter::Found>,
    xfrm: io::Result<ByFamily>,
    rules: io::Result<ByFamily>,
}

/// Reads them in the calling thread's namespace, which must be that of `route`. A part that the kernel lacks is no
/// hazard.
pub fn read(route: &mut Socket, end: Instant) -> Read {
    Read {
        netfilter: with_socket(libc::NETLINK_NETFILTER, end, |socket| netfilter::read(socket, route)),
        xfrm: with_socket(libc::NETLINK_XFRM, end, xfrm::read),
        rules: rules::read(route),
    }
}

impl Read {
    /// All parts failed with this error.
    pub fn failed(error: &io::Error) -> Read {
        let same = || io::Error::new(error.kind(), error.to_string());
        Read { netfilter: Err(same()), xfrm: Err(same()), rules: Err(same()) }
    }
}

fn with_socket<T: Default>(
    protocol: i32,
    end: Instant,
    read: impl FnOnce(&mut Socket) -> io::Result<T>,
) -> io::Result<T> {
    match Socket::requests(protocol) {
        Ok(mut socket) => {
            socket.end_at(end);
            read(&mut socket)
        }
        Err(e) if e.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(T::default()),
        Err(e) => Err(e),
    }
}

/// The hazards of one namespace.
pub struct Hazards {
    netfilter: netfilter::Found,
    namespace: Vec<ByFamily>,
    /// Tables of legacy iptables; or why they are not known.
    legacy: Result<Vec<Arc<Table>>, String>,
    /// All rules.
    firewall: Arc<Firewall>,
    ipvs: bool,
    traffic: BTreeMap<u32, Vec<traffic::Finding>>,
    /// The number of tcx programs of each device that has some.
    tcx: BTreeMap<u32, u32>,
    /// BPF netfilter programs anywhere: the kernel does not say in which namespace.
    programs: ByFamily,
}

impl Default for Hazards {
    fn default() -> Hazards {
        Hazards {
            netfilter: netfilter::Found::default(),
            namespace: Vec::new(),
            legacy: Ok(Vec::new()),
            firewall: Arc::default(),
            ipvs: false,
            traffic: BTreeMap::new(),
            tcx: BTreeMap::new(),
            programs: ByFamily::default(),
        }
    }
}

impl Hazards {
    /// Stores the reading. Returns false if a part could not be read. That part then counts as a hazard, and the caller
    /// should read again.
    pub fn set_namespace(&mut self, read: Read) -> bool {
        let Read { netfilter, xfrm, rules } = read;
        let is_known = netfilter.as_ref().is_ok_and(|found| found.firewall.is_ok());
        let complete = is_known && xfrm.is_ok() && rules.is_ok();
        self.netfilter = netfilter
            .unwrap_or_else(|error| netfilter::Found::doubt(&error, doubt("nftables chains", &error)));
        self.put_rules_together();
        self.namespace = vec![or_doubt(xfrm, "IPsec policies"), or_doubt(rules, "policy rules")];
        complete
    }

    /// Stores the findings about qdiscs and filters.
    pub fn set_traffic(&mut self, found: traffic::Findings) {
        self.traffic = found;
    }

    /// Stores the findings about legacy tables and IPVS.
    pub fn set_polled(&mut self, polled: Polled) {
        self.ipvs = polled.has_ipvs_services;
        if self.legacy != polled.legacy {
            self.legacy = polled.legacy;
            self.put_rules_together();
        }
    }

    fn put_rules_together(&mut self) {
        let Ok(Firewall { rules, translated }) = self.netfilter.firewall.as_deref() else {
            self.firewall = Arc::new(Firewall { translated: None, ..Firewall::default() });
            return;
        };
        let legacy = self.legacy.iter().flatten();
        let tables = rules.tables.iter().chain(legacy).cloned().collect();
        let firewall = Firewall { rules: Ruleset { tables }, translated: translated.clone() };
        if *self.firewall != firewall {
            self.firewall = Arc::new(firewall);
        }
    }

    /// Stores the number of tcx programs of each device.
    pub fn set_tcx(&mut self, counted: BTreeMap<u32, u32>) {
        self.tcx = counted;
    }

    /// Stores the list of BPF netfilter programs, which is the same for all namespaces.
    pub fn set_programs(&mut self, programs: &ByFamily) {
        if self.programs != *programs {
            self.programs.clone_from(programs);
        }
    }

    /// Forgets a device that is gone.
    pub fn forget_link(&mut self, ifindex: u32) {
        self.traffic.remove(&ifindex);
        self.tcx.remove(&ifindex);
    }

    /// Sentences about a device.
    pub fn of_link(&self, ifindex: u32, device: &str, namespace: &str) -> Vec<Cause> {
        let found = self.traffic.get(&ifindex).into_iter().flatten();
        let mut causes: Vec<Cause> = found.map(|f| f.cause(device, namespace)).collect();
        if let Some(count) = self.tcx.get(&ifindex) {
            causes.push(tcx(*count, device, namespace));
        }
        causes.extend(self.netfilter.of_device(device).map(|cause| in_namespace(cause, namespace)));
        causes
    }

    /// Sentences about the namespace as a whole. The multipath policy is left at its default.
    pub fn of_namespace(&self, namespace: &str) -> Settings {
        let mut all: ByFamily = Default::default();
        for (i, causes) in all.iter_mut().enumerate() {
            let found = self.namespace.iter().chain([&self.programs]);
            let found = found.flat_map(|found| &found[i]);
            causes.extend(found.map(|cause| in_namespace(cause, namespace)));
            causes.extend(self.netfilter.firewall.as_ref().err().map(|why| doubt("nftables rules", why)));
            causes.extend(self.legacy.as_ref().err().map(|why| doubt("legacy iptables", why)));
            causes.extend(self.ipvs.then(|| ipvs(namespace)));
        }
        let [hazards4, hazards6] = all;
        Settings { hazards4, hazards6, firewall: self.firewall.clone(), ..Settings::default() }
    }
}

/// A placeholder in a sentence, before a command that must run in the namespace.
const IN_NAMESPACE: &str = "\u{1}";

fn in_namespace(cause: &Cause, namespace: &str) -> Cause {
    cause.map(|text| text.replace(IN_NAMESPACE, &command(namespace, "")))
}

/// A shell command that runs in the namespace of this name. Names in `text` must be [`Quoted`].
pub fn command(namespace: &str, text: &str) -> String {
    match (namespace, namespace.strip_prefix("pid:")) {
        ("host", _) => text.into(),
        (_, Some(pid)) => format!("nsenter -t {} -n {text}", Quoted(pid)),
        (name, _) if name.starts_with("netns:") => format!("(in {}) {text}", Shown(name)),
        // `ip` would take such a name for an option.
        (name, _) if name.starts_with('-') => format!("nsenter --net=/run/netns/{} {text}", Quoted(name)),
        (name, _) => format!("ip netns exec {} {text}", Quoted(name)),
    }
}

fn tcx(count: u32, device: &str, namespace: &str) -> Cause {
    Code::Tcx.cause(format!(
        "{} has {count} tcx program(s); find them with: {}",
        Shown(device),
        command(namespace, &format!("bpftool net show dev {}", Quoted(device)))
    ))
}

fn ipvs(namespace: &str) -> Cause {
    Code::Ipvs.cause(format!(
        "IPVS has virtual services, which take packets that look like forwarded ones; remove them with: {}",
        command(namespace, "ipvsadm --clear")
    ))
}

/// A part that cannot be read counts as a hazard: better slow than wrong.
fn or_doubt(result: io::Result<ByFamily>, what: &str) -> ByFamily {
    result.unwrap_or_else(|error| {
        let cause = doubt(what, &error);
        [vec![cause.clone()], vec![cause]]
    })
}

fn doubt(what: &str, error: &impl std::fmt::Display) -> Cause {
    Code::Unreadable.cause(format!("{what} could not be read (trying again): {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_in_the_namespace_of_the_hazard() {
        assert_eq!(command("host", "nft"), "nft");
        assert_eq!(command("pid:7", "nft"), "nsenter -t 7 -n nft");
        assert_eq!(command("red", "nft"), "ip netns exec red nft");
    }

    #[test]
    fn hostile_names_are_single_words_of_commands() {
        use crate::base::foreign::{HOSTILE, Pasted, assert_fit};
        let by_qdisc = traffic::Finding::Qdisc("tbf".into());
        let by_filters = traffic::Finding::Filters("clsact".into(), 0);
        let mut pasted = Pasted::default();
        for name in HOSTILE {
            let sentences = [
                (
                    by_qdisc.cause(name, "host"),
                    "tc",
                    vec!["qdisc", "replace", "dev", name, "root", "pfifo_fast"],
                ),
                (by_filters.cause(name, "host"), "tc", vec!["qdisc", "del", "dev", name, "clsact"]),
                (tcx(1, name, "host"), "bpftool", vec!["net", "show", "dev", name]),
            ];
            for (sentence, tool, words) in sentences {
                let (_, line) = sentence.split_once(" with: ").unwrap();
                pasted.add(&sentence, line, tool, &words);
            }
            assert_fit(&traffic::Finding::Qdisc(name.into()).cause("a", "host"));
            assert_fit(&traffic::Finding::Filters(name.into(), 0).cause("a", "host"));
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
        }
        pasted.run();
    }
}
