//! The real kernel behind [`super::seam::Kernel`]: generations from [`crate::plane`], links and maps pinned under
//! /sys/fs/bpf/INSTANCE.
//!
//! | pin | is |
//! |---|---|
//! | `link-PORT` | the attachment of a port: forwarding survives the daemon by it |
//! | `control`, `counters`, `charges` | of the generation in charge: its deadline and what it counted |

use super::{
    instance::Instance,
    refusal,
    seam::{Device, FastPath, Kernel},
};
use crate::plane::{Counters, Grace, MappedMemory, Mode, Plane, PortLink, Settings, Step, TestRun};
use anyhow::{Context, Result};
use logic::plan::PortId;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Where pins live.
pub const BPFFS: &str = "/sys/fs/bpf";
const LINK: &str = "link-";

/// Programs, links and pins of one instance.
pub struct Bpf {
    directory: PathBuf,
    generic_allowed: bool,
    links: BTreeMap<String, PortLink>,
    /// Why native mode was refused.
    refusals: BTreeMap<String, String>,
}

impl Bpf {
    /// Nothing is opened or changed yet. `generic_allowed`: fall back to generic mode where native XDP is refused.
    pub fn new(instance: &Instance, generic_allowed: bool) -> Self {
        Self {
            directory: Path::new(BPFFS).join(instance.label()),
            generic_allowed,
            links: BTreeMap::new(),
            refusals: BTreeMap::new(),
        }
    }

    /// Names of the ports whose links are pinned, whether a daemon runs or not.
    pub fn pinned_ports(&self) -> Vec<String> {
        let Ok(files) = fs::read_dir(&self.directory) else { return Vec::new() };
        let names = files.flatten().map(|f| f.file_name().to_string_lossy().into_owned());
        let mut ports: Vec<_> = names.filter_map(|n| n.strip_prefix(LINK).map(String::from)).collect();
        ports.sort();
        ports
    }

    /// Opens what an earlier daemon of this instance pinned. A pin whose device is gone, or in another namespace now, holds
    /// nothing of use and is removed; with the last reference to it the program leaves the device.
    pub fn adopt(&mut self) -> Result<()> {
        for port in self.pinned_ports() {
            let path = self.pin_of(&port);
            match PortLink::open(&path) {
                Ok(Some(link)) => drop(self.links.insert(port, link)),
                other => {
                    let why = other.err().map_or("its device is gone".into(), |e| format!("{e:#}"));
                    tracing::warn!("letting go of port {port}: {why}");
                    fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
                }
            }
        }
        Ok(())
    }

    fn pin_of(&self, port: &str) -> PathBuf {
        self.directory.join(format!("{LINK}{port}"))
    }

    fn attach_one(&mut self, plane: &Plane, device: &Device) -> Result<PortLink> {
        self.refusals.remove(&device.name);
        let attach = |mode| PortLink::attach(plane.program(), device.ifindex, mode);
        let native = match attach(Mode::Native).map_err(|e| refusal::explained(e, device, Mode::Native)) {
            Err(native) if self.generic_allowed => format!("{native:#}"),
            other => return other,
        };
        let link = attach(Mode::Generic).map_err(|generic| {
            refusal::explained(generic, device, Mode::Generic).context(format!("after {native}"))
        })?;
        tracing::warn!("port {}: falling back to generic mode: {native}", device.name);
        self.refusals.insert(device.name.clone(), native);
        Ok(link)
    }

    /// A link that can take the new program by being swapped.
    fn is_linked(&self, device: &Device) -> bool {
        self.links.get(&device.name).is_some_and(|l| l.ifindex() == device.ifindex)
    }

    fn detach_port(&mut self, port: &str) {
        if let Some(link) = self.links.remove(port) {
            // The device may be gone already, and the link with it.
            let _ = link.detach();
        }
        let _ = fs::remove_file(self.pin_of(port));
    }
}

/// Mounts the BPF file system where it is missing, as on a fresh Debian without systemd.
pub fn ensure_bpffs() -> Result<()> {
    const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
    let mounted = rustix::fs::statfs(BPFFS).is_ok_and(|s| s.f_type as u64 == BPF_FS_MAGIC);
    if mounted {
        return Ok(());
    }
    let mounts = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    if mounts("self") != mounts("1") {
        tracing::warn!(
            "no BPF file system in this mount namespace, which is not the machine's (`ip netns exec` makes one): mounting one \
             that ends with it, so forwarding will not outlive this process; start with `nsenter --net=FILE` instead"
        );
    }
    rustix::mount::mount("bpf", BPFFS, "bpf", rustix::mount::MountFlags::empty(), None)
        .with_context(|| format!("mounting the BPF file system at {BPFFS}"))
}

impl Kernel for Bpf {
    type Plane = Plane;

