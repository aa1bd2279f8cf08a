//! The file of flow rules that apply from the start (`flows.file`).
//!
//! Its lines are as for `millrace flows add --file`. `millrace flows save` also writes the names and numbers of ports and paths into
//! it, and an end line. When the daemon reads such a file, the rules get the present numbers of these ports. The rules are checked less
//! strictly than new ones, because a port may have gone since.

use super::{change, rules::path_port};
use crate::{
    api::flows::Command,
    base::{guard::is_ours_or_roots_alone, whole::read_text},
    config::{Config, ports},
    plane::{FlowMaps, online_cpus},
    switch::seam::{Loaded, rule_port},
};
use anyhow::{Context, Error, Result, anyhow, bail};
use logic::flow::{
    FlowMod, RulePort,
    table::{Dialect, PathPorts, Tables},
    text::Names,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::Metadata,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

/// The largest file: a million long rules.
const MOST_BYTES: u64 = 512 << 20;

/// A line that begins with this has the numbers and names of ports and paths when the rules were saved:
/// `# ports: 1=eth1 65024=path:vpn`.
pub const PORTS: &str = "# ports:";

/// The last line of a saved file, so that a file that was cut off is not used.
pub const END: &str = "# end of the rules";

/// Names of ports and paths, with their numbers.
type Numbers = [(String, RulePort)];

/// A file whose rules wait until the ports are known.
pub struct Loading {
    file: PathBuf,
    text: String,
    /// Receives the rules that are to be put in charge, or why they cannot be used.
    pub done: SyncSender<Loaded<Arc<FlowMaps>>>,
}

impl Loading {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn begin(file: &Path) -> Result<(Loading, Receiver<Loaded<Arc<FlowMaps>>>)> {
        let (done, loaded) = sync_channel(1);
        Ok((Loading { file: file.into(), text: read(file)?, done }, loaded))
    }

    pub fn name(&self) -> impl std::fmt::Display {
        self.file.display()
    }

    /// See [`FileRules::new`].
    pub fn rules(&self, now: &Numbers) -> Result<FileRules<'_>> {
        FileRules::new(&self.file, &self.text, now)
    }
}

/// The rules of a file.
pub struct FileRules<'a> {
    file: &'a Path,
    text: &'a str,
    /// Names that rules may use, with the numbers that they have in the file.
    names: Vec<(String, RulePort)>,
    /// For a saved file, the present number of each number in the file.
    now: Option<BTreeMap<RulePort, RulePort>>,
    /// A number that no port has.
    nowhere: RulePort,
    /// Ports and paths of a saved file that do not exist now.
    pub missing: Vec<String>,
}

impl<'a> FileRules<'a> {
    /// `present`: the ports and paths of the configuration.
    ///
    /// # Errors
    /// The file was cut off, or a line about ports cannot be read.
    pub fn new(file: &'a Path, text: &'a str, present: &Numbers) -> Result<FileRules<'a>> {
        let saved = saved(file, text)?;
        let mut present_numbers: BTreeSet<RulePort> = present.iter().map(|(_, number)| *number).collect();
        let nowhere = unused(&mut present_numbers);
        let Some(saved) = saved else {
            let (names, missing) = (present.to_vec(), Vec::new());
            return Ok(FileRules { file, text, names, now: None, nowhere, missing });
        };
        let (mut now, mut missing) = (BTreeMap::new(), Vec::new());
        for (name, number) in &saved {
            let found = present.iter().find(|(present, _)| present == name);
            if found.is_none() {
                missing.push(name.clone());
            }
            now.insert(*number, found.map_or_else(|| unused(&mut present_numbers), |(_, number)| *number));
        }
        // Numbers of rules that name a port without a name mean no port, also now.
        let words = text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
        let mut saved_numbers: BTreeSet<RulePort> = words.map(RulePort).collect();
        saved_numbers.extend(saved.iter().map(|(_, number)| *number));
        let mut names = saved;
        for (name, number) in present {
            if !names.iter().any(|(saved, _)| saved == name) {
                // Somebody has added a rule with this name to the saved file.
                let in_file = unused(&mut saved_numbers);
                now.insert(in_file, *number);
                names.push((name.clone(), in_file));
            }
        }
        Ok(FileRules { file, text, names, now: Some(now), nowhere, missing })
    }

    /// Calls `add` with each rule, and with whether it was in force when the file was saved. Returns the lines of a saved file that
    /// name a number of no known port.
    ///
    /// # Errors
    /// A line cannot be read, or `add` refuses it.
    pub fn each(&self, mut add: impl FnMut(&FlowMod, bool) -> Result<(), String>) -> Result<Vec<u64>> {
        let mut unknown = Vec::new();
        let lines = (1..).zip(self.text.lines()).filter(|(_, line)| change::is_flow(line));
        for (line, text) in lines {
            let rule = change::read(text, Command::Add, Names::of(&self.names));
            let added = rule.and_then(|mut rule| {
                if let Some(now) = &self.now {
                    let is_numbered = |port: RulePort| port.is_real() || port.path().is_some();
                    rule.renumber_ports(|port| match now.get(&port) {
                        Some(now) => *now,
                        None if is_numbered(port) => {
                            unknown.extend((unknown.last() != Some(&line)).then_some(line));
                            self.nowhere
                        }
                        None => port,
                    });
                }
                add(&rule, self.now.is_some())
            });
            added.map_err(|why| wrong(self.file, line, text.trim(), &why))?;
        }
        Ok(unknown)
    }
}

