//! Qdiscs that shape, and filters (`RTM_GETQDISC`, `RTM_GETTFILTER`, `struct tcmsg`).
//!
//! Fine are qdiscs that neither hold packets back nor drop them by rate: those below. Everything else is taken for
//! shaping.

use super::command;
use crate::netlink::{
    rtm,
    socket::Socket,
    wire::{self, Message, Request},
};
use std::{collections::BTreeMap, io};

const TCA_KIND: u16 = 1;
const HEADER: usize = 20;
/// Parents of filters: the ingress qdisc; clsact's ingress and egress.
const INGRESS: u32 = 0xffff_0000;
const CLSACT: [u32; 2] = [0xffff_fff2, 0xffff_fff3];
const FINE: [&str; 6] = ["noqueue", "noop", "mq", "pfifo_fast", "fq_codel", "fq"];

/// Something on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A qdisc of this kind that is not known not to shape.
    Qdisc(String),
    /// Filters on a qdisc of this kind.
    Filters(String),
}

impl Finding {
    /// For people.
    pub fn sentence(&self, device: &str, namespace: &str) -> String {
        match self {
            Finding::Qdisc(kind) => format!(
                "{device} has the qdisc {kind}, which may shape; replace it with: {}",
                command(namespace, &format!("tc qdisc replace dev {device} root fq_codel"))
            ),
            Finding::Filters(kind) => format!(
                "{device} has tc filters on its qdisc {kind}; remove them with: {}",
                match kind.as_str() {
                    "clsact" | "ingress" => command(namespace, &format!("tc qdisc del dev {device} {kind}")),
                    _ => command(namespace, &format!("tc filter del dev {device}")),
                }
            ),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Qdisc {
    ifindex: u32,
    handle: u32,
    kind: String,
}

/// By device.
pub type Findings = BTreeMap<u32, Vec<Finding>>;

/// What is on each device.
pub fn read(socket: &mut Socket) -> io::Result<Findings> {
    let mut found = Findings::new();
    let qdiscs = socket.dump(Request::new(rtm::GETQDISC, wire::DUMP, &[0; HEADER]), parse)?;
    for qdisc in qdiscs {
        let parents: &[u32] = match qdisc.kind.as_str() {
            "clsact" => &CLSACT,
            "ingress" => &[INGRESS],
            // Its class choice may come from filters, which can also drop and redirect.
            "fq_codel" => &[qdisc.handle],
            kind if FINE.contains(&kind) => &[],
            _ => {
                found.entry(qdisc.ifindex).or_default().push(Finding::Qdisc(qdisc.kind));
                continue;
            }
        };
        for parent in parents.iter().filter(|parent| **parent != 0) {
            if has_filters(socket, qdisc.ifindex, *parent)? {
                found.entry(qdisc.ifindex).or_default().push(Finding::Filters(qdisc.kind.clone()));
                break;
            }
        }
    }
    Ok(found)
}

fn has_filters(socket: &mut Socket, ifindex: u32, parent: u32) -> io::Result<bool> {
    let mut header = [0; HEADER];
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    let request = Request::new(rtm::GETTFILTER, wire::DUMP, &header);
    match socket.dump(request, |m| (m.kind == rtm::NEWTFILTER).then_some(())) {
        // The device went while it was looked at; its message is on its way.
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        other => Ok(!other?.is_empty()),
    }
}

pub(crate) fn parse(message: Message<'_>) -> Option<Qdisc> {
    let payload = message.payload;
    (message.kind == rtm::NEWQDISC).then_some(())?;
    let kind = wire::attributes_after(payload, HEADER).find(|a| a.0 == TCA_KIND).map(|a| wire::text(a.1))?;
    Some(Qdisc { ifindex: wire::u32_at(payload, 4)?, handle: wire::u32_at(payload, 8)?, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kinds_and_places_are_read() {
        let mut header = [0; HEADER];
        header[4] = 7;
        header[11] = 0x80;
        let mut request = Request::new(rtm::NEWQDISC, 0, &header).with(TCA_KIND, b"tbf\0");
        let qdisc = wire::messages(request.bytes(1)).next().and_then(parse);
        assert_eq!(qdisc, Some(Qdisc { ifindex: 7, handle: 0x8000_0000, kind: "tbf".into() }));
        assert_eq!(
            Finding::Qdisc("tbf".into()).sentence("eth0", "red"),
            "eth0 has the qdisc tbf, which may shape; replace it with: \
             ip netns exec red tc qdisc replace dev eth0 root fq_codel"
        );
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(Message { kind: rtm::NEWQDISC, flags: 0, sequence: 0, payload: &bytes });
        }
    }
}
