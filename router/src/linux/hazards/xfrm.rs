//! IPsec policies (`XFRM_MSG_GETPOLICY`, `include/uapi/linux/xfrm.h`).

use super::{ByFamily, IN_NAMESPACE};
use crate::linux::netlink::{
    INET, INET6,
    socket::Socket,
    wire::{self, Message, Request},
};
use logic::cause::Code;
use std::io;

/// `XFRMNLGRP_POLICY`.
pub const GROUP: u32 = 4;

const NEWPOLICY: u16 = 0x13;
const GETPOLICY: u16 = 0x15;
const GETDEFAULT: u16 = 0x28;
/// Offsets in `struct xfrm_userpolicy_info`.
const FAMILY: usize = 40;
const DIRECTION: usize = 160;
const USERPOLICY_ID_BYTES: usize = 64;
/// `XFRM_POLICY_MAX`: this direction and higher ones belong to policies of single sockets.
const SOCKET_DIRECTIONS: u8 = 3;
/// `XFRM_USERPOLICY_BLOCK`.
const BLOCK: u8 = 1;

/// Returns sentences about policies, and about a default policy that blocks.
pub fn read(socket: &mut Socket) -> io::Result<ByFamily> {
    let request = Request::new(GETPOLICY, wire::DUMP, &[0; USERPOLICY_ID_BYTES]);
    let families = socket.dump(request, parse)?;
    let mut sentences = ByFamily::default();
    for (i, family) in [INET, INET6].into_iter().enumerate() {
        let count = families.iter().filter(|f| **f == family || **f == 0).count();
        if count > 0 {
            sentences[i].push(Code::IpsecPolicy.cause(format!(
                "{count} IPsec policies; list them with: {IN_NAMESPACE}ip xfrm policy, \
                 remove them with: {IN_NAMESPACE}ip xfrm policy flush"
            )));
        }
    }
    // Since Linux 5.14. Older kernels have no default policy and refuse the request.
    let default = socket.ask(Request::new(GETDEFAULT, wire::ACK, &[0; 4]), |m| {
        (m.kind == GETDEFAULT).then(|| m.payload.get(..3).map(|p| p[1] == BLOCK || p[2] == BLOCK)).flatten()
    });
    if matches!(default, Ok(Some(true))) {
        for sentences in &mut sentences {
            sentences.push(Code::IpsecPolicy.cause(format!(
                "the default IPsec policy blocks packets; allow them with: {IN_NAMESPACE}ip xfrm policy setdefault fwd accept out accept"
            )));
        }
    }
    Ok(sentences)
}

/// The address family of a policy, except one of a single socket; 0: any family.
pub(crate) fn parse(message: Message<'_>) -> Option<u8> {
    let direction = *message.payload.get(DIRECTION)?;
    let family = wire::u16_at(message.payload, FAMILY)?;
    (message.kind == NEWPOLICY && direction < SOCKET_DIRECTIONS).then_some(family as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn policies_of_sockets_do_not_count() {
        let mut payload = [0; 168];
        payload[FAMILY] = INET6;
        payload[DIRECTION] = 2;
        let parsed = |payload: &[u8]| parse(Message { kind: NEWPOLICY, flags: 0, sequence: 0, payload });
        assert_eq!(parsed(&payload), Some(INET6));
        payload[DIRECTION] = 3;
        assert_eq!(parsed(&payload), None);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(Message { kind: NEWPOLICY, flags: 0, sequence: 0, payload: &bytes });
        }
    }
}
