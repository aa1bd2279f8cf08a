//! Requests about single connections of TCP and UDP (`net/netfilter/nf_conntrack_netlink.c`).
//!
//! Linux reports the end of a connection only if there was a listener when the connection began, with
//! `nf_conntrack_events` as it is by default. So all requests here are updates with an echo: Linux sends an echo exactly
//! for those connections that have events. An update without attributes changes nothing.

use super::{
    COUNTERS_ORIGINAL, GET, NEW, PROTOCOL_INFO, TCP_FLAGS_ORIGINAL, TCP_FLAGS_REPLY, TCP_STATE, TIMEOUT,
    message::{self, HEADER_BYTES, NESTED, nested},
};
use crate::linux::netlink::{
    INET, INET6,
    socket::{self, LARGEST_BATCH, Socket},
    wire::{self, Message, Request},
};
use logic::{
    connections::tracked::{Refresh, TCP_ESTABLISHED, Tracked},
    firewall::traffic::{TCP, Tuple},
};
use std::io;

/// Room for the answers of a batch.
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;
/// `IP_CT_TCP_FLAG_*` (`nf_conntrack_tcp.h`).
const BE_LIBERAL: u8 = 0x08;
const DATA_UNACKNOWLEDGED: u8 = 0x10;
const MAXACK_SET: u8 = 0x20;
/// `struct nf_ct_tcp_flags`: the flags, and a mask of those that change.
const LIBERAL: [u8; 2] = [BE_LIBERAL, BE_LIBERAL | DATA_UNACKNOWLEDGED | MAXACK_SET];
/// `TCP_CONNTRACK_CLOSE`
const TCP_CLOSE: u8 = 8;
/// The timeout of a connection of TCP that ended while it was refreshed, in seconds. Linux's own are 10 to 120.
const ENDING_S: u32 = 60;

/// What Linux knows of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Linux tracks it, and will report its end.
    Tracked(Tracked),
    /// Linux tracks it, and will not report its end. It began before the first listener, or events are off.
    Unwatched,
    /// Linux tracks it, in a form that [`message::parse`] does not know.
    Unreadable,
    /// Linux does not track it.
    Gone,
}

/// A socket for requests about the connections of one namespace. It keeps the namespace alive. Only connections in
/// zone 0 are found.
pub struct Tracker(Socket);

