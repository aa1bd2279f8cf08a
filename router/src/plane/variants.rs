//! The programs of `bpf/millrace.bpf.c` that each load of it has. A program that is not attached would still cost the
//! verifier's time and the memory of its maps.

use super::{capture, flow_maps, paths};
use crate::abi;
use anyhow::{Context, Result};
use libbpf_rs::btf::{Btf, types::Typedef};

/// The purpose of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// Routing tables of one generation, with shares and without.
    Routing,
    /// The same tables, with the classes of paths.
    Paths,
    /// The same tables, with flow rules.
    Rules,
    /// The same tables, with flow rules and the classes of paths.
    RulesAndPaths,
    /// The same as the four above, with captures.
    RoutingCapture,
    PathsCapture,
    RulesCapture,
    RulesAndPathsCapture,
    /// The copy that explains packets.
    Explaining,
    /// Maps of flow rules, which outlive generations.
    RuleMaps,
    /// Maps of paths, which outlive generations.
    PathMaps,
}

impl Variant {
    /// The programs of a load. A program at a tracepoint (`tp_btf/...`) is left out if the kernel lacks the tracepoint.
    pub const fn programs(self) -> &'static [&'static str] {
        match self {
            Variant::Routing => &[
                "millrace",
                "millrace_shared",
                "millrace_core",
                "millrace_clock",
                "lost_on_transmit",
                "lost_on_redirect",
                "lost_in_generic_mode",
                "lost_on_hand_over",
                "done_on_core",
                "share_queues",
            ],
            Variant::Paths => &["millrace_paths"],
            // Frames of user space go through `millrace`.
            Variant::Rules => &["millrace", "millrace_flow", "millrace_flow_core", "millrace_pass"],
            Variant::RulesAndPaths => {
                &["millrace", "millrace_flow_paths", "millrace_flow_core", "millrace_pass"]
            }
            Variant::RoutingCapture => &["millrace_capture"],
            Variant::PathsCapture => &["millrace_paths_capture"],
            Variant::RulesCapture => &["millrace_flow_capture"],
            Variant::RulesAndPathsCapture => &["millrace_flow_paths_capture"],
            Variant::Explaining => &["millrace_explain"],
            Variant::RuleMaps => &[],
            Variant::PathMaps => &["lost_to_path"],
        }
    }

    /// Selects these programs, and leaves out all others and their maps.
    ///
    /// # Errors
    /// The kernel's type information cannot be read.
    pub fn select(self, open: &mut abi::OpenMillraceSkel<'_>) -> Result<()> {
        use libbpf_rs::skel::OpenSkel as _;
        let mut kernel = None;
        for mut program in open.open_object_mut().progs_mut() {
            let is_wanted = self.programs().iter().any(|name| program.name() == *name);
            let section = program.section().to_string_lossy();
            let is_there = match section.strip_prefix("tp_btf/").filter(|_| is_wanted) {
                None => true,
                Some(tracepoint) => {
                    let kernel = match &kernel {
                        Some(kernel) => kernel,
                        None => kernel
                            .insert(Btf::from_vmlinux().context("reading the kernel's type information")?),
                    };
                    has(kernel, tracepoint)
                }
            };
            program.set_autoload(is_wanted && is_there);
        }
        self.leave_out_maps(open)
    }

    /// It has programs that follow flow rules.
    pub fn has_rules(self) -> bool {
        use Variant::{Rules, RulesAndPaths, RulesAndPathsCapture, RulesCapture};
        matches!(self, Rules | RulesAndPaths | RulesCapture | RulesAndPathsCapture)
    }

    /// It has programs that give packets to paths.
    pub fn has_paths(self) -> bool {
        use Variant::{Explaining, Paths, PathsCapture, RulesAndPaths, RulesAndPathsCapture};
        matches!(self, Paths | RulesAndPaths | Explaining | PathsCapture | RulesAndPathsCapture)
    }

    fn leave_out_maps(self, open: &mut abi::OpenMillraceSkel<'_>) -> Result<()> {
        use Variant::{PathsCapture, RoutingCapture, RulesAndPathsCapture, RulesCapture};
        let of_rules = self.has_rules() || self == Variant::RuleMaps;
        let of_paths = self.has_paths() || self == Variant::PathMaps;
        let loads_rules = self.has_rules();
        let only_maps = matches!(self, Variant::RuleMaps | Variant::PathMaps);
        if !matches!(self, RoutingCapture | PathsCapture | RulesCapture | RulesAndPathsCapture) {
            capture::leave_out(open)?;
        }
        if !of_rules {
            flow_maps::leave_out(open)?;
        }
        if !of_paths {
            paths::leave_out(open)?;
        }
        if !loads_rules {
            open.maps.rule_cores.set_autocreate(false).context("leaving out the map of cores")?;
        }
        if self != Variant::Routing {
            open.maps.helped_napis.set_autocreate(false).context("leaving out the map of helped queues")?;
        }
        if only_maps {
            open.maps.split_cores.set_autocreate(false).context("leaving out the map of cores")?;
        }
        Ok(())
    }
}