fn wrong(file: &Path, line: u64, what: &str, why: &str) -> Error {
    anyhow!("{}:{line}: {what:?}: {why}", file.display())
}

/// Takes the highest number of a port that is not among these.
fn unused(numbers: &mut BTreeSet<RulePort>) -> RulePort {
    let all = (1..=RulePort::MAX.0).rev().map(RulePort).filter(|port| port.is_real());
    let free = all.into_iter().find(|port| !numbers.contains(port)).unwrap_or(RulePort::NONE);
    numbers.insert(free);
    free
}

/// The ports and paths when the rules were saved; `None`: the file was not saved, but written by somebody.
fn saved(file: &Path, text: &str) -> Result<Option<Vec<(String, RulePort)>>> {
    let lines = (1..).zip(text.lines()).filter_map(|(line, text)| Some((line, text.strip_prefix(PORTS)?)));
    let mut all = Vec::<(String, RulePort)>::new();
    let mut is_saved = false;
    for (line, ports) in lines {
        is_saved = true;
        for word in ports.split_whitespace() {
            let port = word.split_once('=').and_then(|(number, name)| Some((number.parse().ok()?, name)));
            let (number, name) =
                port.ok_or_else(|| wrong(file, line, word, "not a port's number and name, such as 1=eth1"))?;
            let number = RulePort(number);
            // A port that went and came back may have had several numbers.
            if all.iter().any(|(_, known)| *known == number) {
                return Err(wrong(file, line, word, "the number is given twice"));
            }
            all.push((name.to_owned(), number));
        }
    }
    if !is_saved {
        return Ok(None);
    }
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    if last != Some(END) {
        bail!(
            "{}: the file is cut off: its last line is not {END:?}; save the rules again, or complete them and remove each line that begins with {PORTS:?}",
            file.display()
        );
    }
    Ok(Some(all))
}

fn read(file: &Path) -> Result<String> {
    let is_safe = |data: &Metadata| match is_ours_or_roots_alone(data) {
        true => Ok(()),
        false => {
            Err(io::Error::other("users other than root can write it; run chown root and chmod 600 on it"))
        }
    };
    read_text(file, MOST_BYTES, is_safe)
        .with_context(|| format!("cannot read the flow rules of flows.file, {}", file.display()))
}

