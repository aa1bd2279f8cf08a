//! `RTM_NEWNEXTHOP`: nexthop objects. FRR installs them, and routes refer to them by number.
//!
//! Kernel source: `nh_fill_node` in `net/ipv4/nexthop.c`, `include/uapi/linux/nexthop.h`.

use super::{
    attributes::{self, has},
    route, rtm, wire,
};
use logic::observe::{NextHop, NexthopObject, NexthopObjectKind};

const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_GROUP_TYPE: u16 = 3;
const NHA_BLACKHOLE: u16 = 4;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NHA_FDB: u16 = 11;

/// `NEXTHOP_GRP_TYPE_MPATH`.
const MULTIPATH: u16 = 0;
const HEADER: usize = 8;
const IRRELEVANT: u64 = attributes::NEXTHOP.irrelevant();
const KNOWN_FLAGS: u64 = attributes::ROUTE_FLAG.known();

/// A dump of all objects.
pub fn dump() -> wire::Request {
    wire::Request::new(rtm::GETNEXTHOP, wire::DUMP, &[0; HEADER])
}

/// The object of an `RTM_NEWNEXTHOP` or `RTM_DELNEXTHOP`.
pub fn parse(message: wire::Message<'_>) -> Option<NexthopObject> {
    if !matches!(message.kind, rtm::NEWNEXTHOP | rtm::DELNEXTHOP) {
        return None;
    }
    let all_flags = wire::u32_at(message.payload, 4)?;
    let flags = all_flags as u8;
    let mut id = None;
    let mut hop = NextHop {
        ifindex: 0,
        gateway: None,
        weight: 1,
        dead: flags & route::DEAD != 0,
        linkdown: flags & route::LINKDOWN != 0,
        complex: false,
    };
    let (mut group, mut group_kind, mut blackhole, mut fdb) = (None, MULTIPATH, false, false);
    let mut unknown = !(0..32).all(|bit| all_flags >> bit & 1 == 0 || has(KNOWN_FLAGS, bit));
    for (kind, value) in wire::attributes(message.payload.get(HEADER..)?) {
        match kind {
            NHA_ID => id = wire::u32_at(value, 0),
            NHA_GROUP => group = Some(parse_group(value)),
            NHA_GROUP_TYPE => group_kind = wire::u16_at(value, 0)?,
            NHA_BLACKHOLE => blackhole = true,
            NHA_OIF => hop.ifindex = wire::u32_at(value, 0)?,
            NHA_GATEWAY => {
                let gateway = wire::address(value);
                unknown |= gateway.is_none();
                hop.gateway = gateway.filter(|a| !a.is_unspecified());
            }
            NHA_FDB => fdb = true,
            _ => unknown |= !has(IRRELEVANT, kind),
        }
    }
    let kind = match group {
        _ if fdb => NexthopObjectKind::Unsupported("nexthop object of a bridge's forwarding database"),
        Some(_) if group_kind != MULTIPATH => NexthopObjectKind::Unsupported("resilient nexthop group"),
        _ if unknown => NexthopObjectKind::Unsupported("nexthop object with an unknown attribute or flag"),
        Some(Some(members)) => NexthopObjectKind::Group(members),
        Some(None) => NexthopObjectKind::Unsupported("nexthop group with weights over 256"),
        None if blackhole => NexthopObjectKind::Blackhole,
        None => NexthopObjectKind::Single(hop),
    };
    Some(NexthopObject { id: id?, kind })
}

