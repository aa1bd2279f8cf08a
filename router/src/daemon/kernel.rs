//! The real kernel behind [`super::seam::Kernel`]: generations from [`crate::plane`], links and maps pinned under
//! /sys/fs/bpf/INSTANCE.
//!
//! | pin | is |
//! |---|---|
//! | `link-PORT` | the attachment of a port; through it, forwarding survives the daemon |
//! | `control` | the deadline of the generation in charge |
//! | `counters-N`, `charges-N` | the counters of generation N |
//! | `policy-*` | the programs that see changes of policy |
//! | `losses-TRACEPOINT` | the programs that count packets lost after the redirect |

use super::{
    connections::consent,
    refusal,
    seam::{FastPath, Kernel},
};
use crate::{
    base::{clock::monotonic, guard::check_directory, instance::Instance},
    config::Config,
    cores::polled::PolledPorts,
    firewall::FastConnections,
    linux::{
        classifier::{Classifier, Ntuple},
        ethtool::Ethtool,
        observer::Waker,
    },
    plane::{
        Counters, FlowMaps, Grace, Heart, MappedMemory, Mode, Plane, PortLink, Settings, SharesInCharge,
        SplitSeat, Step, TestRun,
        capture::CaptureMaps,
        connections::DEFAULT_PAIRS,
        policy::{PlaneMaps, Policy},
        replace_pin,
    },
    user_plane::{running::UserPlane, sas::RunningSas, seam::Device, workers::Epochs},
};
use anyhow::{Context, Result};
use libbpf_rs::{Link, MapHandle};
use logic::plan::{PortId, RouterId};
use rustix::mount::{MountFlags, UnmountFlags};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Where pins are.
pub const BPFFS: &str = "/sys/fs/bpf";
const LINK: &str = "link-";
/// Pins whose names end with the number of a generation.
const COUNTED: [&str; 2] = ["counters", "charges"];
/// How long a grace period waits for workers. A run of a worker takes a fraction of a millisecond. If this time is
/// exceeded, no space is reused, and a later grace period waits again.
const LONGEST_RUN: Duration = Duration::from_secs(5);
/// The source of the mount at [`BPFFS`] if Millrace mounted it.
const MOUNT: &str = "millrace";

/// Programs, links and pins of one instance.
pub struct Bpf {
    directory: PathBuf,
    generic_allowed: bool,
    links: BTreeMap<String, PortLink>,
    /// Why native mode was refused.
    refusals: BTreeMap<String, String>,
    shares: SharesInCharge,
    /// Where the thread that splits queues finds the tables in charge.
    seat: SplitSeat,
    /// The epochs of workers, if there are any.
    epochs: Epochs,
    /// The SAs of paths.
    sas: RunningSas,
    /// The ports that workers poll.
    polled: PolledPorts,
    /// Ends the loop's wait after a change of policy; `None`: nothing is watched.
    waker: Option<Waker>,
    /// Nothing is forwarded without this process.
    needs_daemon: bool,
    /// The most connections that may bypass firewall rules.
    connections: usize,
    /// The maps of [`Policy`].
    watched: Option<PlaneMaps>,
    /// The links of [`Policy`], to be pinned with the first generation.
    policy_links: Vec<(&'static str, Link)>,
}

impl Bpf {
    /// Opens and changes nothing yet. `generic_allowed`: fall back to generic mode where native XDP is refused.
    pub fn new(instance: &Instance, generic_allowed: bool) -> Self {
        Self {
            directory: Path::new(BPFFS).join(instance.label()),
            generic_allowed,
            links: BTreeMap::new(),
            refusals: BTreeMap::new(),
            shares: SharesInCharge::default(),
            seat: SplitSeat::default(),
            epochs: Epochs::default(),
            sas: RunningSas::default(),
            polled: PolledPorts::default(),
            waker: None,
            needs_daemon: false,
            connections: DEFAULT_PAIRS,
            watched: None,
            policy_links: Vec::new(),
        }
    }

