//! `millrace run` and `millrace stop` around the loop: checks, lock, privileges, threads, the `ready` line.

use super::{
    Control, Ended,
    api::{self, Files, Query, ReadConfig, Reloader, Requests, Served, Sockets, Sources},
    kernel::{self, Bpf},
    listening::{Listening, Pending},
    metrics,
    seam::{Beside, Kernel, Observe},
    steering,
    web::WebPage,
    world::PortState,
};
use crate::{
    base::{
        PortName,
        clock::monotonic,
        conditions::Conditions,
        instance::{Instance, Lock},
        privileges, systemd,
    },
    capture::Captures,
    config::{Changes, Config, ElementSettings, Established, PlacementPolicy, ports::NumberedPorts},
    cores::{self, polled::PolledPorts, running::Cores},
    linux::{multipath::MultipathKeys, observer::Waker, spreading},
    switch,
    user_plane::sas::{self, RunningSas},
};
use anyhow::{Context, Error, Result, bail};
use logic::cause::joined;
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};
use tokio::{
    runtime::{self, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};

/// Runs the daemon until it is stopped or gets a signal.
pub fn run<O: Observe>(
    config: Config,
    read: ReadConfig,
    instance: Instance,
    observer: impl FnOnce(&Config, MultipathKeys) -> Result<(O, Waker)>,
) -> Result<()> {
    // Without a handler, SIGHUP would end the process.
    let signals = Signals::catch()?;
    privileges::check_kernel()?;
    check(&config)?;
    let lock = Lock::take(&instance)?;
    let ended = run_alone(config, read, &instance, &lock, signals, observer);
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

/// Checks what a configuration needs, at the start and when it changes: its list of ports, and capabilities.
pub(super) fn check(config: &Config) -> Result<()> {
    check_ports(config)?;
    config.api.group()?;
    let (places, paths) = (config.cores.policy != PlacementPolicy::Off, !config.paths.is_empty());
    privileges::check_capabilities(places || paths && config.workers.nice.0 < 0, paths)
}

/// Runs the daemon as the only one of its instance.
fn run_alone<O: Observe>(
    config: Config,
    read: ReadConfig,
    instance: &Instance,
    lock: &Lock,
    signals: Signals,
    observer: impl FnOnce(&Config, MultipathKeys) -> Result<(O, Waker)>,
) -> Result<Ended> {
    name_missing(&config).iter().for_each(|text| tracing::warn!("{text}"));
    let _held = kernel::ensure_bpffs()?;
    // Before Linux 6.11, reading the key needs CAP_SYSLOG, which `reduce` gives up.
    let multipath_keys = MultipathKeys::read(config.ecmp);
    // Root may give a socket to any group, but not without CAP_CHOWN.
    let read_only = lock.listen_for(config.api.group()?)?;
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
    let (switch, switch_end) = switch::start(&config, waker.clone())?;
    let (requests_to, requests) = Requests::queue(waker.clone());
    let captures = Captures::waking(waker.clone());
    let files = Files::start()?;
    let reloader = Reloader::new(requests_to.clone(), files.clone(), read);
    let is_ready = Arc::<AtomicBool>::default();
    signals.follow(requests_to.clone(), reloader.clone(), is_ready.clone())?;
    // These can fail, so they come before anything is attached. Early requests are answered when the loop begins.
    let placed = |port: &str| config.uses_rss() && config.ports.iter().any(|p| p.as_str() == port);
    let spreading = kernel::classifier().map(|classifier| steering::take_over(classifier, instance, placed));
    let conditions = Conditions::default();
    let means = cores::running::Means {
        instance: instance.clone(),
        shares: bpf.shares().waking(waker),
        seat: bpf.seat(),
        rules: switch.maps().clone(),
        spreading: spreading.clone(),
        polled,
        conditions: conditions.clone(),
    };
    let cores = Cores::start(&config, means)?;
    switch.set_machine(cores.handle());
    let metrics =
        metrics::Source::new(requests_to.clone(), switch.clone(), Some(cores.handle()), sas.clone());
    let pending = Pending::default();
    let listening = metrics::listen::start_or_wait(&config.metrics, &metrics, &pending)?;
    let of_api = Sources {
        switch: switch.clone(),
        cores: Some(cores.handle()),
        sas: sas.clone(),
        files,
        reloader,
        metrics: metrics.clone(),
        captures: captures.clone(),
    };
    let served = Served { requests: requests_to, sources: of_api };
    let web = WebPage::start(&config.web, served.clone(), &pending)?;
    api::serve(Sockets { control: lock.listen()?, read_only }, served)?;
    let started = Control::start(config, instance.clone(), bpf, observer, switch_end, spreading, conditions);
    if started.is_err() {
        finish(&sas);
    }
    let mut control = started?.with_captures(captures).with_pending(pending);
    control.follow_export();
    tracing::info!("ready: {}", control.summary());
    is_ready.store(true, Relaxed);
    systemd::notify("READY=1");
    let mut threads = Threads { switch, cores, sas: sas.clone(), metrics, listening, web };
    let ended = control.run(&requests, &mut threads);
    finish(&sas);
    let ended = ended?;
    if ended == (Ended::Left { forwarding: true }) {
        threads.cores.leave();
    }
    match ended {
        Ended::Stopped => tracing::info!("stopped: nothing of Millrace is left in the kernel"),
        Ended::Left { forwarding: false } => {
            tracing::warn!(
                "ending on a signal: no port was trusted, so the kernel forwarded everything, and still does"
            )
        }
        Ended::Left { forwarding: true } => tracing::info!(
            "ending on a signal: the fast path goes on for the heartbeat, and then the kernel forwards, unless a daemon \
             starts before; `{}` removes everything",
            instance.command("stop")
        ),
    }
    Ok(ended)
}

/// The threads that follow the configuration, besides the loop.
struct Threads {
    switch: switch::Handle,
    cores: Cores,
    sas: RunningSas,
    metrics: metrics::Source,
    /// Dropping it closes the address.
    listening: Option<Listening>,
    web: WebPage,
}

impl Beside for Threads {
    fn reload(&mut self, changes: &Changes, config: &Config, ports: &NumberedPorts) -> Result<()> {
        // Reading keys may wait for a disk.
        let sas = changes.touch(&["sa"]).then(|| self.sas.prepare(&config.sas)).transpose();
        let sas = sas.map_err(Error::msg)?;
        // The new address is listened on before the old one is closed.
        let listening =
            changes.touch(&["metrics."]).then(|| metrics::listen::start(&config.metrics, &self.metrics));
        let listening = listening.transpose()?;
        let web = changes.touch(&["web.listen"]).then(|| self.web.listen(&config.web)).transpose()?;
        // TLS files may have changed, even if no key has.
        self.switch.reload(config)?;
        if let Some(listening) = listening {
            self.listening = listening;
        }
        self.web.follow(&config.web, web);
        sas.into_iter().for_each(sas::Prepared::put_in_force);
        if changes.touch(&["ports", "cores.", "experimental."]) {
            self.cores.follow(config, ports);
        }
        Ok(())
    }
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

/// Checks that every port is given once, and that paths send only to ports.
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
    let is_port = |name: &&String| config.ports.iter().any(|port| port.as_str() == **name);
    if let Some(name) = config.openflow.proxy_ports.iter().find(|name| !is_port(name)) {
        bail!("openflow.proxy_ports: {name} is not one of the ports");
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
    Ok(())
}

/// The configured ports whose devices do not exist.
pub(super) fn missing(config: &Config) -> Vec<String> {
    let devices = devices();
    let is_missing = |port: &&PortName| !devices.iter().any(|device| device == port.as_str());
    config.ports.iter().filter(is_missing).map(ToString::to_string).collect()
}

/// Names the configured ports whose devices do not exist. The status reports them, too.
pub(super) fn name_missing(config: &Config) -> Option<String> {
    let missing = missing(config);
    (!missing.is_empty()).then(|| {
        format!(
            "these ports do not exist yet, and are used once they appear: {}; existing devices: {}",
            missing.join(", "),
            devices().join(", ")
        )
    })
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

/// The signals that the daemon handles.
struct Signals {
    runtime: Runtime,
    hang_up: Signal,
}

impl Signals {
    /// From now on SIGHUP waits for [`Signals::follow`].
    fn catch() -> Result<Signals> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let hang_up = signal(SignalKind::hangup()).context("catching SIGHUP")?;
        drop(guard);
        Ok(Signals { runtime, hang_up })
    }

    /// Turns SIGINT and SIGTERM into [`Query::Leave`]; a second one ends the process at once, which is as safe as `kill -9`.
    /// SIGHUP makes the daemon follow its configuration file.
    fn follow(self, requests: Requests, reloader: Reloader, is_ready: Arc<AtomicBool>) -> Result<()> {
        let Signals { runtime, mut hang_up } = self;
        let guard = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
        drop(guard);
        thread::Builder::new().name("signals".into()).spawn(move || {
            privileges::serve_with_nothing("signals");
            runtime.block_on(async {
                // Signals that come during a reload want one more, which reads the file after the last of them.
                let wanted = Arc::new(Notify::new());
                tokio::spawn(reloads(wanted.clone(), reloader, is_ready));
                let mut asked = false;
                loop {
                    tokio::select! {
                        _ = interrupt.recv() => {},
                        _ = terminate.recv() => {},
                        _ = hang_up.recv() => {
                            wanted.notify_one();
                            continue;
                        }
                    }
                    if asked || requests.send(Query::Leave).is_err() {
                        std::process::exit(130);
                    }
                    asked = true;
                }
            });
        })?;
        Ok(())
    }
}

/// Follows the configuration file after SIGHUP. A daemon that is still starting reports to systemd when it is ready.
async fn reloads(wanted: Arc<Notify>, reloader: Reloader, is_ready: Arc<AtomicBool>) {
    loop {
        wanted.notified().await;
        let reports = is_ready.load(Relaxed);
        if reports {
            systemd::notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic().as_micros()));
        }
        if let Err(error) = reloader.reload().await {
            tracing::error!("reload on SIGHUP: {}", error.text);
        }
        if reports {
            systemd::notify("READY=1");
        }
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// One line that says how many routers are accelerated, and how each port is attached.
    pub(super) fn summary(&self) -> String {
        let port = |p: &PortState| {
            let mode = p.mode.map_or("detached".into(), |mode| mode.to_string());
            match p.obstacles() {
                none if none.is_empty() => format!("{} ({mode})", p.name),
                list => format!("{} ({mode}, NOT TRUSTED: {})", p.name, joined(&list)),
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
    fn wrong_lists_of_ports_are_refused_and_missing_ports_are_named() {
        let check = |names: &[&str]| {
            let ports = names.iter().map(|name| name.parse().unwrap()).collect();
            check_ports(&Config { ports, ..Config::default() }).unwrap_err().to_string()
        };
        for (names, part) in
            [(&[][..], "no port is given"), (&["a", "a"], "given twice"), (&["lo"], "lo cannot be a port")]
        {
            assert!(check(names).contains(part), "{names:?}: {}", check(names));
        }
        let missing = |names: &[&str]| {
            let ports = names.iter().map(|name| name.parse().unwrap()).collect();
            name_missing(&Config { ports, ..Config::default() })
        };
        assert_eq!(missing(&["lo"]), None);
        let text = missing(&["none-such", "lo", "none"]).unwrap();
        assert!(text.contains("they appear: none-such, none; existing devices: ") && text.contains("lo"));
    }
}
