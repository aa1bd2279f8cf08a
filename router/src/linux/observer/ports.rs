//! Ports: their arrival, their end and their problems.

use super::{HOST, Observer, PortState};
use crate::linux::{
    ethtool::{self, Ethtool, Peer, Problem, ProblemKind},
    netlink::{link::RawLink, nsid, socket::Socket},
    netns::{self, FoundNamespace, Key},
};
use logic::{
    observe::{AttachedPort, Event, LinkKind},
    plan::PortId,
};
use std::{collections::BTreeMap, fs::File, io, os::fd::AsFd, sync::Arc};

impl Observer {
    /// Reports ports that appeared, changed or vanished.
    pub(super) fn refresh_ports(&mut self) {
        let Some(host) = self.spaces.get(&HOST) else { return };
        let now = places(self.ports.values(), &host.links);
        // This is read again each time: for a veth it depends on the programs that its peer has attached.
        let ask = || now.iter().map(|index| index.map_or((false, true), look)).collect();
        let looks: Vec<_> = host.place.inside(ask).unwrap_or_else(|_| vec![(false, true); now.len()]);
        for (i, (&id, state)) in self.ports.iter_mut().enumerate() {
            let (frags, hashes) = looks[i];
            let port = now[i].map(|ifindex| AttachedPort { namespace: HOST, ifindex, frags, hashes });
            if port == state.port {
                continue;
            }
            let known = state.port.as_ref().map(|p| p.ifindex);
            if known.is_some() && known != port.as_ref().map(|p| p.ifindex) {
                self.out.push(Event::PortGone(id));
            }
            self.out.extend(port.clone().map(|port| Event::Port(id, port)));
            state.port = port;
        }
    }

    /// Settings of a port's device, or of its veth peer, that would break packets. This takes a few system calls. If
    /// the place of a veth peer is not known, it also takes a look at every namespace: do not call it every second.
    pub fn port_problems(&mut self, id: PortId) -> Vec<Problem> {
        let Some(link) = self.port_link(id).cloned() else { return Vec::new() };
        self.look_for_problems(&link).unwrap_or_else(|error| {
            let text = match error.raw_os_error() {
                Some(libc::ENODEV) => "the device is gone".into(),
                _ => format!("{} could not be checked for offloads: {error}", link.name),
            };
            vec![Problem { kind: ProblemKind::Unknown, text }]
        })
    }

    fn look_for_problems(&mut self, link: &RawLink) -> io::Result<Vec<Problem>> {
        let host = self.spaces.get(&HOST).ok_or(io::ErrorKind::NotFound)?.place.open()?;
        let veth = link.kind == LinkKind::Other("veth".into());
        let features = netns::inside(&host, || Ethtool::open()?.features(&link.name))??;
        let mut problems = ethtool::own_problems(&link.name, &features, veth);
        let refuses = netns::inside(&host, || ethtool::refuses_redirects(link.ifindex))?;
        if let (true, Some(index)) = (veth, link.below) {
            match self.place_of(link.below_nsid, host.clone())? {
                Some((file, name)) => {
                    let peer = netns::inside(&file, || Peer::look(index))??;
                    problems.extend(ethtool::peer_problems(&peer, &name, refuses));
                    return Ok(problems);
                }
                None => problems.push(Problem {
                    kind: ProblemKind::Unknown,
                    text: format!(
                        "the veth peer of {} is in a namespace that has neither a name nor a process, so it cannot be \
                         checked for partial checksums; give the namespace a name",
                        link.name
                    ),
                }),
            }
        }
        problems.extend(refuses.then(|| ethtool::no_redirects(&link.name)));
        Ok(problems)
    }

    /// The namespace that the host knows by `number`, and its name. The place is remembered until a sign that something
    /// moved, but not its file, which would keep the namespace alive.
    fn place_of(&mut self, number: Option<i32>, host: Arc<File>) -> io::Result<Option<(Arc<File>, String)>> {
        let Some(number) = number else { return Ok(Some((host, "host".into()))) };
        let known = match self.peer_places.get(&number) {
            Some(None) => return Ok(None),
            Some(Some((key, found))) => open(key, found),
            None => None,
        };
        if known.is_some() {
            return Ok(known);
        }
        let mut socket = netns::inside(&host, || Socket::requests(libc::NETLINK_ROUTE))??;
        let place = netns::list().into_iter().find(|(key, found)| {
            let file = open(key, found);
            file.and_then(|(file, _)| nsid::ask(&mut socket, file.as_fd()).ok()?) == Some(number)
        });
        let opened = place.as_ref().and_then(|(key, found)| open(key, found));
        self.peer_places.insert(number, place);
        Ok(opened)
    }