/// Checks the file of a configuration, as the daemon does at its start.
///
/// # Errors
/// It cannot be read, or a rule of it cannot be used.
pub fn check(config: &Config) -> Result<()> {
    let Some(file) = &config.flows.file else { return Ok(()) };
    let text = read(file)?;
    let ports = ports::first(&config.ports).into_iter().map(|(id, name)| (name.to_string(), rule_port(id)));
    let mut numbers: Vec<_> = ports.collect();
    let mut tables = Tables::new();
    tables.set_ports(numbers.iter().map(|(_, number)| (*number, true)));
    let cores = online_cpus().context("reading which cores there are")?;
    tables.set_cores(Some(cores.into_iter().filter_map(|core| core.try_into().ok()).collect()));
    let paths: PathPorts = config.paths.iter().map(|path| (path.id, path_port(path))).collect();
    numbers.extend(change::names_of_paths(&paths));
    tables.set_paths(paths);
    let most = config.flows.rules.0;
    FileRules::new(file, &text, &numbers)?.each(|rule, kept| {
        let dialect = if kept { Dialect::Kept } else { Dialect::OpenFlow13 };
        tables.apply(rule, dialect, 0).map_err(|refused| refused.to_string())?;
        if tables.len() > most as usize { Err(change::full(tables.len() - 1, most)) } else { Ok(()) }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use logic::flow::{
        Field,
        text::{InstructionsText, MatchText},
    };
    use std::os::unix::fs::PermissionsExt;

    fn config(rules: &str) -> (tempfile::TempDir, Config) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("flows"), rules).unwrap();
        let text = "ports = [\"eth1\", \"eth2\"]\n[flows]\nfile = \"flows\"\n";
        let config = Config::parse(&directory.path().join("m.toml"), text).unwrap();
        (directory, config)
    }

    #[test]
    fn a_file_is_checked_as_the_daemon_reads_it() {
        let many = "udp,tp_dst=1,actions=drop\nudp,tp_dst=2,actions=drop\nudp,tp_dst=3,actions=drop\n";
        for fine in [
            "",
            "\n  # comment\nin_port=eth2,actions=drop\ntable=1,priority=7,udp,actions=output:1\n",
            // Rules that were in force: a port has gone, a controller used 1.0, or a core is off.
            "# ports: 1=eth1 9=eth9\nin_port=9,actions=mod_nw_dst:10.0.0.9,output:eth9\nactions=output:3\n# end of the rules\n",
            "# ports:\nactions=set_core:999,normal\nin_port=eth1,actions=output:65030\n# end of the rules",
        ] {
            check(&config(fine).1).unwrap_or_else(|e| panic!("{fine}: {e}"));
        }
        for (text, expected) in [
            ("\nudp,actions=dorp\n", "flows:2: \"udp,actions=dorp\": \"dorp\""),
            ("in_port=eth9,actions=drop", "flows:1: \"in_port=eth9,actions=drop\": "),
            ("actions=output:3", "flows:1: \"actions=output:3\": "),
            ("actions=mod_nw_dst:10.0.0.9,output:1", "flows:1: "),
            ("actions=group:1", "flows:1: "),
            (many, "flows:3: \"udp,tp_dst=3,actions=drop\": the table is full: there are 2 rules"),
            ("# ports: x\n", "flows:1: \"x\": not a port's number and name"),
            ("# ports: 1=eth1 1=eth2\n", "flows:1: \"1=eth2\": the number is given twice"),
        ] {
            let (_directory, mut config) = config(text);
            if text == many {
                config.flows.rules.0 = 2;
            }
            let error = format!("{:#}", check(&config).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_was_cut_off_never_loads() {
        let whole = "# ports: 1=eth1 2=eth2 12=eth12\nudp,actions=output:12\nip,nw_src=10.0.0.0/8,actions=drop\n# end of the rules\n";
        check(&config(whole).1).unwrap();
        // Without its last line break it is still whole.
        for bytes in whole.find('\n').unwrap()..whole.len() - 1 {
            let error = format!("{:#}", check(&config(&whole[..bytes]).1).unwrap_err());
            assert!(error.contains("the file is cut off"), "{bytes}: {error}");
        }
    }

    /// Ports and paths that have other numbers now, that are new, and that are gone.
    #[test]
    fn rules_of_a_saved_file_keep_their_ports() {
        let port = |name: &str, number| (name.to_owned(), RulePort(number));
        let present = [port("a", 1), port("b", 2), port("new", 3), port("path:x", 65025)];
        let text = "# ports: 1=b 2=a 3=gone\n# ports: 65024=path:x 65025=path:y\n\
                    in_port=1,actions=output:2\nin_port=a,actions=output:b,output:gone,normal\n\
                    in_port=new,actions=output:path:x\nin_port=4,actions=output:65025\nactions=in_port\n\
# end of the rules\n";
        let rules = FileRules::new(Path::new("f"), text, &present).unwrap();
        assert_eq!(rules.missing, ["gone", "path:y"]);
        let mut read = Vec::new();
        rules
            .each(|rule, kept| {
                assert!(kept);
                let actions = InstructionsText(&rule.instructions).to_string();
                read.push(format!("{} {actions}", MatchText(&rule.matching)));
                Ok(())
            })
            .unwrap();
        // Those that are gone have numbers that no port has.
        assert_eq!(
            read,
            [
                "in_port=2 output:1",
                "in_port=1 output:2,output:65279,NORMAL",
                "in_port=3 output:65025",
                "in_port=65280 output:65278",
                " IN_PORT",
            ]
        );
        let rules = FileRules::new(Path::new("f"), "in_port=a,actions=output:2\n", &present).unwrap();
        rules
            .each(|rule, kept| {
                assert!(!kept && rule.matching.exact(Field::InPort) == Some(1));
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_read_or_that_others_can_write_is_an_error() {
        let (directory, mut config) = config("");
        let error = |config: &Config| format!("{:#}", check(config).unwrap_err());
        for (file, expected) in [("none", "No such file"), (".", "it is not a file")] {
            config.flows.file = Some(directory.path().join(file));
            assert!(error(&config).contains(expected), "{}", error(&config));
        }
        let fifo = directory.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        config.flows.file = Some(fifo);
        assert!(error(&config).contains("it is not a file"), "{}", error(&config));
        let bytes = directory.path().join("bytes");
        std::fs::write(&bytes, [0xff, 0xfe]).unwrap();
        config.flows.file = Some(bytes.clone());
        assert!(error(&config).contains("UTF-8"), "{}", error(&config));
        std::fs::write(&bytes, "").unwrap();
        check(&config).unwrap();
        std::fs::set_permissions(&bytes, PermissionsExt::from_mode(0o620)).unwrap();
        assert!(error(&config).contains("users other than root can write it"), "{}", error(&config));
    }
}
