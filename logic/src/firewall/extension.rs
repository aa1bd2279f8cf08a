//! Matches of iptables (`include/uapi/linux/netfilter/xt_*.h`), which nf_tables carries as they are (`nft_compat`).
//! Their numbers are in the byte order of the machine, except addresses and where a comment says otherwise.

use super::{
    bits::{Answer, Mark},
    ruleset::{Extension, Header},
    traffic::{DST_NAT, Loaded, Place, SRC_NAT, TCP, Traffic, UDP},
};

/// Matches without any effect. Whether they match is not followed here.
const HARMLESS: [&str; 27] = [
    "ah",
    "connbytes",
    "cpu",
    "devgroup",
    "dscp",
    "dst",
    "ecn",
    "esp",
    "frag",
    "hbh",
    "helper",
    "hl",
    "iprange",
    "ipv6header",
    "length",
    "mac",
    "owner",
    "physdev",
    "pkttype",
    "policy",
    "realm",
    "rpfilter",
    "set",
    "tcpmss",
    "time",
    "tos",
    "ttl",
];

/// May this match depend on what conntrack knows of a connection?
pub fn tracks_connections(name: &str) -> bool {
    const STATELESS: [&str; 10] =
        ["addrtype", "comment", "icmp", "icmp6", "mark", "multiport", "rt", "statistic", "tcp", "udp"];
    let harmless = HARMLESS.contains(&name) && !["connbytes", "helper"].contains(&name);
    !harmless && !STATELESS.contains(&name)
}

/// Does it match? `None`: it has effects, or it is not known.
pub fn matches(extension: &Extension, traffic: &Traffic, at: Place, packet_mark: Mark) -> Option<Answer> {
    let info = &extension.info[..];
    Some(match (extension.name.as_str(), extension.revision) {
        ("comment", _) => Answer::Yes,
        ("state", 0) => state(u32_at(info, 0)? & (STATE_SNAT - 1), traffic, at),
        ("conntrack", 2 | 3) => conntrack(info, traffic, at)?,
        ("tcp", 0) => tcp(info, traffic, at)?,
        ("udp", 0) => udp(info, traffic, at)?,
        ("multiport", 1) => multiport(info, traffic, at)?,
        ("mark", 1) => mark(info, Loaded::Value(packet_mark.bits()))?,
        ("connmark", 1) => mark(info, traffic.ct(3, None, at))?,
        ("addrtype", 0 | 1) => address_type(extension.revision, info, traffic, at)?,
        ("icmp" | "icmp6", _) => match traffic.protocol() {
            Some(TCP | UDP) => Answer::No,
            _ => Answer::Maybe,
        },
        // Connections of TCP and UDP are proven for packets without extension headers. Others may have broken ones,
        // which this match drops (rt_mt6).
        ("rt", 0) if traffic.protocol().is_some() => Answer::No,
        // Otherwise it sets the label.
        ("connlabel", 1) if u16_at(info, 2)? & 2 == 0 => Answer::Maybe,
        // Only the random mode. The other mode counts packets, which is an effect.
        ("statistic", 0 | 1) if u16_at(info, 0)? == 0 => Answer::Maybe,
        (name, _) if HARMLESS.contains(&name) => Answer::Maybe,
        _ => return None,
    })
}

/// Numbers are in the byte order of this machine, because its own kernel wrote them.
fn u16_at(info: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*info.get(at..)?.first_chunk()?))
}

fn u32_at(info: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?))
}

/// `XT_CONNTRACK_STATE_*`: bits of the state, then whether addresses are translated.
const STATE_SNAT: u32 = 1 << 6;
const STATE_DNAT: u32 = 1 << 7;

/// As `state_mt` and `conntrack_mt`: is the connection in one of these states?
fn state(mask: u32, traffic: &Traffic, at: Place) -> Answer {
    let (Loaded::Value(state) | Loaded::Unsure(state)) = traffic.ct(0, None, at) else { return Answer::No };
    let state = state.part(0, 4).any_of(&mask.to_ne_bytes());
    let translated =
        [(STATE_SNAT, SRC_NAT), (STATE_DNAT, DST_NAT)].map(|(bit, status)| match traffic.ct(2, None, at) {
            _ if mask & bit == 0 => Answer::No,
            Loaded::Value(of) | Loaded::Unsure(of) => of.part(0, 4).any_of(&status.to_ne_bytes()),
            Loaded::Nothing => Answer::No,
        });
    // One of them is enough.
    translated.into_iter().fold(state.opposite(), |none, one| none.and(one.opposite())).opposite()
}

