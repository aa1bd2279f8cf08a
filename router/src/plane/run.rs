//! Runs the program on one packet (BPF_PROG_TEST_RUN), for `millrace explain` and the table tests.

use super::{Plane, variants::Variant};
use crate::abi::{self, types};
use anyhow::{Context, Result, bail};
use libbpf_rs::{
    MapCore, MapFlags, OpenObject, ProgramInput, ProgramMut,
    skel::{OpenSkel, SkelBuilder},
};
use logic::{paths::PathId, reason::Reason};
use std::mem::MaybeUninit;

/// The result for one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// `XDP_PASS` 2, `XDP_DROP` 1, `XDP_REDIRECT` 4.
    pub action: u32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
}

/// One step of an explanation: `enum trace_step` of `bpf/abi.h`, with its two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Port {
        id: u64,
        ready: bool,
    },
    Parsed {
        vlan: u32,
        ether_type: u16,
    },
    Interface {
        interface: u16,
        router: u8,
    },
    Ipv4 {
        source: u32,
        destination: u32,
    },
    Ipv6Source(u128),
    Ipv6Destination(u128),
    SourceCheck {
        slot: u32,
        accepted: bool,
    },
    FibBlock {
        block: u32,
        slot: u32,
    },
    FibTail {
        length: u32,
        slot: u32,
    },
    Group {
        hash: u32,
        slot: u32,
    },
    Nexthop {
        id: u32,
        kind: u32,
    },
    Neighbour {
        id: u32,
        interface: u16,
    },
    Transmit {
        port: u32,
        vlan: u32,
    },
    /// The groups of the interfaces; `pair`: `enum pair`.
    Rules {
        from: u8,
        to: u8,
        pair: u64,
    },
    /// Its row, if it is of a connection that bypasses the rules.
    Connection {
        row: Option<u32>,
    },
    /// `None`: its worker got it.
    Path {
        path: PathId,
        why: Option<Reason>,
    },
    /// `None`: forwarded.
    Verdict {
        reason: Option<Reason>,
        action: u32,
    },
    Unknown(u32),
}

impl Step {
    fn new(step: u32, a: u64, b: u64) -> Step {
        let wide = u128::from(a) << 64 | u128::from(b);
        let (a32, b32) = (a as u32, b as u32);
        match step {
            1 => Step::Port { id: a, ready: b & 1 != 0 },
            2 => Step::Parsed { vlan: a32, ether_type: b as u16 },
            3 => Step::Interface { interface: a as u16, router: b as u8 },
            4 => Step::Ipv4 { source: a32, destination: b32 },
            5 => Step::Ipv6Source(wide),
            6 => Step::Ipv6Destination(wide),
            7 => Step::SourceCheck { slot: a32, accepted: b != 0 },
            8 => Step::FibBlock { block: a32, slot: b32 },
            9 => Step::FibTail { length: a32, slot: b32 },
            10 => Step::Group { hash: a32, slot: b32 },
            11 => Step::Nexthop { id: a32, kind: b32 },
            12 => Step::Neighbour { id: a32, interface: b as u16 },
            13 => Step::Transmit { port: a32, vlan: b32 },
            14 => Step::Verdict { reason: Reason::from_abi(a32), action: b32 },
            15 => Step::Path { path: a as PathId, why: Reason::from_abi(b32) },
            16 => Step::Rules { from: a as u8, to: (a >> 8) as u8, pair: b },
            17 => Step::Connection { row: a32.checked_sub(1) },
            other => Step::Unknown(other),
        }
    }
}

/// Room for a frame to grow into all the headroom that a test run has (XDP_PACKET_HEADROOM).
const GROWTH_BYTES: usize = 256;

pub(super) fn run(program: &mut ProgramMut<'_>, ifindex: u32, frame: &[u8]) -> Result<TestRun> {
    run_from(program, ifindex, 0, frame)
}

/// Runs the program on a frame as if it came in by this RX queue.
pub(super) fn run_from(
    program: &mut ProgramMut<'_>,
    ifindex: u32,
    queue: u32,
    frame: &[u8],
) -> Result<TestRun> {
    let end = u32::try_from(frame.len()).context("a frame of more than 4 GiB")?;
    let mut context = [0_u8; size_of::<types::xdp_md>()];
    for (value, at) in [(end, 4), (ifindex, 12), (queue, 16)] {
        context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    let mut out = vec![0; frame.len() + GROWTH_BYTES];
    let result = program
        .test_run(ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..Default::default()
        })
        .with_context(|| format!("running the program on {} bytes from device {ifindex}", frame.len()))?;
    let frame = result.data.map(|d| d.to_vec()).unwrap_or_default();
    Ok(TestRun { action: result.return_value, frame })
}

