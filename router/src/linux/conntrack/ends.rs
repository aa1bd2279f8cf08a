//! Reports of connections that end. Only this group is heard: Linux takes 3 to 5 us longer for each new connection if
//! anybody listens to new ones.

use super::message::{self, Destroyed, Ended};
use crate::linux::{
    netlink::{nsid, socket::Socket, wire},
    netns,
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
};

/// `NFNLGRP_CONNTRACK_DESTROY`
const GROUP: u32 = 3;
/// Enough for a burst of 200,000 ends.
pub const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// The most reports that one call reads.
const MOST_AT_ONCE: usize = 1 << 16;
/// The number of the namespace in the listener's own.
const NUMBER: i32 = 1;

/// Listens for the ends of connections in one namespace.
pub struct Ends {
    socket: Socket,
    /// `None`: the socket is in the namespace itself.
    number: Option<i32>,
}

/// The state of the listener after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// All reports have been read.
    Nothing,
    /// More reports wait.
    More,
    /// Reports were lost, or one could not be read. Any connection may have ended. More reports may wait.
    Lost,
}

impl Ends {
    /// Listens in the namespace of the calling thread and keeps that alive: only for our own.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the kernel has no nfnetlink. `EPERM` without CAP_NET_ADMIN.
    pub fn here(receive_buffer_bytes: usize) -> io::Result<Ends> {
        let socket = Socket::subscription(libc::NETLINK_NETFILTER, &[GROUP], receive_buffer_bytes)?;
        Ok(Ends { socket, number: None })
    }

    /// Listens to another namespace, from a new one, so the other one is not kept alive. Where Linux counts listeners
    /// per namespace, connections of the other one are [`super::tracker::Answer::Unwatched`].
    ///
    /// # Errors
    /// As [`Ends::here`]; `EPERM` without CAP_SYS_ADMIN and CAP_NET_BROADCAST.
    pub fn of(namespace: &File, receive_buffer_bytes: usize) -> io::Result<Ends> {
        netns::in_a_new_one(|| {
            let ends = Ends { number: Some(NUMBER), ..Ends::here(receive_buffer_bytes)? };
            ends.socket.hear_all_namespaces()?;
            nsid::assign(&mut Socket::requests(libc::NETLINK_ROUTE)?, namespace.as_fd(), NUMBER)?;
            Ok(ends)
        })?
    }

    /// Passes waiting reports to `found`, without waiting for others, at most [`MOST_AT_ONCE`].
    ///
    /// # Errors
    /// Errors of recv(2), except lost reports.
    pub fn destroyed(&mut self, mut found: impl FnMut(Destroyed)) -> io::Result<Waiting> {
        for _ in 0..MOST_AT_ONCE {
            let (origin, bytes) = match self.socket.events_with_origin() {
                Ok(None) => return Ok(Waiting::Nothing),
                Ok(Some(received)) => received,
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Waiting::Lost),
                Err(e) => return Err(e),
            };
            if origin != self.number {
                continue;
            }
            let mut is_lost = false;
            for message in wire::messages(bytes) {
                match message::ended(message) {
                    Ended::Connection(destroyed) => found(destroyed),
                    Ended::Irrelevant => (),
                    Ended::Unreadable => is_lost = true,
                }
            }
            if is_lost {
                return Ok(Waiting::Lost);
            }
        }
        Ok(Waiting::More)
    }

    /// The number of messages that did not come from the kernel. All were dropped.
    pub fn forged(&self) -> u64 {
        self.socket.forged()
    }
}

impl AsFd for Ends {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
