//! The real Linux behind [`super::seam::Observe`]: the netlink observer.

use super::seam::{Observe, Reread};
use crate::{
    config::Config,
    ethtool::Problem,
    netns::Place,
    observer::{Observer, ObserverConfig, Quota, Trouble, Waker, clock},
};
use anyhow::Result;
use logic::{
    observe::{Event, NamespaceId},
    plan::PortId,
};
use std::{net::IpAddr, time::Duration};

/// Begins to observe what the configuration names; with what ends a wait for events.
pub fn open(config: &Config) -> Result<(Observer, Waker)> {
    let observer = Observer::new(ObserverConfig {
        ports: config.ports.clone(),
        routers: config.routers.clone(),
        quota: Quota {
            routes: config.limits.routes_per_namespace.0 as usize,
            interfaces: config.limits.devices_per_namespace.0 as usize,
            ..Quota::default()
        },
        ..ObserverConfig::default()
    })?;
    let waker = observer.waker();
    Ok((observer, waker))
}

impl Observe for Observer {
    fn poll(&mut self, patience: Duration) -> Result<Vec<Event>> {
        Ok(Observer::poll(self, patience)?)
    }
    fn probe_neighbour(&mut self, namespace: NamespaceId, ifindex: u32, address: IpAddr) -> Result<()> {
        Ok(Observer::probe_neighbour(self, namespace, ifindex, address)?)
    }
    fn port_problems(&mut self, port: PortId) -> Vec<Problem> {
        Observer::port_problems(self, port)
    }
    fn place(&self, namespace: NamespaceId) -> Option<Place> {
        Observer::place(self, namespace)
    }
    fn troubles(&self) -> Vec<String> {
        let sentence = |t: Trouble| {
            format!("router {} cannot be read: {} (since {})", t.namespace, t.what, clock(t.since))
        };
        Observer::troubles(self).into_iter().map(sentence).collect()
    }
    fn reread(&mut self) -> Reread {
        let reader = self.reader();
        Box::new(move || Ok(reader.read()?))
    }
}
