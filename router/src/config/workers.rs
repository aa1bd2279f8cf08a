//! `[[path]]` and `[workers]` in the daemon's file: paths of the user plane over ports and routers of Linux. These
//! are named here, and may come and go. Paths are checked as in a file for captures ([`super::paths`]).

use super::{
    ConfigError, CoreList,
    elements::{ElementSettings, MirrorSettings},
    paths::{Checker, PathConfig, PathSettings, wrong},
    sas::{SasConfig, SasSettings},
};
use crate::base::PortName;
use logic::{
    paths::{
        PathId,
        class::Class,
        rows::{MOST_PATHS, Otherwise},
    },
    plan::{PortId, RouterId},
};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::path::{Path, PathBuf};

/// Where `millrace calibrate` writes its result by default, and where the daemon reads it.
pub const CALIBRATION_FILE: &str = "/var/lib/millrace/calibration.json";

/// The threads that run paths.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkersSettings {
    /// One worker runs on each of these cores; `None`: there are no workers, and so no paths.
    pub cores: Option<CoreList>,
    /// Whether to try zero-copy mode first. Some drivers restart a port's queues for it.
    pub zero_copy: bool,
    /// The memory for one packet, bytes. 256 of them stay free in front.
    pub frame_bytes: FrameBytes,
    /// The file that `millrace calibrate` wrote.
    pub calibration: PathBuf,
    /// The urgency of workers against applications on their cores.
    pub nice: Nice,
}

impl Default for WorkersSettings {
    fn default() -> Self {
        Self {
            cores: None,
            zero_copy: true,
            frame_bytes: FrameBytes(2048),
            calibration: CALIBRATION_FILE.into(),
            nice: Nice::default(),
        }
    }
}

/// The nice value of threads (sched(7)), from -20, before nearly all others, to 19.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nice(pub i8);

impl Default for Nice {
    /// Other threads on a worker's core get the time that the worker leaves. Otherwise the share of a path would
    /// depend on how busy these threads are.
    fn default() -> Self {
        Nice(-20)
    }
}

impl<'de> Deserialize<'de> for Nice {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let nice = i64::deserialize(d)?;
        let allowed = i8::try_from(nice).ok().filter(|nice| (-20..=19).contains(nice));
        allowed.map(Nice).ok_or_else(|| D::Error::custom(format!("{nice} is not allowed: -20 to 19")))
    }
}

bounded!(
    /// The sizes of frames that AF_XDP allows, bytes.
    FrameBytes, |v| [2048, 4096].contains(&v), "2048 or 4096"
);

/// A path.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonPath {
    /// Its number: the place in the file, until [`PathNumbers`] numbers the paths of another file.
    pub id: PathId,
    pub name: String,
    /// The router that owns it, and whose packets it gets; `None`: the host owns it, and it gets packets of all
    /// routers.
    pub router: Option<String>,
    /// The port by which its packets arrive; `None`: any.
    pub port: Option<PortName>,
    class: Class,
    pub chain: Vec<ElementSettings>,
    /// The weight among the paths of its router.
    pub weight: u16,
    /// The number of packets that may wait.
    pub ring: usize,
    /// The cores on which it may run; `None`: all that have workers.
    pub cores: Option<CoreList>,
    /// What happens to packets that no worker can take.
    pub otherwise: Otherwise,
}

impl DaemonPath {
    /// The captures that it copies packets to.
    pub fn mirrors(&self) -> impl Iterator<Item = &MirrorSettings> {
        self.chain.iter().filter_map(ElementSettings::mirror)
    }

    /// The class of its packets, with these numbers of its port and router.
    pub fn class(&self, port: Option<PortId>, router: Option<RouterId>) -> Class {
        Class { port, router, ..self.class.clone() }
    }
}

/// The paths that there have been since the start, by number. Flow rules, counters and workers know paths by number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathNumbers(Vec<String>);

