//! Where packets were lost, by name: the drop counters of devices and stacks, and tracepoints of redirects. After a
//! run, `sent = received at the sink + the sum of these`; any difference is reported as unexplained.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;

use crate::{command, cpu, namespace::Namespace, testbed::Testbed};

/// Names of `enum why`.
const WHY: [&str; 6] = ["over_mtu", "down", "redirect_failed", "ring_full", "refused", "cpumap_full"];
/// This many of them, at the front, belong to the device that packets came by.
const WHY_OF_INGRESS: usize = 3;
/// The one that belongs to a CPU.
const CPUMAP_FULL: u32 = 5;

/// Named counters. The difference of two readings shows what happened between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses(pub BTreeMap<String, u64>);

impl Losses {
    /// All drop counters of the testbed at this moment; `generator.refused` is
    /// [`crate::generator::Generator::refused`].
    pub fn now(testbed: &Testbed) -> Result<Self> {
        let mut counters = BTreeMap::new();
        let redirects = testbed.redirects.lost()?;
        let ports: Vec<&str> = testbed.topology.ports.iter().map(|port| port.name.as_str()).collect();
        let veth = |device: &str| ports.contains(&device);
        device_counters(&testbed.box_namespace, "box", veth, &redirects, &mut counters)?;
        for (namespace, place) in testbed.hosts.iter().zip(testbed.topology.hosts()) {
            device_counters(namespace, place, |device| device.starts_with("eth"), &redirects, &mut counters)?;
        }
        for core in 0..cpu::online()? {
            let full = redirects.get(&(0, core as u32, CPUMAP_FULL)).copied();
            counters.extend(full.map(|packets| (format!("core{core}.cpumap_full"), packets)));
        }
        counters.insert("generator.refused".into(), testbed.generator.refused());
        stack_counters(&testbed.box_namespace, "box", &mut counters)?;
        for (index, namespace) in testbed.routers.iter().enumerate() {
            stack_counters(namespace, &format!("r{}", index + 1), &mut counters)?;
        }
        Ok(Self(counters))
    }

    /// Packets lost since `before`; names without losses are left out.
    pub fn since(&self, before: &Self) -> Self {
        let lost = |(name, count): (&String, &u64)| {
            let lost = count.saturating_sub(before.0.get(name).copied().unwrap_or(0));
            (lost > 0).then(|| (name.clone(), lost))
        };
        Self(self.0.iter().filter_map(lost).collect())
    }

    /// Their sum.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

/// Reads the drops of devices (/proc/net/dev). Splits those of a veth into their parts (ethtool -S). Each packet counts
/// under one name:
/// - `ring_full`: XDP redirected the packet out of the device, but the ring of the peer was full. The kernel also counts it
///   as `tx_dropped`, and as `rx_dropped` of the peer.
/// - `refused`: XDP redirected the packet out of the device, but the device or its peer cannot do that.
/// - `over_mtu`, `down`, `redirect_failed`: the packet came by the device, and its redirect failed because of the other
///   device.
/// - `xdp_dropped`: an XDP program at the box dropped the packet. The sink's drops are its work, not losses.
/// - `tx_dropped`, `rx_dropped`: all others. From a veth's `rx_dropped`, only the drops that its own queues count.
fn device_counters(
    namespace: &Namespace,
    place: &str,
    veth: impl Fn(&str) -> bool,
    redirects: &HashMap<(u32, u32, u32), u64>,
    into: &mut BTreeMap<String, u64>,
) -> Result<()> {
    let inode = namespace.inode()?;
    for line in namespace.read("/proc/net/dev")?.lines().skip(2) {
        let Some((device, counts)) = line.split_once(':') else { continue };
        let counts: Vec<u64> = counts.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        let (device, count) = (device.trim(), |at: usize| counts.get(at).copied().unwrap_or(0));
        let (mut rx_dropped, mut tx_dropped) = (count(3), count(11));
        if veth(device) {
            let text = command::run(namespace.command("ethtool").args(["-S", device]))?;
            let index = namespace.interface_index(device)?;
            let lost: Vec<u64> = (0..CPUMAP_FULL)
                .map(|why| redirects.get(&(inode, index, why)).copied().unwrap_or(0))
                .collect();
            into.extend(lost.iter().zip(WHY).map(|(lost, why)| (format!("{place}.{device}.{why}"), *lost)));
            tx_dropped = tx_dropped.saturating_sub(lost[WHY_OF_INGRESS..].iter().sum());
            rx_dropped = sum(&text, |name| {
                name.starts_with("rx_queue_") && name.ends_with("_drops") && !xdp_drops(name)
            });
            rx_dropped = rx_dropped.saturating_sub(lost[..WHY_OF_INGRESS].iter().sum());
            if place == "box" {
                into.insert(format!("{place}.{device}.xdp_dropped"), sum(&text, xdp_drops));
            }
        }
        into.insert(format!("{place}.{device}.rx_dropped"), rx_dropped);
        // Test packets leave hosts by XDP only. Packets that a host's stack failed to send are not test packets.
        if place == "box" {
            into.insert(format!("{place}.{device}.tx_dropped"), tx_dropped);
        }
    }
    Ok(())
}

fn xdp_drops(name: &str) -> bool {
    name.ends_with("_xdp_drops")
}

/// Sum of the counters in the output of `ethtool -S` whose name is wanted.
fn sum(text: &str, wanted: impl Fn(&str) -> bool) -> u64 {
    let counters = text.lines().filter_map(|line| line.trim().rsplit_once(": "));
    counters.filter(|(name, _)| wanted(name)).filter_map(|(_, count)| count.parse::<u64>().ok()).sum()
}

/// Counts the packets that the IP stack of a router discards (/proc/net/snmp, netstat and snmp6).
fn stack_counters(namespace: &Namespace, place: &str, into: &mut BTreeMap<String, u64>) -> Result<()> {
    const WANTED: [&str; 7] = [
        "InHdrErrors",
        "InAddrErrors",
        "InNoRoutes",
        "InDiscards",
        "OutDiscards",
        "OutNoRoutes",
        "InUnknownProtos",
    ];
    for (file, prefix) in [("/proc/net/snmp", "Ip: "), ("/proc/net/netstat", "IpExt: ")] {
        let text = namespace.read(file)?;
        let mut ip = text.lines().filter_map(|line| line.strip_prefix(prefix));
        if let (Some(names), Some(values)) = (ip.next(), ip.next()) {
            for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
                if WANTED.contains(&name) {
                    into.insert(format!("{place}.ip4.{name}"), value.parse().unwrap_or(0));
                }
            }
        }
    }
    for line in namespace.read("/proc/net/snmp6")?.lines() {
        let Some((name, value)) =
            line.strip_prefix("Ip6").and_then(|line| line.split_once(char::is_whitespace))
        else {
            continue;
        };
        if WANTED.contains(&name) {
            into.insert(format!("{place}.ip6.{name}"), value.trim().parse().unwrap_or(0));
        }
    }
    Ok(())
}
