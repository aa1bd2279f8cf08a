//! The real Linux behind [`super::seam::Observe`]: the netlink observer.

use super::seam::{Ask, Hardware, Known, Observe, Question, Sent, Standing};
use crate::{
    base::conditions::Condition,
    config::{Config, ports::NumberedPorts},
    linux::{
        ethtool::Problem,
        multipath::MultipathKeys,
        netns::NamespaceRef,
        observer::{Observer, ObserverConfig, PolicyRead, Quota, Reader, Waker},
    },
};
use anyhow::Result;
use logic::{
    net::Mac,
    observe::{Event, NamespaceId},
    plan::PortId,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

/// Begins to observe what the configuration names. Returns the observer, and the waker that ends its wait for events.
pub fn open(config: &Config, multipath_keys: MultipathKeys) -> Result<(Observer, Waker)> {
    let observer = Observer::new(ObserverConfig {
        ports: config.ports.clone(),
        routers: config.routers.clone(),
        quota: quota(config),
        multipath_keys,
        ..ObserverConfig::default()
    })?;
    let waker = observer.waker();
    Ok((observer, waker))
}

fn quota(config: &Config) -> Quota {
    Quota {
        routes: config.limits.routes_per_namespace.0 as usize,
        interfaces: config.limits.devices_per_namespace.0 as usize,
        namespaces: config.limits.namespaces_per_owner.0 as usize,
        ..Quota::default()
    }
}

impl Observe for Observer {
    fn follow(&mut self, config: &Config, ports: &NumberedPorts) {
        Observer::configure(self, ports, config.routers.clone(), quota(config));
    }
    fn poll(&mut self, patience: Duration) -> Result<Vec<Event>> {
        Ok(Observer::poll(self, patience)?)
    }
    fn probe_neighbour(&mut self, namespace: NamespaceId, ifindex: u32, address: IpAddr) -> Result<()> {
        Ok(Observer::probe_neighbour(self, namespace, ifindex, address)?)
    }
    fn read_routes_again(&mut self, namespace: NamespaceId) {
        Observer::read_routes_again(self, namespace);
    }
    fn look_at_destinations(&mut self, namespace: NamespaceId, destinations: &BTreeSet<IpAddr>, lost: u64) {
        Observer::look_at_destinations(self, namespace, destinations, lost);
    }
    fn port_problems(&mut self, port: PortId) -> Vec<Problem> {
        Observer::port_problems(self, port)
    }
    fn place(&self, namespace: NamespaceId) -> Option<NamespaceRef> {
        Observer::place(self, namespace)
    }
    fn read_policy(&mut self, namespace: NamespaceId) {
        Observer::read_policy(self, namespace);
    }
    fn policies_read(&mut self) -> Vec<PolicyRead> {
        Observer::policies_read(self)
    }
    fn conditions(&self) -> Vec<Condition> {
        Observer::conditions(self)
    }
    fn standing(&self, namespace: NamespaceId) -> Standing {
        Observer::standing(self, namespace)
    }
    fn questions(&mut self) -> Box<dyn Ask> {
        Box::new(self.reader())
    }
}

impl Ask for Reader {
    fn end_at(&mut self, namespace: NamespaceId, end: Instant) {
        Reader::end_at(self, namespace, end);
    }
    fn routes(&mut self, namespace: NamespaceId) -> Result<Vec<Known>> {
        Ok(Reader::routes(self, namespace)?)
    }
    fn way(&mut self, namespace: NamespaceId, question: &Question) -> Result<Option<Sent>> {
        Ok(Reader::way(self, namespace, question)?)
    }
    fn neighbours(&mut self, namespace: NamespaceId) -> Result<BTreeMap<(u32, IpAddr), Mac>> {
        Ok(Reader::neighbours(self, namespace)?)
    }
    fn devices(&mut self, namespace: NamespaceId) -> Result<BTreeMap<u32, Hardware>> {
        Ok(Reader::devices(self, namespace)?)
    }
}
