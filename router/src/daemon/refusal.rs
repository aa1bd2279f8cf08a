//! Finds likely reasons why a driver refused XDP. The kernel returns only EINVAL: `virtnet_xdp_set`, `veth_xdp_set`
//! and others give their reasons as extended acknowledgements, which a BPF link does not pass on.

use crate::{
    base::foreign::{Quoted, Shown},
    linux::ethtool::{Ethtool, Peer},
    plane::Mode,
    user_plane::seam::Device,
};
use anyhow::{Error, anyhow};
use std::io;

/// An MTU for which almost every driver's XDP has room in one page, beside headroom and tail.
const SAFE_MTU: u32 = 1500;

/// What is known about a device.
#[derive(Clone, Debug, Default)]
struct Looks {
    driver: Option<String>,
    mtu: Option<u32>,
    lro: bool,
}

impl Looks {
    fn look(&mut self, device: &Device) {
        if let Ok(device) = Peer::look(device.ifindex) {
            (self.mtu, self.lro) = (Some(device.link.mtu), device.features.contains("rx-lro"));
        }
    }
}

/// The error of attaching, with likely reasons and remedies if it came from the driver.
pub fn explained(error: Error, device: &Device, mode: Mode, generic_allowed: bool) -> Error {
    if error.downcast_ref::<io::Error>().is_none() {
        return error.context(format!("port {}", Shown(&device.name)));
    }
    let mut looks = Looks {
        driver: Ethtool::open().and_then(|ethtool| ethtool.driver(&device.name)).ok(),
        ..Looks::default()
    };
    looks.look(device);
    error.context(words(&device.name, mode, generic_allowed, &looks))
}

/// Why the driver may refuse native XDP though it has it, as a sentence. Only attaching shows whether it does.
pub fn may_come(device: &Device) -> Option<String> {
    let mut looks = Looks::default();
    looks.look(device);
    let mtu = looks.mtu.filter(|mtu| *mtu > SAFE_MTU).map(|mtu| format!("its MTU is {mtu}"));
    let why: Vec<_> = mtu.into_iter().chain(looks.lro.then(|| "LRO is on".into())).collect();
    (!why.is_empty())
        .then(|| format!("the driver may refuse XDP when Millrace attaches it: {}", why.join(" and ")))
}

/// The error for a device whose driver has no native XDP, if generic mode is not allowed.
pub fn has_no_native_mode(device: &Device) -> Error {
    let driver = Ethtool::open().and_then(|ethtool| ethtool.driver(&device.name)).ok();
    anyhow!(
        "port {}: the driver has no native XDP (driver {}); run with --generic, which is several times slower",
        Shown(&device.name),
        driver.as_deref().unwrap_or("unknown")
    )
}

fn words(name: &str, mode: Mode, generic_allowed: bool, looks: &Looks) -> String {
    let (shown, name) = (Shown(name), Quoted(name));
    let driver = looks.driver.as_deref().unwrap_or("unknown");
    let mtu = looks.mtu.map_or("unknown".into(), |mtu| mtu.to_string());
    let mut likely = Vec::new();
    if looks.mtu.is_some_and(|mtu| mtu > SAFE_MTU) {
        likely.push(format!(
            "the MTU is too large for this driver's XDP (ip link set dev {name} mtu {SAFE_MTU}; the limit is the driver's, \
             often about 3500)"
        ));
    }
    if looks.lro {
        likely.push(format!("LRO is on (ethtool -K {name} lro off)"));
    }
    if mode == Mode::Native {
        likely.push(format!("too few queues for one per CPU (ethtool -l {name})"));
        likely.push("the driver has no native XDP".into());
    }
    let out = match mode {
        Mode::Native if !generic_allowed => "; or run with --generic, which is several times slower",
        Mode::Native | Mode::Generic => "",
    };
    let likely =
        if likely.is_empty() { String::new() } else { format!(". Likely reasons: {}", likely.join("; ")) };
    format!("port {shown}: {mode} XDP was refused (driver {driver}, MTU {mtu}){likely}{out}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_the_mtu_and_the_remedy_are_named() {
        let looks = Looks { driver: Some("virtio_net".into()), mtu: Some(9000), lro: true };
        let text = words("eth1", Mode::Native, false, &looks);
        for part in [
            "port eth1: native XDP was refused (driver virtio_net, MTU 9000)",
            "ip link set dev eth1 mtu 1500",
            "ethtool -K eth1 lro off",
            "too few queues",
            "--generic",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let plain = words("eth1", Mode::Native, false, &Looks { mtu: Some(1500), ..looks });
        assert!(!plain.contains("MTU is too large"), "{plain}");
        for (mode, generic_allowed) in [(Mode::Generic, true), (Mode::Native, true)] {
            assert!(!words("eth1", mode, generic_allowed, &Looks::default()).contains("--generic"));
        }
    }

    #[test]
    fn a_hostile_name_is_one_word_of_each_command() {
        use crate::base::foreign::{HOSTILE, Pasted};
        let mut pasted = Pasted::default();
        let looks = Looks { driver: Some("x".into()), mtu: Some(9000), lro: true };
        for name in HOSTILE {
            let text = words(name, Mode::Native, false, &looks);
            for (from, to, tool, expected) in [
                ("driver's XDP (", "; the limit", "ip", vec!["link", "set", "dev", name, "mtu", "1500"]),
                ("LRO is on (", "); too few", "ethtool", vec!["-K", name, "lro", "off"]),
                ("per CPU (", "); the driver", "ethtool", vec!["-l", name]),
            ] {
                let line = text.split_once(from).unwrap().1.split_once(to).unwrap().0;
                pasted.add(&text, line, tool, &expected);
            }
        }
        pasted.run();
    }

    #[test]
    fn an_error_that_is_not_from_the_driver_gets_no_reasons() {
        let device = Device { name: "eth1".into(), ifindex: 1 };
        let error = explained(anyhow::anyhow!("another program is there"), &device, Mode::Native, false);
        assert_eq!(format!("{error:#}"), "port eth1: another program is there");
    }
}
