//! Netlink messages that do not come from the kernel change nothing.

use crate::bed::*;
use logic::observe::Event;
use netlink_sys::{Socket as Forger, SocketAddr};
use router::linux::{
    netlink::{
        GROUPS, INET, link, rtm,
        socket::Socket,
        wire::{self, Request},
    },
    observer::HOST,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::{collections::BTreeSet, io};

const NFT_NEWTABLE: u16 = 10 << 8;
const XFRM_NEWPOLICY: u16 = 0x13;
/// `NLM_F_CREATE`.
const CREATE: u16 = 0x400;
const NETFILTER_GROUP: u32 = 7;
const XFRM_GROUP: u32 = 4;

/// Protocols, each with messages that would change something, and the groups that receive them.
fn forgeries(port: u32) -> Vec<(i32, Vec<Request>, Vec<u32>)> {
    let index = port.to_ne_bytes();
    let link_header = [&[0; 4][..], &index, &[0x43, 0, 0, 0], &[0; 4]].concat();
    let link_info = [&[9, 0, 1, 0][..], b"vlan\0\0\0\0"].concat();
    let neighbour = [&[INET, 0, 0, 0][..], &index, &[0x80, 0, 0, 1]].concat();
    let route = vec![
        Request::new(rtm::NEWROUTE, 0, &[INET, 8, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0])
            .with(1, &[66, 0, 0, 0])
            .with(4, &index)
            .with(5, &[192, 0, 2, 66]),
        Request::new(rtm::NEWNEIGH, 0, &neighbour).with(1, &[192, 0, 2, 66]).with(2, &[2, 0, 0, 0, 0, 66]),
        Request::new(rtm::NEWLINK, 0, &link_header).with(3, b"forged0\0").with(18, &link_info),
        Request::new(rtm::NEWNEXTHOP, 0, &[INET, 0, 4, 0, 0, 0, 0, 0])
            .with(1, &[66, 0, 0, 0])
            .with(5, &index)
            .with(6, &[192, 0, 2, 66]),
    ];
    vec![
        (libc::NETLINK_ROUTE, route, GROUPS.to_vec()),
        (libc::NETLINK_NETFILTER, vec![Request::new(NFT_NEWTABLE, 0, &[1, 0, 0, 0])], vec![NETFILTER_GROUP]),
        (libc::NETLINK_XFRM, vec![Request::new(XFRM_NEWPOLICY, 0, &[0; 168])], vec![XFRM_GROUP]),
    ]
}

/// Port ids of the netlink sockets of a protocol in this thread's namespace, other than the kernel's.
fn ports(protocol: i32) -> BTreeSet<u32> {
    let table = std::fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
    let row = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let found: i32 = fields.next()?.parse().ok()?;
        let port: u32 = fields.next()?.parse().ok()?;
        (found == protocol && port != 0).then_some(port)
    };
    table.lines().filter_map(row).collect()
}

/// The message as the kernel sends it. As a request, the kernel itself would obey it.
fn event(message: &mut Request) -> Vec<u8> {
    let mut bytes = message.bytes(1).to_vec();
    bytes[6..8].fill(0);
    bytes
}

/// A socket that nobody believes, and its port id.
fn forger(protocol: i32) -> (Forger, u32) {
    let mut forger = Forger::new(protocol as isize).unwrap();
    let port = forger.bind_auto().unwrap().port_number();
    (forger, port)
}