/// `struct xt_conntrack_mtinfo2` and `3`. Eight addresses and masks come first.
fn conntrack(info: &[u8], traffic: &Traffic, at: Place) -> Option<Answer> {
    const STATE: u16 = 1 << 0;
    const PROTOCOL: u16 = 1 << 1;
    const STATUS: u16 = 1 << 6;
    const DIRECTION: u16 = 1 << 12;
    let (flags, inverted) = (u16_at(info, 146)?, u16_at(info, 148)?);
    let mut all = Answer::Yes;
    if flags & !(STATE | PROTOCOL | STATUS | DIRECTION) != 0 {
        all = Answer::Maybe;
    }
    if flags & STATE != 0 {
        let is = state(u32::from(u16_at(info, 150)?), traffic, at);
        all = all.and(is.inverted(inverted & STATE != 0));
    }
    // Without a connection the state alone decides (conntrack_mt).
    if at.has_connection() != Answer::Yes && flags & !STATE != 0 {
        return Some(all.and(Answer::Maybe));
    }
    if flags & PROTOCOL != 0 {
        let wanted = u16_at(info, 136)?;
        let is = traffic.protocol().map_or(Answer::Maybe, |p| Answer::of(u16::from(p) == wanted));
        all = all.and(is.inverted(inverted & PROTOCOL != 0));
    }
    if flags & STATUS != 0 {
        let is = match traffic.ct(2, None, at) {
            Loaded::Value(status) => status.part(0, 4).any_of(&u32::from(u16_at(info, 152)?).to_ne_bytes()),
            _ => Answer::Maybe,
        };
        all = all.and(is.inverted(inverted & STATUS != 0));
    }
    if flags & DIRECTION != 0 {
        // The flag requires the original direction, or the reply direction if it is inverted.
        let is = match traffic.ct(1, None, at) {
            Loaded::Value(reply) => reply.part(0, 1).any_of(&[1]).opposite(),
            _ => Answer::Maybe,
        };
        all = all.and(is.inverted(inverted & DIRECTION != 0));
    }
    Some(all)
}

/// Is the port at this offset of the transport header between the two?
fn port(info: &[u8], range: usize, offset: u32, traffic: &Traffic, at: Place) -> Option<Answer> {
    let (low, high) = (u16_at(info, range)?, u16_at(info, range + 2)?);
    if (low, high) == (0, u16::MAX) {
        return Some(Answer::Yes);
    }
    Some(match traffic.payload(Header::Transport, offset, 2, at) {
        Loaded::Value(port) => port.between(&low.to_be_bytes(), &high.to_be_bytes()),
        _ => Answer::Maybe,
    })
}

/// Does the traffic have the protocol of this extension? The extension itself does not test the protocol; an
/// earlier step of its rule does. So the answer for other protocols is `Maybe`.
fn is_protocol(wanted: u8, traffic: &Traffic) -> Answer {
    if traffic.protocol() == Some(wanted) { Answer::Yes } else { Answer::Maybe }
}

/// `struct xt_tcp`
fn tcp(info: &[u8], traffic: &Traffic, at: Place) -> Option<Answer> {
    let (option, mask, wanted, inverted) = (*info.get(8)?, *info.get(9)?, *info.get(10)?, *info.get(11)?);
    let flags = match traffic.payload(Header::Transport, 13, 1, at) {
        Loaded::Value(flags) => flags.masked(&[mask], &[0]).between(&[wanted], &[wanted]),
        _ => Answer::Maybe,
    };
    let has_option = if option == 0 { Answer::Yes } else { Answer::Maybe };
    Some(
        is_protocol(TCP, traffic)
            .and(port(info, 0, 0, traffic, at)?.inverted(inverted & 1 != 0))
            .and(port(info, 4, 2, traffic, at)?.inverted(inverted & 2 != 0))
            .and(flags.inverted(inverted & 4 != 0))
            .and(has_option),
    )
}

