//! `vxlan_decap`: takes Ethernet frames out of VXLAN packets (RFC 7348).
//!
//! - **Input**: IP packets whose headers `check` has checked.
//! - **Output**: the inner frame. It is for another network than the one where the packet arrived, so it belongs to no
//!   interface. Elements that may pass up to the kernel are refused after this one, and `forward` sends it on.
//!   Congestion marks of the outer header are copied to the inner IP header (RFC 6040 section 4.2).
//! - **Up**, unchanged, as `local`: packets that are not for this VNI at our address and UDP port. Before an element
//!   that encrypts, only packets for our address go up, and others are dropped as `in_clear`. The counts name the
//!   cause: `not_vxlan`, `fragments` (Linux reassembles them), `other_vni`.
//! - **Dropped**: `truncated`: shorter than its headers and an inner Ethernet header, or than its UDP length.
//!   `bad_checksum`: the UDP checksum, if there is one (section 4.1). 0 is accepted over IPv6 too. RFC 6935 section 5
//!   requires that this is configured, which this element is. `bad_vxlan`: without the I flag (reserved bits are
//!   ignored, section 5). `policy`: not from `remote`. `congested` (RFC 6040).
//!
//! | parameter | meaning |
//! |---|---|
//! | `vni` | VXLAN network identifier, 24 bits |
//! | `local` | our address |
//! | `remote` | the only accepted sender; by default any |
//! | `udp_port` | destination port; by default 4789 |

use super::{
    Batch, Contract, Counters, Element, Known, Now,
    check::{ETHERNET, IPV4, IPV6, ethernet},
    esp_decrypt::mark,
    esp_encrypt::addresses,
    packet::{Family, Headers, Loss, Packet, Verdict},
    vxlan_encap::{UDP, VALID, VXLAN},
};
use crate::{
    esp,
    flow::field::{ether_type, ip_proto},
    reason::Reason,
    tables::Ingress,
};
use std::{any::Any, net::IpAddr};

/// IPv4: more fragments, or an offset. Then the fragment header of IPv6.
const FRAGMENT: u16 = 0x3fff;
const FRAGMENT_HEADER: u8 = 44;
const ECN: u8 = 3;

/// Why a packet is not for this element, as `ups` counts it.
#[derive(Clone, Copy)]
enum Up {
    NotVxlan,
    Fragment,
    OtherVni,
}
const UPS: [&str; 3] = ["not_vxlan", "fragments", "other_vni"];

enum Not {
    Ours(Up),
    Right(Loss),
}

/// See the head of this file.
#[derive(Debug)]
pub struct VxlanDecap {
    vni: u32,
    local: IpAddr,
    remote: Option<IpAddr>,
    port: u16,
    ups: [u64; 3],
}

impl VxlanDecap {
    /// Takes packets with this VNI to this address and UDP port, and only from `remote` if it is given.
    pub fn new(vni: u32, local: IpAddr, remote: Option<IpAddr>, port: u16) -> Self {
        VxlanDecap { vni, local, remote, port, ups: [0; 3] }
    }

