//! Reports to systemd how the daemon is (sd_notify(3)). Without systemd, nothing is sent.
//!
//! No report waits for systemd, and so the heartbeat does not either. The crate sd-notify has no way to do this: if systemd
//! hangs, its `notify` waits.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// The last report could not be sent. Only the first of several failures is logged.
static FAILS: AtomicBool = AtomicBool::new(false);

/// Reports a state: lines such as `READY=1`.
pub fn notify(state: &str) {
    let sent = send(state);
    let failed = FAILS.swap(sent.is_err(), Relaxed);
    if let Err(error) = sent.or_else(|error| if failed { Ok(()) } else { Err(error) }) {
        tracing::warn!("cannot report {:?} to systemd: {error}", state.lines().next().unwrap_or_default());
    }
}

fn send(state: &str) -> io::Result<()> {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let name = name.to_string_lossy().into_owned();
    let address = match name.strip_prefix('@') {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

/// How often the daemon must report that it works (`WatchdogSec=` of its unit); `None`: it need not.
pub fn watchdog() -> Option<Duration> {
    let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
    // The variables are for another process if they have its id.
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|us| is_ours && *us > 0).map(Duration::from_micros)
}