impl Tracker {
    /// Opens the socket in the namespace of the calling thread.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the kernel has no nfnetlink. `EPERM` without CAP_NET_ADMIN.
    pub fn open() -> io::Result<Tracker> {
        let socket = Socket::requests(libc::NETLINK_NETFILTER)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES)?;
        Ok(Tracker(socket))
    }

    /// The state of a connection. Nothing changes.
    ///
    /// # Errors
    /// Errors of the kernel: `EPERM` without CAP_NET_ADMIN, `EINVAL` without ctnetlink, and others. `TimedOut`:
    /// it did not answer.
    pub fn look(&mut self, protocol: u8, tuple: &Tuple) -> io::Result<Answer> {
        self.ask(tuple, update(protocol, tuple))
    }

    /// Does Linux count the packets of a connection? `nf_conntrack_acct` decides this when the connection begins.
    /// Returns `false` if Linux does not track the connection.
    ///
    /// # Errors
    /// As [`Tracker::look`].
    pub fn is_counted(&mut self, protocol: u8, tuple: &Tuple) -> io::Result<bool> {
        // The echo of an update has no counters.
        let found = self.0.ask(about(GET, wire::ACK, protocol, tuple), |message| {
            Some(
                wire::attributes_after(message.payload, HEADER_BYTES)
                    .any(|(kind, _)| kind == COUNTERS_ORIGINAL),
            )
        });
        match found {
            Ok(found) => Ok(found.unwrap_or(true)),
            Err(e) if is_gone(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Makes Linux accept any sequence numbers of a connection of TCP, and forget the last acknowledgement that it saw.
    /// Millrace must do this before the first packet bypasses Linux: otherwise an RST with other numbers leaves the
    /// connection established. It must do it again before the sequence numbers wrap, about once per GiB. Returns the
    /// state afterwards.
    ///
    /// # Errors
    /// As [`Tracker::look`].
    pub fn make_liberal(&mut self, tuple: &Tuple) -> io::Result<Answer> {
        self.ask(tuple, liberal(tuple))
    }

    /// Asks about several connections at once: [`Tracker::make_liberal`] for TCP, [`Tracker::look`] for others. Returns
    /// an answer for each, in the same order.
    ///
    /// # Errors
    /// As [`Tracker::look`].
    pub fn ask_again(&mut self, all: &[(u8, Tuple)]) -> io::Result<Vec<Answer>> {
        let mut answers = Vec::with_capacity(all.len());
        for part in all.chunks(LARGEST_BATCH) {
            let request = |(protocol, tuple): &(u8, Tuple)| match *protocol {
                TCP => liberal(tuple),
                other => update(other, tuple),
            };
            let tuples: Vec<_> = part.iter().map(|(_, tuple)| *tuple).collect();
            answers.extend(self.ask_all(&tuples, part.iter().map(request).collect())?);
        }
        Ok(answers)
    }

    /// Ends a connection of TCP that Linux calls established, as an RST with the expected number does. Nothing changes if
    /// the connection has more than `most_s` seconds left. An RST with another number sets its timeout to
    /// `nf_conntrack_tcp_timeout_close`, and a later packet raises it again (`nf_conntrack_tcp_packet()`).
    ///
    /// # Errors
    /// As [`Tracker::look`].
    pub fn close(&mut self, tuple: &Tuple, most_s: u32, timeout_s: u32) -> io::Result<()> {
        let is_open = |one: &Tracked| one.tcp_state == Some(TCP_ESTABLISHED) && one.expires_s <= most_s;
        if matches!(self.look(TCP, tuple)?, Answer::Tracked(one) if is_open(&one)) {
            let info = nested(&[(NESTED | super::INFO_TCP, &nested(&[(TCP_STATE, &[TCP_CLOSE])]))]);
            let request = update(TCP, tuple).with(NESTED | PROTOCOL_INFO, &info);
            self.ask(tuple, request.with(TIMEOUT, &timeout_s.to_be_bytes()))?;
        }
        Ok(())
    }

    fn ask(&mut self, tuple: &Tuple, request: Request) -> io::Result<Answer> {
        self.ask_all(&[*tuple], vec![request]).map(|mut answers| answers.pop().unwrap_or(Answer::Unwatched))
    }

    /// Sends one request about each of these connections, at most [`LARGEST_BATCH`].
    fn ask_all(&mut self, tuples: &[Tuple], mut requests: Vec<Request>) -> io::Result<Vec<Answer>> {
        requests.iter_mut().for_each(|request| request.set_flags(wire::ACK | wire::ECHO));
        let (mut answers, mut found, mut failed) = (Vec::with_capacity(tuples.len()), None, None);
        self.0.batch(&mut requests, |answer| match answer {
            socket::Answer::Echo(message) => {
                found = tuples.get(answers.len()).and_then(|tuple| echoed(message, tuple));
            }
            socket::Answer::End(index, end) => {
                let found = found.take();
                if index != answers.len() {
                    failed = Some(io::Error::other("conntrack left a request without an answer"));
                }
                answers.push(match end {
                    Ok(()) => found.unwrap_or(Answer::Unwatched),
                    Err(e) if is_gone(&e) => Answer::Gone,
                    Err(e) => {
                        failed = Some(e);
                        Answer::Gone
                    }
                });
            }
        })?;
        failed.map_or(Ok(answers), Err)
    }

    /// Sets the time until Linux forgets these connections. No connection is created. Returns whether each has the
    /// new timeout.
    ///
    /// False means that Linux does not track it any more, or that its timeout is fixed (`IPS_FIXED_TIMEOUT`). A
    /// connection of TCP that is not in the state ESTABLISHED is false, too: a packet with FIN or RST may have been
    /// faster. It would stay for days, so its timeout is then set to one minute.
    ///
    /// # Errors
    /// As [`Tracker::look`]. Then any of them may have the new timeout.
    pub fn refresh(&mut self, all: &[Refresh]) -> io::Result<Vec<bool>> {
        let mut refreshed = Vec::with_capacity(all.len());
        for part in all.chunks(LARGEST_BATCH) {
            let results = self.refresh_part(part)?;
            let ending: Vec<_> = std::iter::zip(part, &results)
                .filter(|(_, result)| **result == Refreshed::Ending)
                .map(|(one, _)| Refresh { timeout_s: ENDING_S, ..*one })
                .collect();
            refreshed.extend(results.iter().map(|result| *result == Refreshed::Yes));
            if !ending.is_empty() {
                self.refresh_part(&ending)?;
            }
        }
        Ok(refreshed)
    }

    fn refresh_part(&mut self, part: &[Refresh]) -> io::Result<Vec<Refreshed>> {
        let mut requests: Vec<_> = part
            .iter()
            .map(|one| {
                let mut request =
                    update(one.protocol, &one.tuple).with(TIMEOUT, &one.timeout_s.to_be_bytes());
                if one.protocol == TCP {
                    request.set_flags(wire::ACK | wire::ECHO);
                }
                request
            })
            .collect();
        let mut results: Vec<_> = part
            .iter()
            .map(|one| if one.protocol == TCP { Refreshed::Ending } else { Refreshed::Yes })
            .collect();
        let (mut echo, mut failed) = (None, None);
        self.0.batch(&mut requests, |answer| match answer {
            socket::Answer::Echo(message) => echo = message::parse(message),
            socket::Answer::End(index, result) => {
                let echo = echo.take();
                let (Some(one), Some(slot)) = (part.get(index), results.get_mut(index)) else { return };
                let is_established = |echo: Tracked| {
                    echo.tuples.contains(&one.tuple) && echo.tcp_state == Some(TCP_ESTABLISHED)
                };
                match result {
                    Ok(()) if echo.is_some_and(is_established) => *slot = Refreshed::Yes,
                    Ok(()) => (),
                    Err(e) => {
                        *slot = Refreshed::No;
                        if !is_gone(&e) && !is_fixed(&e) {
                            failed = Some(e);
                        }
                    }
                }
            }
        })?;
        failed.map_or(Ok(results), Err)
    }

    /// The number of messages that did not come from the kernel. All were dropped.
    pub fn forged(&self) -> u64 {
        self.0.forged()
    }
}

/// The result of one refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refreshed {
    Yes,
    /// The timeout is set, but the connection of TCP is not established.
    Ending,
    No,
}

/// An update without effect. It has no `NLM_F_CREATE`, so it never creates a connection.
fn update(protocol: u8, tuple: &Tuple) -> Request {
    about(NEW, 0, protocol, tuple)
}

/// The request of [`Tracker::make_liberal`].
fn liberal(tuple: &Tuple) -> Request {
    let flags = nested(&[(TCP_FLAGS_ORIGINAL, &LIBERAL), (TCP_FLAGS_REPLY, &LIBERAL)]);
    let info = nested(&[(NESTED | super::INFO_TCP, &flags)]);
    update(TCP, tuple).with(NESTED | PROTOCOL_INFO, &info)
}

fn about(kind: u16, flags: u16, protocol: u8, tuple: &Tuple) -> Request {
    let family = if tuple.source.is_ipv4() { INET } else { INET6 };
    message::with_tuple(Request::new(kind, flags, &[family, 0, 0, 0]), protocol, tuple)
}

/// The answer in an echo; `None`: it answers an older request.
fn echoed(message: Message<'_>, tuple: &Tuple) -> Option<Answer> {
    match message::parse(message) {
        None => Some(Answer::Unreadable),
        Some(tracked) => tracked.tuples.contains(tuple).then_some(Answer::Tracked(tracked)),
    }
}

/// `ETIME`: it is being destroyed (`__nf_ct_change_timeout()`).
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ETIME))
}

/// `EPERM` also means that CAP_NET_ADMIN is missing. Then [`Tracker::open`] failed already.
fn is_fixed(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}
