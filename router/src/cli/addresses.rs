//! Addresses of interfaces. The command reads them from Linux itself: the daemon needs none of them.

use crate::linux::{
    ethtool::Ethtool,
    netlink::{
        rtm,
        socket::Socket,
        wire::{self, Message, Request},
    },
    netns,
};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

/// How long Linux may take for the addresses of a namespace.
const PATIENCE: Duration = Duration::from_secs(2);

/// Addresses with prefix lengths, by device.
pub type Addresses = BTreeMap<String, Vec<String>>;

/// The addresses of a router's devices. `daemon`: the daemon's process, whose namespace is the host's.
///
/// # Errors
/// The namespace has no name, or Linux cannot be asked.
pub fn of_router(router: &str, daemon: u32) -> io::Result<Addresses> {
    let file = File::open(path(router, daemon).ok_or(io::ErrorKind::NotFound)?)?;
    netns::inside(&file, read)?
}

fn path(router: &str, daemon: u32) -> Option<PathBuf> {
    let of_process = |pid: u32| PathBuf::from(format!("/proc/{pid}/ns/net"));
    match router.strip_prefix("pid:") {
        _ if router == "host" => Some(of_process(daemon)),
        Some(pid) => pid.parse().ok().map(of_process),
        // An unnamed namespace is called `netns:NUMBER`.
        None if router.contains(['/', ':']) || router.starts_with('.') => None,
        None => Some(PathBuf::from("/run/netns").join(router)),
    }
}

/// Those of the calling thread's namespace.
fn read() -> io::Result<Addresses> {
    let mut socket = Socket::requests(libc::NETLINK_ROUTE)?;
    socket.end_at(Instant::now() + PATIENCE);
    let found = socket.dump(Request::new(rtm::GETADDR, wire::DUMP, &[0; 8]), parse)?;
    let devices = Ethtool::open()?;
    let mut names: BTreeMap<u32, Option<String>> = BTreeMap::new();
    let mut addresses = Addresses::new();
    for (ifindex, address) in found {
        if let std::collections::btree_map::Entry::Vacant(name) = names.entry(ifindex) {
            name.insert(devices.name(ifindex)?);
        }
        // The device may be gone by now.
        if let Some(Some(name)) = names.get(&ifindex) {
            addresses.entry(name.clone()).or_default().push(address);
        }
    }
    Ok(addresses)
}

fn parse(message: Message<'_>) -> Option<(u32, String)> {
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    let payload = message.payload;
    let of = |wanted| wire::attributes_after(payload, 8).find(|(kind, _)| *kind == wanted);
    let address = wire::address(of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS))?.1)?;
    Some((wire::u32_at(payload, 4)?, format!("{address}/{}", payload.get(1)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_found_by_the_names_of_routers() {
        let path = |router| path(router, 7).map(|path| path.display().to_string());
        assert_eq!(path("host").as_deref(), Some("/proc/7/ns/net"));
        assert_eq!(path("pid:9").as_deref(), Some("/proc/9/ns/net"));
        assert_eq!(path("red").as_deref(), Some("/run/netns/red"));
        for name in ["netns:4026531840", "../../etc", "..", "a/b", "pid:x"] {
            assert_eq!(path(name), None, "{name}");
        }
    }

    #[test]
    fn messages_have_addresses_of_both_versions() {
        let parsed = |family: u8, length: u8, attributes: &[(u16, &[u8])]| {
            let header = [family, length, 0, 0, 7, 0, 0, 0];
            let request = Request::new(rtm::NEWADDR, 0, &header);
            let mut request = attributes.iter().fold(request, |r, (kind, value)| r.with(*kind, value));
            wire::messages(request.bytes(1)).next().and_then(parse)
        };
        let v4: [(u16, &[u8]); 2] = [(1, &[10, 0, 0, 9]), (2, &[10, 0, 0, 1])];
        assert_eq!(parsed(2, 24, &v4), Some((7, "10.0.0.1/24".into())));
        let v6 = "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
        assert_eq!(parsed(10, 64, &[(1, &v6)]), Some((7, "2001:db8::1/64".into())));
        assert_eq!(parsed(10, 64, &[(1, &v6[..7])]), None);
        assert_eq!(parsed(2, 24, &[]), None);
    }
}
