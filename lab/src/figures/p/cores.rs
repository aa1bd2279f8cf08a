//! Cores of this machine, and what they share.

use std::{fs, path::Path};

use anyhow::{Result, ensure};

use crate::sys;

/// A core that the lab may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Core {
    pub number: usize,
    /// Its socket. Cores of a socket share their last cache.
    package: usize,
    /// The hyper-threads of its core, including itself, as Linux writes them.
    siblings: String,
}

/// The cores that this process may run on.
pub(super) fn all() -> Result<Vec<Core>> {
    let cores: Vec<Core> = sys::affinity(0)?.into_iter().map(core).collect();
    ensure!(!cores.is_empty(), "there is no core to run on");
    Ok(cores)
}

fn core(number: usize) -> Core {
    let at = Path::new("/sys/devices/system/cpu").join(format!("cpu{number}/topology"));
    let read = |name: &str| fs::read_to_string(at.join(name)).unwrap_or_default().trim().to_owned();
    let siblings = read("thread_siblings_list");
    // A machine without this information has cores of one thread in one package.
    let siblings = if siblings.is_empty() { number.to_string() } else { siblings };
    Core { number, package: read("physical_package_id").parse().unwrap_or(0), siblings }
}

/// The first two for which `holds` is true.
fn pair(cores: &[Core], holds: impl Fn(&Core, &Core) -> bool) -> Option<[usize; 2]> {
    let pairs = cores.iter().flat_map(|one| cores.iter().map(move |other| (one, other)));
    let found = pairs.filter(|(one, other)| one.number < other.number).find(|(one, other)| holds(one, other));
    found.map(|(one, other)| [one.number, other.number])
}

/// Two different cores of one socket.
pub(super) fn within_a_package(cores: &[Core]) -> Option<[usize; 2]> {
    pair(cores, |one, other| one.package == other.package && one.siblings != other.siblings)
}

/// Two cores of different sockets.
pub(super) fn across_packages(cores: &[Core]) -> Option<[usize; 2]> {
    pair(cores, |one, other| one.package != other.package)
}

/// Two threads of one core.
pub(super) fn siblings(cores: &[Core]) -> Option<[usize; 2]> {
    pair(cores, |one, other| one.siblings == other.siblings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_up(cores: &[(usize, usize, &str)]) -> Vec<Core> {
        let core = |&(number, package, siblings): &(usize, usize, &str)| Core {
            number,
            package,
            siblings: siblings.into(),
        };
        cores.iter().map(core).collect()
    }

    #[test]
    fn pairs_are_found_by_what_they_share() {
        let plain = made_up(&[(0, 0, "0"), (1, 0, "1")]);
        assert_eq!(
            [within_a_package(&plain), across_packages(&plain), siblings(&plain)],
            [Some([0, 1]), None, None]
        );
        let server = made_up(&[(0, 0, "0,4"), (1, 1, "1,5"), (2, 0, "2,6"), (4, 0, "0,4")]);
        assert_eq!(
            [within_a_package(&server), across_packages(&server), siblings(&server)],
            [Some([0, 2]), Some([0, 1]), Some([0, 4])]
        );
        assert_eq!(within_a_package(&made_up(&[(3, 0, "3")])), None);
    }

    #[test]
    fn the_cores_of_this_process_are_found() {
        let found: Vec<usize> = all().unwrap().iter().map(|core| core.number).collect();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        let allowed = logic::cpus::parse_list(allowed.trim()).unwrap();
        assert_eq!(found, allowed.into_iter().map(usize::from).collect::<Vec<_>>());
    }
}