impl PathNumbers {
    /// Each path that there has been, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (PathId, &str)> {
        (0..).zip(self.0.iter().map(String::as_str))
    }

    /// Numbers the paths of a configuration: each gets the number that a path of its name had before, or one that no path
    /// has had.
    ///
    /// # Errors
    /// No number is left for this path; then nothing has changed.
    pub fn number(&mut self, paths: &mut [DaemonPath]) -> Result<(), String> {
        let mut all = self.0.clone();
        for path in &mut *paths {
            let known = all.iter().position(|name| *name == path.name);
            path.id = known.unwrap_or(all.len()) as PathId;
            if known.is_none() {
                all.push(path.name.clone());
            }
            if all.len() > MOST_PATHS {
                return Err(path.name.clone());
            }
        }
        self.0 = all;
        Ok(())
    }
}

/// Checks the paths of a file, and the SAs that they use.
pub(super) fn check(
    file: &Path,
    text: &str,
    settings: Vec<PathSettings>,
    sas: SasSettings,
    workers: &WorkersSettings,
) -> Result<(Vec<DaemonPath>, SasConfig), ConfigError> {
    let mut checker = Checker::of_names(&settings);
    let (mut checked, mut paths) = (Vec::<PathConfig>::new(), Vec::<DaemonPath>::new());
    let chains_at: Vec<usize> = settings.iter().map(|path| path.chain.span().start).collect();
    for settings in settings {
        let at = settings.name.span().start;
        let router = settings.router.as_ref().map(|router| router.get_ref().0.clone());
        let port = settings.class.as_ref().and_then(|class| class.get_ref().port.clone());
        let otherwise = settings.otherwise.0;
        let chain_at = settings.chain.span().start;
        let encrypts = settings.chain.get_ref().iter().any(ElementSettings::encrypts);
        let mut mirrors = settings.chain.get_ref().iter().filter_map(ElementSettings::mirror);
        let relative = mirrors.find(|mirror| !mirror.file.is_absolute()).cloned();
        let path = checker.path_by_names(settings, &checked).and_then(|path| match &workers.cores {
            // Packets that must be encrypted would leave unencrypted.
            _ if encrypts && otherwise != Otherwise::Drop => wrong(
                at,
                "path.otherwise",
                format!(
                    "path {} encrypts: packets that no worker can take must not leave unencrypted, so otherwise = \"drop\" is needed",
                    path.name
                ),
            ),
            // It would not be clear where a relative file name begins.
            _ if relative.is_some() => wrong(
                chain_at,
                "path.chain",
                format!(
                    "path {}: mirror: {} is not allowed: in the daemon's file this must be an absolute file name",
                    path.name,
                    relative.map(|mirror| mirror.file.display().to_string()).unwrap_or_default()
                ),
            ),
            None => {
                wrong(at, "path", "paths need workers: add a table [workers] with, for example, cores = \"2-3\"")
            }
            Some(all) if path.cores.as_ref().is_some_and(|cores| cores.0.is_disjoint(&all.0)) => {
                wrong(at, "path.cores", format!("path {}: none of its cores is one of [workers]", path.name))
            }
            Some(_) => Ok(path),
        });
        let path = path.map_err(|wrong| wrong.error(file, text))?;
        checked.push(path.clone());
        let PathConfig { name, class, chain, weight, ring, cores, .. } = path;
        let id = paths.len() as PathId;
        paths.push(DaemonPath { id, name, router, port, class, chain, weight, ring, cores, otherwise });
    }
    let chains = chains_at.into_iter().zip(&paths);
    let chains: Vec<_> = chains.map(|(at, path)| (at, path.name.as_str(), path.chain.as_slice())).collect();
    let sas = SasConfig::check(file, text, sas, &chains).map_err(|wrong| wrong.error(file, text))?;
    Ok((paths, sas))
}

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 5] = [
    ("workers.cores", "cores = \"2-3\""),
    ("workers.zero_copy", "zero_copy = false"),
    ("workers.frame_bytes", "frame_bytes = 4096"),
    ("workers.nice", "nice = -20"),
    ("workers.calibration", "calibration = \"/var/lib/millrace/calibration.json\""),
];

