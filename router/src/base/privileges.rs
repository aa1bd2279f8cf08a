//! The daemon's privileges: checked before anything is changed, and given up where not needed.
//!
//! | capability | kept for |
//! |---|---|
//! | `CAP_NET_ADMIN` | attaching XDP, netlink requests, ethtool, tables of local delivery |
//! | `CAP_NET_BROADCAST` | listening to other namespaces without keeping these alive (`NETLINK_LISTEN_ALL_NSID`) |
//! | `CAP_BPF`, `CAP_PERFMON` | loading programs and maps, also later, when tables grow |
//! | `CAP_SYS_ADMIN` | entering the namespaces of routers that come later (setns), querying programs of others |
//! | `CAP_SYS_PTRACE` | opening /proc/PID/ns/net of routers given by PID |
//! | `CAP_SYS_NICE` | placing NAPI threads on cores, urgency of these, of the thread that places them, and of workers; not needed without placing and with `nice` unchanged |
//! | `CAP_NET_RAW` | raw sockets: netfilter's tables (iptables-legacy), workers, packets that elements create |
//! | `CAP_IPC_LOCK` | packet memory of workers beyond `RLIMIT_MEMLOCK`; not needed without paths |
//!
//! `CAP_SYS_ADMIN` is most of root, and setns requires it. Dropping the rest guards against accidents (files, modules,
//! processes of others), not against a compromised daemon. `no_new_privs` and an empty inheritable set keep a program
//! that the daemon might execute from gaining more. Threads that need no capability give up all ([`give_up_all`]):
//! workers, and those that write copies of packets. Threads that parse data from others keep only the capabilities that
//! they need, and can change no file ([`serve_only`]). docs/security.md explains why it is one process, and what that
//! does not protect.

use anyhow::{Context, Result, bail};
use landlock::{ABI, AccessFs, Ruleset, RulesetAttr, RulesetStatus};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

const NEEDED: [(CapabilitySet, &str, &str); 9] = [
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN", "attach XDP programs and read the network configuration"),
    (CapabilitySet::BPF, "CAP_BPF", "load XDP programs"),
    (CapabilitySet::PERFMON, "CAP_PERFMON", "load XDP programs that read the clock and kernel types"),
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN", "enter the namespaces of routers"),
    (CapabilitySet::NET_BROADCAST, "CAP_NET_BROADCAST", "see changes in the namespaces of routers"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE", "find the namespaces of other processes"),
    (
        CapabilitySet::SYS_NICE,
        "CAP_SYS_NICE",
        "place queues on cores and make workers urgent; policy = \"off\" in [cores] and nice = 0 in [workers] avoid it",
    ),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW", "see netfilter rules"),
    (CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK", "keep packets of workers in memory"),
];

/// The oldest supported kernel.
const OLDEST: (u32, u32) = (6, 1);

/// Refuses to start if a capability is missing, and names it. `urgent`: queues are placed on cores, or threads are made
/// more urgent. `paths`: there are workers.
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

/// Refuses an old kernel; the error names the version and the feature.
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

/// Gives up every other capability and the right to gain any. Threads started later inherit this: call it before
/// starting any.
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

/// Gives up all capabilities of the calling thread, and the right to gain any. Its open files stay usable.
pub fn give_up_all() -> Result<()> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).context("giving up a thread's rights")?;
    set_no_new_privs(true).context("giving up the right to gain any")
}

/// Capabilities of the thread of flow rules: it makes maps, loads programs, sets ports up and down, and sends frames.
pub const OF_FLOW_RULES: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::IPC_LOCK);

/// A thread of this process could write files although it parses data from others.
static MAY_WRITE: AtomicBool = AtomicBool::new(false);

/// Restricts a thread that parses data from others: it and the threads that it starts later keep these capabilities.
/// With Landlock they can create, write and remove no file, not even root's own. Open files stay usable.
///
/// # Errors
/// The capabilities could not be given up. A kernel without Landlock is no error ([`condition`]).
pub fn serve_only(kept: CapabilitySet) -> Result<()> {
    let now = capabilities(None).context("reading this thread's capabilities")?;
    let sets = CapabilitySets {
        effective: now.effective & kept,
        permitted: now.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    set_no_new_privs(true).context("giving up the right to gain any")?;
    set_capabilities(None, sets).context("giving up a thread's rights")?;
    if !deny_writes().unwrap_or(false) {
        MAY_WRITE.store(true, Relaxed);
    }
    Ok(())
}

/// The same as [`serve_only`] without any capability. A thread that cannot give up its rights logs an error and goes
/// on.
pub fn serve_with_nothing(thread: &str) {
    if let Err(error) = serve_only(CapabilitySet::empty()) {
        tracing::error!("the thread {thread} keeps its rights: {error:#}");
    }
}

/// False: this kernel has no Landlock. An older Landlock denies the accesses that it knows.
fn deny_writes() -> Result<bool> {
    let writes = Ruleset::default().handle_access(AccessFs::from_write(ABI::V3))?;
    Ok(writes.create()?.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// Why threads that parse data from others can do more than they need, as a sentence.
pub fn condition() -> Option<String> {
    MAY_WRITE.load(Relaxed).then(|| {
        "this kernel has no Landlock: threads that parse data from others could write files if they had faults".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::ErrorKind, thread};

    #[test]
    fn a_thread_that_serves_changes_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
        fs::write(&old, "old").unwrap();
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                serve_with_nothing("test");
                let left = capabilities(None).unwrap();
                assert!(
                    left.effective.is_empty() && left.permitted.is_empty() && left.inheritable.is_empty()
                );
                if condition().is_some() {
                    return;
                }
                assert_eq!(fs::read(&old).unwrap(), b"old");
                for done in [
                    fs::write(&old, "new"),
                    fs::write(&new, "new"),
                    fs::create_dir(&new),
                    fs::remove_file(&old),
                    thread::scope(|scope| scope.spawn(|| fs::write(&old, "new")).join().unwrap()),
                ] {
                    assert_eq!(done.unwrap_err().kind(), ErrorKind::PermissionDenied);
                }
            });
            serving.join().unwrap();
        });
        fs::write(&old, "new").expect("other threads can");
    }

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
        // The capabilities belong to threads, so this runs in one of its own.
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
