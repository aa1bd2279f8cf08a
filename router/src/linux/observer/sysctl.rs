//! Settings for which the kernel sends no message: `/proc/sys` files of a namespace, kept open and read at intervals.
//! An open file does not keep the namespace alive. Open files under /proc/net would, so they are opened only for a
//! moment.
//!
//! A file under /proc/sys/net belongs to the namespace of the thread that opened it. Any thread can then read it. A
//! read costs less than a microsecond; an open with a change of namespace costs forty.

use crate::linux::xtables;
use logic::firewall::{ruleset::Table, traffic::Version};
use std::{fs::File, io, os::unix::fs::FileExt, path::Path, sync::Arc};

/// Values of `conf/all` and of the namespace as a whole. Missing files (IPv6 off, older kernel) read as 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    pub rp_filter: u32,
    pub send_redirects: u32,
    pub accept_local: u32,
    pub accept_redirects: u32,
    pub route_localnet: u32,
    pub src_valid_mark: u32,
    pub ignore_routes_with_linkdown: u32,
    pub forward_use_pmtu: u32,
    pub multipath4: u32,
    pub multipath6: u32,
    /// `None`: a kernel before Linux 6.11.
    pub multipath_seed: Option<u32>,
    pub forwarding6: u32,
    pub proxy_ndp: u32,
}

const FILES: [&str; 13] = [
    "ipv4/conf/all/rp_filter",
    "ipv4/conf/all/send_redirects",
    "ipv4/conf/all/accept_local",
    "ipv4/conf/all/accept_redirects",
    "ipv4/conf/all/route_localnet",
    "ipv4/conf/all/src_valid_mark",
    "ipv4/conf/all/ignore_routes_with_linkdown",
    "ipv4/ip_forward_use_pmtu",
    "ipv4/fib_multipath_hash_policy",
    "ipv6/fib_multipath_hash_policy",
    "ipv4/fib_multipath_hash_seed",
    "ipv6/conf/all/forwarding",
    "ipv6/conf/all/proxy_ndp",
];

/// Open files of one namespace.
#[derive(Debug)]
pub struct Sysctls([Option<File>; FILES.len()]);

/// Things of a namespace that change without a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polled {
    /// The tables of legacy iptables; or why they are not known.
    pub legacy: Result<Vec<Arc<Table>>, String>,
    /// There are IPVS virtual services.
    pub has_ipvs_services: bool,
}

const IPVS: &str = "ip_vs";

impl Polled {
    /// Reads the calling thread's namespace. A missing file counts as empty.
    pub fn read() -> Polled {
        let text = |name: &str| {
            let file = open_if_there(&Path::new("/proc/thread-self/net").join(name)).ok().flatten();
            file.as_ref().and_then(read_text)
        };
        Polled {
            legacy: xtables::read(Version::V4)
                .and_then(|v4| Ok([v4, xtables::read(Version::V6)?].concat()))
                .map(|tables| tables.into_iter().map(Arc::new).collect())
                .map_err(|e| e.to_string()),
            has_ipvs_services: text(IPVS).is_some_and(|text| lists_services(&text)),
        }
    }
}

impl Sysctls {
    /// Opens the files of the calling thread's namespace.
    ///
    /// # Errors
    /// Any error of the kernel, except a missing file.
    pub fn open() -> io::Result<Sysctls> {
        let mut sysctls = Sysctls([const { None }; FILES.len()]);
        for (slot, name) in sysctls.0.iter_mut().zip(FILES) {
            *slot = open_if_there(&Path::new("/proc/sys/net").join(name))?;
        }
        Ok(sysctls)
    }

    /// The values now.
    pub fn read(&self) -> Values {
        let numbers = self.0.each_ref().map(|f| f.as_ref().and_then(read_number));
        let multipath_seed = numbers[10];
        let values = numbers.map(Option::unwrap_or_default);
        let [
            rp_filter,
            send_redirects,
            accept_local,
            accept_redirects,
            route_localnet,
            src_valid_mark,
            ignore_routes_with_linkdown,
            forward_use_pmtu,
            multipath4,
            multipath6,
            _,
            forwarding6,
            proxy_ndp,
        ] = values;
        Values {
            rp_filter,
            send_redirects,
            accept_local,
            accept_redirects,
            route_localnet,
            src_valid_mark,
            ignore_routes_with_linkdown,
            forward_use_pmtu,
            multipath4,
            multipath6,
            multipath_seed,
            forwarding6,
            proxy_ndp,
        }
    }
}

/// Are there lines after the three headings (`ip_vs_info_seq_show()`, `net/netfilter/ipvs/ip_vs_ctl.c`)?
fn lists_services(text: &str) -> bool {
    text.lines().count() > 3
}

fn open_if_there(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn read_number(file: &File) -> Option<u32> {
    let mut bytes = [0; 16];
    let n = file.read_at(&mut bytes, 0).ok()?;
    let value: i64 = std::str::from_utf8(&bytes[..n]).ok()?.trim().parse().ok()?;
    u32::try_from(value).ok()
}

fn read_text(file: &File) -> Option<String> {
    let mut bytes = [0; 512];
    let n = file.read_at(&mut bytes, 0).ok()?;
    Some(String::from_utf8_lossy(&bytes[..n]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The headings as the kernel writes them.
    const HEADINGS: &str = "IP Virtual Server version 1.2.1 (size=4096)\n\
        Prot LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";

    #[test]
    fn services_follow_the_headings() {
        let service = "TCP  0A000001:0050 rr  \n  -> 0A000002:0050      Masq    1      0          0\n";
        assert!(!lists_services(""));
        assert!(!lists_services(HEADINGS));
        assert!(lists_services(&format!("{HEADINGS}{service}")));
        assert!(lists_services(&format!("{HEADINGS}FWM  00000001 wl")), "cut short");
    }

    #[test]
    fn a_missing_file_counts_as_empty() {
        assert!(open_if_there(Path::new("/proc/thread-self/net/no_such_file")).unwrap().is_none());
        assert_eq!(Sysctls([const { None }; FILES.len()]).read(), Values::default());
    }
}