    /// Sets the SAs of the paths that it runs.
    pub fn with_sas(self, sas: RunningSas) -> Self {
        Self { sas, ..self }
    }

    /// Sets the most connections that may bypass firewall rules; 0: all stay with Linux.
    pub fn with_connections(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    /// Sets where workers note which ports they poll.
    pub fn with_polled(self, polled: PolledPorts) -> Self {
        Self { polled, ..self }
    }

    /// Makes it watch changes of policy, and wake the loop after each. `needs_daemon`: nothing is forwarded without
    /// this process.
    pub fn with_waker(self, waker: Waker, needs_daemon: bool) -> Self {
        Self { waker: Some(waker), needs_daemon, ..self }
    }

    /// The shares of the generation in charge.
    pub fn shares(&self) -> SharesInCharge {
        self.shares.clone()
    }

    /// Where the thread that splits queues finds the tables in charge.
    pub fn seat(&self) -> SplitSeat {
        self.seat.clone()
    }

    /// Names of the ports whose links are pinned, whether a daemon runs or not.
    pub fn pinned_ports(&self) -> Vec<String> {
        let Some(Ok(files)) = self.pins().map(fs::read_dir) else { return Vec::new() };
        let names = files.flatten().map(|f| f.file_name().to_string_lossy().into_owned());
        let mut ports: Vec<_> = names.filter_map(|n| n.strip_prefix(LINK).map(unescaped)).collect();
        ports.sort();
        ports
    }

    /// The modes of the ports whose links are pinned.
    pub fn pinned_modes(&self) -> BTreeMap<String, Mode> {
        let mode = |port: String| Some((PortLink::open(&self.pin_of(&port)).ok()??.mode(), port));
        let all = self.pinned_ports().into_iter().filter_map(mode);
        all.map(|(mode, port)| (port, mode)).collect()
    }

    /// Opens the links that an earlier daemon of this instance pinned. Removes pins whose device is gone or is in
    /// another namespace now. The program leaves the device with the last reference to the link.
    pub fn adopt(&mut self) -> Result<()> {
        for port in self.pinned_ports() {
            let path = self.pin_of(&port);
            match PortLink::open(&path) {
                Ok(Some(link)) => drop(self.links.insert(port, link)),
                other => {
                    let why = other.err().map_or("its device is gone".into(), |e| format!("{e:#}"));
                    tracing::warn!("removing the old attachment of port {port}: {why}");
                    fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
                }
            }
        }
        Ok(())
    }

    /// The directory of pins, if it exists and no other user can have pinned anything in it.
    fn pins(&self) -> Option<&Path> {
        check_directory(&self.directory).is_ok().then_some(&*self.directory)
    }

    /// Creates the directory of pins if it is missing. Fails if another user has created it or can write to it.
    fn make_pins(&self) -> Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                Err(e).with_context(|| format!("creating the directory of pins {}", self.directory.display()))
            }
            _ => check_directory(&self.directory).with_context(|| {
                format!(
                    "{} is not used: others may have put something there; `millrace stop` removes it",
                    self.directory.display()
                )
            }),
        }
    }

    fn pin_of(&self, port: &str) -> PathBuf {
        self.directory.join(format!("{LINK}{}", escaped(port)))
    }

    fn pin(&self, link: &PortLink, port: &str) -> Result<()> {
        self.make_pins()?;
        let path = self.pin_of(port);
        let _ = fs::remove_file(&path);
        link.pin(&path)
    }

    fn attach_one(&mut self, plane: &Plane, device: &Device) -> Result<PortLink> {
        self.refusals.remove(&device.name);
        let attach = |mode| PortLink::attach(plane.program(), device.ifindex, mode);
        let allowed = self.generic_allowed;
        let explained = |e, mode| refusal::explained(e, device, mode, allowed);
        let native = match attach(Mode::Native).map_err(|e| explained(e, Mode::Native)) {
            Err(native) if allowed => format!("{native:#}"),
            other => return other,
        };
        let link = attach(Mode::Generic)
            .map_err(|generic| explained(generic, Mode::Generic).context(format!("after {native}")))?;
        tracing::warn!("port {}: falling back to generic mode: {native}", device.name);
        self.refusals.insert(device.name.clone(), native);
        Ok(link)
    }

    /// Attaches the program to the devices that have no link, and pins the links. They are put into `new`, also those
    /// made before an error.
    fn attach_new(
        &mut self,
        plane: &Plane,
        devices: &[Device],
        new: &mut BTreeMap<String, PortLink>,
    ) -> Result<(), (usize, anyhow::Error)> {
        for (i, device) in devices.iter().enumerate() {
            if self.link(device).is_some() {
                continue;
            }
            let link = self.attach_one(plane, device).map_err(|e| (i, e))?;
            let pinned = self.pin(&link, &device.name);
            new.insert(device.name.clone(), link);
            pinned.map_err(|e| (i, e))?;
        }
        Ok(())
    }

    /// Gives the program to the existing links. After an error they have their old programs again.
    fn replace(&self, plane: &Plane, devices: &[Device]) -> Result<(), (usize, anyhow::Error)> {
        let kept = devices.iter().enumerate().filter_map(|(i, d)| Some((i, self.link(d)?)));
        let mut replaced = Vec::new();
        for (i, link) in kept {
            let old = link.program().map_err(|e| (i, e))?;
            if let Err(error) = link.replace(plane.program()) {
                let undo = |(link, old): (&PortLink, OwnedFd)| link.replace(old.as_fd());
                return Err(match replaced.into_iter().try_for_each(undo) {
                    Ok(()) => (i, error),
                    Err(e) => (i, error.context(format!("not undone: {e:#}"))),
                });
            }
            replaced.push((link, old));
        }
        Ok(())
    }

    /// A device that was renamed and is a port by its new name keeps its program.
    fn follow_names(&mut self, devices: &[Device]) {
        for device in devices {
            let is_it = |(name, link): &(&String, &PortLink)| {
                **name != device.name && link.ifindex() == device.ifindex
            };
            let Some(old) = self.links.iter().find(is_it).map(|(name, _)| name.clone()) else { continue };
            // If its pin fails, the link is dropped, and the device is attached again.
            let Some(link) = self.links.remove(&old) else { continue };
            let _ = fs::remove_file(self.pin_of(&old));
            if self.pin(&link, &device.name).is_ok() {
                self.links.insert(device.name.clone(), link);
            }
        }
    }

    /// The link that can take a new program for the device.
    fn link(&self, device: &Device) -> Option<&PortLink> {
        self.links.get(&device.name).filter(|l| l.ifindex() == device.ifindex)
    }

    fn detach_port(&mut self, port: &str) {
        if let Some(link) = self.links.remove(port) {
            // The device may be gone already, and the link with it.
            let _ = link.detach();
        }
        let _ = fs::remove_file(self.pin_of(port));
    }
}

