//! What the daemon may do, checked before anything is changed, and what it gives up.
//!
//! | capability | kept for |
//! |---|---|
//! | `CAP_NET_ADMIN` | attaching XDP, netlink requests, ethtool, tables of local delivery |
//! | `CAP_BPF`, `CAP_PERFMON` | loading programs and maps, also later, when tables grow |
//! | `CAP_SYS_ADMIN` | entering the namespaces of routers that come later (setns), asking about programs of others |
//! | `CAP_SYS_PTRACE` | opening /proc/PID/ns/net of routers given by PID |
//! | `CAP_NET_BROADCAST` | hearing the changes in namespaces of routers without keeping these alive |
//! | `CAP_SYS_NICE` | moving NAPI threads to cores, how urgent they are (a floor), and whoever does that is, and workers; not needed to leave queues and `nice` alone |
//! | `CAP_NET_RAW` | asking netfilter (iptables-legacy) for its tables takes a raw socket; sockets of workers are such, and what elements made is sent by one |
//! | `CAP_IPC_LOCK` | memory for packets of workers beyond `RLIMIT_MEMLOCK`; not needed without paths |
//!
//! `CAP_SYS_ADMIN` is most of root, and setns demands it: dropping the rest guards against accidents (files, modules,
//! processes of others), not against a compromised daemon. `no_new_privs` and an empty inheritable set keep anything it
//! might execute from getting more. Threads that need none of them give up all ([`give_up_all`]): workers, and those that write copies of packets.

use anyhow::{Context, Result, bail};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
use std::path::Path;

const NEEDED: [(CapabilitySet, &str, &str); 9] = [
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN", "attach XDP programs and read the network configuration"),
    (CapabilitySet::BPF, "CAP_BPF", "load XDP programs"),
    (CapabilitySet::PERFMON, "CAP_PERFMON", "load XDP programs that read the clock and kernel types"),
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN", "enter the namespaces of routers"),
    (CapabilitySet::NET_BROADCAST, "CAP_NET_BROADCAST", "hear changes in the namespaces of routers"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE", "find the namespaces of other processes"),
    (
        CapabilitySet::SYS_NICE,
        "CAP_SYS_NICE",
        "place queues on cores and have workers go first; policy = \"off\" in [cores] and nice = 0 in [workers] do without",
    ),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW", "see netfilter rules"),
    (CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK", "keep packets of workers in memory"),
];

/// The oldest kernel supported.
const OLDEST: (u32, u32) = (6, 1);

/// Refuses to start without a capability, naming it. `urgent`: queues are placed on cores, or threads made more urgent; `paths`: there are workers.
pub fn check_capabilities(urgent: bool, paths: bool) -> Result<()> {
    let have = capabilities(None).context("reading this process's capabilities")?.effective;
    let missing: Vec<_> = NEEDED
        .iter()
        .filter(|(c, ..)| urgent || *c != CapabilitySet::SYS_NICE)
        .filter(|(c, ..)| paths || *c != CapabilitySet::IPC_LOCK)
        .filter(|(c, ..)| !have.contains(*c))
        .map(|(_, name, why)| format!("{name} (to {why})"))
        .collect();
    if !missing.is_empty() {
        bail!("missing capability: {}; run as root", missing.join(", "));
    }
    Ok(())
}

/// Refuses an old kernel, naming the version and the feature.
pub fn check_kernel() -> Result<()> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    check_release(&release)?;
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        bail!(
            "this kernel ({release}) has no type information (/sys/kernel/btf/vmlinux): it must be built with \
             CONFIG_DEBUG_INFO_BTF=y, as Debian's are since 11"
        );
    }
    Ok(())
}

fn check_release(release: &str) -> Result<()> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < OLDEST {
        bail!(
            "this kernel is {release}; {}.{} or newer is needed (multi-buffer XDP redirect, bpf_link for XDP, CAP_BPF)",
            OLDEST.0,
            OLDEST.1
        );
    }
    Ok(())
}

/// Gives up every other capability and the right to gain any. Threads started later inherit that: call it before any is.
pub fn reduce() -> Result<()> {
    let kept = NEEDED.iter().fold(CapabilitySet::empty(), |set, (c, ..)| set | *c);
    let now = capabilities(None).context("reading this process's capabilities")?;
    let reduced = CapabilitySets {
        effective: now.effective & kept,
        permitted: now.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    set_no_new_privs(true).context("setting no_new_privs")?;
    set_capabilities(None, reduced).context("giving up capabilities")
}

/// All of them, of the calling thread alone, and the right to gain any: what it has open it uses without.
pub fn give_up_all() -> Result<()> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).context("giving up a thread's rights")?;
    set_no_new_privs(true).context("giving up the right to gain any")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_are_named() {
        for fine in ["6.1.0-13-cloud-amd64", "6.18.44-fc", "7.0", "6.1"] {
            check_release(fine).unwrap_or_else(|e| panic!("{fine}: {e}"));
        }
        for old in ["5.10.0-23-amd64", "6.0.9", "4.19", "", "x"] {
            let error = check_release(old).unwrap_err().to_string();
            assert!(error.contains("6.1 or newer"), "{old}: {error}");
        }
    }

    #[test]
    #[ignore = "needs root"]
    fn capabilities_are_given_up() {
        // In a thread of its own: they belong to threads.
        std::thread::spawn(|| {
            assert!(capabilities(None).unwrap().effective.contains(CapabilitySet::CHOWN), "not root");
            reduce().unwrap();
            let left = capabilities(None).unwrap();
            assert!(
                !left.effective.contains(CapabilitySet::CHOWN)
                    && !left.permitted.contains(CapabilitySet::CHOWN)
            );
            assert!(left.effective.contains(CapabilitySet::NET_ADMIN));
        })
        .join()
        .unwrap();
    }
}
