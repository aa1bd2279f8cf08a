//! The ports, paths and cores of this box: sets ports up and down, and reads counters.

use super::machine;
use crate::{
    cores::handle::CoresHandle,
    plane::{MappedFlows, PathCounts},
    switch::seam::{SwitchPath, SwitchPort},
};
use anyhow::{Context, Result};
use logic::{
    flow::RulePort,
    openflow::{agent::Outside, extension::CoreStats, message::PortStats},
    paths::PathId,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::{collections::BTreeMap, fs, io, mem, os::fd::AsRawFd};

/// What the control loop and the thread of cores report.
#[derive(Default)]
pub struct Devices {
    pub ports: Vec<SwitchPort>,
    /// The paths of the configuration, at most a second old; empty until the control loop sends them.
    pub paths: BTreeMap<PathId, SwitchPath>,
    /// The source of cores and workloads; `None`: not known yet.
    pub machine: Option<CoresHandle>,
}

/// Counters of devices and cores, read on request.
pub struct Counted<'a> {
    pub devices: &'a Devices,
    pub memory: &'a MappedFlows,
}

impl Outside for Counted<'_> {
    fn port_stats(&self) -> Vec<PortStats> {
        // /sys/class/net would not do: it shows the namespace of the process that mounted it.
        let table = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
        let known = |port: &SwitchPort| {
            let line =
                table.lines().find_map(|line| line.trim_start().strip_prefix(&port.name)?.strip_prefix(':'));
            stats(port, line?)
        };
        let real = self.devices.ports.iter().filter(|port| port.ifindex.is_some()).filter_map(known);
        let logical = self.devices.paths.iter();
        let logical = logical.filter_map(|(id, path)| Some(of_path(RulePort::of_path(*id)?, path)));
        real.chain(logical).collect()
    }

    fn core_stats(&self) -> Vec<CoreStats> {
        machine::stats(&self.devices.ports, self.devices.machine.as_ref(), self.memory)
    }
}

/// The counters of a path's port. Packets to it go to the path's worker, and are lost if its socket does not take
/// them. No packets come in by it.
fn of_path(port: RulePort, path: &SwitchPath) -> PortStats {
    let PathCounts { packets, bytes, ring_full, refused, .. } = path.counts;
    let lost = ring_full + refused;
    PortStats {
        port,
        rx_packets: 0,
        tx_packets: packets.saturating_sub(lost),
        rx_bytes: 0,
        tx_bytes: bytes,
        rx_dropped: 0,
        tx_dropped: lost,
        rx_errors: 0,
        tx_errors: 0,
        rx_frame_errors: 0,
        rx_over_errors: 0,
        rx_crc_errors: 0,
        collisions: 0,
        duration_sec: u32::MAX,
        duration_nsec: u32::MAX,
    }
}

/// The columns of /proc/net/dev (net/core/net-procfs.c).
fn stats(port: &SwitchPort, line: &str) -> Option<PortStats> {
    let columns: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let (&[rx_bytes, rx_packets, rx_errors, rx_dropped, rx_over_errors, rx_frame_errors, _, _], tx) =
        columns.split_first_chunk()?;
    let (&[tx_bytes, tx_packets, tx_errors, tx_dropped, _, collisions], _) = tx.split_first_chunk()?;
    Some(PortStats {
        port: super::rules::number(port),
        rx_packets,
        tx_packets,
        rx_bytes,
        tx_bytes,
        rx_dropped,
        tx_dropped,
        rx_errors,
        tx_errors,
        rx_frame_errors,
        rx_over_errors,
        // The table counts these among the frame errors.
        rx_crc_errors: u64::MAX,
        collisions,
        duration_sec: u32::MAX,
        duration_nsec: u32::MAX,
    })
}

/// Sets a device administratively up or down.
///
/// # Errors
/// There is no such device, or the kernel refuses.
pub fn set_up(name: &str, up: bool) -> Result<()> {
    let failed = |what: &str| Err(io::Error::last_os_error()).with_context(|| format!("{what} of {name}"));
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .with_context(|| format!("asking for the flags of {name}"))?;
    // SAFETY: zero is valid for a plain C structure.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    request
        .ifr_name
        .iter_mut()
        .zip(name.bytes().take(room))
        .for_each(|(to, from)| *to = from as libc::c_char);
    // SAFETY: `request` is what both calls take.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &mut request) } < 0 {
        return failed("reading the flags");
    }
    // SAFETY: SIOCGIFFLAGS has filled this member; every bit pattern of it is a number.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    let wanted =
        if up { flags | libc::IFF_UP as libc::c_short } else { flags & !(libc::IFF_UP as libc::c_short) };
    request.ifr_ifru.ifru_flags = wanted;
    // SAFETY: as above.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &mut request) } < 0 {
        return failed("setting the flags");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_given_to_a_path_are_sent_or_lost_packets_of_its_port() {
        let counts =
            PathCounts { packets: 10, bytes: 600, ring_full: 2, refused: 1, ..PathCounts::default() };
        let read = of_path(RulePort(65024), &SwitchPath { has_worker: true, counts });
        assert_eq!((read.port.0, read.tx_packets, read.tx_bytes, read.tx_dropped), (65024, 7, 600, 3));
        assert_eq!((read.rx_packets, read.rx_bytes), (0, 0));
    }

    #[test]
    fn counters_are_the_columns_of_the_kernels_table() {
        let port = SwitchPort {
            id: 2,
            name: "eth3".into(),
            ifindex: Some(7),
            up: true,
            carrier: true,
            mac: Default::default(),
            transmits: true,
            generic: false,
        };
        let read = stats(&port, " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16").unwrap();
        let columns = [
            read.rx_bytes,
            read.rx_packets,
            read.rx_errors,
            read.rx_dropped,
            read.rx_over_errors,
            read.rx_frame_errors,
            read.tx_bytes,
            read.tx_packets,
            read.tx_errors,
            read.tx_dropped,
            read.collisions,
        ];
        assert_eq!((read.port.0, columns), (3, [1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 14]));
        assert_eq!(stats(&port, " 1 2 3"), None);
        assert_eq!(stats(&port, " a b"), None);
    }
}
