//! `millrace paths`: runs paths of the user plane over captures, without a daemon.

use super::{Output, complain, show, table::Table};
use crate::{
    base::guard::is_by_us_or_root,
    config::PathsConfig,
    user_plane::{
        captures::{CaptureWriters, OfRun, Sink},
        replay::{self, Input, Outputs, PathReport, PathsReport},
        sas::Sas,
    },
};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use logic::plan::PortId;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

pub const HELP: &str = "\
The file of --config describes the paths, and the ports and routes that Linux has otherwise.
docs/reference/config.md lists all keys. Values are examples, except where a comment names a default.
  router_weights = { red = 2 }  # shares of routers, before all tables; default: 1 for each
  [experimental]
  sample_every = 20         # one packet in so many is measured, 1 to 10000; default: 20
  longest_run = \"100us\"     # how long a path may run at a time, 10us to 1000us; default: 100us
  [[port]]                  # packets come in by the first one, unless --pcap says otherwise
  name = \"lan\"
  mac = \"02:00:00:00:00:01\" # packets to this address, without VLAN tags, are routed; without it none are
  router = \"red\"            # default: \"host\"
  mtu = 1500                # the longest IP packet that leaves here; default: 1500
  [[route]]
  prefix = \"10.1.0.0/16\"    # IPv4 or IPv6
  via = \"02:00:00:00:09:01\" # the next hop
  port = \"wan\"              # the port where the next hop is
  [[path]]                  # a packet goes to the first path whose class has it
  name = \"web\"
  router = \"red\"            # owns the path, which gets only its packets; default: \"host\", and packets of all
  class = { protocol = \"tcp\", destination_port = 80 }  # default: all packets; other keys: port,
                            # destination_mac, ether_type, source, destination, source_port, tcp_syn,
                            # bytes = { offset = 12, mask = 0xffff, value = 0x0806 }
  chain = [\"check\", \"route\", \"ttl\", \"rewrite\"]  # elements in order; see below
  weight = 1                # relative to the other paths of its router, 1 to 1000; default: 1
  ring = 1024               # packets that may wait for it; default: 1024
  cores = \"0-3\"             # changes nothing here, because one worker runs all paths
  [[sa]]                    # of ESP elements; see docs/howto/esp.md

Elements without parameters:
  \"check\", \"route\", \"ttl\", \"rewrite\", \"discard\", \"count\", \"crc_append\", \"crc_check\"
Elements with parameters:
  { element = \"forward\", port = \"wan\" }
  { element = \"police\", packets_per_second = 1000, burst_packets = 32 }
  { element = \"mirror\", file = \"web.pcap\" }    copies packets to a file
  { element = \"esp_encrypt\", sa = \"to-b\" }
  { element = \"esp_decrypt\", sas = [\"from-b\"] }
  { element = \"vxlan_encap\", vni = 100, local = \"192.0.2.1\", remote = \"192.0.2.2\" }
  { element = \"vxlan_decap\", vni = 100, local = \"192.0.2.1\" }
docs/howto/paths.md explains each element.

Packets are never dropped for lack of speed. The clock of the paths is the capture's. A broken input file ends
at the fault, and the others go on. If a file of --out cannot be written, no more packets are read. If a mirror
lacks copies, for example because its file is full, packets go on. In all these cases the report is printed and
the exit status is 1. The file of a mirror is emptied if Millrace wrote it; another existing file is refused.";

/// The commands of `millrace paths`.
#[derive(Debug, Subcommand)]
pub enum Paths {
    /// Run the packets of captures through paths, without privileges and without a daemon.
    #[command(after_help = HELP)]
    Run(Run),
}

#[derive(Debug, Args)]
pub struct Run {
    /// The paths, ports and routes, a TOML file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// A pcap file of Ethernet frames, and the port by which they came in [default: the first port]; repeat it for more
    /// files, which are merged by time.
    #[arg(long = "pcap", value_name = "[PORT=]FILE", required = true)]
    inputs: Vec<String>,
    /// A pcap file for packets that leave by this port, or without PORT= by any; repeat it for more files.
    #[arg(long = "out", value_name = "[PORT=]FILE")]
    outputs: Vec<String>,
    #[command(flatten)]
    output: Output,
}

impl Paths {
    pub fn is_json(&self) -> bool {
        let Paths::Run(run) = self;
        run.output.json
    }

    pub fn run(self) -> Result<ExitCode> {
        let Paths::Run(run) = self;
        run.run()
    }
}

impl Run {
    fn run(self) -> Result<ExitCode> {
        let config = PathsConfig::read(&self.config)?;
        let sas = Sas::load(&config.sas)?;
        let mut files = Files::default();
        for file in config.sas.sas.iter().flat_map(|sa| sa.files()) {
            files.keep(file, "a key or sequence file")?;
        }
        files.keep(&self.config, "the configuration")?;
        let mut inputs = Vec::new();
        for argument in &self.inputs {
            let (port, file) = port_and_file(&config, argument)?;
            let opened = File::open(file).with_context(|| format!("cannot read {file}"))?;
            files.keep(Path::new(file), "an input")?;
            inputs.push(Input::new(file, port.unwrap_or(0), opened)?);
        }
        let wanted = self.outputs.iter().map(|argument| port_and_file(&config, argument));
        let wanted = wanted.collect::<Result<Vec<_>>>()?;
        // All are checked before the first is opened: none loses its content if another is refused.
        wanted.iter().try_for_each(|(_, file)| files.refuse(Path::new(file)))?;
        config.mirrors().try_for_each(|mirror| files.refuse(&mirror.file))?;
        let mut copied = Vec::new();
        // Mirrors first, because they have more requirements.
        for mirror in config.mirrors() {
            files.refuse(&mirror.file)?;
            let opened = OfRun::claim(&mirror.file);
            let opened = opened.with_context(|| format!("cannot write {}", mirror.file.display()))?;
            files.keep(&mirror.file, "another output")?;
            copied.push((mirror, opened));
        }
        let mut outputs = Vec::new();
        for (port, file) in wanted {
            files.refuse(Path::new(file))?;
            refuse_link_of_another(Path::new(file))?;
            let opened = File::options().write(true).create(true).truncate(false).open(file);
            let opened = opened.with_context(|| format!("cannot write {file}"))?;
            files.keep(Path::new(file), "another output")?;
            outputs.push((file.to_string(), port, BufWriter::new(opened)));
        }
        for (mirror, opened) in &copied {
            empty(opened).with_context(|| format!("cannot write {}", mirror.file.display()))?;
        }
        for (file, _, opened) in &outputs {
            empty(opened.get_ref()).with_context(|| format!("cannot write {file}"))?;
        }
        let nanoseconds = inputs.iter().any(Input::has_nanoseconds);
        let sink = |opened| Box::new(OfRun::new(opened)) as Box<dyn Sink>;
        let captures = CaptureWriters::new(copied.into_iter().map(|(mirror, file)| (mirror, sink(file))));
        let report = replay::run(&config, sas, captures, &mut inputs, Outputs::new(outputs, nanoseconds)?)?;
        show(self.output, &report, text)?;
        report.errors.iter().for_each(|error| complain(error));
        Ok(if report.errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Refuses a link that another user made. Others, such as /dev/stdout, are followed.
fn refuse_link_of_another(file: &Path) -> Result<()> {
    let is_others = |data: fs::Metadata| data.is_symlink() && !is_by_us_or_root(&data);
    if fs::symlink_metadata(file).is_ok_and(is_others) {
        bail!("cannot write {}: it is a link that another user made", file.display());
    }
    Ok(())
}

/// Empties a regular file. Devices and pipes have no length.
fn empty(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

/// Parses `PORT=FILE`, or a file alone. The text before the first `=` is a port, unless it contains a slash.
fn port_and_file<'a>(config: &PathsConfig, argument: &'a str) -> Result<(Option<PortId>, &'a str)> {
    match argument.split_once('=').filter(|(port, _)| !port.contains('/')) {
        None => Ok((None, argument)),
        Some((name, file)) => match config.port(name) {
            Some(port) => Ok((Some(port), file)),
            None => {
                let names: Vec<_> = config.ports.iter().map(|port| port.name.as_str()).collect();
                bail!(
                    "{name:?} in {argument:?} is not a port of the configuration: {} (a file of that name is ./{argument})",
                    names.join(", ")
                )
            }
        },
    }
}

/// Files that must not be overwritten, by device and inode.
#[derive(Default)]
struct Files(BTreeMap<(u64, u64), &'static str>);

impl Files {
    fn keep(&mut self, file: &Path, what: &'static str) -> Result<()> {
        let data = file.metadata().with_context(|| format!("cannot read {}", file.display()))?;
        // Devices such as /dev/null hold nothing.
        if data.is_file() {
            self.0.insert((data.dev(), data.ino()), what);
        }
        Ok(())
    }

    fn refuse(&self, file: &Path) -> Result<()> {
        // A file that does not exist yet is none of these.
        let Ok(data) = file.metadata() else { return Ok(()) };
        let is = self.0.get(&(data.dev(), data.ino()));
        ensure!(is.is_none(), "refused to overwrite {}: it is {}", file.display(), is.unwrap_or(&""));
        Ok(())
    }
}

fn text(report: &PathsReport) -> String {
    let PathsReport { packets, out, up, dropped, no_path, truncated, too_long, out_of_order, .. } = report;
    let mut text = format!("packets     {packets} in: {out} out, {up} up, {dropped} dropped\n");
    for (count, what) in [
        (no_path, "up, because no path has them"),
        (truncated, "dropped, because the capture lacks their ends (tcpdump -s 0 captures whole packets)"),
        (too_long, "dropped, because they are longer than a frame"),
        (out_of_order, "are older than a packet before them in the file, and got its time"),
    ] {
        if *count > 0 {
            text += &format!("            {count} {what}\n");
        }
    }
    if let Some(crypto) = &report.crypto {
        let note = crypto.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
        text += &format!("encryption  {}{note}\n", crypto.library);
    }
    for resource in report.resources.iter().filter(|resource| !resource.counted) {
        text += &format!("note        {} of paths: {}\n", resource.resource, resource.basis);
    }
    let mut table =
        Table::new(&["PATH", "ROUTER", "PACKETS", "OUT", "UP", "DROPPED", "NS/PACKET", "BY PORT AND REASON"]);
    for path in &report.paths {
        table.row(row(path));
    }
    text + &table.text()
}

fn row(path: &PathReport) -> [String; 8] {
    let sum = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>().to_string();
    let named = [("to", &path.out), ("up", &path.up), ("dropped", &path.dropped)]
        .into_iter()
        .flat_map(|(what, counts)| counts.iter().map(move |(name, count)| format!("{what} {name} {count}")));
    [
        path.path.clone(),
        path.router.clone(),
        path.packets.to_string(),
        sum(&path.out),
        sum(&path.up),
        sum(&path.dropped),
        path.ns_per_packet.map(|ns| ns.to_string()).unwrap_or_default(),
        named.collect::<Vec<_>>().join(", "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_as_text() {
        let counts = |name: &str, count| BTreeMap::from([(name.to_string(), count)]);
        let web = PathReport {
            path: "web".into(),
            router: "red".into(),
            packets: 12,
            out: counts("wan", 9),
            up: counts("ttl_exceeded", 2),
            dropped: counts("over_rate", 1),
            ns_per_packet: Some(85),
            ..PathReport::default()
        };
        let idle = PathReport { path: "idle".into(), router: "host".into(), ..PathReport::default() };
        let report = PathsReport {
            packets: 15,
            out: 9,
            up: 4,
            dropped: 2,
            no_path: 2,
            truncated: 1,
            out_of_order: 3,
            paths: vec![web, idle],
            ..PathsReport::default()
        };
        assert_eq!(
            text(&report),
            "packets     15 in: 9 out, 4 up, 2 dropped\n\
             \x20           2 up, because no path has them\n\
             \x20           1 dropped, because the capture lacks their ends (tcpdump -s 0 captures whole packets)\n\
             \x20           3 are older than a packet before them in the file, and got its time\n\
             PATH  ROUTER  PACKETS  OUT  UP  DROPPED  NS/PACKET  BY PORT AND REASON\n\
             web   red          12    9   2        1         85  to wan 9, up ttl_exceeded 2, dropped over_rate 1\n\
             idle  host          0    0   0        0          -  -\n"
        );
    }

    #[test]
    fn a_port_may_stand_before_a_file() {
        let text = "[[port]]\nname = \"lan\"\n[[port]]\nname = \"wan\"\n[[path]]\nname = \"a\"\nchain = [\"discard\"]";
        let config = PathsConfig::parse(Path::new("p.toml"), text).unwrap();
        let parts = |argument| port_and_file(&config, argument).map_err(|e| e.to_string());
        assert_eq!(parts("a.pcap"), Ok((None, "a.pcap")));
        assert_eq!(parts("wan=a=b.pcap"), Ok((Some(1), "a=b.pcap")));
        assert_eq!(parts("./wan=a.pcap"), Ok((None, "./wan=a.pcap")));
        assert_eq!(
            parts("wam=a.pcap").unwrap_err(),
            "\"wam\" in \"wam=a.pcap\" is not a port of the configuration: lan, wan (a file of that name is ./wam=a.pcap)"
        );
    }
}