/// `struct nexthop_grp`: id, weight minus one, and since Linux 6.12 the high byte of the weight. `None`: a weight is
/// over 256.
fn parse_group(bytes: &[u8]) -> Option<Vec<(u32, u16)>> {
    bytes
        .chunks_exact(8)
        .map(|entry| {
            (entry[5] == 0).then(|| Some((wire::u32_at(entry, 0)?, u16::from(entry[4]) + 1))).flatten()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::{Message, Request};

    fn parsed(request: Request) -> Option<NexthopObject> {
        let mut request = request;
        wire::messages(request.bytes(1)).next().and_then(parse)
    }

    #[test]
    fn single_objects_and_groups_are_read() {
        let one = Request::new(rtm::NEWNEXTHOP, 0, &[2, 0, 0, 0, 17, 0, 0, 0])
            .with(NHA_ID, &3u32.to_ne_bytes())
            .with(NHA_OIF, &4u32.to_ne_bytes())
            .with(NHA_GATEWAY, &[192, 0, 2, 1]);
        let hop = NextHop {
            ifindex: 4,
            gateway: Some([192, 0, 2, 1].into()),
            weight: 1,
            dead: true,
            linkdown: true,
            complex: false,
        };
        assert_eq!(parsed(one), Some(NexthopObject { id: 3, kind: NexthopObjectKind::Single(hop) }));

        let group = |high: u8| {
            Request::new(rtm::NEWNEXTHOP, 0, &[0; 8])
                .with(NHA_ID, &9u32.to_ne_bytes())
                .with(NHA_GROUP, &[3, 0, 0, 0, 255, high, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0])
        };
        let kind = NexthopObjectKind::Group(vec![(3, 256), (4, 1)]);
        assert_eq!(parsed(group(0)), Some(NexthopObject { id: 9, kind }));
        assert!(matches!(parsed(group(1)).unwrap().kind, NexthopObjectKind::Unsupported(_)));
        assert!(matches!(
            parsed(group(0).with(NHA_GROUP_TYPE, &[1, 0])).unwrap().kind,
            NexthopObjectKind::Unsupported(_)
        ));
    }

    #[test]
    fn every_attribute_and_flag_does_what_its_class_says() {
        use super::super::attributes::{Class, NEXTHOP, ROUTE_FLAG};
        let with = |flags: u32, number: u16, value: &[u8]| {
            let mut header = [0; 8];
            header[4..].copy_from_slice(&flags.to_ne_bytes());
            let request = Request::new(rtm::NEWNEXTHOP, 0, &header).with(NHA_ID, &[3, 0, 0, 0]);
            parsed(request.with(NHA_OIF, &[4, 0, 0, 0]).with(number, value))
        };
        let left = |object: Option<NexthopObject>| {
            matches!(object, Some(NexthopObject { kind: NexthopObjectKind::Unsupported(_), .. }))
        };
        let plain = with(0, 14, &[]);
        assert!(!left(plain.clone()));
        for number in 0..=63 {
            for value in [&[][..], &[1], &[9; 4], &[7; 16]] {
                let got = with(0, number, value);
                match NEXTHOP.class(number) {
                    Some(Class::Irrelevant(_)) => assert_eq!(got, plain, "{number}"),
                    Some(Class::Heeded(_)) => {}
                    _ => assert!(left(got), "{number} {value:?}"),
                }
            }
        }
        for bit in 0..32 {
            let got = with(1 << bit, 14, &[]);
            match ROUTE_FLAG.class(bit) {
                Some(Class::Irrelevant(_)) => assert_eq!(got, plain, "{bit}"),
                Some(Class::Heeded(_)) => {}
                _ => assert!(left(got), "{bit}"),
            }
        }
    }

    #[test]
    fn every_property_of_a_single_object_is_read() {
        let object = |flags: u8, attributes: &[(u16, &[u8])]| {
            let request = Request::new(rtm::NEWNEXTHOP, 0, &[10, 0, 0, 0, flags, 0, 0, 0]);
            let request = request.with(NHA_ID, &[3, 1, 0, 0]);
            parsed(attributes.iter().fold(request, |r, (kind, value)| r.with(*kind, value))).unwrap()
        };
        let hop = |ifindex, gateway: Option<[u8; 16]>, dead, linkdown| {
            let gateway = gateway.map(Into::into);
            let hop = NextHop { ifindex, gateway, weight: 1, dead, linkdown, complex: false };
            NexthopObject { id: 259, kind: NexthopObjectKind::Single(hop) }
        };
        let device: (u16, &[u8]) = (NHA_OIF, &[4, 1, 0, 0]);
        assert_eq!(object(0, &[]), hop(0, None, false, false));
        assert_eq!(object(0, &[device]), hop(260, None, false, false));
        assert_eq!(object(route::DEAD, &[device]), hop(260, None, true, false));
        assert_eq!(object(route::LINKDOWN, &[device]), hop(260, None, false, true));
        assert_eq!(object(0, &[device, (NHA_GATEWAY, &[9; 16])]), hop(260, Some([9; 16]), false, false));
        assert_eq!(object(0, &[device, (NHA_GATEWAY, &[0; 16])]), hop(260, None, false, false));
        assert_eq!(object(0, &[(NHA_BLACKHOLE, &[])]).kind, NexthopObjectKind::Blackhole);
        let members: (u16, &[u8]) = (NHA_GROUP, &[3, 0, 0, 0, 0, 0, 0, 0]);
        for (attributes, why) in [
            (&[device, (NHA_GATEWAY, &[9; 5])][..], "nexthop object with an unknown attribute or flag"),
            (
                &[device, (NHA_GATEWAY, &[9; 5]), (NHA_GATEWAY, &[9; 4])],
                "nexthop object with an unknown attribute or flag",
            ),
            (&[device, (NHA_FDB, &[])], "nexthop object of a bridge's forwarding database"),
            (&[members, (NHA_GROUP_TYPE, &[1, 0])], "resilient nexthop group"),
        ] {
            assert_eq!(object(0, attributes).kind, NexthopObjectKind::Unsupported(why));
        }
    }

    #[test]
    fn a_message_without_a_number_is_ignored() {
        assert_eq!(parsed(Request::new(rtm::NEWNEXTHOP, 0, &[0; 8])), None);
        let id = [7, 0, 0, 0];
        assert!(parsed(Request::new(rtm::DELNEXTHOP, 0, &[0; 8]).with(NHA_ID, &id)).is_some());
        assert_eq!(parsed(Request::new(rtm::GETNEXTHOP, 0, &[0; 8]).with(NHA_ID, &id)), None);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(Message { kind: rtm::NEWNEXTHOP, flags: 0, sequence: 0, payload: &bytes });
        }
    }
}
