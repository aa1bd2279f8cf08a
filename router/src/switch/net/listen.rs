//! Connections that controllers, and tools such as `ovs-ofctl`, open.
//!
//! A peer waits before the [`Door`] until its TLS handshake is done, or without TLS until its OpenFlow HELLO is
//! there. So an idle socket takes no place, and keeps nobody out.

use super::{
    Shared, Socket, TargetId,
    connection::{self, NO_ROOM, SENT_AWAY},
    dial::within,
    tls::Tls,
};
use crate::{
    base::door::{AGAIN, Door, Gone, Pass, Room, source_of},
    config::Target,
};
use anyhow::{Context, Result};
use std::{
    io,
    net::{IpAddr, TcpListener},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpStream, time::sleep};

/// The room of one listener. `inside` counts connections. Others are closed, and counted.
pub const ROOM: Room = Room { waiting: 128, waiting_of_a_source: 16, inside: 64, inside_of_a_source: 32 };

/// Binds the address of a target that listens.
pub fn bind(target: &Target) -> Result<TcpListener> {
    let bound = TcpListener::bind((target.host.as_str(), target.port));
    let listener = bound.with_context(|| format!("openflow.controllers: cannot listen on {target}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Binds the address of a target that could not be bound at the start, as soon as it can be, and serves it.
pub async fn wait(shared: Arc<Shared>, id: TargetId, target: Target, socket: Socket) {
    loop {
        sleep(AGAIN).await;
        match bind(&target).and_then(|listener| Ok((listener.local_addr()?, listener.try_clone()?, listener)))
        {
            Ok((address, kept, listener)) => {
                let _ = socket.set(kept);
                shared.with(id, |target| target.begin_to_listen(address));
                return serve(shared, id, listener, target.tls).await;
            }
            Err(error) => _ = shared.with(id, |target| target.deaf = Some(error)),
        }
    }
}

/// Accepts connections and serves as many as there is [`ROOM`] for, until the task is aborted.
pub async fn serve(shared: Arc<Shared>, id: TargetId, listener: TcpListener, uses_tls: bool) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return shared.failed(id, format!("listening: {error}")),
    };
    let door = Door::new(ROOM);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                shared.failed(id, format!("accepting: {error}"));
                // The cause is mostly too many open files. To try again at once would only keep the CPU busy.
                sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let mut guest = door.knock(source_of(peer.ip()));
        let (shared, tls) = (shared.clone(), shared.tls(uses_tls));
        tokio::spawn(async move {
            let method = if tls.is_some() { "ssl" } else { "tcp" };
            let name = format!("{method}:{peer}");
            match greet(&shared, stream, tls, &mut guest).await {
                Ok(stream) => connection::serve(&shared, id, stream, &name, Some(guest)).await,
                Err(error) => shared.turned_away(id, &name, &error),
            }
        });
    }
}

async fn greet(
    shared: &Shared,
    stream: TcpStream,
    tls: Option<Tls>,
    (pass, gone): &mut (Pass<IpAddr>, Gone),
) -> io::Result<Box<dyn connection::Stream>> {
    connection::prepare(&stream, &shared.timing)?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    tokio::select! {
        done = within(shared.timing.connect, "TLS handshake", tls.accept(stream)) => {
            let stream = done?;
            if pass.enter(false) { Ok(Box::new(stream)) } else { Err(io::Error::other(NO_ROOM)) }
        }
        _ = gone => Err(io::Error::other(SENT_AWAY)),
    }
}
