//! `RTM_GETNSID`: the number by which one namespace knows another (`IFLA_LINK_NETNSID`).

use super::{
    rtm,
    socket::Socket,
    wire::{self, Request},
};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

/// The number by which the namespace of `socket` knows the namespace behind `other`; `None`: it has none.
pub fn ask(socket: &mut Socket, other: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let request =
        Request::new(rtm::GETNSID, wire::ACK, &[0; 4]).with(NETNSA_FD, &other.as_raw_fd().to_ne_bytes());
    let answer = socket.ask(request, |m| (m.kind == rtm::NEWNSID).then(|| parse(m.payload)).flatten())?;
    Ok(answer.filter(|id| *id >= 0))
}

/// Makes the namespace of `socket` know the namespace behind `other` by this number. The number does not keep the other
/// namespace alive.
///
/// # Errors
/// `EEXIST`: the other namespace already has a number there, or the number is in use.
pub fn assign(socket: &mut Socket, other: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    let request = Request::new(rtm::NEWNSID, wire::ACK, &[0; 4])
        .with(NETNSA_NSID, &number.to_ne_bytes())
        .with(NETNSA_FD, &other.as_raw_fd().to_ne_bytes());
    socket.ask(request, |_| None::<()>).map(drop)
}

/// The number in an `RTM_NEWNSID` message; negative: not assigned.
pub fn parse(payload: &[u8]) -> Option<i32> {
    // struct rtgenmsg is one byte, padded.
    wire::attributes_after(payload, 1)
        .find(|a| a.0 == NETNSA_NSID)
        .and_then(|a| wire::u32_at(a.1, 0))
        .map(|id| id as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_read() {
        assert_eq!(parse(&[0, 0, 0, 0, 8, 0, 1, 0, 255, 255, 255, 255]), Some(-1));
        assert_eq!(parse(&[0, 0, 0, 0, 8, 0, 4, 0, 5, 0, 0, 0, 8, 0, 1, 0, 6, 0, 0, 0]), Some(6));
        assert_eq!(parse(&[0, 0, 0, 0, 7, 0, 1, 0, 255, 255, 255, 0]), None);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }
    }
}
