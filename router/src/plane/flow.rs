//! The kernel plane with flow rules in front: the program `millrace_flow`, on the tables of a [`Plane`] and the
//! maps of flow rules. It is attached in place of `millrace` while there are rules. If there may be paths, it is
//! `millrace_flow_paths`.

use super::{
    Plane,
    cores::CoreMap,
    flow_maps::{self, FlowMaps, WithoutDaemon},
    inject::Injector,
    paths,
    run::TestRun,
    variants::Variant,
};
use crate::abi;
use anyhow::{Context, Result};
use libbpf_rs::{
    MapCore, MapHandle, OpenObject,
    skel::{OpenSkel, SkelBuilder},
};
use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// The program, loaded for one generation of routing tables.
pub struct FlowPlane {
    skel: abi::MillraceSkel<'static>,
    maps: Arc<FlowMaps>,
    /// Whether paths are asked before rules.
    with_paths: bool,
    /// Keeps the cores that rules name, for as long as this exists.
    _cores: Arc<CoreMap>,
}

impl FlowPlane {
    /// Loads it beside a plane, which from now on accounts for packets on other cores. It is not attached yet.
    ///
    /// # Errors
    /// The kernel refuses (the verifier's message is in the chain), or a core that rules name cannot be made ready.
    pub fn load(plane: &Plane, maps: &Arc<FlowMaps>) -> Result<FlowPlane> {
        // Leaked as in `Plane::load`.
        let storage = Box::leak(Box::new(MaybeUninit::<OpenObject>::uninit()));
        let mut open =
            abi::MillraceSkelBuilder::default().open(storage).context("opening the kernel plane")?;
        super::size(&mut open, &plane.settings, plane.cpus)?;
        super::share_with_counts(&mut open, plane)?;
        let paths = plane.path_maps();
        match paths {
            Some(paths) => {
                Variant::RulesAndPaths.select(&mut open)?;
                paths::share(&mut open, Some(paths))?;
            }
            None => Variant::Rules.select(&mut open)?,
        }
        flow_maps::share(&mut open, maps)?;
        let cores = u32::try_from(plane.cpus).context("more than 2^32 CPUs")?;
        open.maps.rule_cores.set_max_entries(cores).context("sizing the map of cores")?;
        // Frames of user space go through `millrace`, and have no queue.
        let constants = open.maps.rodata_data.as_deref_mut().context("the kernel plane has no constants")?;
        constants.splits_queues = false;
        let skel = open.load().context("loading the kernel plane for flow rules")?;
        let program = skel.progs.millrace_flow_core.as_fd().try_clone_to_owned();
        let cores = Arc::new(CoreMap {
            map: MapHandle::try_from(&skel.maps.rule_cores).context("keeping the map of cores")?,
            program: program.context("keeping the program of other cores")?,
            queues: plane.core_queues()?,
            past: maps.memory().cores().past(),
        });
        maps.memory().cores().add(&cores)?;
        let map = skel.maps.rule_cores.info().context("asking for the map of cores")?.info.id;
        plane.control.store(super::CORE_MAP, map.into());
        // Set before the first packet. [`Plane::set_rules`] updates it.
        plane.control.store(super::KEEP_DROPS, (maps.without_daemon() != WithoutDaemon::End).into());
        Ok(FlowPlane { skel, maps: maps.clone(), with_paths: paths.is_some(), _cores: cores })
    }

    /// From now on this generation's programs take the frames of user space.
    pub fn take_injected(&self) -> Result<()> {
        let programs = &self.skel.progs;
        let injector = Injector::new(programs.millrace.as_fd(), programs.millrace_pass.as_fd())?;
        self.maps.set_injector(injector);
        Ok(())
    }

    /// The map of the cores that rules name.
    pub(super) fn cores_map(&self) -> BorrowedFd<'_> {
        self.skel.maps.rule_cores.as_fd()
    }

    /// The maps of the rules that it follows.
    pub fn maps(&self) -> &Arc<FlowMaps> {
        &self.maps
    }

    /// The program, to attach.
    pub fn program(&self) -> BorrowedFd<'_> {
        let programs = &self.skel.progs;
        if self.with_paths { programs.millrace_flow_paths.as_fd() } else { programs.millrace_flow.as_fd() }
    }

    /// Runs the program on a frame as if it came in by `ifindex`. The caller must be in the device's namespace.
    pub fn run(&mut self, ifindex: u32, frame: &[u8]) -> Result<TestRun> {
        let programs = &mut self.skel.progs;
        let program =
            if self.with_paths { &mut programs.millrace_flow_paths } else { &mut programs.millrace_flow };
        super::run::run(program, ifindex, frame)
    }
}