fn index_of(name: &std::ffi::CStr) -> u32 {
    // SAFETY: a terminated string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// Whether an event follows from one of [`forgeries`].
fn is_forged(event: &Event) -> bool {
    match event {
        Event::Route4(_, _, route) => route.prefix.to_string() == "66.0.0.0/8",
        Event::Neighbour(_, n) => n.address.to_string() == "192.0.2.66",
        Event::Link(_, link) => link.name == "forged0",
        Event::Nexthop(_, object) => object.id == 66,
        Event::Dump(..) | Event::Routes(..) => true,
        _ => false,
    }
}

#[test]
#[ignore = "needs root"]
fn messages_that_are_not_from_the_kernel_change_nothing() {
    with_bed(|_| {
        sh("ip addr add 192.0.2.1/24 dev port0");
        let mut observer = observer();
        settle(&mut observer);
        let (mut refused, mut multicast) = (0, 0);
        for (protocol, messages, groups) in forgeries(index_of(c"port0")) {
            let ours = ports(protocol);
            assert!(!ours.is_empty(), "the observer has no sockets of protocol {protocol}");
            let (forger, own) = forger(protocol);
            for mut message in messages {
                for port in ours.iter().filter(|port| **port != own) {
                    let sent = forger.send_to(&event(&mut message), &SocketAddr::new(*port, 0), 0);
                    let error = sent.map_err(|e| e.raw_os_error());
                    assert_eq!(error, Err(Some(libc::ECONNREFUSED)), "to port id {port}");
                    refused += 1;
                }
                for group in &groups {
                    forger.send_to(&event(&mut message), &SocketAddr::new(0, 1 << (group - 1)), 0).unwrap();
                    multicast += 1;
                }
            }
        }
        assert!(refused > 0, "no message was sent to a socket");
        let events = settle(&mut observer);
        assert!(!events.iter().any(is_forged), "a forged message was believed: {events:?}");
        assert_eq!(observer.forged(), multicast, "forged messages counted");

        sh("ip route add 10.0.0.0/8 via 192.0.2.2; ip neigh add 192.0.2.2 lladdr 2:0:0:0:0:2 dev port0");
        until(&mut observer, "a real route", |e| matches!(e, Event::Route4(HOST, ..)).then_some(()));
        until(&mut observer, "a real neighbour", |e| {
            matches!(e, Event::Neighbour(HOST, n) if n.mac.is_some()).then_some(())
        });
    });
}

#[test]
#[ignore = "needs root"]
fn without_rights_in_the_namespace_nothing_can_be_forged() {
    with_bed(|_| {
        let mut observer = observer();
        settle(&mut observer);
        let rights = capabilities(None).unwrap();
        let mut none = rights;
        none.effective = CapabilitySet::empty();
        set_capabilities(None, none).unwrap();
        let mut answers = BTreeSet::new();
        for (protocol, messages, groups) in forgeries(1) {
            let (forger, own) = forger(protocol);
            for mut message in messages {
                let others = ports(protocol).into_iter().filter(|port| *port != own);
                let unicast = others.map(|port| SocketAddr::new(port, 0));
                let all = unicast.chain(groups.iter().map(|group| SocketAddr::new(0, 1 << (group - 1))));
                for to in all {
                    answers
                        .insert(forger.send_to(&event(&mut message), &to, 0).map_err(|e| e.raw_os_error()));
                }
            }
        }
        set_capabilities(None, rights).unwrap();
        assert_eq!(answers, [Err(Some(libc::EPERM))].into());
        assert_eq!(settle(&mut observer).iter().filter(|e| is_forged(e)).count(), 0);
        assert_eq!(observer.forged(), 0);
    });
}

#[test]
#[ignore = "needs root"]
fn a_request_is_not_answered_by_a_forger() {
    with_bed(|_| {
        let mut socket = Socket::requests(libc::NETLINK_ROUTE).unwrap();
        let ours = ports(libc::NETLINK_ROUTE);
        let (forger, own) = forger(libc::NETLINK_ROUTE);
        let (_, messages, _) = forgeries(index_of(c"port0")).swap_remove(0);
        let mut delivered = 0;
        for sequence in 0..8 {
            for port in ours.iter().filter(|port| **port != own) {
                let mut answers = messages.clone();
                answers.push(Request::new(wire::DONE, 0, &[0; 4]));
                for mut answer in answers {
                    let mut bytes = answer.bytes(sequence).to_vec();
                    bytes[12..16].copy_from_slice(&port.to_ne_bytes());
                    delivered += u32::from(forger.send_to(&bytes, &SocketAddr::new(*port, 0), 0).is_ok());
                }
            }
        }
        let names: Vec<String> = socket
            .dump(link::dump(), |m| match link::parse(m)? {
                link::LinkMessage::New(link) => Some(link.name),
                _ => None,
            })
            .unwrap();
        assert!(names.contains(&"port0".to_owned()), "port0 is missing: {names:?}");
        assert!(!names.contains(&"forged0".to_owned()), "a forged link was believed: {names:?}");
        assert_eq!(delivered, 0, "forged answers that the kernel did not refuse");
    });
}

/// Requests end, whatever the kernel or a flood does.
#[test]
#[ignore = "needs root"]
fn a_request_that_the_kernel_does_not_answer_ends() {
    with_bed(|_| {
        let mut socket = Socket::requests(libc::NETLINK_ROUTE).unwrap();
        let index = index_of(c"port0").to_ne_bytes();
        // Without NLM_F_ACK, the kernel sends no answer to a change that succeeds.
        let header = [&[INET, 0, 0, 0][..], &index, &[0x80, 0, 0, 1]].concat();
        let change = Request::new(rtm::NEWNEIGH, CREATE, &header).with(1, &[192, 0, 2, 2]);
        let error = socket.ask(change.with(2, &[2, 0, 0, 0, 0, 2]), |_| None::<()>).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    });
}
