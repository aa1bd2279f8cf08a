//! What a daemon would do, without doing it: `millrace check`.
//!
//! The loop starts as always, and observes the real Linux. Only its kernel is another one: it loads the programs, which nobody
//! sees and which end with this process, and attaches and pins nothing.

use super::{
    Control,
    connections::consent,
    kernel::Bpf,
    metrics, refusal,
    seam::{Kernel, Observe},
    start, web,
};
use crate::{
    api::status::CheckReport,
    base::{conditions::Conditions, instance::Instance, privileges},
    config::Config,
    linux::{ethtool, multipath::MultipathKeys, observer::Waker},
    plane::{self, Counters, Mode, Plane, Settings},
    switch::{self, seam::SwitchEnd},
    user_plane::{running::UserPlane, seam::Device},
};
use anyhow::{Result, anyhow, bail};
use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc::channel},
    time::Duration,
};

/// Finds out whether a daemon would start with this configuration, and what it would accelerate.
pub fn check<O: Observe>(
    config: Config,
    instance: &Instance,
    open: impl FnOnce(&Config, MultipathKeys) -> Result<(O, Waker)>,
) -> CheckReport {
    let mut report = CheckReport {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        missing_ports: start::missing(&config),
        untried_paths: config.paths.iter().map(|path| path.name.clone()).collect(),
        ..CheckReport::default()
    };
    if let Err(error) = start(config, instance, open, &mut report) {
        report.why_not = Some(format!("{error:#}"));
    }
    report
}

fn start<O: Observe>(
    mut config: Config,
    instance: &Instance,
    open: impl FnOnce(&Config, MultipathKeys) -> Result<(O, Waker)>,
    report: &mut CheckReport,
) -> Result<()> {
    privileges::check_kernel()?;
    start::check(&config)?;
    let multipath_keys = MultipathKeys::read(config.ecmp);
    // As the daemon: what it could not do with fewer rights fails here, too.
    privileges::reduce()?;
    switch::file::check(&config)?;
    metrics::listen::check(&config.metrics)?;
    web::check(&config.web)?;
    // Workers would take sockets of devices and cores.
    config.paths.clear();
    let (observer, _waker) = open(&config, multipath_keys)?;
    let ours = Bpf::new(instance, false).pinned_modes();
    let kernel =
        DryKernel { generic_allowed: config.generic, ours, modes: BTreeMap::new(), notes: BTreeMap::new() };
    let (_orders, ordered) = channel();
    let switch = SwitchEnd { orders: ordered, tell: Box::new(|_| ()), gauge: Arc::default(), loaded: None };
    let conditions = Conditions::default();
    let control = Control::start(config, instance.clone(), kernel, observer, switch, None, conditions)?;
    (report.ports, report.routers, report.firewall) =
        control.dry_reports().map_err(|error| anyhow!("{}", error.text))?;
    Ok(())
}

/// A kernel in which nothing changes.
struct DryKernel {
    generic_allowed: bool,
    /// Ports that run a program of this instance, with its mode, which a daemon keeps.
    ours: BTreeMap<String, Mode>,
    /// How ports would be attached.
    modes: BTreeMap<String, Mode>,
    notes: BTreeMap<String, String>,
}

impl DryKernel {
    /// How the device would be attached.
    fn look(&mut self, device: &Device) -> Result<Mode> {
        let running = plane::running_program(device.ifindex)?;
        if let Some(other) = running.filter(|_| !self.ours.contains_key(&device.name)) {
            bail!(
                "port {}: device {} already runs {other}; Millrace does not replace it",
                device.name,
                device.ifindex
            );
        }
        // A daemon keeps the mode of the program that runs.
        if let Some(mode) = self.ours.get(&device.name) {
            return Ok(*mode);
        }
        let (mode, note) = match ethtool::has_native_xdp(device.ifindex) {
            Some(true) => (Mode::Native, refusal::may_come(device)),
            Some(false) if self.generic_allowed => {
                let note =
                    "generic mode: correct, but several times slower; native mode: the driver has none";
                (Mode::Generic, Some(note.into()))
            }
            Some(false) => return Err(refusal::has_no_native_mode(device)),
            None => {
                (Mode::Native, Some("whether its driver has native XDP is not known before Linux 6.3".into()))
            }
        };
        self.notes.extend(note.map(|note| (device.name.clone(), note)));
        Ok(mode)
    }
}

impl Kernel for DryKernel {
    type Plane = Plane;

    fn is_dry(&self) -> bool {
        true
    }

    fn load(&mut self, settings: Settings) -> Result<Plane> {
        Plane::load_watched(settings, None)
    }

    fn attach(&mut self, _plane: &Plane, devices: &[Device]) -> Result<(), (usize, anyhow::Error)> {
        let mut refused = Vec::new();
        for (i, device) in devices.iter().enumerate() {
            match self.look(device) {
                Ok(mode) => drop(self.modes.insert(device.name.clone(), mode)),
                Err(error) => refused.push((i, format!("{error:#}"))),
            }
        }
        match refused.first() {
            None => Ok(()),
            Some((first, _)) => {
                let all: Vec<_> = refused.iter().map(|(_, text)| text.as_str()).collect();
                Err((*first, anyhow!("{}", all.join("; "))))
            }
        }
    }

    fn user_plane(&mut self, _config: &Config) -> Result<UserPlane> {
        bail!("no worker starts here")
    }

    fn mode(&self, device: &Device) -> Option<Mode> {
        self.modes.get(&device.name).copied()
    }

    fn note(&self, port: &str) -> Option<String> {
        self.notes.get(port).cloned()
    }

    fn publish(&mut self, _plane: &mut Plane, _generation: u64) -> Result<()> {
        Ok(())
    }

    fn previous(&mut self, _generation: u64) -> Option<Counters> {
        None
    }

    fn retire(&mut self, _generation: u64) -> Result<()> {
        Ok(())
    }

    fn remove(&mut self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn grace(&mut self) -> Result<Box<dyn FnMut() -> Result<()> + Send>> {
        Ok(Box::new(|| Ok(())))
    }

    fn admits_connections(&self, config: &Config) -> bool {
        consent(config.firewall.established).is_some()
    }

    fn now(&self) -> Duration {
        crate::base::clock::monotonic()
    }
}
