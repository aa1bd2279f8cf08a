//! Which packets may go up from elements before one that encrypts ([`super::Contract::encrypts`]).
//!
//! A kernel that forwards would send them unencrypted there. So [`super::Chain`] lets such elements pass up only
//! packets that Linux never forwards. All others are dropped as `in_clear`, and counted by their reason too.
//!
//! | reason | goes up | why |
//! |---|---|---|
//! | `arp`, `neighbour_discovery` | yes | for the machine or its neighbours; routers do not forward them |
//! | `local` | yes | for the machine itself: routing protocols with it, and ESP and IKE of other SAs |
//! | `broadcast` | on the link only | routing protocols, DHCP: [`stays_on_link`] |
//! | `ttl_exceeded` | yes | Linux answers, or delivers packets for itself (BGP has TTL 1), but does not forward (`ip_forward`, `ip6_forward`) |
//! | `over_mtu`, `fragmented` | no | Linux fragments if that is allowed, and its MTU may have changed |
//! | `no_route`, `unresolved`, `special_route`, `reverse_path`, `bad_source` | no | Linux decides by its own tables, which may have changed, and by settings (`accept_local`); a `throw` route leads to other tables |
//! | `ipv4_options`, `ipv6_extension` | no | Linux forwards them |
//! | `not_ip`, `not_our_mac` | no | Linux may route the inner packet (MPLS, PPPoE, a VLAN or macvlan device unknown here), or bridge it |
//! | `malformed`, `ipv4_bad_header`, `ipv6_bad_header` | no | nobody needs them |
//! | all others | no | their meaning is that Linux forwards them |
//!
//! An element may return `local` only for packets that are really local. `esp_decrypt` returns it for every packet that
//! it does not know, so it asks [`super::Batch::is_guarded`].

use super::{
    check::{IPV4, IPV6, ethernet, is_tag},
    packet::Packet,
};
use crate::{flow::field::ether_type, reason::Reason};

/// Whether a packet may go up for this reason, by the table above.
#[cold]
pub(super) fn may_go_up(reason: Reason, packet: &Packet<'_>) -> bool {
    match reason {
        Reason::Arp | Reason::NeighbourDiscovery | Reason::Local | Reason::TtlExceeded => true,
        Reason::Broadcast => stays_on_link(packet.data()),
        _ => false,
    }
}

/// Linux does not forward multicast to 224.0.0.0/24 or of link-local scope (RFC 5771 section 4, RFC 4291 section 2.7;
/// `ip_route_input_mc`, `ip6_mc_input`), or packets to 255.255.255.255. Of frames to group addresses it forwards only
/// multicast (`ip_forward` and `ip6_forward` require `PACKET_HOST`).
fn stays_on_link(data: &[u8]) -> bool {
    let is_group = data.first().is_some_and(|first| first & 1 != 0);
    let Some((kind, at)) = ethernet(data) else { return false };
    let ip = data.get(at..).unwrap_or_default();
    match kind {
        ether_type::IPV4 => match ip.first_chunk::<IPV4>().and_then(|header| header.last_chunk::<4>()) {
            Some([224, 0, 0, _] | [255, 255, 255, 255]) => true,
            Some([first, ..]) => is_group && first & 0xf0 != 0xe0,
            None => false,
        },
        ether_type::IPV6 => match ip.first_chunk::<IPV6>().and_then(|header| header.last_chunk::<16>()) {
            Some([0xff, scope, ..]) => matches!(scope & 0x0f, 1 | 2),
            Some(_) => is_group,
            None => false,
        },
        _ => is_group && !is_tag(kind),
    }
}