/// bpffs refuses names with a dot, and devices like eth1.5 have one.
fn escaped(port: &str) -> String {
    port.replace('%', "%25").replace('.', "%2e")
}

fn unescaped(port: &str) -> String {
    port.replace("%2e", ".").replace("%25", "%")
}

/// Mounts the BPF file system where it is missing, as on a fresh Debian without systemd. While the returned file is
/// open, nobody can unmount it.
pub fn ensure_bpffs() -> Result<File> {
    const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
    let open = || File::open(BPFFS).with_context(|| format!("opening {BPFFS}"));
    let directory = open()?;
    if rustix::fs::fstatfs(&directory).is_ok_and(|s| s.f_type as u64 == BPF_FS_MAGIC) {
        return Ok(directory);
    }
    let mounts = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    if mounts("self") != mounts("1") {
        tracing::warn!(
            "this mount namespace has no BPF file system, and is not the machine's (`ip netns exec` creates one): Millrace \
             mounts one that ends with it, so forwarding ends with this process; start with `nsenter --net=FILE` instead"
        );
    }
    // Without a mode, every user could create directories and pins there.
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount(MOUNT, BPFFS, "bpf", flags, Some(c"mode=0700"))
        .with_context(|| format!("mounting the BPF file system at {BPFFS}"))?;
    open()
}

