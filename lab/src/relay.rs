//! Relays a TCP port on this machine to the same port inside a testbed, so that a browser can look inside.

use std::{
    io,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{namespace::Namespace, sys};

/// The most connections at a time. A browser has six.
const MOST: usize = 64;
/// How long a connection may be idle.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// An address that is relayed until this is dropped.
pub struct Relay {
    ends: Arc<AtomicBool>,
}

/// A listener on this port of 127.0.0.1, or on a free one if something else has it.
///
/// # Errors
/// No port is free.
pub fn listener(port: u16) -> Result<TcpListener> {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    bind(port).or_else(|_| bind(0)).context("cannot listen on a loopback address")
}

impl Relay {
    /// Relays the connections of a listener to its own port on 127.0.0.1 in a namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn start(listener: TcpListener, namespace: &Namespace) -> Result<Relay> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.local_addr()?.port()));
        listener.set_nonblocking(true)?;
        let ends = Arc::<AtomicBool>::default();
        let (inside, ended) = (namespace.handle()?, ends.clone());
        thread::Builder::new().name("relay".into()).spawn(move || {
            use std::os::fd::AsFd;
            // Only this thread enters. Its listener was made outside, and stays there.
            if let Err(error) = sys::enter_network_namespace(inside.as_fd()) {
                eprintln!("the web page cannot be relayed: {error}");
                return;
            }
            drop(inside);
            accept(&listener, to, &ended);
        })?;
        Ok(Relay { ends })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
    }
}

fn accept(listener: &TcpListener, to: SocketAddr, ended: &AtomicBool) {
    let open = Arc::<AtomicUsize>::default();
    while !ended.load(Relaxed) {
        let Ok((outside, _)) = listener.accept() else {
            thread::sleep(POLL);
            continue;
        };
        // Connections beyond these are closed at once, as are those that the daemon does not take.
        if open.load(Relaxed) < MOST
            && let Ok(inside) = TcpStream::connect_timeout(&to, Duration::from_secs(1))
        {
            open.fetch_add(1, Relaxed);
            let open = open.clone();
            thread::spawn(move || {
                let _ = relay(&outside, &inside);
                open.fetch_sub(1, Relaxed);
            });
        }
    }
}

/// Copies both ways until both sides have ended.
fn relay(outside: &TcpStream, inside: &TcpStream) -> io::Result<()> {
    for stream in [outside, inside] {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
    }
    thread::scope(|scope| {
        scope.spawn(|| copy(outside, inside));
        copy(inside, outside);
    });
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::unique_run_name;
    use std::io::{Read, Write};

    #[test]
    #[ignore = "needs root"]
    fn a_port_of_the_machine_leads_into_a_namespace_and_ends_with_its_relay() {
        let namespace = Namespace::create(format!("{}-relay", unique_run_name())).unwrap();
        let outside = listener(0).unwrap();
        let address = outside.local_addr().unwrap();
        let inside = namespace.enter(|| Ok(TcpListener::bind(address)?)).unwrap();
        let relay = Relay::start(outside, &namespace).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = inside.accept().unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            stream.write_all(text.to_uppercase().as_bytes()).unwrap();
        });
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"hello").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "HELLO");
        server.join().unwrap();
        // Nobody listens inside any more.
        assert_eq!(TcpStream::connect(address).unwrap().read(&mut [0]).unwrap_or(0), 0);
        drop(relay);
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(address).is_ok() {
            assert!(std::time::Instant::now() < end, "the address stays open");
            thread::sleep(POLL);
        }
    }
}