const _: () = {
    assert!(std::mem::offset_of!(types::xdp_md, data_end) == 4);
    assert!(std::mem::offset_of!(types::xdp_md, ingress_ifindex) == 12);
    assert!(std::mem::offset_of!(types::xdp_md, rx_queue_index) == 16);
};

impl Plane {
    /// Runs the real program on a frame as if it came in by `ifindex`. Counters and budgets change as for any
    /// packet, but nothing is transmitted. The caller must be in the device's namespace.
    pub fn run(&mut self, ifindex: u32, frame: &[u8]) -> Result<TestRun> {
        self.run_from(ifindex, 0, frame)
    }

    /// As [`Plane::run`], by one of the device's RX queues.
    pub fn run_from(&mut self, ifindex: u32, queue: u32, frame: &[u8]) -> Result<TestRun> {
        if let Some(paths) = self.paths.as_mut().filter(|_| self.with_paths) {
            return paths.run_from(ifindex, queue, frame);
        }
        let programs = &mut self.skel.progs;
        let program = if self.shared { &mut programs.millrace_shared } else { &mut programs.millrace };
        run_from(program, ifindex, queue, frame)
    }

    /// Runs a copy of the program on the same tables. The copy records its steps and changes nothing else. It is loaded
    /// when the first packet is explained, and kept.
    pub fn explain(&self, ifindex: u32, frame: &[u8]) -> Result<(TestRun, Vec<Step>)> {
        let mut copy = self.explainer.borrow_mut();
        let skel = match copy.take() {
            Some(loaded) => copy.insert(loaded),
            None => copy.insert(self.load_explainer()?),
        };
        let trace = &skel.maps.trace;
        trace
            .update(&[0; 4], &[0; size_of::<types::trace>()], MapFlags::ANY)
            .context("clearing the trace")?;
        let result = run(&mut skel.progs.millrace_explain, ifindex, frame)?;
        let Some(trace) = skel.maps.trace.lookup(&[0; 4], MapFlags::ANY).context("reading the trace")? else {
            bail!("the trace map is empty");
        };
        Ok((result, steps(&trace)))
    }

    fn load_explainer(&self) -> Result<abi::MillraceSkel<'static>> {
        // Leaked as in `load`.
        let storage = Box::leak(Box::new(MaybeUninit::<OpenObject>::uninit()));
        let mut open =
            abi::MillraceSkelBuilder::default().open(storage).context("opening the kernel plane")?;
        super::size(&mut open, &self.settings, self.cpus)?;
        share(&mut open, self)?;
        Variant::Explaining.select(&mut open)?;
        // It looks in the tables, not in rows of RX queues.
        if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
            constants.queue_rows = false;
        }
        super::paths::share(&mut open, self.path_maps().map(|maps| &**maps))?;
        open.load().context("loading the explaining copy")
    }
}

/// Makes the copy read the tables of the plane that it explains.
fn share(open: &mut abi::OpenMillraceSkel<'_>, plane: &Plane) -> Result<()> {
    super::share_tables(open, plane)?;
    // The copy counts nothing.
    for map in [&mut open.maps.counters, &mut open.maps.charges, &mut open.maps.policers] {
        map.set_max_entries(1).context("sizing a map")?;
    }
    Ok(())
}

fn steps(trace: &[u8]) -> Vec<Step> {
    const ENTRY: usize = 24;
    let u32_at = |at: usize| u32::from_ne_bytes(trace[at..at + 4].try_into().unwrap_or_default());
    let u64_at = |at: usize| u64::from_ne_bytes(trace[at..at + 8].try_into().unwrap_or_default());
    let count = (u32_at(0) as usize).min((trace.len() - 8) / ENTRY);
    (0..count)
        .map(|i| 8 + i * ENTRY)
        .map(|at| Step::new(u32_at(at), u64_at(at + 8), u64_at(at + 16)))
        .collect()
}

const _: () = assert!(size_of::<types::trace>() == 8 + 32 * 24);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::header;

    /// `TRACE_IPV6_SOURCE` of `bpf/abi.h` is `Ipv6Source`, and so on.
    #[test]
    fn every_step_of_the_header_is_known_by_its_name() {
        let numbers = header::numbers();
        let steps: Vec<_> =
            numbers.iter().filter_map(|(n, i)| Some((n.strip_prefix("TRACE_")?, i))).collect();
        assert!(steps.len() >= 14, "{steps:?}");
        for (name, number) in steps {
            let ours = format!("{:?}", Step::new(*number, 0, 0)).to_uppercase();
            let ours = ours.split([' ', '(']).next().unwrap_or_default();
            assert_eq!(ours, name.replace('_', ""), "step {number}");
        }
    }
}
