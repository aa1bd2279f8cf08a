//! BPF programs that see forwarded packets: tcx (Linux 6.6) and netfilter links (6.4). The kernel does not report their
//! changes.

use super::ByFamily;
use libbpf_rs::{
    libbpf_sys,
    query::{LinkInfoIter, LinkTypeInfo},
};
use logic::cause::Code;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

/// Names of hooks by number: `enum nf_inet_hooks`.
const HOOKS: [&str; 6] = ["prerouting", "input", "forward", "output", "postrouting", "ingress"];

/// The number of tcx programs on each of these devices, in the calling thread's namespace. Devices without any are left
/// out.
///
/// # Errors
/// Any error of the kernel. Without tcx in the kernel, or without the device, there are no programs and no error.
pub fn tcx_programs(devices: &BTreeSet<u32>) -> io::Result<BTreeMap<u32, u32>> {
    let mut counted = BTreeMap::new();
    for ifindex in devices {
        for hook in [libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_TCX_EGRESS] {
            let (rc, programs) = query(*ifindex as i32, hook);
            if programs_found(rc, programs)? > 0 {
                *counted.entry(*ifindex).or_default() += programs;
            }
        }
    }
    Ok(counted)
}

fn programs_found(rc: i32, programs: u32) -> io::Result<u32> {
    match -rc {
        0 => Ok(programs),
        // EINVAL: a kernel without tcx. ENODEV: the device vanished meanwhile.
        libc::EINVAL | libc::ENODEV => Ok(0),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Returns zero or a negative errno, and the number of programs.
fn query(target: i32, hook: libbpf_sys::bpf_attach_type) -> (i32, u32) {
    let mut query = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `query` lives across the call and holds its own size; it requests only a count, so it has no array.
    let rc = unsafe { libbpf_sys::bpf_prog_query_opts(target, hook, &raw mut query) };
    // SAFETY: every variant of the union is a u32.
    (rc, unsafe { query.__bindgen_anon_1.prog_cnt })
}

/// Netfilter programs on hooks that forwarded packets pass, in any namespace: the kernel does not report in which one.
pub fn netfilter_programs() -> ByFamily {
    let mut sentences = ByFamily::default();
    for link in LinkInfoIter::default() {
        let LinkTypeInfo::Netfilter(info) = &link.info else { continue };
        let family = match info.protocol_family as i32 {
            libc::AF_INET => 0,
            libc::AF_INET6 => 1,
            _ => continue,
        };
        let hook = HOOKS.get(info.hooknum as usize).copied().unwrap_or("an unknown hook");
        if !matches!(hook, "input" | "output") {
            sentences[family].push(Code::BpfNetfilter.cause(format!(
                "BPF program {} hooks {hook} in some namespace (link {}); detach it with: bpftool link detach id {}",
                link.prog_id, link.id, link.id
            )));
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_device_or_kernel_support_counts_as_no_programs() {
        let found = |rc| programs_found(rc, 7).map_err(|e| e.raw_os_error());
        assert_eq!(found(0), Ok(7));
        assert_eq!(found(-libc::EINVAL), Ok(0));
        assert_eq!(found(-libc::ENODEV), Ok(0));
        for errno in [libc::EPERM, libc::ENOMEM] {
            assert_eq!(found(-errno), Err(Some(errno)));
        }
    }
}
