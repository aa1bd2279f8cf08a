//! What can be measured: each subject is one small file. A subject is started on a testbed, forwards what comes to its
//! routers until it is dropped, and leaves the testbed as it was.

//!
//! Some are other people's programs ([`process`] holds what these share). Some bring a virtual router of their own
//! ([`virtual_router`]). A subject that cannot run reports why, and the others of a comparison go on.

mod linux;
mod linux_bridge_veth;
mod linux_macvlan;
mod millrace;
mod millrace_capture;
mod millrace_export;
mod millrace_macvlan;
mod millrace_paths;
mod ovs;
mod pass;
mod process;
mod redirect;
mod testpmd;
mod touch;
mod virtual_router;
mod vpp;
mod xdp_forward;

use std::net::Ipv4Addr;

use anyhow::{Result, bail, ensure};

use self::{
    millrace_capture::{MillraceCapture, Wanted},
    ovs::Sockets,
    testpmd::Driver,
};
use crate::{
    addresses::{Mac, router_mac},
    command::Running,
    packet::Target,
    testbed::Testbed,
};

pub(crate) use linux::Linux;
pub(crate) use millrace::Launch;
pub use millrace::Millrace;
pub(crate) use pass::Pass;

/// Names of all subjects, in the order of reports.
pub const NAMES: [&str; 19] = [
    "linux",
    "linux-macvlan",
    "linux-bridge-veth",
    "ovs-packet",
    "ovs-afxdp",
    "testpmd-packet",
    "testpmd-afxdp",
    "vpp-packet",
    "vpp-afxdp",
    "xdp-forward",
    "pass",
    "redirect",
    "touch",
    "millrace",
    "millrace-macvlan",
    "millrace-paths",
    "millrace-filter",
    "millrace-capture",
    "millrace-export",
];

/// Subjects that run wherever the lab does, on every workload of the host: the default.
pub const DEFAULT: [&str; 4] = ["linux", "redirect", "touch", "millrace"];

/// Stands for all of [`NAMES`].
const ALL: &str = "all";

/// What a command line accepts where several subjects can be named.
pub fn choices() -> Vec<&'static str> {
    NAMES.into_iter().chain([ALL]).collect()
}

/// The subjects that such a command line names.
pub fn named(chosen: &[String]) -> Vec<&str> {
    if chosen.iter().any(|name| name == ALL) {
        NAMES.to_vec()
    } else {
        chosen.iter().map(String::as_str).collect()
    }
}

/// A running forwarder. Dropping it ends it.
pub trait Subject {
    /// Name on the command line and in records.
    fn name(&self) -> &'static str;

    /// What it does to the packets it forwards.
    fn rewrites(&self) -> Rewrite {
        Rewrite::Full
    }

    /// The router it forwards for. 0: the host and every virtual router of the testbed; another: a virtual router of
    /// its own.
    fn router(&self) -> u16 {
        0
    }

    /// These targets, addressed to the router it forwards for.
    fn addressed(&self, targets: &[Target]) -> Vec<Target> {
        match self.router() {
            0 => targets.to_vec(),
            r => {
                let to = |target: &Target| Target { router_mac: router_mac(target.port, 0, r), ..*target };
                targets.iter().map(to).collect()
            }
        }
    }

    /// Most packets that may come at once before it loses some, if it has less room than a port's ring.
    fn burst(&self) -> usize {
        usize::MAX
    }

    /// Threads that forward, besides those of the ports.
    fn threads(&self) -> Vec<i32> {
        Vec::new()
    }

    /// Programs that it consists of. If one has ended, a measurement is worth nothing.
    fn programs(&self) -> Vec<Running> {
        Vec::new()
    }

    /// Its programs were killed. Starts them again, so that they continue with what they left, and waits until they are
    /// ready. `false`: they leave nothing, and the subject must be stopped and started again.
    fn take_over(&mut self, _testbed: &Testbed) -> Result<bool> {
        Ok(false)
    }

    /// Packets that its own fast path has forwarded so far, if it counts them. Otherwise a subject that leaves its work
    /// to Linux would merely seem slow.
    fn fast_path_packets(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// What a subject does to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// All that a router does.
    Full,
    /// The same, but always with these MACs.
    Fixed {
        /// Destination.
        to: Mac,
        /// Source.
        from: Mac,
    },
    /// All that a router does, and this source address instead of the packet's own.
    Masquerade(Ipv4Addr),
    /// These MACs, and nothing else, not even the TTL.
    Macs {
        /// Destination.
        to: Mac,
        /// Source.
        from: Mac,
    },
    /// Nothing.
    None,
}

/// Starts a subject by its name.
pub fn start(name: &str, testbed: &Testbed) -> Result<Box<dyn Subject>> {
    testbed.forwarded_by(Vec::new(), Vec::new());
    let ports = testbed.topology.ports.len();
    ensure!(
        ports == 2 || on_all_ports(name),
        "{name} forwards between two ports; topology {} has {ports}",
        testbed.topology.name
    );
    let subject: Box<dyn Subject> = match name {
        "linux" => Box::new(linux::Linux),
        "linux-macvlan" => Box::new(linux_macvlan::LinuxMacvlan::start(testbed)?),
        "linux-bridge-veth" => Box::new(linux_bridge_veth::LinuxBridgeVeth::start(testbed)?),
        "ovs-packet" => Box::new(ovs::Ovs::start(testbed, Sockets::Packet)?),
        "ovs-afxdp" => Box::new(ovs::Ovs::start(testbed, Sockets::AfXdp)?),
        "testpmd-packet" => Box::new(testpmd::Testpmd::start(testbed, Driver::Packet)?),
        "testpmd-afxdp" => Box::new(testpmd::Testpmd::start(testbed, Driver::AfXdp)?),
        "vpp-packet" => Box::new(vpp::Vpp::start(testbed, Sockets::Packet)?),
        "vpp-afxdp" => Box::new(vpp::Vpp::start(testbed, Sockets::AfXdp)?),
        "xdp-forward" => Box::new(xdp_forward::XdpForward::start(testbed)?),
        "pass" => Box::new(pass::Pass::start(testbed)?),
        "redirect" => Box::new(redirect::Redirect::start(testbed)?),
        "touch" => Box::new(touch::Touch::start(testbed)?),
        "millrace" => Box::new(Millrace::start(testbed)?),
        "millrace-macvlan" => Box::new(millrace_macvlan::MillraceMacvlan::start(testbed)?),
        "millrace-filter" => Box::new(MillraceCapture::start(testbed, Wanted::None)?),
        "millrace-capture" => Box::new(MillraceCapture::start(testbed, Wanted::All)?),
        "millrace-export" => Box::new(millrace_export::MillraceExport::start(testbed)?),
        "millrace-paths" => Box::new(millrace_paths::MillracePaths::start(testbed)?),
        _ => bail!("no subject is called {name}; there are: {}", NAMES.join(", ")),
    };
    testbed.forwarded_by(subject.threads(), subject.programs());
    Ok(subject)
}

/// Does this subject forward between all ports of a testbed, however many?
fn on_all_ports(name: &str) -> bool {
    matches!(name, "linux" | "linux-macvlan") || name.starts_with("millrace") || !NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_means_every_subject_in_order_of_reports() {
        let chosen = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(named(&chosen(&["touch", "linux"])), ["touch", "linux"]);
        assert_eq!(named(&chosen(&["touch", "all"])), NAMES);
        assert!(choices().contains(&"all") && DEFAULT.iter().all(|name| NAMES.contains(name)));
    }
}
