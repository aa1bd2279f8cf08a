//! Cost of the XDP program alone, without a device, a ring or another core: the same program and tables that forward,
//! run on frames in memory (cost.bpf.c). Compared with "capacity", it shows how much of a packet's cost is ours.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use clap::{Args, value_parser};
use libbpf_rs::{
    ErrorKind, MapCore, MapFlags, Program, ProgramInput, Xdp, XdpFlags,
    skel::{OpenSkel, SkelBuilder},
};
use serde_json::json;

use super::{FullTable, head, row, show, testbed};
use crate::{
    bpf::{self, cost as skeleton},
    figure::{Axis, Figure},
    measure::spread,
    packet::Stamp,
    progress::Progress,
    record::Output,
    subject, sys,
    testbed::{PORT_IN, Testbed},
    workload::Workload,
};

const DESTINATIONS: [usize; 3] = [1, 4096, 100_000];
const PACKETS: u32 = 4_000_000;
/// As in cost.bpf.c.
const HEADER_BYTES: usize = 56;
/// Places in `struct xdp_md`.
const DATA_END_AT: usize = 4;
const INGRESS_IFINDEX_AT: usize = 12;
const CONTEXT_BYTES: usize = 24;
const XDP_REDIRECT: u32 = 4;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct ProgramOptions {
    /// Subjects, one after another
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["redirect", "touch", "millrace"],
        default_values = ["redirect", "touch", "millrace"])]
    pub(super) subjects: Vec<String>,
    /// How often each measurement, of 4 million packets, is made: 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// Where raw results go; `millrace-lab report` reads them
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    #[command(flatten)]
    pub(super) table: FullTable,
}

pub(super) fn run(options: &ProgramOptions, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    let families = options.table.families()?;
    let prefixes = options.table.read()?;
    let testbed = testbed(0)?;
    testbed.load_routes(&prefixes)?;
    recorder.figure(&figure())?;
    let mut progress = Progress::new((families.len() * DESTINATIONS.len() * options.subjects.len()) as u64);
    let (routes4, routes6) = (prefixes.v4.len(), prefixes.v6.len());
    let title = format!("The program alone, {routes4} + {routes6} routes");
    progress.print(&head(&title, &["family", "destinations", "subject", "ns/packet"]));
    for family in families {
        for destinations in DESTINATIONS {
            let workload = Workload::inside(&prefixes, family, destinations, testbed.next_hops()?);
            for name in &options.subjects {
                let _subject = subject::start(name, &testbed)?;
                let mut cost = Cost::new(&testbed, &workload)?;
                let mut samples = Vec::new();
                for repeat in 0..options.repeat {
                    sys::check_interrupted()?;
                    let ns = cost.measure(&testbed).with_context(|| name.clone())?;
                    recorder.line(
                        &json!({"record": "program", "subject": name, "repeat": repeat, "ns": ns,
                        "family": family.name(), "targets": workload.targets.len(), "routes4": routes4,
                        "routes6": routes6, "prefixes": prefixes.source}),
                    )?;
                    samples.push(ns);
                }
                let count = workload.targets.len().to_string();
                let ns = show(spread(&samples), 1.0, 1);
                progress.step(&format!("{name}, {}, {count} destinations: {ns} ns/packet", family.name()));
                progress.print(&row(&[family.name().into(), count, name.clone(), ns]));
            }
        }
    }
    Ok(())
}

fn figure() -> Figure {
    let destinations = Axis::new("/targets", "destinations", "").log();
    let ns = Axis::new("/ns", "time per packet", "ns");
    Figure::new("program", "The program alone", Some(destinations), ns)
        .only("/record", "program")
        .series("/subject")
        .series("/family")
}

/// A loaded copy of cost.bpf.c with the frames of a workload.
struct Cost {
    skeleton: skeleton::CostSkel<'static>,
    subject: OwnedFd,
    port: u32,
    /// One whole frame.
    frame: Vec<u8>,
}

impl Cost {
    /// For the program that is attached to the first port.
    fn new(testbed: &Testbed, workload: &Workload) -> Result<Self> {
        let mut open = skeleton::CostSkelBuilder::default().open(bpf::storage())?;
        let count = workload.targets.len() as u32;
        open.maps.rodata_data.as_mut().context("cost.bpf.c without rodata")?.frame_count = count;
        open.maps.frames.set_max_entries(count)?;
        let skeleton = open.load().context("cost.bpf.c")?;
        let keys: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
        let frames: Vec<_> =
            workload.targets.iter().map(|t| t.frame(workload.frame_bytes, Stamp::default())).collect();
        let headers: Vec<u8> = frames.iter().flat_map(|frame| &frame[..HEADER_BYTES]).copied().collect();
        skeleton.maps.frames.update_batch(&keys, &headers, count, MapFlags::ANY, MapFlags::ANY)?;
        let port = testbed.box_namespace.interface_index(PORT_IN)?;
        let any = skeleton.progs.each.as_fd();
        let id = testbed.box_namespace.enter(|| Ok(Xdp::new(any).query_id(port as i32, XdpFlags::NONE)?))?;
        let subject = Program::fd_from_id(id).context("the program on the first port")?;
        let frame = frames.into_iter().next().context("no targets")?;
        Ok(Self { skeleton, subject, port, frame })
    }

    /// Nanoseconds per packet, without those of cost.bpf.c itself.
    fn measure(&mut self, testbed: &Testbed) -> Result<f64> {
        let nothing = self.skeleton.progs.nothing.as_fd().try_clone_to_owned()?;
        let (empty_ns, _) = self.run(testbed, nothing.as_fd())?;
        let (ns, verdict) = self.run(testbed, self.subject.as_fd())?;
        ensure!(verdict == XDP_REDIRECT, "verdict {verdict}, not a redirect");
        Ok(ns - empty_ns)
    }

    fn run(&self, testbed: &Testbed, program: BorrowedFd<'_>) -> Result<(f64, u32)> {
        let value = program.as_raw_fd().to_ne_bytes();
        self.skeleton.maps.under_test.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)?;
        let mut context = [0; CONTEXT_BYTES];
        context[DATA_END_AT..][..4].copy_from_slice(&(self.frame.len() as u32).to_ne_bytes());
        context[INGRESS_IFINDEX_AT..][..4].copy_from_slice(&self.port.to_ne_bytes());
        testbed.box_namespace.enter(|| {
            let started = Instant::now();
            let output = self.skeleton.progs.each.test_run(ProgramInput {
                context_in: Some(&mut context),
                data_in: Some(&self.frame),
                repeat: PACKETS,
                ..Default::default()
            });
            if output.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
                sys::check_interrupted()?;
            }
            let output = output?;
            Ok((started.elapsed().as_secs_f64() * 1e9 / f64::from(PACKETS), output.return_value))
        })
    }
}
