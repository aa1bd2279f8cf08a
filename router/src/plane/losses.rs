//! Counts packets that are lost after the redirect (`bpf/losses.h`), with programs at tracepoints. They are
//! attached with a generation and, like its links to ports, pinned, so that counting outlives the daemon.

use super::{Mapping, Words64, replace_pin};
use crate::abi::{self, types};
use anyhow::{Context, Result};
use libbpf_rs::{Link, MapCore, MapHandle};
use std::{os::fd::AsFd, path::Path};

/// The word of `struct control` that says whether this generation counts.
const COUNTS_LOSSES: usize = std::mem::offset_of!(types::control, counts_losses) / 8;

/// The tracepoints of the running kernel that report losses, each with the link of its program.
pub(super) struct Losses {
    links: Vec<(&'static str, Link)>,
    /// The losses that cannot be counted, as sentences.
    pub conditions: Vec<String>,
}

/// Tracepoints, in the order of the programs in [`Losses::attach`].
pub(super) const TRACEPOINTS: [&str; 5] =
    ["xdp_devmap_xmit", "xdp_redirect_err", "xdp_exception", "xdp_cpumap_enqueue", "xdp_cpumap_kthread"];

/// Sets the daemon's namespace in the programs at tracepoints, which see packets of all namespaces.
pub(super) fn look_from_here(open: &mut abi::OpenMillraceSkel<'_>) -> Result<()> {
    let own =
        std::fs::metadata("/proc/thread-self/ns/net").context("looking at the own network namespace")?;
    let constants = open.maps.rodata_data.as_deref_mut().context("the kernel plane has no constants")?;
    constants.netns_inode = u32::try_from(std::os::unix::fs::MetadataExt::ino(&own))?;
    Ok(())
}

impl Losses {
    /// Attaches the loaded programs; nothing is counted yet. Reports programs that the kernel does not attach:
    /// forwarding works without them.
    pub fn attach(skel: &abi::MillraceSkel<'_>) -> Losses {
        let progs = &skel.progs;
        let programs = [
            &progs.lost_on_transmit,
            &progs.lost_on_redirect,
            &progs.lost_in_generic_mode,
            &progs.lost_on_hand_over,
            &progs.done_on_core,
        ];
        let mut losses = Losses { links: Vec::new(), conditions: Vec::new() };
        for (program, tracepoint) in programs.into_iter().zip(TRACEPOINTS) {
            let attached = if program.autoload() {
                program.attach_trace().map_err(|e| e.to_string())
            } else {
                Err("this kernel has no such tracepoint".into())
            };
            match attached {
                Ok(link) => losses.links.push((tracepoint, link)),
                Err(why) => {
                    let condition =
                        format!("packets lost after the redirect cannot be counted by {tracepoint}: {why}");
                    losses.conditions.push(condition);
                }
            }
        }
        losses
    }

    /// Do these programs see when packets on other cores are done, or lost?
    pub fn counts_handed(&self) -> bool {
        let listens = |tracepoint: &&str| self.links.iter().any(|(known, _)| known == tracepoint);
        ["xdp_redirect_err", "xdp_cpumap_enqueue", "xdp_cpumap_kthread"].iter().all(listens)
    }

    /// Pins the links, so that counting outlives this process. May be repeated.
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
    // No system call (an unmapping) comes between the two stores, because nobody counts packets that are lost
    // meanwhile.
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
