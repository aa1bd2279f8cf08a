//! Ports: coming and going, and what is wrong with them.

use super::{HOST, Observer, PortState};
use crate::{
    ethtool::{self, Ethtool, Peer, Problem, ProblemKind},
    netlink::{link::RawLink, nsid},
    netns,
};
use logic::{
    observe::{Event, LinkKind, Port},
    plan::PortId,
};
use std::{collections::BTreeMap, fs::File, io, os::fd::AsFd, sync::Arc};

impl Observer {
    /// Report ports that came, changed or went.
    pub(super) fn refresh_ports(&mut self) {
        let Some(host) = self.spaces.get(&HOST) else { return };
        let now: Vec<Option<u32>> = self.ports.iter().map(|state| place(state, &host.links)).collect();
        // Asked again each time: for a veth it depends on what its peer has attached.
        let ask = || now.iter().map(|index| index.is_some_and(ethtool::transmits_fragments)).collect();
        let frags: Vec<bool> = netns::inside(&host.file, ask).unwrap_or_else(|_| vec![false; now.len()]);
        for (i, state) in self.ports.iter_mut().enumerate() {
            let id = i as PortId;
            let port = now[i].map(|ifindex| Port { namespace: HOST, ifindex, frags: frags[i] });
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

    /// What of a port's device, or its veth peer, would break packets. A few system calls, and for a veth whose peer is
    /// in a namespace that is not observed a look at every namespace: not for every second.
    pub fn port_problems(&mut self, id: PortId) -> Vec<Problem> {
        let Some(link) = self.port_link(id).cloned() else { return Vec::new() };
        self.look_for_problems(&link).unwrap_or_else(|error| {
            let text = format!("{} could not be checked for offloads: {error}", link.name);
            vec![Problem { kind: ProblemKind::Unknown, text }]
        })
    }

    fn look_for_problems(&mut self, link: &RawLink) -> io::Result<Vec<Problem>> {
        let host = self.spaces.get(&HOST).ok_or(io::ErrorKind::NotFound)?.file.clone();
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
                        "the veth peer of {} is in a namespace that has neither a name nor a process: \
                         whether it sends partial checksums is not known",
                        link.name
                    ),
                }),
            }
        }
        problems.extend(refuses.then(|| ethtool::no_redirects(&link.name)));
        Ok(problems)
    }

    /// The namespace that the host knows by `number`, and its name.
    fn place_of(&mut self, number: Option<i32>, host: Arc<File>) -> io::Result<Option<(Arc<File>, String)>> {
        let Some(number) = number else { return Ok(Some((host, "host".into()))) };
        let space = self.spaces.get_mut(&HOST).ok_or(io::ErrorKind::NotFound)?;
        for found in netns::list().into_values() {
            let Ok(file) = File::open(&found.path) else { continue };
            if nsid::ask(&mut space.requests, file.as_fd()).ok().flatten() == Some(number) {
                return Ok(Some((Arc::new(file), found.name)));
            }
        }
        Ok(None)
    }

    /// The driver of a port's device.
    ///
    /// # Errors
    /// `NotFound` while the port is gone; what the driver says.
    pub fn port_driver(&self, id: PortId) -> io::Result<String> {
        let link = self.port_link(id).ok_or(io::ErrorKind::NotFound)?;
        let host = self.spaces.get(&HOST).ok_or(io::ErrorKind::NotFound)?;
        netns::inside(&host.file, || Ethtool::open()?.driver(&link.name))?
    }

    /// A port's device.
    fn port_link(&self, id: PortId) -> Option<&RawLink> {
        let port = self.ports.get(usize::from(id))?.port.as_ref()?;
        self.spaces.get(&HOST)?.links.get(&port.ifindex)
    }
}

/// The index of a port's device now. A port that was renamed is the same port.
fn place(state: &PortState, links: &BTreeMap<u32, RawLink>) -> Option<u32> {
    let known = state.port.as_ref().map(|p| p.ifindex).filter(|index| links.contains_key(index));
    let wanted = || links.values().find(|link| link.name == state.wanted.as_str()).map(|link| link.ifindex);
    known.or_else(wanted)
}