    /// Where in the frame the inner frame begins and ends, and ECN of the outer header. Writes nothing.
    fn find(&self, packet: &Packet<'_>) -> Result<(usize, usize, u8), Not> {
        let Headers { family, ip: at, bytes, .. } = packet.headers;
        let whole = packet.ip().get(..bytes.into()).ok_or(Not::Ours(Up::NotVxlan))?;
        let (from, to) = addresses(whole).ok_or(Not::Ours(Up::NotVxlan))?;
        if to != self.local {
            return Err(Not::Ours(Up::NotVxlan));
        }
        let (ecn, proto, is_fragment, header) = match family {
            Family::V4 => {
                let header = whole.first_chunk::<IPV4>().ok_or(Not::Ours(Up::NotVxlan))?;
                let fragment = u16::from_be_bytes([header[6], header[7]]) & FRAGMENT != 0;
                (header[1] & ECN, header[9], fragment, IPV4)
            }
            Family::V6 => {
                let header = whole.first_chunk::<IPV6>().ok_or(Not::Ours(Up::NotVxlan))?;
                (header[1] >> 4 & ECN, header[6], header[6] == FRAGMENT_HEADER, IPV6)
            }
            Family::Unknown => return Err(Not::Ours(Up::NotVxlan)),
        };
        if is_fragment {
            return Err(Not::Ours(Up::Fragment));
        }
        let behind = whole.get(header..).unwrap_or_default();
        let udp = behind.first_chunk::<UDP>().filter(|_| proto == ip_proto::UDP);
        let udp = udp.ok_or(Not::Ours(Up::NotVxlan))?;
        if u16::from_be_bytes([udp[2], udp[3]]) != self.port {
            return Err(Not::Ours(Up::NotVxlan));
        }
        let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
        let segment = behind.get(..length).filter(|_| length >= UDP + VXLAN + ETHERNET);
        let segment = segment.ok_or(Not::Right(Loss::Truncated))?;
        if udp[6..] != [0, 0] && !esp::udp_checksum_is_right(whole, segment) {
            return Err(Not::Right(Loss::BadChecksum));
        }
        let vxlan = segment.get(UDP..).and_then(|rest| rest.first_chunk::<VXLAN>());
        let [flags, _, _, _, a, b, c, _] = *vxlan.ok_or(Not::Right(Loss::Truncated))?;
        if flags & VALID == 0 {
            return Err(Not::Right(Loss::BadVxlan));
        }
        if u32::from_be_bytes([0, a, b, c]) != self.vni {
            return Err(Not::Ours(Up::OtherVni));
        }
        if self.remote.is_some_and(|remote| remote != from) {
            return Err(Not::Right(Loss::Policy));
        }
        let at = usize::from(at) + header;
        Ok((at + UDP + VXLAN, at + length, ecn))
    }
}

impl Element for VxlanDecap {
    fn name(&self) -> &'static str {
        "vxlan_decap"
    }

    fn contract(&self) -> Contract {
        Contract {
            needs: Known::HEADERS,
            // The inner frame is not for the kernel.
            gives: Known::WRITTEN,
            forgets: Known::HEADERS | Known::NEXT_HOP | Known::HOP_COUNTED,
            passes_up: true,
            ..Contract::default()
        }
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        let is_guarded = batch.is_guarded();
        batch.each(counters, |packet| match self.find(packet) {
            Ok((start, end, ecn)) => unwrap(packet, start, end, ecn).err().map(Verdict::Drop),
            Err(Not::Ours(why)) => {
                self.ups[why as usize] += 1;
                // Before an element that encrypts, packets for others are not `local`.
                let is_local = addresses(packet.ip()).is_some_and(|(_, to)| to == self.local);
                let may_go_up = !is_guarded || is_local;
                Some(if may_go_up { Verdict::Up(Reason::Local) } else { Verdict::Drop(Loss::InClear) })
            }
            Err(Not::Right(loss)) => Some(Verdict::Drop(loss)),
        });
    }

    fn counted(&self) -> Vec<(&'static str, u64)> {
        UPS.into_iter().zip(self.ups).collect()
    }

    fn kept(&self) -> Option<&dyn Any> {
        Some(&self.ups)
    }

    fn go_on_from(&mut self, kept: &dyn Any) {
        self.ups = kept.downcast_ref().copied().unwrap_or(self.ups);
    }
}

/// Makes the inner frame the packet.
fn unwrap(packet: &mut Packet<'_>, start: usize, end: usize, ecn: u8) -> Result<(), Loss> {
    packet.renew(Headers::default());
    packet.ingress = Ingress { interface: 0, flags: 0, ..packet.ingress };
    let frame = packet.move_to(start, end).ok_or(Loss::Truncated)?;
    let Some((kind, at)) = ethernet(frame) else { return Ok(()) };
    match (kind, frame.get_mut(at..)) {
        (ether_type::IPV4, Some(ip)) if ip.len() >= IPV4 && ip[0] >> 4 == 4 => mark(ip, ecn),
        (ether_type::IPV6, Some(ip)) if ip.len() >= IPV6 && ip[0] >> 4 == 6 => mark(ip, ecn),
        _ => Ok(()),
    }
}