/// `struct xt_udp`
fn udp(info: &[u8], traffic: &Traffic, at: Place) -> Option<Answer> {
    let inverted = *info.get(8)?;
    Some(
        is_protocol(UDP, traffic)
            .and(port(info, 0, 0, traffic, at)?.inverted(inverted & 1 != 0))
            .and(port(info, 4, 2, traffic, at)?.inverted(inverted & 2 != 0)),
    )
}

/// `struct xt_multiport_v1`
fn multiport(info: &[u8], traffic: &Traffic, at: Place) -> Option<Answer> {
    let (side, count, inverted) = (*info.first()?, usize::from(*info.get(1)?), *info.get(47)?);
    let ports: &[u32] = match side {
        0 => &[0],
        1 => &[2],
        2 => &[0, 2],
        _ => return None,
    };
    let mut none = Answer::Yes;
    let mut i = 0;
    while i < count.min(15) {
        let low = u16_at(info, 2 + 2 * i)?;
        let is_range = *info.get(32 + i)? != 0;
        i += usize::from(is_range);
        let high = if is_range { u16_at(info, 2 + 2 * i)? } else { low };
        for offset in ports {
            none = none.and(match traffic.payload(Header::Transport, *offset, 2, at) {
                Loaded::Value(port) => port.between(&low.to_be_bytes(), &high.to_be_bytes()).opposite(),
                _ => Answer::Maybe,
            });
        }
        i += 1;
    }
    Some(none.opposite().inverted(inverted != 0))
}

/// `struct xt_mark_mtinfo1` and `struct xt_connmark_mtinfo1`
fn mark(info: &[u8], loaded: Loaded) -> Option<Answer> {
    let (wanted, mask, inverted) = (info.get(..4)?, info.get(4..8)?, *info.get(8)?);
    Some(match loaded {
        Loaded::Value(mark) => {
            mark.part(0, 4).masked(mask, &[]).between(wanted, wanted).inverted(inverted != 0)
        }
        _ => Answer::Maybe,
    })
}

/// `struct xt_addrtype_info` and `struct xt_addrtype_info_v1`
fn address_type(revision: u32, info: &[u8], traffic: &Traffic, at: Place) -> Option<Answer> {
    let (source, destination) = (u16_at(info, 0)?, u16_at(info, 2)?);
    let flags = u32_at(info, 4)?;
    let inverted = match revision {
        0 => u32_at(info, 8)? != 0,
        _ => flags & 2 != 0,
    };
    let source = if source == 0 { Answer::Yes } else { Answer::Maybe };
    let is = match traffic.destination_type(at) {
        _ if destination == 0 => Answer::of(!inverted),
        Some(kind) => Answer::of(destination >> kind & 1 != 0),
        None => Answer::Maybe,
    };
    // With a device (LIMIT_IFACE) the answer may be another.
    let sure = if revision == 1 && flags & 0xc != 0 { Answer::Maybe } else { Answer::Yes };
    Some(source.and(is.inverted(inverted)).and(sure))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{ruleset::Hook, traffic::Scope},
        *,
    };

    #[test]
    fn connections_have_no_routing_headers() {
        let rt = Extension { name: "rt".into(), revision: 0, info: vec![0; 304] };
        let at = Place { hook: Hook::Forward, priority: 0 };
        let mut traffic = super::super::tests::any_traffic();
        assert_eq!(matches(&rt, &traffic, at, Mark::known(0)), Some(Answer::No));
        traffic.scope = Scope::All;
        assert_eq!(matches(&rt, &traffic, at, Mark::known(0)), None);
    }

    #[test]
    fn info_that_is_cut_short_is_no_answer() {
        for name in
            ["state", "conntrack", "tcp", "udp", "multiport", "mark", "connmark", "addrtype", "statistic"]
        {
            for revision in 0..4 {
                for length in 0..160 {
                    let extension = Extension { name: name.into(), revision, info: vec![0xff; length] };
                    let traffic = super::super::tests::any_traffic();
                    let at = Place { hook: Hook::Forward, priority: 0 };
                    let _ = matches(&extension, &traffic, at, Mark::known(0));
                }
            }
        }
    }
}