fn has(kernel: &Btf<'_>, tracepoint: &str) -> bool {
    kernel.type_by_name::<Typedef<'_>>(&format!("btf_trace_{tracepoint}")).is_some()
}

#[cfg(test)]
pub(super) const ALL: [Variant; 11] = [
    Variant::Routing,
    Variant::Paths,
    Variant::Rules,
    Variant::RulesAndPaths,
    Variant::RoutingCapture,
    Variant::PathsCapture,
    Variant::RulesCapture,
    Variant::RulesAndPathsCapture,
    Variant::Explaining,
    Variant::RuleMaps,
    Variant::PathMaps,
];

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
    use std::{collections::BTreeSet, mem::MaybeUninit};

    #[test]
    fn programs_at_tracepoints_of_this_kernel_are_loaded() {
        let Ok(kernel) = Btf::from_vmlinux() else { return };
        let mut storage = MaybeUninit::uninit();
        let mut open = abi::MillraceSkelBuilder::default().open(&mut storage).unwrap();
        for variant in [Variant::Routing, Variant::PathMaps] {
            variant.select(&mut open).unwrap();
            for program in open.open_object_mut().progs_mut() {
                let section = program.section().to_string_lossy();
                let Some(tracepoint) = section.strip_prefix("tp_btf/") else { continue };
                let wanted = variant.programs().contains(&program.name().to_str().unwrap());
                assert_eq!(program.autoload(), wanted && has(&kernel, tracepoint), "{variant:?} {section}");
            }
        }
        let at_losses = crate::plane::losses::TRACEPOINTS;
        assert!(at_losses.iter().chain(&["napi_poll"]).all(|tracepoint| has(&kernel, tracepoint)));
    }

    #[test]
    fn every_program_has_a_variant_and_every_name_is_a_program() {
        let mut storage = MaybeUninit::uninit();
        let mut open = abi::MillraceSkelBuilder::default().open(&mut storage).unwrap();
        let names =
            open.open_object_mut().progs_mut().map(|program| program.name().to_str().unwrap().to_owned());
        let programs: BTreeSet<String> = names.collect();
        let wanted = ALL.iter().flat_map(|variant| variant.programs()).map(|name| name.to_string());
        assert_eq!(wanted.collect::<BTreeSet<String>>(), programs);
        if Btf::from_vmlinux().is_err() {
            return;
        }
        for variant in ALL {
            variant.select(&mut open).unwrap();
            let loaded = open.open_object_mut().progs_mut().filter(|program| program.autoload());
            let loaded: BTreeSet<String> =
                loaded.map(|program| program.name().to_str().unwrap().into()).collect();
            assert!(
                loaded.iter().all(|name| variant.programs().contains(&name.as_str())),
                "{variant:?} {loaded:?}"
            );
            let xdp = variant.programs().iter().filter(|name| name.starts_with("millrace"));
            assert!(xdp.into_iter().all(|name| loaded.contains(*name)), "{variant:?} {loaded:?}");
        }
    }

    #[test]
    fn tracepoints_are_looked_for_in_the_kernel() {
        let Ok(kernel) = Btf::from_vmlinux() else { return };
        assert!(has(&kernel, "xdp_exception") && !has(&kernel, "no_such_tracepoint"));
    }
}
