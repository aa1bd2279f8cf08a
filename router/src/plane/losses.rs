//! Counting what is lost after the redirect (`bpf/losses.h`): tracepoints, attached with a generation and, like its links
//! to ports, pinned, so that counting outlives the daemon.

use super::{Mapping, Words64, replace_pin};
use crate::abi::{self, types};
use anyhow::{Context, Result};
use libbpf_rs::{
    Link, MapCore, MapHandle,
    btf::{Btf, types::Typedef},
};
use std::{os::fd::AsFd, path::Path};

/// Word of `struct control`: this generation counts.
const COUNTS_LOSSES: usize = std::mem::offset_of!(types::control, counts_losses) / 8;

/// The tracepoints of the running kernel that tell of losses, each with the program that listens.
pub(super) struct Losses {
    links: Vec<(&'static str, Link)>,
    /// What cannot be counted, as sentences.
    pub troubles: Vec<String>,
}

/// Tracepoints, in the order of [`programs`].
const TRACEPOINTS: [&str; 5] =
    ["xdp_devmap_xmit", "xdp_redirect_err", "xdp_exception", "xdp_cpumap_enqueue", "xdp_cpumap_kthread"];

/// Leaves the programs whose tracepoint this kernel lacks out of loading, which would fail as a whole.
pub(super) fn select(open: &mut abi::OpenMillraceSkel<'_>) -> Result<()> {
    let kernel = Btf::from_vmlinux().context("reading the kernel's type information")?;
    let progs = &mut open.progs;
    let programs = [
        &mut progs.lost_on_transmit,
        &mut progs.lost_on_redirect,
        &mut progs.lost_in_generic_mode,
        &mut progs.lost_on_hand_over,
        &mut progs.done_on_core,
    ];
    for (program, tracepoint) in programs.into_iter().zip(TRACEPOINTS) {
        program.set_autoload(has(&kernel, tracepoint));
    }
    // No loss, but a tracepoint, too: attached by `Splits`.
    progs.poll_ended.set_autoload(has(&kernel, "napi_poll"));
    let own =
        std::fs::metadata("/proc/thread-self/ns/net").context("looking at the own network namespace")?;
    let constants = open.maps.rodata_data.as_deref_mut().context("the kernel plane has no constants")?;
    constants.netns_inode = u32::try_from(std::os::unix::fs::MetadataExt::ino(&own))?;
    Ok(())
}

/// For a copy that forwards nothing.
pub(super) fn leave_out(open: &mut abi::OpenMillraceSkel<'_>) {
    let progs = &mut open.progs;
    progs.lost_on_transmit.set_autoload(false);
    progs.lost_on_redirect.set_autoload(false);
    progs.lost_in_generic_mode.set_autoload(false);
    progs.lost_on_hand_over.set_autoload(false);
    progs.done_on_core.set_autoload(false);
    progs.poll_ended.set_autoload(false);
}

fn has(kernel: &Btf<'_>, tracepoint: &str) -> bool {
    kernel.type_by_name::<Typedef<'_>>(&format!("btf_trace_{tracepoint}")).is_some()
}

impl Losses {
    /// Attaches what was loaded; nothing is counted yet. A kernel that does not let us is reported: packets are forwarded
    /// all the same.
    pub fn attach(skel: &abi::MillraceSkel<'_>) -> Losses {
        let progs = &skel.progs;
        let programs = [
            &progs.lost_on_transmit,
            &progs.lost_on_redirect,
            &progs.lost_in_generic_mode,
            &progs.lost_on_hand_over,
            &progs.done_on_core,
        ];
        let mut losses = Losses { links: Vec::new(), troubles: Vec::new() };
        for (program, tracepoint) in programs.into_iter().zip(TRACEPOINTS) {
            let attached = if program.autoload() {
                program.attach_trace().map_err(|e| e.to_string())
            } else {
                Err("this kernel has no such tracepoint".into())
            };
            match attached {
                Ok(link) => losses.links.push((tracepoint, link)),
                Err(why) => {
                    let trouble =
                        format!("packets lost after the redirect cannot be counted by {tracepoint}: {why}");
                    tracing::warn!("{trouble}");
                    losses.troubles.push(trouble);
                }
            }
        }
        losses
    }

    /// Is it known of packets on other cores when they are done, or lost?
    pub fn counts_handed(&self) -> bool {
        let listens = |tracepoint: &&str| self.links.iter().any(|(known, _)| known == tracepoint);
        ["xdp_redirect_err", "xdp_cpumap_enqueue", "xdp_cpumap_kthread"].iter().all(listens)
    }

    /// Counting survives this process. May be repeated.
    pub fn pin(&mut self, directory: &Path) -> Result<()> {
        for (tracepoint, link) in &mut self.links {
            if link.pin_path().is_some() {
                continue;
            }
            replace_pin(&directory.join(format!("losses-{tracepoint}")), |path| link.pin(path))?;
        }
        Ok(())
    }
}

/// Puts the generation with this control map in charge of counting, in place of the one pinned in `directory`.
pub(super) fn take_over(control: &Words64, directory: &Path) {
    if control.load(COUNTS_LOSSES) != 0 {
        return;
    }
    let before = pinned_control(directory);
    // One right behind the other, with no system call (an unmapping) between: what is lost meanwhile is counted by neither.
    if let Some(before) = &before {
        before.store(COUNTS_LOSSES, 0);
    }
    control.store(COUNTS_LOSSES, 1);
}

fn pinned_control(directory: &Path) -> Option<Words64> {
    let map = MapHandle::from_pinned_path(directory.join("control")).ok()?;
    let bytes = size_of::<types::control>();
    let ours = map.value_size() as usize == bytes && map.max_entries() == 1;
    ours.then(|| Mapping::new(map.as_fd(), bytes, 1).ok()).flatten().map(Words64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracepoints_are_looked_for_in_the_kernel() {
        let Ok(kernel) = Btf::from_vmlinux() else { return };
        assert!(TRACEPOINTS.iter().all(|t| has(&kernel, t)));
        assert!(!has(&kernel, "xdp_redirect_map_err"));
    }
}
