//! Pages over TCP: `[metrics] listen` and `[web] listen`.
//!
//! Each is a thread of its own without any capability. [`serving`](super::serving) limits the number of connections and the time of
//! each.
//!
//! Any local user can take a port, so a port that is taken at the start does not keep the daemon from starting: it is a condition,
//! and is tried again. A reload that cannot listen is refused.

use super::serving::{self, Limits, TcpPeers};
use crate::base::{
    door::{AGAIN, advice},
    guard::locked,
    privileges,
};
use anyhow::{Context, Result};
use axum::Router;
use std::{
    collections::BTreeMap,
    future,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    thread,
};
use tokio::{runtime, sync::oneshot, time::sleep};

/// A TCP address that is served, or will be. Dropping it closes the address and all of its connections.
#[derive(Debug)]
pub struct Listening {
    _ends: oneshot::Sender<()>,
    /// `None`: it was listened on at once.
    pending: Option<(Table, Pending)>,
}

/// The table of the configuration that has an address, such as `metrics`. The thread has this name, too.
pub type Table = &'static str;

/// The addresses that the daemon could not listen on when it started, and still cannot: why, and what to do.
#[derive(Clone, Debug, Default)]
pub struct Pending(Arc<Mutex<BTreeMap<Table, String>>>);

impl Pending {
    /// A sentence for each of them.
    pub fn texts(&self) -> Vec<String> {
        locked(&self.0).values().cloned().collect()
    }

    fn remove(&self, table: Table) {
        locked(&self.0).remove(table);
    }
}

impl Listening {
    /// Serves these routes at an address, in a new thread.
    ///
    /// # Errors
    /// The daemon cannot listen on the address. The error names the key.
    pub fn start(table: Table, address: SocketAddr, routes: Router, limits: Limits) -> Result<Listening> {
        Self::on(table, bind(table, address)?, routes, limits)
    }

    /// As [`Listening::start`], but if the daemon cannot listen on the address, the reason is in `pending` until it can.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start_or_wait(
        pending: &Pending,
        table: Table,
        address: SocketAddr,
        routes: Router,
        limits: Limits,
    ) -> Result<Listening> {
        let error = match bind(table, address) {
            Ok(listener) => return Self::on(table, listener, routes, limits),
            Err(error) => error,
        };
        let key = format!("{table}.listen");
        locked(&pending.0).insert(table, advice(&key, address.port(), &error));
        let waits = pending.clone();
        let listener = async move {
            loop {
                sleep(AGAIN).await;
                match bind(table, address) {
                    Ok(listener) => {
                        waits.remove(table);
                        tracing::info!("{table}.listen: now listening on {address}");
                        return listener;
                    }
                    // Dropping the `Listening` has removed the entry, so it is not inserted again.
                    Err(error) => {
                        if let Some(text) = locked(&waits.0).get_mut(table) {
                            *text = advice(&key, address.port(), &error);
                        }
                    }
                }
            }
        };
        Self::spawn(table, listener, routes, limits, Some((table, pending.clone())))
    }

    /// Serves a listener, in a new thread.
    pub fn on(table: Table, listener: TcpListener, routes: Router, limits: Limits) -> Result<Listening> {
        Self::spawn(table, future::ready(listener), routes, limits, None)
    }

    fn spawn(
        table: Table,
        listener: impl Future<Output = TcpListener> + Send + 'static,
        routes: Router,
        limits: Limits,
        pending: Option<(Table, Pending)>,
    ) -> Result<Listening> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (_ends, end) = oneshot::channel::<()>();
        let serve = async move {
            match tokio::net::TcpListener::from_std(listener.await) {
                Ok(listener) => serving::serve(TcpPeers(listener), routes, limits).await,
                Err(error) => tracing::error!("{table}.listen: {error}; forwarding goes on"),
            }
        };
        thread::Builder::new().name(table.into()).spawn(move || {
            privileges::serve_with_nothing(table);
            runtime.block_on(async {
                tokio::select! {
                    () = serve => {}
                    _ = end => {}
                }
            });
        })?;
        Ok(Listening { _ends, pending })
    }

    /// Was the address listened on at once?
    pub fn began_at_once(&self) -> bool {
        self.pending.is_none()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some((table, pending)) = &self.pending {
            pending.remove(table);
        }
    }
}

/// Checks whether this machine has the address. Another process, or a running daemon, may use the port.
///
/// # Errors
/// This machine does not have the address. The error names the key.
pub fn check(table: Table, address: SocketAddr) -> Result<()> {
    let tried = TcpListener::bind((address.ip(), 0));
    tried.map(|_| ()).with_context(|| format!("{table}.listen: cannot listen on {address}"))
}

/// A listener that does not block.
///
/// # Errors
/// As [`Listening::start`].
pub fn bind(table: Table, address: SocketAddr) -> Result<TcpListener> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("{table}.listen: cannot listen on {address}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::{
        io::{Read, Write},
        net::TcpStream,
        time::{Duration, Instant},
    };

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "not yet: {what}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait_for(pending: &Pending, address: SocketAddr) -> Listening {
        let routes = Router::new().route("/", get(|| async { "served" }));
        Listening::start_or_wait(pending, "metrics", address, routes, serving::CONTROL).unwrap()
    }

    #[test]
    fn a_taken_port_is_a_condition_until_it_is_free() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let pending = Pending::default();
        let listening = wait_for(&pending, address);
        assert!(!listening.began_at_once());
        let texts = pending.texts();
        let [text] = &texts[..] else { panic!("{pending:?}") };
        for part in [
            format!("metrics.listen: cannot listen on {address}: Address already in use"),
            format!("`ss -ltnp 'sport = :{}'`", address.port()),
            "change metrics.listen and reload; the daemon tries again every 3 s".into(),
        ] {
            assert!(text.contains(&part), "{text}: {part}");
        }
        drop(taken);
        until("the address is served", || pending.texts().is_empty());
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.ends_with("served"), "{answer}");
        drop(listening);
        until("the address is closed", || TcpStream::connect(address).is_err());
    }

    #[test]
    fn a_reload_ends_the_attempts_and_their_condition() {
        let pending = Pending::default();
        let listening = wait_for(&pending, "192.0.2.77:9111".parse().unwrap());
        let texts = pending.texts();
        let [text] = &texts[..] else { panic!("{pending:?}") };
        assert!(text.contains("Cannot assign requested address"), "{text}");
        assert!(text.contains("; give the address to this machine, or change metrics.listen"), "{text}");
        drop(listening);
        assert_eq!(pending.texts(), [""; 0]);
        // The thread does not insert it again.
        thread::sleep(AGAIN + Duration::from_millis(500));
        assert_eq!(pending.texts(), [""; 0]);
    }
}
