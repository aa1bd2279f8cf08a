//! A virtual machine, as far as it concerns a server's cores: a thread that receives what comes to an address in a
//! network namespace of its own. A busy one computes when nothing comes. With one core it is pinned there, like a
//! virtual CPU.

use std::{
    net::{Ipv4Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::net::sockopt;

use super::sender::INNER_PORT;
use crate::{namespace::Namespace, sys};

/// Far more than comes while something else has the core.
const BUFFER_BYTES: usize = 32 << 20;
/// Time within which it notices that it must end.
const LOOK: Duration = Duration::from_millis(20);
/// Rounds of a unit of computing: some microseconds.
const ROUNDS: u64 = 4000;
/// Packets taken between two units.
const BATCH: u32 = 64;

/// What it does besides receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// Nothing, on any core.
    Idle,
    /// It computes, on this core only.
    Busy(usize),
}

/// What it has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Datagrams received.
    pub packets: u64,
    /// Units computed.
    pub units: u64,
}

/// A running machine. Dropping it ends it.
pub struct Machine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    packets: AtomicU64,
    units: AtomicU64,
    ends: AtomicBool,
}

impl Machine {
    /// Starts it in its namespace.
    pub fn start(namespace: &Namespace, guest: Guest) -> Result<Self> {
        let socket = namespace.enter(|| {
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, INNER_PORT)).context("the socket of a machine")
        })?;
        sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES)?;
        match guest {
            Guest::Idle => socket.set_read_timeout(Some(LOOK))?,
            Guest::Busy(_) => socket.set_nonblocking(true)?,
        }
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let run = move || match guest {
            Guest::Idle => own.receives(&socket),
            Guest::Busy(core) => {
                if let Err(error) = sys::set_affinity(0, &[core]) {
                    eprintln!("a machine cannot be pinned to core {core}: {error}");
                }
                own.computes(&socket);
            }
        };
        let thread = thread::Builder::new().name("machine".into()).spawn(run).context("a machine")?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What it has done until now.
    pub fn done(&self) -> Done {
        let Shared { packets, units, .. } = &*self.shared;
        Done { packets: packets.load(Ordering::Relaxed), units: units.load(Ordering::Relaxed) }
    }
}

impl Shared {
    fn receives(&self, socket: &UdpSocket) {
        while !self.ends.load(Ordering::Relaxed) {
            self.take(socket);
        }
    }

    fn computes(&self, socket: &UdpSocket) {
        let mut state = 1;
        while !self.ends.load(Ordering::Relaxed) {
            let _ = (0..BATCH).all(|_| self.take(socket));
            for _ in 0..ROUNDS {
                // Marsaglia's xorshift: each round needs the one before.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
            }
            std::hint::black_box::<u64>(state);
            self.units.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes a datagram, if there is one.
    fn take(&self, socket: &UdpSocket) -> bool {
        let taken = socket.recv(&mut [0; 64]).is_ok();
        self.packets.fetch_add(taken.into(), Ordering::Relaxed);
        taken
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
