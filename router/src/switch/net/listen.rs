//! Connections that controllers, and tools such as `ovs-ofctl`, open.

use super::{MAX_INBOUND, Shared, connection, dial::within, tls::Tls};
use crate::config::Target;
use anyhow::{Context, Result};
use std::{io, net::TcpListener, sync::Arc, time::Duration};
use tokio::{net::TcpStream, sync::Semaphore, time::sleep};

/// Takes the address of a target that listens.
pub fn bind(target: &Target) -> Result<TcpListener> {
    let bound = TcpListener::bind((target.host.as_str(), target.port));
    let listener = bound.with_context(|| format!("openflow.controllers: cannot listen on {target}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Accepts connections and serves at most [`MAX_INBOUND`] at a time, for ever.
pub async fn serve(shared: Arc<Shared>, index: usize, listener: TcpListener, tls: Option<Tls>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return shared.failed(index, format!("listening: {error}")),
    };
    let slots = Arc::new(Semaphore::new(MAX_INBOUND));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                shared.failed(index, format!("accepting: {error}"));
                // Too many open files, mostly: trying at once would only keep the CPU busy.
                sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            refuse(&shared, index, stream);
            continue;
        };
        let (shared, tls) = (shared.clone(), tls.clone());
        tokio::spawn(async move {
            let _slot = slot;
            let method = if tls.is_some() { "ssl" } else { "tcp" };
            let peer = format!("{method}:{peer}");
            match greet(&shared, stream, tls).await {
                Ok(stream) => connection::serve(&shared, index, stream, &peer).await,
                Err(error) => shared.failed(index, format!("{peer}: {error}")),
            }
        });
    }
}

async fn greet(
    shared: &Shared,
    stream: TcpStream,
    tls: Option<Tls>,
) -> io::Result<Box<dyn connection::Stream>> {
    connection::prepare(&stream, &shared.timing)?;
    Ok(match tls {
        Some(tls) => Box::new(within(shared.timing.connect, "TLS handshake", tls.accept(stream)).await?),
        None => Box::new(stream),
    })
}

fn refuse(shared: &Shared, index: usize, stream: TcpStream) {
    drop(stream);
    let mut state = shared.state();
    let target = &mut state.targets[index];
    target.refused += 1;
    if target.refused.is_power_of_two() {
        tracing::warn!(
            "OpenFlow: {}: {} connections refused, {MAX_INBOUND} are there",
            target.target,
            target.refused
        );
    }
}
