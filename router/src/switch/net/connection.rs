//! One connection.

use super::{CHUNK_BYTES, ConnectionId, NetEvent, Shared, TargetId, Timing};
use crate::base::door::{Gone, Pass};
use rustix::net::sockopt;
use std::{collections::VecDeque, io, net::IpAddr, pin::pin, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split},
    net::TcpStream,
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

/// The most bytes that are read and discarded when a connection is closed here.
const LINGER_BYTES: usize = 1 << 20;

/// The size of a message's header. Its second byte is the type (OpenFlow 1.3.5, 7.1).
const HEADER_BYTES: usize = 8;
const HELLO: u8 = 0;
/// Why a connection that a peer opened is closed.
pub const NO_ROOM: &str = "there is no room for another connection";
pub const SENT_AWAY: &str = "it had not greeted yet, and a newer connection needed its place";

/// TCP, or TLS over it.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// An order to a connection.
pub enum Command {
    Send(Vec<u8>),
    Read,
    Close(String),
}

/// Sets socket options: small messages leave at once, and a peer that vanishes is noticed.
pub fn prepare(stream: &TcpStream, timing: &Timing) -> io::Result<()> {
    /// The number of probes of a silent peer, before the connection is given up.
    const PROBES: u32 = 4;
    let interval = timing.gone.saturating_sub(timing.keepalive) / PROBES;
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    // tcp(7): whole seconds, from 1.
    sockopt::set_tcp_keepidle(stream, timing.keepalive.max(Duration::from_secs(1)))?;
    sockopt::set_tcp_keepintvl(stream, interval.max(Duration::from_secs(1)))?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, timing.gone.as_millis() as u32)?;
    Ok(())
}

/// Serves a connection until it ends. `guest`: the pass of a peer that opened it.
pub async fn serve(
    shared: &Shared,
    target: TargetId,
    stream: Box<dyn Stream>,
    peer: &str,
    guest: Option<(Pass<IpAddr>, Gone)>,
) {
    let (id, orders) = shared.opened(target, peer);
    let (reader, writer) = split(stream);
    let unsent = Unsent { queue: VecDeque::new(), taken: 0 };
    let (chunk, head) = (vec![0; CHUNK_BYTES], Vec::new());
    let mut connection = Connection { shared, id, reader, writer, unsent, chunk, head, guest };
    let why = connection.talk(orders).await;
    drop(connection);
    shared.closed(target, id, peer, why);
}

struct Connection<'a> {
    shared: &'a Shared,
    id: ConnectionId,
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    unsent: Unsent,
    chunk: Vec<u8>,
    /// The first bytes that the peer sent.
    head: Vec<u8>,
    guest: Option<(Pass<IpAddr>, Gone)>,
}

impl Connection<'_> {
    /// Serves the connection until it ends, and returns why it ended.
    async fn talk(&mut self, mut orders: mpsc::UnboundedReceiver<Command>) -> String {
        let mut wants = false;
        // The time begins when the user asks to read.
        let mut silence = pin!(sleep(Duration::ZERO));
        loop {
            let is_greeted = self.is_greeted();
            tokio::select! {
                () = sent_away(&mut self.guest) => return SENT_AWAY.into(),
                () = &mut silence, if wants && !is_greeted => {
                    return format!("no OpenFlow HELLO in {:?}", self.shared.timing.hello);
                }
                order = orders.recv() => match order {
                    Some(Command::Send(bytes)) => self.unsent.queue.extend(bytes),
                    Some(Command::Read) => {
                        wants = true;
                        silence.as_mut().reset(Instant::now() + self.shared.timing.hello);
                    }
                    Some(Command::Close(why)) => {
                        // Its place is free now: others need not wait for its last bytes.
                        self.guest = None;
                        let _ = timeout(self.shared.timing.linger, self.linger()).await;
                        return why;
                    }
                    None => return "given up".into(),
                },
                written = self.unsent.write(&mut self.writer), if !self.unsent.queue.is_empty() => match written {
                    Ok(bytes) => self.shared.tell(NetEvent::Written { connection: self.id, bytes }),
                    Err(error) => return format!("writing: {error}"),
                },
                read = self.reader.read(&mut self.chunk), if wants => match read {
                    Ok(0) => return "closed by the peer".into(),
                    Ok(bytes) => {
                        wants = false;
                        let bytes = self.chunk[..bytes].to_vec();
                        if !self.greet(&bytes) {
                            return NO_ROOM.into();
                        }
                        self.shared.tell(NetEvent::Received { connection: self.id, bytes });
                    }
                    Err(error) => return format!("reading: {error}"),
                },
            }
        }
    }

    fn is_greeted(&self) -> bool {
        self.head.len() == HEADER_BYTES && self.head[1] == HELLO
    }

    /// Looks for the HELLO with which a peer begins. Returns false if it is there, but there is no room for another
    /// connection.
    fn greet(&mut self, bytes: &[u8]) -> bool {
        let wanted = HEADER_BYTES - self.head.len();
        if wanted == 0 {
            return true;
        }
        self.head.extend(bytes.iter().take(wanted));
        let is_greeted = self.is_greeted();
        self.guest.as_mut().filter(|_| is_greeted).is_none_or(|(pass, _)| pass.enter(false))
    }

    /// Sends the rest, shuts its own direction down, and waits until the peer has done the same. To close with
    /// unread bytes would send a reset, which may overtake the last message (RFC 1122, 4.2.2.13).
    async fn linger(&mut self) -> io::Result<()> {
        while !self.unsent.queue.is_empty() {
            self.unsent.write(&mut self.writer).await?;
        }
        self.writer.shutdown().await?;
        let mut forgotten = 0;
        while forgotten < LINGER_BYTES {
            match self.reader.read(&mut self.chunk).await? {
                0 => break,
                bytes => forgotten += bytes,
            }
        }
        Ok(())
    }
}

/// Returns when the peer must make room for a newer one.
async fn sent_away(guest: &mut Option<(Pass<IpAddr>, Gone)>) {
    match guest {
        // The channel carries no message: its other end is dropped.
        Some((_, gone)) => drop(gone.await),
        None => std::future::pending().await,
    }
}

/// Bytes that are still to be written.
struct Unsent {
    queue: VecDeque<u8>,
    /// The number of first bytes that TLS has taken, but the kernel perhaps has not.
    taken: usize,
}

impl Unsent {
    /// Hands a part of the queue to the kernel, and returns the number of bytes. The queue must not be empty. The
    /// future may be dropped at any await.
    async fn write(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<usize> {
        if self.taken == 0 {
            self.taken = to.write(self.queue.as_slices().0).await?;
        }
        if self.taken == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        to.flush().await?;
        self.queue.drain(..self.taken);
        if self.queue.is_empty() {
            self.queue.shrink_to(CHUNK_BYTES);
        }
        Ok(std::mem::take(&mut self.taken))
    }
}