/// Unmounts the file system that [`ensure_bpffs`] mounted, unless something is pinned there or a process has it open.
pub fn release_bpffs() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let last = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some(BPFFS));
    let ours = last.is_some_and(|line| line.split(' ').next() == Some(MOUNT));
    // The kernel's own files have names with a dot (maps.debug).
    let is_pin = |file: io::Result<fs::DirEntry>| {
        file.is_ok_and(|file| !file.file_name().as_encoded_bytes().contains(&b'.'))
    };
    if ours && fs::read_dir(BPFFS).is_ok_and(|mut files| !files.any(is_pin)) {
        // This fails if the file system is in use, and it then stays.
        let _ = rustix::mount::unmount(BPFFS, UnmountFlags::empty());
    }
}

impl Kernel for Bpf {
    type Plane = Plane;

    fn load(&mut self, settings: Settings) -> Result<Plane> {
        Plane::load_watched(settings, self.watched.as_ref())
    }

    fn attach(&mut self, plane: &Plane, devices: &[Device]) -> Result<(), (usize, anyhow::Error)> {
        if let Err(error) = plane.take_injected() {
            tracing::warn!(
                "packets that user space sends to NORMAL and LOCAL are lost or follow old tables: {error:#}"
            );
        }
        // This comes before its first packet. If a split queue went to one core for a moment, it would overflow.
        if let Some(before) = self.seat.get()
            && let Err(error) = plane.splits().take_over(&before)
        {
            tracing::warn!("some shared queues go to one core each for a moment: {error:#}");
        }
        self.follow_names(devices);
        let mut new = BTreeMap::new();
        let attached = self.attach_new(plane, devices, &mut new);
        if let Err(error) = attached.and_then(|()| self.replace(plane, devices)) {
            for port in new.keys() {
                let _ = fs::remove_file(self.pin_of(port));
                // An earlier device of the same name keeps its program.
                self.links.get(port).map(|old| self.pin(old, port));
            }
            // The new links detach, because they are dropped and not pinned. The directory goes if it is empty.
            let _ = fs::remove_dir(&self.directory);
            self.seat.keep();
            return Err(error);
        }
        let stale: Vec<_> =
            self.links.keys().filter(|p| !devices.iter().any(|d| d.name == **p)).cloned().collect();
        stale.iter().for_each(|port| self.detach_port(port));
        self.links.append(&mut new);
        // The directory exists now, as a link is pinned there.
        plane.count_losses(&self.directory);
        self.shares.put(Some(plane.shares().clone()));
        self.seat.set(plane.splits().clone());
        Ok(())
    }

    fn capture_maps(&mut self) -> Result<CaptureMaps> {
        CaptureMaps::new()
    }

    fn swap(&mut self, plane: &Plane, devices: &[Device]) -> Result<()> {
        self.replace(plane, devices).map_err(|(_, error)| error)
    }

    fn user_plane(&mut self, config: &Config) -> Result<UserPlane> {
        let started = UserPlane::start(config, self.sas.clone(), self.polled.clone())?;
        self.epochs = started.epochs();
        Ok(started)
    }

    fn mode(&self, device: &Device) -> Option<Mode> {
        self.link(device).map(PortLink::mode)
    }

    fn note(&self, port: &str) -> Option<String> {
        let generic = self.links.get(port).is_some_and(|link| link.mode() == Mode::Generic);
        generic.then(|| {
            let why = self.refusals.get(port).map_or(String::new(), |why| format!("; native mode: {why}"));
            format!("generic mode: correct, but several times slower{why}")
        })
    }

    fn publish(&mut self, plane: &mut Plane, generation: u64) -> Result<()> {
        self.make_pins()?;
        // The links of an earlier daemon end when their pins are replaced.
        for (name, mut link) in std::mem::take(&mut self.policy_links) {
            replace_pin(&self.directory.join(name), |path| link.pin(path))?;
        }
        plane.pin(&self.directory, generation)
    }

