//! The kernel's counters of devices, as sFlow reports them.

use crate::linux::ethtool::Ethtool;
use std::{fs, io};

/// The counters of a device, as the kernel keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    pub ifindex: u32,
    /// `ifType` of RFC 2863: 6 is Ethernet.
    pub if_type: u32,
    /// 0: not known.
    pub speed_bps: u64,
    /// 1: full, 2: half, 0: not known.
    pub duplex: u32,
    /// It was set up (`ip link set DEVICE up`).
    pub is_up: bool,
    /// Its link is up.
    pub is_running: bool,
    pub is_promiscuous: bool,
    pub received: Traffic,
    /// Received multicast packets.
    pub multicast: u64,
    pub sent: Traffic,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes: u64,
    pub packets: u64,
    pub dropped: u64,
    pub errors: u64,
}

/// Reads the counters of these devices (index and name) of this thread's network namespace. Devices that are gone are left out.
///
/// # Errors
/// The kernel does not show its counters.
pub fn read(ethtool: &Ethtool, devices: &[(u32, String)]) -> io::Result<Vec<InterfaceCounters>> {
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    let of = |(ifindex, name): &(u32, String)| {
        let counters = row(&table, name)?;
        let flags = ethtool.flags(name).ok()?;
        let is = |flag: i32| flags & flag != 0;
        let speed = ethtool.speed(name).ok().flatten();
        Some(InterfaceCounters {
            ifindex: *ifindex,
            speed_bps: speed.map_or(0, |(bps, _)| bps),
            duplex: speed.map_or(0, |(_, is_full)| 2 - u32::from(is_full)),
            is_up: is(libc::IFF_UP),
            is_running: is(libc::IFF_RUNNING),
            is_promiscuous: is(libc::IFF_PROMISC),
            ..counters
        })
    };
    Ok(devices.iter().filter_map(of).collect())
}

/// The counters of a device in the kernel's table (`net/core/net-procfs.c`).
fn row(table: &str, device: &str) -> Option<InterfaceCounters> {
    const ETHERNET: u32 = 6;
    let row = table.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    let numbers: Vec<u64> = row.split_whitespace().map_while(|number| number.parse().ok()).collect();
    let traffic = |of: &[u64]| Traffic { bytes: of[0], packets: of[1], errors: of[2], dropped: of[3] };
    (numbers.len() >= 16).then(|| InterfaceCounters {
        if_type: ETHERNET,
        received: traffic(&numbers[..4]),
        multicast: numbers[7],
        sent: traffic(&numbers[8..12]),
        ..InterfaceCounters::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_of_a_device_is_found_and_read() {
        let table = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop \
                     fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
                     p10:  1    2    3    4    5     6          7         8        9       10   11   12   13    14      15 16\n  \
                     p1:21 22 23 24 0 0 0 28 29 30 31 32 0 0 0 0\n";
        let counters = row(table, "p1").unwrap();
        assert_eq!(counters.received, Traffic { bytes: 21, packets: 22, errors: 23, dropped: 24 });
        assert_eq!(counters.sent, Traffic { bytes: 29, packets: 30, errors: 31, dropped: 32 });
        assert_eq!((counters.multicast, counters.if_type), (28, 6));
        assert_eq!(row(table, "p10").unwrap().multicast, 8);
        assert_eq!((row(table, "p"), row(table, ""), row("p1: 1 2", "p1")), (None, None, None));
    }
}
