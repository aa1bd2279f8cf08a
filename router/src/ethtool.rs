//! What devices offload, by `SIOCETHTOOL`, and what of that spoils XDP on a port.

/// Does the device transmit multi-buffer frames that are redirected to it (`NETDEV_XDP_ACT_NDO_XMIT_SG`, Linux 6.3)?
/// Unknown counts as no.
pub fn transmits_fragments(_ifindex: u32) -> bool {
    false
}