    fn previous(&mut self, generation: u64) -> Option<Counters> {
        Counters::pinned(self.pins()?, generation)
    }

    fn retire(&mut self, generation: u64) -> Result<()> {
        let kept = COUNTED.map(|name| format!("{name}-{generation}"));
        let reading = || format!("reading {}", self.directory.display());
        for file in fs::read_dir(&self.directory).with_context(reading)?.flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if COUNTED.iter().any(|counted| name.starts_with(counted)) && !kept.contains(&name) {
                fs::remove_file(file.path())
                    .with_context(|| format!("removing {}", file.path().display()))?;
            }
        }
        Ok(())
    }

    fn remove(&mut self) -> Result<Vec<String>> {
        let mut done = Vec::new();
        let ports = self.pinned_ports();
        self.adopt()?;
        for port in ports {
            self.detach_port(&port);
            done.push(format!("port {port}: program removed, the kernel forwards"));
        }
        match fs::remove_dir_all(&self.directory) {
            Ok(()) => done.push(format!("removed {}", self.directory.display())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e).with_context(|| format!("removing {}", self.directory.display())),
        }
        Ok(done)
    }

    fn grace(&mut self) -> Result<Box<dyn FnMut() -> Result<()> + Send>> {
        let (grace, epochs) = (Grace::new()?, self.epochs.clone());
        Ok(Box::new(move || {
            grace.wait()?;
            epochs.wait(LONGEST_RUN)
        }))
    }

    fn policy(&mut self) -> Result<Policy> {
        let Some(waker) = self.waker.clone() else { return Policy::blind() };
        let mut policy = Policy::start(waker, self.needs_daemon, self.connections).or_else(|error| {
            tracing::warn!("changes of policy are not seen at once, but only soon after: {error:#}");
            Policy::blind()
        })?;
        self.policy_links = policy.take_links();
        self.watched = policy.plane_maps().map(PlaneMaps::try_clone).transpose()?;
        Ok(policy)
    }

    fn connections(&mut self, config: &Config) -> Result<Option<FastConnections>> {
        let Some(consent) = consent(config.firewall.established) else { return Ok(None) };
        let Some(maps) = self.watched.as_ref().and_then(|watched| watched.connections.as_ref()) else {
            return Ok(None);
        };
        FastConnections::start(maps.try_clone()?, consent, self.grace()?).map(Some)
    }

    fn classifier(&self) -> Option<Box<dyn Classifier>> {
        classifier()
    }

    fn now(&self) -> Duration {
        monotonic()
    }
}

/// The classifiers of devices in the calling thread's namespace.
pub fn classifier() -> Option<Box<dyn Classifier>> {
    let asking = Ethtool::open().inspect_err(|e| tracing::warn!("cannot open a socket for classifiers: {e}"));
    asking.ok().map(|ethtool| Box::new(Ntuple(ethtool)) as Box<dyn Classifier>)
}

