//! A subject's own virtual router, beyond those of the testbed. Dropping it removes it and frees the ports for the next
//! subject.

use anyhow::{Context, Result};

use crate::{
    addresses::{egress_mac, ingress_mac, mac_text, nexthop_mac},
    command,
    namespace::Namespace,
    testbed::{PORT_IN, PORT_OUT, Testbed},
};

/// See `linux_bridge_veth.rs`.
const BRIDGE: &str = "type bridge stp_state 0 forward_delay 0 mcast_snooping 0";

pub(super) struct VirtualRouter {
    number: u16,
    /// Names of its interfaces, which are those of the box's ports.
    ports: Vec<String>,
    box_name: String,
    /// Devices in the box to delete with it.
    devices: &'static [&'static str],
    namespace: Namespace,
}

impl VirtualRouter {
    /// With a macvlan child of each port.
    pub(super) fn macvlan(testbed: &Testbed) -> Result<Self> {
        let number = testbed.routers.len() as u16 + 1;
        let namespace = testbed.virtual_router(number)?;
        let box_name = testbed.box_namespace.name().into();
        Ok(Self { number, ports: ports(testbed), box_name, devices: &[], namespace })
    }

    /// Behind a bridge on each port; see `linux_bridge_veth.rs`.
    pub(super) fn bridge_veth(testbed: &Testbed) -> Result<Self> {
        let number = testbed.routers.len() as u16 + 1;
        let namespace = Namespace::create(format!("{}-r{number}", testbed.name))?;
        let devices = &["mlbr-in", "mlbr-out", "mlve-in", "mlve-out"];
        let box_namespace = &testbed.box_namespace;
        let box_name = box_namespace.name().into();
        let router = Self { number, ports: ports(testbed), box_name, devices, namespace };
        box_namespace.enter(hand_nothing_to_netfilter)?;
        let mut addresses = String::new();
        let sides = [(PORT_IN, "in", ingress_mac(number)), (PORT_OUT, "out", egress_mac(number))];
        for (port, side, mac) in sides {
            let (inside, mac) = (router.namespace.name(), mac_text(mac));
            box_namespace.ip_batch(&format!(
                "link add mlbr-{side} {BRIDGE}\n\
                 link add mlve-{side} type veth peer name {port} address {mac} netns {inside}\n\
                 link set {port} master mlbr-{side}\nlink set mlve-{side} master mlbr-{side}\n\
                 link set mlve-{side} up\nlink set mlbr-{side} up\n"
            ))?;
            addresses += &format!("fdb add {mac} dev mlve-{side} master static\n");
        }
        for n in 1..=testbed.next_hops()? {
            addresses += &format!("fdb add {} dev {PORT_OUT} master static\n", mac_text(nexthop_mac(n)));
        }
        let mut bridge = std::process::Command::new("bridge");
        bridge.args(["-netns", box_namespace.name(), "-batch", "-"]);
        command::run_with_input(&mut bridge, &addresses).context("addresses of the bridges")?;
        router.namespace.ip_batch(&format!("link set {PORT_IN} up\nlink set {PORT_OUT} up\n"))?;
        let ports = [testbed.topology.port(PORT_IN)?, testbed.topology.port(PORT_OUT)?];
        testbed.configure_router(&testbed.topology.router(number, &ports, 1), &router.namespace)?;
        Ok(router)
    }

    /// Its number: it has `ingress_mac(number)` and `egress_mac(number)`.
    pub(super) fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for VirtualRouter {
    fn drop(&mut self) {
        // The kernel removes a namespace's devices some time after it; until then they would occupy the ports.
        let inner = self.ports.iter().map(|device| (self.namespace.name(), device.as_str()));
        let outer = self.devices.iter().map(|device| (self.box_name.as_str(), *device));
        for (namespace, device) in inner.chain(outer) {
            // The device may be gone with its peer, or was never made.
            let _ = command::ip(&format!("-netns {namespace} link del {device}"));
        }
    }
}

fn ports(testbed: &Testbed) -> Vec<String> {
    testbed.topology.ports.iter().map(|port| port.name.clone()).collect()
}

/// Keeps bridges of this namespace from handing packets to netfilter, if the kernel can do that at all. Only bridges
/// read the setting, so it may stay.
fn hand_nothing_to_netfilter() -> Result<()> {
    for what in ["arptables", "ip6tables", "iptables"] {
        match std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{what}"), "0") {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}