    /// The device of a port.
    fn port_link(&self, id: PortId) -> Option<&RawLink> {
        let port = self.ports.get(&id)?.port.as_ref()?;
        self.spaces.get(&HOST)?.links.get(&port.ifindex)
    }
}

/// Does the device transmit multi-buffer frames, and are its packets hashed before they are routed? Unknown counts as
/// no for the first, and as yes for the second.
fn look(ifindex: u32) -> (bool, bool) {
    let hashes = || {
        let ethtool = Ethtool::open()?;
        let name = ethtool.name(ifindex)?.ok_or(io::ErrorKind::NotFound)?;
        Ok::<_, io::Error>(ethtool::hashes_packets(&name, &ethtool.features(&name)?))
    };
    (ethtool::transmits_fragments(ifindex), hashes().unwrap_or(true))
}

/// The file of the namespace, if it still exists, and its name.
fn open(key: &Key, found: &FoundNamespace) -> Option<(Arc<File>, String)> {
    let file = File::open(&found.path).ok()?;
    (Key::of(&file).ok()? == *key).then(|| (Arc::new(file), found.name.clone()))
}

/// The current indexes of ports' devices. A renamed device stays the same port, unless another device has the port's name
/// now, or another port has the device's name: at boot, names are exchanged.
fn places<'a>(
    ports: impl Iterator<Item = &'a PortState> + Clone,
    links: &BTreeMap<u32, RawLink>,
) -> Vec<Option<u32>> {
    let named = |name: &str| links.values().find(|link| link.name == name).map(|link| link.ifindex);
    let is_wanted = |name: &str| ports.clone().any(|other| other.wanted.as_str() == name);
    let place = |state: &PortState| {
        let wanted = state.wanted.as_str();
        let known = state.port.as_ref().and_then(|port| links.get(&port.ifindex));
        match known {
            Some(known) if known.name == wanted => Some(known.ifindex),
            _ => named(wanted).or(known.filter(|known| !is_wanted(&known.name)).map(|known| known.ifindex)),
        }
    };
    ports.clone().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::ObserverConfig, *};
    use std::{
        process::{Command, Stdio},
        time::{Duration, Instant},
    };

    fn sh(command: &str) {
        assert!(Command::new("sh").args(["-ec", command]).status().unwrap().success(), "{command}");
    }

    #[test]
    #[ignore = "needs root"]
    fn the_namespace_of_a_peer_is_remembered_until_a_sign_of_change() {
        let mut peer =
            Command::new("unshare").args(["-n", "sleep", "20"]).stdout(Stdio::null()).spawn().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: moves only this thread, which ends here.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
                std::thread::sleep(Duration::from_millis(100));
                sh(&format!("ip link add port0 type veth peer name far0 netns {}", peer.id()));
                let config = ObserverConfig { ports: vec!["port0".parse().unwrap()], ..Default::default() };
                let mut observer = Observer::new(config).unwrap();
                observer.poll(Duration::ZERO).unwrap();
                let told = |observer: &mut Observer, name: &str| {
                    observer
                        .port_problems(0)
                        .iter()
                        .any(|p| p.text.contains(&format!("in namespace {name} ")))
                };
                let name = format!("pid:{}", peer.id());
                assert!(told(&mut observer, &name));
                let known = observer.peer_places.values_mut().next().unwrap().as_mut().unwrap();
                known.1.name = "remembered".into();
                assert!(told(&mut observer, "remembered"));
                sh("ip link set port0 mtu 1400");
                let end = Instant::now() + Duration::from_secs(5);
                while !told(&mut observer, &name) {
                    assert!(Instant::now() < end, "a message about the port is a sign of change");
                    observer.poll(Duration::from_millis(50)).unwrap();
                }
                let known = observer.peer_places.values_mut().next().unwrap().as_mut().unwrap();
                known.1.path = "/proc/self/ns/mnt".into();
                assert!(told(&mut observer, &name), "the namespace is gone, so it is looked for again");
            });
        });
        peer.kill().unwrap();
        peer.wait().unwrap();
    }
}
