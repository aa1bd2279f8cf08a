//! The file of flow rules that apply from the start (`flows.file`).
//!
//! Its lines are as for `millrace flows add --file`. `millrace flows save` also writes the numbers of the ports into it, because a
//! rule means another port when these have changed.

use super::change;
use crate::{
    api::flows::Command,
    base::guard::is_ours_or_roots_alone,
    config::{Config, ports},
    switch::seam::rule_port,
};
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use logic::flow::{RulePort, text::Names};
use std::{
    fs::OpenOptions,
    io::Read,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
};

/// The largest file: a million long rules.
const MOST_BYTES: u64 = 512 << 20;

/// A line that begins with this names the ports, with their numbers when the rules were saved: `# ports: 1=eth1 2=eth2`.
pub const PORTS: &str = "# ports:";

/// A file whose rules wait until the ports are known.
pub struct Loading {
    file: PathBuf,
    pub text: String,
    /// Receives whether the rules are to be put in charge, or why they cannot be used.
    pub done: SyncSender<Result<bool, String>>,
}

impl Loading {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn begin(file: &Path) -> Result<(Loading, Receiver<Result<bool, String>>)> {
        let (done, loaded) = sync_channel(1);
        Ok((Loading { file: file.into(), text: read(file)?, done }, loaded))
    }

    /// Checks that the ports have the numbers that they had when the rules were saved.
    ///
    /// # Errors
    /// A port has another number; or a line about ports cannot be read.
    pub fn check_ports(&self, number: impl Fn(&str) -> Option<RulePort>) -> Result<()> {
        check_ports(&self.file, &self.text, number)
    }

    /// The error for a line that cannot be used.
    pub fn wrong(&self, line: u64, flow: &str, why: &str) -> Error {
        wrong(&self.file, line, flow, why)
    }
}

fn wrong(file: &Path, line: u64, flow: &str, why: &str) -> Error {
    anyhow!("{}:{line}: {flow:?}: {why}", file.display())
}

fn read(file: &Path) -> Result<String> {
    let reading = || format!("cannot read the flow rules of flows.file, {}", file.display());
    // Opening a FIFO would otherwise wait for its writer.
    let opened =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file).with_context(reading)?;
    let data = opened.metadata().with_context(reading)?;
    ensure!(data.is_file(), "{}: it is not a file", reading());
    ensure!(
        is_ours_or_roots_alone(&data),
        "{}: users other than root can write it; give it to root with mode 0600",
        reading()
    );
    let mut text = String::new();
    opened.take(MOST_BYTES + 1).read_to_string(&mut text).with_context(reading)?;
    ensure!(text.len() as u64 <= MOST_BYTES, "{}: it is larger than {} MiB", reading(), MOST_BYTES >> 20);
    Ok(text)
}

fn check_ports(file: &Path, text: &str, number: impl Fn(&str) -> Option<RulePort>) -> Result<()> {
    let lines = (1..).zip(text.lines());
    for (line, ports) in lines.filter_map(|(line, text)| Some((line, text.strip_prefix(PORTS)?))) {
        for word in ports.split_whitespace() {
            let (saved, name) = word
                .split_once('=')
                .and_then(|(saved, name)| Some((saved.parse::<u16>().ok()?, name)))
                .ok_or_else(|| wrong(file, line, word, "not a port's number and name, such as 1=eth1"))?;
            let now = match number(name) {
                Some(now) if now.0 == saved => continue,
                Some(now) => format!("has number {now} now"),
                None => "is not configured".into(),
            };
            bail!(
                "{}:{line}: port {name} had number {saved} when the rules were saved, and {now}; give `ports` of the configuration \
                 its old order, or correct the rules and this line",
                file.display()
            );
        }
    }
    Ok(())
}

/// Checks the file of a configuration, as far as this can be done without rules.
///
/// # Errors
/// It cannot be read, or a line of it.
pub fn check(config: &Config) -> Result<()> {
    let Some(file) = &config.flows.file else { return Ok(()) };
    let text = read(file)?;
    let ports = ports::first(&config.ports).into_iter().map(|(id, name)| (name.to_string(), rule_port(id)));
    let paths = config.paths.iter();
    let paths = paths.filter_map(|path| Some((format!("path:{}", path.name), RulePort::of_path(path.id)?)));
    let names: Vec<_> = ports.chain(paths).collect();
    check_ports(file, &text, |name| {
        names.iter().find(|(known, _)| known == name).map(|(_, number)| *number)
    })?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| change::is_flow(line));
    for (line, text) in lines {
        change::read(text, Command::Add, Names::of(&names))
            .map_err(|why| wrong(file, line, text.trim(), &why))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn config(rules: &str) -> (tempfile::TempDir, Config) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("flows"), rules).unwrap();
        let text = "ports = [\"eth1\", \"eth2\"]\n[flows]\nfile = \"flows\"\n";
        let config = Config::parse(&directory.path().join("m.toml"), text).unwrap();
        (directory, config)
    }

    #[test]
    fn a_file_is_checked_line_by_line_and_its_ports_by_their_numbers() {
        for fine in [
            "",
            "# ports: 1=eth1 2=eth2\n\n  # comment\nin_port=eth2,actions=drop\ntable=1,priority=7,udp,actions=output:1\n",
            "# ports:\nactions=normal",
        ] {
            check(&config(fine).1).unwrap_or_else(|e| panic!("{fine}: {e}"));
        }
        for (text, expected) in [
            ("\nudp,actions=dorp\n", "flows:2: \"udp,actions=dorp\": \"dorp\""),
            ("in_port=eth9,actions=drop", "flows:1: \"in_port=eth9,actions=drop\": "),
            (
                "# ports: 2=eth1 1=eth2\n",
                "flows:1: port eth1 had number 2 when the rules were saved, and has number 1 now; ",
            ),
            (
                "# ports: 3=eth3\n",
                "flows:1: port eth3 had number 3 when the rules were saved, and is not configured; ",
            ),
            ("# ports: x\n", "flows:1: \"x\": not a port's number and name"),
        ] {
            let error = format!("{:#}", check(&config(text).1).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
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
