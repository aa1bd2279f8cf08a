//! BPF programs that see forwarded packets: tcx (Linux 6.6) and netfilter links (6.4). The kernel tells nobody of them.

use super::{ByFamily, netfilter::HOOKS};
use libbpf_rs::{
    libbpf_sys,
    query::{LinkInfoIter, LinkTypeInfo},
};

/// How many tcx programs the device has, in the namespace of the calling thread. A kernel without tcx has none.
pub fn tcx_programs(ifindex: u32) -> u32 {
    let Ok(target) = i32::try_from(ifindex) else { return 0 };
    [libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_TCX_EGRESS]
        .into_iter()
        .map(|hook| count(target, hook))
        .sum()
}

fn count(target: i32, hook: libbpf_sys::bpf_attach_type) -> u32 {
    let mut query = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `query` lives across the call and says its size; it asks for a count only, so it names no array.
    let rc = unsafe { libbpf_sys::bpf_prog_query_opts(target, hook, &raw mut query) };
    // SAFETY: every variant of the union is a u32.
    if rc == 0 { unsafe { query.__bindgen_anon_1.prog_cnt } } else { 0 }
}

/// Netfilter programs on hooks that forwarded packets pass, in any namespace: the kernel does not say in which.
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
            sentences[family].push(format!(
                "BPF program {} hooks {hook} in some namespace (link {}); detach it with: bpftool link detach id {}",
                link.prog_id, link.id, link.id
            ));
        }
    }
    sentences
}
