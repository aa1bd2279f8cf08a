//! `millrace paths`: the user plane without a daemon, over captures.

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
The file of --config says which paths there are, and has the ports and routes that Linux has otherwise (docs/inside/user-plane.md):
  [[port]]                  # the first one is where packets come in by, unless --pcap says otherwise
  name = \"lan\"
  mac = \"02:00:00:00:00:01\"  # packets to this address, without VLAN tags, are routed; without it nothing is routed there
  router = \"red\"            # without this line \"host\"
  mtu = 1500                # longest IP packet that leaves here
  [[route]]
  prefix = \"10.1.0.0/16\"    # or of IPv6
  via = \"02:00:00:00:09:01\" # the next hop
  port = \"wan\"              # where it is
  [[path]]                  # the first path whose class has a packet gets it
  name = \"web\"
  router = \"red\"            # owns the path, which has its packets only; without this line \"host\", and packets of all routers
  class = { protocol = \"tcp\", destination_port = 80 }  # without this line all packets; also port, destination_mac,
                            # ether_type, source, destination, source_port, tcp_syn, bytes = { offset, mask, value }
  chain = [\"check\", \"route\", \"ttl\", \"rewrite\"]         # also { element = \"forward\", port = \"wan\" }, \"count\", \"discard\",
                            # \"crc_append\", \"crc_check\", { element = \"police\", packets_per_second = 1000, burst_packets = 32 },
                            # { element = \"esp_encrypt\", sa = \"to-b\" }, { element = \"esp_decrypt\", sas = [\"from-b\"] } (docs/howto/esp.md),
                            # { element = \"mirror\", file = \"web.pcap\" }: copies
  weight = 1                # among the paths of its router, 1 to 1000
  ring = 1024               # packets that may wait for it
  cores = \"0-3\"             # where it may run: one worker has all paths here, so that changes nothing yet
  [workers]
  sample_every = 20         # one packet in so many is measured, 1 to 10000
  longest_run = \"100us\"     # so long a path may run at a time, 10us to 1000us: by what its packets cost
router_weights = { red = 2 }, before all these, says what routers get beside each other.

Packets are dropped for what elements say, never for want of speed. The clock of the paths is the capture's. Exit code 1 if a file
is broken or cannot be written: a broken one ends there, and the others go on; when one of --out cannot be written, no more packets
are read; when a mirror lacks copies, as for its most bytes, packets go on. What was run is told in all cases. The file of a mirror
is emptied if it is a capture of Millrace; another one is refused.";

/// Forwarding paths of the user plane.
#[derive(Debug, Subcommand)]
pub enum Paths {
    /// Run the packets of a capture through forwarding paths, without privileges and without a daemon.
    #[command(after_help = HELP)]
    Run(Run),
}

#[derive(Debug, Args)]
pub struct Run {
    /// The paths, a TOML file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// A pcap file of Ethernet frames, and by which port they came in [default: the first]; several are merged by time.
    #[arg(long = "pcap", value_name = "[PORT=]FILE", required = true)]
    inputs: Vec<String>,
    /// A pcap file for what leaves by any port, or by this one; give it for each.
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
            files.keep(file, "a key, or sequence numbers of one")?;
        }
        files.keep(&self.config, "the configuration")?;
        let mut inputs = Vec::new();
        for argument in &self.inputs {
            let (port, file) = port_and_file(&config, argument)?;
            let opened = File::open(file).with_context(|| format!("cannot read {file}"))?;
            files.keep(Path::new(file), "read")?;
            inputs.push(Input::new(file, port.unwrap_or(0), opened)?);
        }
        let wanted = self.outputs.iter().map(|argument| port_and_file(&config, argument));
        let wanted = wanted.collect::<Result<Vec<_>>>()?;
        // All before the first, and as they are: nothing is lost of one if another is refused.
        wanted.iter().try_for_each(|(_, file)| files.refuse(Path::new(file)))?;
        config.mirrors().try_for_each(|mirror| files.refuse(&mirror.file))?;
        let mut copied = Vec::new();
        // These first, as of them more is asked.
        for mirror in config.mirrors() {
            files.refuse(&mirror.file)?;
            let opened = OfRun::claim(&mirror.file);
            let opened = opened.with_context(|| format!("cannot write {}", mirror.file.display()))?;
            files.keep(&mirror.file, "written")?;
            copied.push((mirror, opened));
        }
        let mut outputs = Vec::new();
        for (port, file) in wanted {
            files.refuse(Path::new(file))?;
            refuse_link_of_another(Path::new(file))?;
            let opened = File::options().write(true).create(true).truncate(false).open(file);
            let opened = opened.with_context(|| format!("cannot write {file}"))?;
            files.keep(Path::new(file), "written")?;
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

/// A link such as /dev/stdout is followed, one that another user has made is not.
fn refuse_link_of_another(file: &Path) -> Result<()> {
    let is_others = |data: fs::Metadata| data.is_symlink() && !is_by_us_or_root(&data);
    if fs::symlink_metadata(file).is_ok_and(is_others) {
        bail!("cannot write {}: it is a link that another user has made", file.display());
    }
    Ok(())
}

/// Devices and pipes have no length.
fn empty(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

/// `PORT=FILE`, or a file alone. What is before the first `=` is a port, unless it is a path with a slash.
fn port_and_file<'a>(config: &PathsConfig, argument: &'a str) -> Result<(Option<PortId>, &'a str)> {
    match argument.split_once('=').filter(|(port, _)| !port.contains('/')) {
        None => Ok((None, argument)),
        Some((name, file)) => match config.port(name) {
            Some(port) => Ok((Some(port), file)),
            None => {
                let names: Vec<_> = config.ports.iter().map(|port| port.name.as_str()).collect();
                bail!(
                    "{name:?} in {argument:?} is no port of the configuration: {} (a file of that name is ./{argument})",
                    names.join(", ")
                )
            }
        },
    }
}

/// Files that must not be written over.
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
        // What is not there yet is no other file.
        let Ok(data) = file.metadata() else { return Ok(()) };
        let is = self.0.get(&(data.dev(), data.ino()));
        ensure!(
            is.is_none(),
            "{} would be written over: it is {} already",
            file.display(),
            is.unwrap_or(&"")
        );
        Ok(())
    }
}

fn text(report: &PathsReport) -> String {
    let PathsReport { packets, out, up, dropped, no_path, truncated, too_long, out_of_order, .. } = report;
    let mut text = format!("packets     {packets} in: {out} out, {up} up, {dropped} dropped\n");
    for (count, what) in [
        (no_path, "up, as they are of no path"),
        (truncated, "dropped, as they were captured without their end (tcpdump -s 0 captures it)"),
        (too_long, "dropped, as they are longer than a frame"),
        (out_of_order, "were captured before one in front of them: for the paths they came with it"),
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
             \x20           2 up, as they are of no path\n\
             \x20           1 dropped, as they were captured without their end (tcpdump -s 0 captures it)\n\
             \x20           3 were captured before one in front of them: for the paths they came with it\n\
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
            "\"wam\" in \"wam=a.pcap\" is no port of the configuration: lan, wan (a file of that name is ./wam=a.pcap)"
        );
    }
}
