//! Pages over TCP: `[metrics] listen` and `[web] listen`.
//!
//! Each is a thread of its own without any capability. [`serving`](super::serving) limits the number of connections and the time of
//! each.

use super::serving::{self, Limits, TcpPeers};
use crate::base::privileges;
use anyhow::{Context, Result};
use axum::Router;
use std::{
    net::{SocketAddr, TcpListener},
    thread,
};
use tokio::{runtime, sync::oneshot};

/// A TCP address that is served. Dropping it closes the address and all of its connections.
#[derive(Debug)]
pub struct Listening {
    _ends: oneshot::Sender<()>,
}

/// The table of the configuration that has an address, such as `metrics`. The thread has this name, too.
pub type Table = &'static str;

impl Listening {
    /// Serves these routes at an address, in a new thread.
    ///
    /// # Errors
    /// The daemon cannot listen on the address. The error names the key.
    pub fn start(table: Table, address: SocketAddr, routes: Router, limits: Limits) -> Result<Listening> {
        Self::on(table, bind(table, address)?, routes, limits)
    }

    /// Serves a listener, in a new thread.
    pub fn on(table: Table, listener: TcpListener, routes: Router, limits: Limits) -> Result<Listening> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (_ends, end) = oneshot::channel::<()>();
        thread::Builder::new().name(table.into()).spawn(move || {
            privileges::serve_with_nothing(table);
            runtime.block_on(async {
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => tokio::select! {
                        () = serving::serve(TcpPeers(listener), routes, limits) => {}
                        _ = end => {}
                    },
                    Err(error) => tracing::error!("{table}.listen: {error}; forwarding goes on"),
                }
            });
        })?;
        Ok(Listening { _ends })
    }
}

/// Checks whether this machine has the address. Another process, or a running daemon, may use the port.
///
/// # Errors
/// It has not. The error names the key.
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
