//! `millrace run` and `millrace stop` around the loop: checks, lock, privileges, threads, the `ready` line.

use super::{
    Control, Ended,
    api::{self, Query, Requests},
    kernel::{self, Bpf},
    seam::{Kernel, Observe},
    steering,
    world::PortState,
};
use crate::{
    base::conditions::Conditions,
    base::{
        instance::{Instance, Lock},
        privileges,
    },
    config::{Config, ElementSettings, Established, PlacementPolicy},
    cores::{self, polled::PolledPorts, splitting::Splitter},
    linux::{multipath::MultipathKeys, observer::Waker, spreading},
    switch,
    user_plane::sas::RunningSas,
};
use anyhow::{Context, Result, bail};
use std::{
    fs,
    os::unix::net::{SocketAddr, UnixDatagram},
    thread,
};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
};

/// Runs the daemon until it is stopped or gets a signal.
pub fn run<O: Observe>(
    config: Config,
    instance: Instance,
    observer: impl FnOnce(&Config, MultipathKeys) -> Result<(O, Waker)>,
) -> Result<()> {
    check_ports(&config)?;
    privileges::check_kernel()?;
    let (places, paths) = (config.cores.policy != PlacementPolicy::Off, !config.paths.is_empty());
    privileges::check_capabilities(places || paths && config.workers.nice.0 < 0, paths)?;
    let lock = Lock::take(&instance)?;
    let ended = run_alone(config, &instance, &lock, observer);
    let left = Bpf::new(&instance, false).pinned_ports();
    // If forwarding goes on, its files stay, too.
    if matches!(ended, Ok(Ended::Stopped)) || left.is_empty() {
        lock.clean();
        kernel::release_bpffs();
    }
    match ended {
        Err(error) if !left.is_empty() => Err(error.context(format!(
            "the program stays attached to {} and forwards until the heartbeat expires; start again, or run `millrace \
             stop` to remove it",
            left.join(", ")
        ))),
        ended => ended.map(|_| ()),
    }
}

/// Runs the daemon as the only one of its instance.
fn run_alone<O: Observe>(
    config: Config,
    instance: &Instance,
    lock: &Lock,
    observer: impl FnOnce(&Config, MultipathKeys) -> Result<(O, Waker)>,
) -> Result<Ended> {
    let _held = kernel::ensure_bpffs()?;
    // Before Linux 6.11, reading the key needs CAP_SYSLOG, which `reduce` gives up.
    let multipath_keys = MultipathKeys::read(config.ecmp);
    privileges::reduce()?;
    let sas = RunningSas::load(&config.sas)?;
    let polled = PolledPorts::default();
    let mut bpf = Bpf::new(instance, config.generic).with_sas(sas.clone()).with_polled(polled.clone());
    bpf.adopt()?;
    let (observer, waker) = observer(&config, multipath_keys)?;
    let connections = match config.firewall.established {
        Established::Linux => 0,
        Established::Udp | Established::Fast => config.firewall.connections.0 as usize,
    };
    let bpf = bpf.with_waker(waker.clone(), config.heartbeat.0.is_zero()).with_connections(connections);
    let heartbeat_s = config.heartbeat.0.as_secs_f64();
    let (switch, switch_end) = switch::start(&config, waker.clone())?;
    let (requests_to, requests) = Requests::queue(waker.clone());
    leave_on_signal(requests_to.clone())?;
    // These can fail, so they come before anything is attached. Early requests are answered when the loop begins.
    let splitter = Splitter::new(bpf.seat(), switch.maps().clone());
    let placed = |port: &str| config.uses_rss() && config.ports.iter().any(|p| p.as_str() == port);
    let spreading = kernel::classifier().map(|classifier| steering::take_over(classifier, instance, placed));
    let shares = bpf.shares().waking(waker);
    let conditions = Conditions::default();
    let cores = cores::running::start(
        &config,
        instance,
        shares,
        splitter,
        spreading.clone(),
        polled,
        conditions.clone(),
    )?;
    switch.set_machine(cores.handle());
    api::serve(lock.listen()?, requests_to, switch, Some(cores.handle()), sas.clone())?;
    let started = Control::start(config, instance.clone(), bpf, observer, switch_end, spreading, conditions);
    if started.is_err() {
        finish(&sas);
    }
    let control = started?;
    tracing::info!("ready: {}", control.summary());
    notify_systemd();
    let ended = control.run(&requests);
    finish(&sas);
    let ended = ended?;
    if ended == (Ended::Left { forwarding: true }) {
        cores.leave();
    }
    match ended {
        Ended::Stopped => tracing::info!("stopped: nothing of Millrace is left in the kernel"),
        Ended::Left { forwarding: false } => {
            tracing::warn!(
                "ending on a signal: no port was trusted, so the kernel forwarded everything, and still does"
            )
        }
        Ended::Left { forwarding: true } => tracing::info!(
            "ending on a signal: the fast path goes on for the heartbeat of {heartbeat_s} s, and then the kernel forwards, \
             unless a daemon starts before; `{}` removes everything",
            instance.command("stop")
        ),
    }
    Ok(ended)
}