    fn load(&mut self, settings: Settings) -> Result<Plane> {
        Plane::load(settings)
    }

    fn attach(&mut self, plane: &Plane, devices: &[Device]) -> Result<Vec<Mode>, (usize, anyhow::Error)> {
        let mut new = BTreeMap::new();
        let linked: Vec<bool> = devices.iter().map(|d| self.is_linked(d)).collect();
        for (i, device) in devices.iter().enumerate().filter(|(i, _)| !linked[*i]) {
            // On an error the links attached so far are dropped, and with them, unpinned, the attachment.
            new.insert(device.name.clone(), self.attach_one(plane, device).map_err(|e| (i, e))?);
        }
        for (i, device) in devices.iter().enumerate().filter(|(_, d)| self.is_linked(d)) {
            self.links[&device.name].replace(plane.program()).map_err(|e| (i, e))?;
        }
        let stale: Vec<_> =
            self.links.keys().filter(|p| !devices.iter().any(|d| d.name == **p)).cloned().collect();
        stale.iter().for_each(|port| self.detach_port(port));
        for (port, link) in new {
            let i = devices.iter().position(|d| d.name == port).unwrap_or(0);
            let _ = fs::remove_file(self.pin_of(&port));
            fs::create_dir_all(&self.directory)
                .context("creating the directory of pins")
                .and_then(|()| link.pin(&self.pin_of(&port)))
                .map_err(|e| (i, e))?;
            self.links.insert(port, link);
        }
        Ok(devices.iter().map(|d| self.links[&d.name].mode()).collect())
    }

    fn note(&self, port: &str) -> Option<String> {
        let generic = self.links.get(port).is_some_and(|link| link.mode() == Mode::Generic);
        generic.then(|| {
            let why = self.refusals.get(port).map_or(String::new(), |why| format!("; native mode: {why}"));
            format!("generic mode: correct, but several times slower{why}")
        })
    }

    fn publish(&mut self, plane: &mut Plane) -> Result<()> {
        fs::create_dir_all(&self.directory).context("creating the directory of pins")?;
        plane.pin(&self.directory)
    }

    fn previous(&mut self) -> Option<Counters> {
        Counters::pinned(&self.directory)
    }

    fn remove(&mut self) -> Result<Vec<String>> {
        let mut done = Vec::new();
        let ports = self.pinned_ports();
        self.adopt()?;
        for port in ports {
            self.detach_port(&port);
            done.push(format!("port {port}: program taken off, the kernel forwards"));
        }
        match fs::remove_dir_all(&self.directory) {
            Ok(()) => done.push(format!("removed {}", self.directory.display())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e).with_context(|| format!("removing {}", self.directory.display())),
        }
        Ok(done)
    }

    fn grace(&mut self) -> Result<Box<dyn FnMut() -> Result<()> + Send>> {
        let grace = Grace::new()?;
        Ok(Box::new(move || grace.wait()))
    }

    fn now(&self) -> Duration {
        monotonic()
    }
}

/// CLOCK_MONOTONIC.
pub fn monotonic() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(t.tv_sec.try_into().unwrap_or(0), t.tv_nsec.try_into().unwrap_or(0))
}

impl FastPath for Plane {
    type Memory = Arc<MappedMemory>;
    fn memory(&self) -> Arc<MappedMemory> {
        Plane::memory(self)
    }
    fn set_port(&self, port: PortId, ifindex: u32, ready: bool, transmit: bool) -> Result<()> {
        Plane::set_port(self, port, ifindex, ready, transmit)
    }
    fn clear_port(&self, port: PortId, ifindex: u32) -> Result<()> {
        Plane::clear_port(self, port, ifindex)
    }
    fn confirm_until(&self, deadline: Duration) {
        if let Err(error) = Plane::confirm_until(self, deadline) {
            tracing::error!("the heartbeat could not be set, and is tried again: {error:#}");
        }
    }
    fn counters(&self) -> Result<Counters> {
        Plane::counters(self)
    }
    fn explain(&self, ifindex: u32, frame: &[u8]) -> Result<(TestRun, Vec<Step>)> {
        Plane::explain(self, ifindex, frame)
    }
}

impl Bpf {
    /// Until when (CLOCK_MONOTONIC) the generation in charge forwards without being confirmed again.
    pub fn deadline(&self) -> Option<Duration> {
        use libbpf_rs::{MapCore, MapFlags, MapHandle};
        let control = MapHandle::from_pinned_path(self.directory.join("control")).ok()?;
        // `struct control` of bpf/abi.h begins with deadline_ns.
        let value = control.lookup(&[0; 4], MapFlags::ANY).ok()??;
        Some(Duration::from_nanos(u64::from_ne_bytes(value.get(..8)?.try_into().ok()?)))
    }
}
