//! Reports to systemd how the daemon is (sd_notify(3)). Without systemd, nothing is sent.
//!
//! No report waits for systemd, and so the heartbeat does not either. The crate sd-notify has no way to do this: if systemd
//! hangs, its `notify` waits.

use super::guard::locked;
use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::Mutex,
    time::Duration,
};

/// The last state, if systemd has not taken it.
static UNSENT: Mutex<Option<String>> = Mutex::new(None);

/// Reports a state: lines such as `READY=1`. If systemd does not take it now, [`repeat`] sends it later.
pub fn notify(state: &str) {
    let mut unsent = locked(&UNSENT);
    let sent = send(state);
    *unsent = sent.is_err().then(|| state.into());
    drop(unsent);
    if let Err(error) = sent {
        let first = state.lines().next().unwrap_or_default();
        tracing::warn!(
            "systemd does not take the report {first:?}; the daemon sends it again later: {error}"
        );
    }
}

/// Sends a state that systemd did not take. It logs nothing, because the log may wait for systemd, too.
pub fn repeat() {
    let mut unsent = locked(&UNSENT);
    if unsent.as_ref().is_some_and(|state| send(state).is_ok()) {
        *unsent = None;
    }
}

/// Reports that the daemon works. If systemd does not take this, the next report comes soon.
pub fn report_work() {
    let _ = send("WATCHDOG=1");
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