impl FastPath for Plane {
    type Memory = Arc<MappedMemory>;
    type Rules = Arc<FlowMaps>;
    type UserPlane = UserPlane;
    fn set_rules(&mut self, rules: Option<&Arc<FlowMaps>>) -> Result<()> {
        Plane::set_rules(self, rules)
    }
    fn decided(rules: &Arc<FlowMaps>) -> (u64, u64) {
        rules.cache_use()
    }
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
            tracing::error!("cannot set the heartbeat; the daemon tries again: {error:#}");
        }
    }
    fn heart(&self) -> Option<Arc<Heart>> {
        Some(Plane::heart(self).clone())
    }
    fn counters(&self) -> Result<Counters> {
        Plane::counters(self)
    }
    fn conditions(&self) -> Vec<String> {
        Plane::conditions(self).to_vec()
    }
    fn take_samples(&mut self) -> Vec<logic::steer::Sample> {
        Plane::take_samples(self)
    }
    fn follow_shares(&mut self) -> bool {
        let wanted = self.shares().wanted();
        let changes = wanted != self.is_shared();
        self.set_shared(wanted);
        changes
    }
    fn unfollow_shares(&mut self) {
        let shared = self.is_shared();
        self.set_shared(!shared);
    }
    fn set_capture(&mut self, maps: Option<&Arc<CaptureMaps>>) -> Result<()> {
        Plane::set_capture(self, maps)
    }
    fn set_paths(&mut self, of: &UserPlane) -> Result<()> {
        Plane::set_paths(self, of.maps())
    }
    fn follow_paths(&mut self, some: bool) -> bool {
        let changes = some != self.is_with_paths();
        self.set_with_paths(some);
        changes
    }
    fn set_routers(
        &self,
        weights: &BTreeMap<RouterId, u16>,
        present: &BTreeSet<(PortId, RouterId)>,
        host: Option<RouterId>,
    ) {
        self.shares().set_routers(weights, present);
        self.shares().set_host(host);
    }
    fn taken_of_cores(&self, router: RouterId) -> Option<f64> {
        self.shares().taken_of_cores(router).map(|thousandths| f64::from(thousandths) / 1000.0)
    }
    fn explain(&self, ifindex: u32, frame: &[u8]) -> Result<(TestRun, Vec<Step>)> {
        Plane::explain(self, ifindex, frame)
    }
}

impl Bpf {
    /// The time (CLOCK_MONOTONIC) until which the generation in charge forwards without another confirmation.
    pub fn deadline(&self) -> Option<Duration> {
        use libbpf_rs::{MapCore, MapFlags};
        let control = MapHandle::from_pinned_path(self.pins()?.join("control")).ok()?;
        // `struct control` of bpf/abi.h begins with deadline_ns.
        let value = control.lookup(&[0; 4], MapFlags::ANY).ok()??;
        Some(Duration::from_nanos(u64::from_ne_bytes(value.get(..8)?.try_into().ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};

    /// Runs the test in a new mount namespace without a BPF file system.
    fn alone(test: impl FnOnce() + Send) {
        let task = || {
            // SAFETY: moves only this thread, which ends here, into a new mount namespace.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0, "{}", io::Error::last_os_error());
            let flags =
                rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
            rustix::mount::mount_change("/", flags).unwrap();
            while rustix::mount::unmount(BPFFS, UnmountFlags::DETACH).is_ok() {}
            test();
        };
        std::thread::scope(|scope| scope.spawn(task).join().unwrap());
    }

    fn instance() -> Instance {
        Instance::new(Some(format!("pins-{}", std::process::id()).parse().unwrap()))
    }

    #[test]
    #[ignore = "needs root"]
    fn only_root_may_use_a_mount_of_ours() {
        alone(|| {
            let _held = ensure_bpffs().unwrap();
            assert_eq!(fs::metadata(BPFFS).unwrap().permissions().mode() & 0o777, 0o700);
            let bpf = Bpf::new(&instance(), false);
            bpf.make_pins().unwrap();
            assert_eq!(fs::metadata(&bpf.directory).unwrap().permissions().mode() & 0o7777, 0o700);
            bpf.make_pins().expect("may be repeated");
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_directory_that_another_user_has_made_is_not_used() {
        alone(|| {
            // With these options, every user may create directories.
            rustix::mount::mount("bpf", BPFFS, "bpf", MountFlags::empty(), None).unwrap();
            let mut bpf = Bpf::new(&instance(), false);
            let made = std::process::Command::new("mkdir").arg(&bpf.directory).uid(65534).gid(65534).status();
            assert!(made.unwrap().success());
            fs::create_dir(bpf.directory.join("link-eth1")).unwrap();
            assert_eq!(bpf.pinned_ports(), Vec::<String>::new());
            bpf.adopt().unwrap();
            let error = format!("{:#}", bpf.make_pins().unwrap_err());
            assert!(error.contains("belongs to user 65534") && error.contains("millrace stop"), "{error}");
            bpf.remove().unwrap();
            assert!(!bpf.directory.exists());
            bpf.make_pins().unwrap();
        });
    }
}