/// Writes down the last sequence numbers of SAs. The workers have ended.
fn finish(sas: &RunningSas) {
    if let Err(error) = sas.finish() {
        tracing::warn!("{error}");
    }
}

/// Removes everything that an earlier daemon left behind, and returns what it did. It may be called repeatedly.
pub fn clean_up(instance: &Instance) -> Result<Vec<String>> {
    let lock = Lock::take(instance)?;
    let mut done = Bpf::new(instance, false).remove()?;
    if let Some(classifier) = kernel::classifier() {
        done.extend(steering::clean(&*classifier, &instance.steering_file()));
        done.extend(spreading::clean(classifier, &instance.spreading_file()));
    }
    done.extend(cores::running::clean(instance));
    done.extend(lock.clean().into_iter().map(|path| format!("removed {}", path.display())));
    kernel::release_bpffs();
    Ok(done)
}

/// Checks that every configured port exists and is given once, and that paths send only to ports.
fn check_ports(config: &Config) -> Result<()> {
    if config.ports.is_empty() {
        bail!("no port is given; name at least one with --port, or `ports` in the configuration");
    }
    if config.ports.len() > crate::plane::MAX_PORTS {
        bail!("{} ports are given, {} are possible", config.ports.len(), crate::plane::MAX_PORTS);
    }
    for (i, port) in config.ports.iter().enumerate() {
        if config.ports[..i].contains(port) {
            bail!("port {port} is given twice");
        }
    }
    if config.ports.iter().any(|port| port.as_str() == "lo") {
        bail!("lo cannot be a port: only packets that this machine sends to itself arrive there");
    }
    for path in &config.paths {
        let to = path.chain.iter().filter_map(ElementSettings::port);
        if let Some(unknown) = to.into_iter().find(|to| !config.ports.contains(to)) {
            let ports: Vec<_> = config.ports.iter().map(|port| port.as_str()).collect();
            bail!(
                "path {}: it sends to port {unknown}, which is not one of the ports: {}",
                path.name,
                ports.join(", ")
            );
        }
    }
    let devices = devices();
    match config.ports.iter().find(|port| !devices.iter().any(|d| d == port.as_str())) {
        Some(missing) => {
            bail!("there is no device {:?}; there are: {}", missing.as_str(), devices.join(", "))
        }
        None => Ok(()),
    }
}

/// Devices of this process's network namespace. /sys/class/net does not help here: it shows the namespace of the
/// process that mounted it.
fn devices() -> Vec<String> {
    let table = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let names = table.lines().skip(2).filter_map(|line| line.split_once(':'));
    let mut names: Vec<_> = names.map(|(name, _)| name.trim().to_owned()).collect();
    names.sort();
    names
}

/// Turns SIGINT and SIGTERM into [`Query::Leave`]. A second signal ends the process at once, which is as safe as
/// `kill -9`.
fn leave_on_signal(requests: Requests) -> Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
    drop(guard);
    thread::Builder::new().name("signals".into()).spawn(move || {
        privileges::serve_with_nothing("signals");
        runtime.block_on(async {
            let mut asked = false;
            loop {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
                if asked || requests.send(Query::Leave).is_err() {
                    std::process::exit(130);
                }
                asked = true;
            }
        });
    })?;
    Ok(())
}

/// Reports to systemd that the service is up (sd_notify(3)). Without `NOTIFY_SOCKET` it does nothing.
fn notify_systemd() {
    use std::os::linux::net::SocketAddrExt;
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let name = name.to_string_lossy().into_owned();
    let address = match name.strip_prefix('@') {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &to));
    if let Err(error) = sent {
        tracing::warn!("cannot notify {name}: {error}");
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// One line that says how many routers are accelerated, and how each port is attached.
    pub(super) fn summary(&self) -> String {
        let port = |p: &PortState| {
            let mode = p.mode.map_or("detached".into(), |mode| mode.to_string());
            match p.obstacles() {
                none if none.is_empty() => format!("{} ({mode})", p.name),
                list => format!("{} ({mode}, NOT TRUSTED: {})", p.name, list.join("; ")),
            }
        };
        let ports = self.world.ports.values().map(port);
        let routers: Vec<_> = self.routers_and_obstacles().collect();
        let accelerated = routers.iter().filter(|r| r.ipv4.is_empty() || r.ipv6.is_empty()).count();
        format!(
            "{} of {} routers accelerated, ports {}",
            accelerated,
            routers.len(),
            ports.collect::<Vec<_>>().join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_lists_of_ports_are_refused() {
        let check = |names: &[&str]| {
            let ports = names.iter().map(|name| name.parse().unwrap()).collect();
            check_ports(&Config { ports, ..Config::default() }).unwrap_err().to_string()
        };
        for (names, part) in [
            (&[][..], "no port is given"),
            (&["a", "a"], "given twice"),
            (&["none-such"], "there are: "),
            (&["lo"], "lo cannot be a port"),
        ] {
            assert!(check(names).contains(part), "{names:?}: {}", check(names));
        }
    }
}