#[cfg(test)]
mod tests {
    use super::{
        super::{Config, Direction},
        *,
    };

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("m.toml"), text).map_err(|e| e.to_string())
    }

    const WORKERS: &str = "[workers]\ncores = \"2-3\"\n";

    #[test]
    fn paths_of_the_daemon_name_ports_and_routers_of_linux() {
        let text = format!(
            r#"{WORKERS}
            [[path]]
            name = "vpn"
            router = "red"
            class = {{ port = "eth9", protocol = "udp", destination_port = 4500 }}
            chain = ["check", "route", "ttl", "rewrite"]
            weight = 3
            ring = 256
            cores = "3-4"
            otherwise = "drop"
            [[path]]
            name = "rest"
            chain = [{{ element = "forward", port = "eth1" }}]
            "#
        );
        let config = parse(&text).unwrap();
        let [vpn, rest] = &config.paths[..] else { panic!("{:?}", config.paths) };
        assert_eq!(
            (vpn.router.as_deref(), vpn.port.as_ref().map(PortName::as_str)),
            (Some("red"), Some("eth9"))
        );
        assert_eq!((vpn.weight, vpn.ring, vpn.otherwise), (3, 256, Otherwise::Drop));
        assert_eq!((rest.router.as_deref(), rest.otherwise, rest.chain.len()), (None, Otherwise::Up, 1));
        let class = vpn.class(Some(7), None);
        assert_eq!(
            (class.port, class.router, class.protocol, class.destination_port),
            (Some(7), None, Some(17), Some(4500))
        );
        assert_eq!(rest.class(None, None), Class::default());
        assert_eq!(config.workers.cores.unwrap().0, [2, 3].into());
        assert_eq!((parse("").unwrap().paths, parse("").unwrap().workers.cores), (vec![], None));
        let nice = |text: &str| parse(text).unwrap().workers.nice.0;
        assert_eq!([nice(""), nice("workers.nice = 19"), nice("workers.nice = 0")], [-20, 19, 0]);
    }

    const ENCRYPT: &str = "chain = [\"check\", \"ttl\", { element = \"esp_encrypt\", sa = \"x\" }, { element = \"forward\", port = \"p\" }]\n";
    const SA: &str = "[[sa]]\nname = \"x\"\nspi = 256\nmode = \"tunnel\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\nkey_file = \"k\"\nsequence_file = \"s\"\n";

    /// SAs of the file and those of `sas_later` can be set later. The elements that use them give them their
    /// direction.
    #[test]
    fn sas_are_those_that_elements_use() {
        let path = format!("[[path]]\nname = \"a\"\n{ENCRYPT}otherwise = \"drop\"\n");
        let given = parse(&format!("crypto = \"aws-lc-rs\"\n{WORKERS}{SA}{path}")).unwrap().sas;
        assert_eq!((given.crypto, given.sas.len()), (Some(crate::config::Library::AwsLc), 1));
        let later = parse(&format!("sas_later = [\"x\"]\n{WORKERS}{path}")).unwrap().sas;
        assert_eq!(later.sas, []);
        let more = |text: &str| later.more(Path::new("/etc/more.toml"), text).map_err(|e| e.to_string());
        let set = more(SA).unwrap();
        let Direction::Outbound { sequence_file, .. } = &set[0].direction else { panic!("{set:?}") };
        assert_eq!((sequence_file.as_path(), set[0].line), (Path::new("/etc/s"), 2));
        for (text, part) in [
            (SA.replace("\"x\"", "\"y\""), "/etc/more.toml:2: sa.name: SA y is used by no element"),
            (SA.replace("sequence_file = \"s\"\n", ""), "needs sequence_file"),
            (format!("{SA}[workers]\n"), "/etc/more.toml:9: unknown field"),
            (format!("{SA}{SA}"), "/etc/more.toml:10: sa.name: SA x is given twice: only one can send"),
        ] {
            let error = more(&text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn errors_name_line_key_and_what_is_allowed() {
        const CHAIN: &str = "chain = [\"count\", \"discard\"]\n";
        for (text, parts) in [
            (
                format!("[[path]]\nname = \"a\"\n{CHAIN}"),
                &["m.toml:2: path: ", "need workers", "[workers]", "cores = \"2-3\""][..],
            ),
            (
                format!("{WORKERS}[[path]]\nname = \"a\"\ncores = \"7\"\n{CHAIN}"),
                &["m.toml:4: path.cores: ", "path a: none of its cores"],
            ),
            (
                format!("{WORKERS}[[path]]\nname = \"a\"\n{CHAIN}otherwise = \"pass\"\n"),
                &["m.toml:6: path.otherwise: ", "\"pass\" is not allowed: \"up\" or \"drop\""],
            ),
            (
                format!("{WORKERS}[[path]]\nname = \"a\"\n{CHAIN}[[path]]\nname = \"a\"\n{CHAIN}"),
                &["m.toml:7: path.name: ", "path a is given twice"],
            ),
            (
                format!(
                    "{WORKERS}[[path]]\nname = \"a\"\nclass = {{ port = \"x\" }}\n{CHAIN}[[path]]\nname = \"b\"\nrouter = \"red\"\nclass = {{ port = \"x\" }}\n{CHAIN}"
                ),
                &["m.toml:10: path.class: ", "path a, before it, gets all of them"],
            ),
            (
                format!(
                    "{WORKERS}[[path]]\nname = \"a\"\nclass = {{ ether_type = \"arp\", protocol = \"udp\" }}\n{CHAIN}"
                ),
                &["m.toml:5: path.class: ", "path a gets no packet: "],
            ),
            (
                format!("{WORKERS}[[path]]\nname = \"a\"\nchain = [\"ttl\"]\n"),
                &["m.toml:5: path.chain: ", "path a: "],
            ),
            (
                format!("sas_later = [\"x\"]\n{WORKERS}[[path]]\nname = \"a\"\n{ENCRYPT}"),
                &["m.toml:5: path.otherwise: ", "path a encrypts", "otherwise = \"drop\" is needed"],
            ),
            (
                format!("{WORKERS}[[path]]\nname = \"a\"\n{ENCRYPT}otherwise = \"drop\"\n"),
                &["m.toml:5: path.chain: ", "element 3 uses x, which is not an [[sa]] of this file"],
            ),
            (
                format!(
                    "sas_later = [\"x\", \"y\"]\n{WORKERS}[[path]]\nname = \"a\"\n{ENCRYPT}otherwise = \"drop\"\n"
                ),
                &["m.toml:1: sas_later: ", "SA y is used by no element"],
            ),
            (
                format!("{WORKERS}{SA}[[path]]\nname = \"a\"\nchain = [\"discard\"]\n"),
                &["m.toml:4: sa.name: ", "SA x is used by no element"],
            ),
            (
                format!(
                    "{WORKERS}[[path]]\nname = \"a\"\nchain = [{{ element = \"mirror\", file = \"a.pcap\" }}, \"discard\"]\n"
                ),
                &[
                    "m.toml:5: path.chain: ",
                    "path a: mirror: a.pcap is not allowed: in the daemon's file this must be an absolute file name",
                ],
            ),
            ("[workers]\ncores = 2".into(), &["m.toml:2: workers.cores: ", "example: cores = \"2-3\""]),
            ("[workers]\ncore = \"2\"".into(), &["m.toml:2: workers.core: ", "unknown field"]),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }
}
