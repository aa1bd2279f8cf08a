//! Qdiscs and filters (`RTM_GETQDISC`, `RTM_GETTFILTER`, `struct tcmsg`). Packets of the fast path pass neither.
//!
//! This is an allow-list. A qdisc is harmless if its kind is known, its options are harmless, and it has no filters:
//!
//! | kind | options that matter | where filters can be attached |
//! |---|---|---|
//! | noqueue, mq, pfifo_fast | none | nowhere: they have no `tcf_block` |
//! | fq (`net/sched/sch_fq.c`) | limits, `maxrate`, `ce_threshold` | nowhere |
//! | fq_codel (`sch_fq_codel.c`) | limits, `ce_threshold` | to the qdisc |
//! | clsact, ingress (`sch_ingress.c`) | none | to each direction, in a block of its own or a shared one |
//! | any other | | |
//!
//! The other options of fq and fq_codel choose among waiting packets, or pace packets of local sockets. A limit is
//! harmless if it is at least the default of the kernel. An unknown option is not harmless.

use super::command;
use crate::{
    base::foreign::{Quoted, Shown},
    linux::netlink::{
        rtm,
        socket::Socket,
        wire::{self, Message, Request},
    },
};
use logic::cause::{Cause, Code};
use std::{collections::BTreeMap, io};

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_HW_OFFLOAD: u16 = 12;
const HEADER: usize = 20;
/// `TC_H_ROOT`.
const ROOT: u32 = u32::MAX;
/// Parents of filters: the ingress qdisc, and ingress and egress of clsact.
const INGRESS: u32 = 0xffff_0000;
const CLSACT: [u32; 2] = [0xffff_fff2, 0xffff_fff3];
/// Kinds whose options do not matter.
const PLAIN: [&str; 5] = ["noqueue", "mq", "pfifo_fast", "clsact", "ingress"];

/// A known option of a qdisc: its type, and the least value that is harmless.
type Known = (u16, u32);

/// `TCA_FQ_*` up to Linux 6.18.
const FQ: [Known; 18] = [
    (1, 10_000),    // PLIMIT
    (2, 100),       // FLOW_PLIMIT
    (3, 0),         // QUANTUM
    (4, 0),         // INITIAL_QUANTUM
    (5, 0),         // RATE_ENABLE: concerns the pacing of sockets and FLOW_MAX_RATE
    (6, 0),         // FLOW_DEFAULT_RATE: ignored
    (7, u32::MAX),  // FLOW_MAX_RATE: no limit
    (8, 0),         // BUCKETS_LOG
    (9, 0),         // FLOW_REFILL_DELAY
    (10, 0),        // ORPHAN_MASK
    (11, 0),        // LOW_RATE_THRESHOLD
    (12, u32::MAX), // CE_THRESHOLD: never
    (13, 0),        // TIMER_SLACK
    (14, 0),        // HORIZON: concerns time stamps, which ip_forward() clears
    (15, 0),        // HORIZON_DROP
    (16, 0),        // PRIOMAP
    (17, 0),        // WEIGHTS
    (18, 0),        // OFFLOAD_HORIZON
];

/// `TCA_FQ_CODEL_*` up to Linux 6.18. `CE_THRESHOLD` and its related options are present only while they are in force.
const FQ_CODEL: [Known; 8] = [
    (1, 0),        // TARGET
    (2, 10_240),   // LIMIT
    (3, 0),        // INTERVAL
    (4, 0),        // ECN
    (5, 0),        // FLOWS
    (6, 0),        // QUANTUM
    (8, 0),        // DROP_BATCH_SIZE
    (9, 32 << 20), // MEMORY_LIMIT
];

/// A hazard on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A qdisc of this kind, which is not known to be harmless.
    Qdisc(String),
    /// A qdisc of a harmless kind, with options that are not harmless.
    Options(String),
    /// Filters on a qdisc of this kind, and their parent.
    Filters(String, u32),
}

impl Finding {
    /// The hazard, with the command that removes it.
    pub fn cause(&self, device: &str, namespace: &str) -> Cause {
        let code = match self {
            Finding::Qdisc(_) | Finding::Options(_) => Code::Qdisc,
            Finding::Filters(..) => Code::TcFilter,
        };
        code.cause(self.sentence(device, namespace))
    }

    fn sentence(&self, device: &str, namespace: &str) -> String {
        let (shown, device) = (Shown(device), Quoted(device));
        let other_root = command(namespace, &format!("tc qdisc replace dev {device} root pfifo_fast"));
        match self {
            Finding::Qdisc(kind) => format!(
                "{shown} has the qdisc {}, which may shape traffic; replace it with: {other_root}",
                Shown(kind)
            ),
            Finding::Options(kind) => format!(
                "{shown} has the qdisc {} with options that may delay, mark or drop packets; \
                 replace it with: {other_root}",
                Shown(kind)
            ),
            Finding::Filters(kind, parent) => format!(
                "{shown} has tc filters on its qdisc {}; remove them with: {}",
                Shown(kind),
                match (kind.as_str(), *parent) {
                    ("clsact" | "ingress", _) =>
                        command(namespace, &format!("tc qdisc del dev {device} {kind}")),
                    (_, 0) => command(namespace, &format!("tc filter del dev {device}")),
                    (_, parent) =>
                        command(namespace, &format!("tc filter del dev {device} parent {:x}:", parent >> 16)),
                }
            ),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Qdisc {
    ifindex: u32,
    handle: u32,
    root: bool,
    kind: String,
    harmless_options: bool,
}

/// The findings of each device.
pub type Findings = BTreeMap<u32, Vec<Finding>>;

/// Reads the qdiscs and filters of all devices.
pub fn read(socket: &mut Socket) -> io::Result<Findings> {
    let qdiscs = socket.dump(Request::new(rtm::GETQDISC, wire::DUMP, &[0; HEADER]), parse)?;
    judge(qdiscs, |ifindex, parent| has_filters(socket, ifindex, parent))
}

fn judge(
    qdiscs: Vec<Qdisc>,
    mut has_filters: impl FnMut(u32, u32) -> io::Result<bool>,
) -> io::Result<BTreeMap<u32, Vec<Finding>>> {
    let mut found: BTreeMap<u32, Vec<Finding>> = BTreeMap::new();
    for qdisc in qdiscs {
        let mut finding = qdisc.finding();
        for parent in qdisc.filter_parents() {
            if finding.is_none() && has_filters(qdisc.ifindex, parent)? {
                finding = Some(Finding::Filters(qdisc.kind.clone(), parent));
            }
        }
        if let Some(finding) = finding {
            let of_device = found.entry(qdisc.ifindex).or_default();
            if !of_device.contains(&finding) {
                of_device.push(finding);
            }
        }
    }
    Ok(found)
}

impl Qdisc {
    /// The hazard that follows from the kind and the options alone.
    fn finding(&self) -> Option<Finding> {
        let known = PLAIN.contains(&self.kind.as_str()) || matches!(self.kind.as_str(), "fq" | "fq_codel");
        match (known, self.harmless_options) {
            (false, _) => Some(Finding::Qdisc(self.kind.clone())),
            (true, false) => Some(Finding::Options(self.kind.clone())),
            (true, true) => None,
        }
    }

    /// The parents to which filters can be attached. The kernel takes parent 0 for the root qdisc (tc_dump_tfilter(),
    /// `net/sched/cls_api.c`). A default qdisc has handle 0. Below the root nothing can be attached to one, because
    /// only handles are looked up.
    fn filter_parents(&self) -> Vec<u32> {
        match self.kind.as_str() {
            "clsact" => CLSACT.to_vec(),
            "ingress" => vec![INGRESS],
            "fq_codel" if self.root => vec![0],
            "fq_codel" if self.handle != 0 => vec![self.handle],
            _ => Vec::new(),
        }
    }
}

fn has_filters(socket: &mut Socket, ifindex: u32, parent: u32) -> io::Result<bool> {
    let mut header = [0; HEADER];
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    let request = Request::new(rtm::GETTFILTER, wire::DUMP, &header);
    match socket.dump(request, |m| (m.kind == rtm::NEWTFILTER).then_some(())) {
        // The device vanished meanwhile. A message about that follows.
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        other => Ok(!other?.is_empty()),
    }
}

pub(crate) fn parse(message: Message<'_>) -> Option<Qdisc> {
    let payload = message.payload;
    (message.kind == rtm::NEWQDISC).then_some(())?;
    let mut qdisc = Qdisc {
        ifindex: wire::u32_at(payload, 4)?,
        handle: wire::u32_at(payload, 8)?,
        root: wire::u32_at(payload, 12)? == ROOT,
        kind: String::new(),
        harmless_options: true,
    };
    let (mut options, mut offloaded) = (None, false);
    for (kind, value) in wire::attributes_after(payload, HEADER) {
        match kind {
            TCA_KIND => qdisc.kind = wire::text(value),
            TCA_OPTIONS => options = Some(value),
            TCA_HW_OFFLOAD => offloaded = value.iter().any(|byte| *byte != 0),
            _ => (),
        }
    }
    qdisc.harmless_options = !offloaded
        && match qdisc.kind.as_str() {
            "fq" => harmless(options, &FQ),
            "fq_codel" => harmless(options, &FQ_CODEL),
            _ => true,
        };
    Some(qdisc)
}

/// Are all options known, and none below its harmless value? A message without options shows nothing, so the answer is
/// no.
fn harmless(options: Option<&[u8]>, known: &[Known]) -> bool {
    let fine = |(kind, value): (u16, &[u8])| {
        let least = known.iter().find(|known| known.0 == kind).map(|known| known.1);
        least.is_some_and(|least| least == 0 || wire::u32_at(value, 0) >= Some(least))
    };
    options.is_some_and(|options| wire::attributes(options).all(fine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIRST_HANDLE: u32 = 0x8000_0000;

    fn header(handle: u32, parent: u32) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[4] = 7;
        header[8..12].copy_from_slice(&handle.to_ne_bytes());
        header[12..16].copy_from_slice(&parent.to_ne_bytes());
        header
    }

    fn parsed(mut request: Request) -> Qdisc {
        wire::messages(request.bytes(1)).next().and_then(parse).unwrap()
    }

    fn message(kind: &str, handle: u32, parent: u32, options: &[(u16, u32)]) -> Request {
        let mut nested = options.iter().fold(Request::new(0, 0, &[]), |request, (kind, value)| {
            request.with(*kind, &value.to_ne_bytes())
        });
        Request::new(rtm::NEWQDISC, 0, &header(handle, parent))
            .with(TCA_KIND, format!("{kind}\0").as_bytes())
            .with(TCA_OPTIONS, &nested.bytes(1)[16..])
    }

    /// The defaults as `fq_dump()` and `fq_codel_dump()` of Linux 6.1 and 6.18 write them. Test machines may lack both
    /// qdiscs.
    fn defaults(kind: &str) -> Vec<(u16, u32)> {
        let fq_codel =
            [(1, 4999), (2, 10240), (3, 99_999), (4, 1), (6, 1514), (8, 64), (9, 33_554_432), (5, 1024)];
        let fq = [
            (1, 10_000),
            (2, 100),
            (3, 3028),
            (4, 15_140),
            (5, 1),
            (7, u32::MAX),
            (9, 40_000),
            (10, 1023),
            (11, 68_750),
            (12, u32::MAX),
            (8, 10),
            (13, 10_000),
            (14, 10_000_000),
            (15, 1),
            (18, 0),
        ];
        match kind {
            "fq" => fq.to_vec(),
            "fq_codel" => fq_codel.to_vec(),
            _ => Vec::new(),
        }
    }

    fn found(qdisc: Qdisc, filters_at: &[u32]) -> Vec<Finding> {
        let found = judge(vec![qdisc], |ifindex, parent| {
            assert_eq!(ifindex, 7);
            Ok(filters_at.contains(&parent))
        });
        found.unwrap().remove(&7).unwrap_or_default()
    }

    #[test]
    fn only_known_kinds_with_harmless_options_are_harmless() {
        let changed = |kind: &str, option: u16, value: u32| {
            let mut options: Vec<_> = defaults(kind).into_iter().filter(|o| o.0 != option).collect();
            options.push((option, value));
            options
        };
        let rows = [
            ("noqueue", vec![], None),
            ("mq", vec![], None),
            ("pfifo_fast", vec![(2, 3)], None),
            ("clsact", vec![], None),
            ("ingress", vec![], None),
            ("fq", defaults("fq"), None),
            ("fq_codel", defaults("fq_codel"), None),
            ("fq_codel", changed("fq_codel", 1, 1), None),
            ("fq", changed("fq", 7, 125_000), Some(Finding::Options("fq".into()))),
            ("fq", changed("fq", 1, 0), Some(Finding::Options("fq".into()))),
            ("fq", changed("fq", 2, 10), Some(Finding::Options("fq".into()))),
            ("fq", changed("fq", 12, 1000), Some(Finding::Options("fq".into()))),
            ("fq", changed("fq", 99, 0), Some(Finding::Options("fq".into()))),
            ("fq_codel", changed("fq_codel", 2, 100), Some(Finding::Options("fq_codel".into()))),
            ("fq_codel", changed("fq_codel", 7, 500), Some(Finding::Options("fq_codel".into()))),
            ("fq_codel", changed("fq_codel", 9, 1 << 20), Some(Finding::Options("fq_codel".into()))),
            ("fq_codel", changed("fq_codel", 12, 1), Some(Finding::Options("fq_codel".into()))),
            ("tbf", vec![], Some(Finding::Qdisc("tbf".into()))),
            ("pfifo", vec![], Some(Finding::Qdisc("pfifo".into()))),
            ("noop", vec![], Some(Finding::Qdisc("noop".into()))),
            ("", vec![], Some(Finding::Qdisc(String::new()))),
        ];
        for (kind, options, expected) in rows {
            let qdisc = parsed(message(kind, FIRST_HANDLE, ROOT, &options));
            assert_eq!(found(qdisc, &[]), Vec::from_iter(expected), "{kind} {options:?}");
        }
        let offloaded = message("mq", 0, ROOT, &[]).with(TCA_HW_OFFLOAD, &[1]);
        assert_eq!(found(parsed(offloaded), &[]), [Finding::Options("mq".into())]);
        let silent = Request::new(rtm::NEWQDISC, 0, &header(0, ROOT)).with(TCA_KIND, b"fq\0");
        assert_eq!(found(parsed(silent), &[]), [Finding::Options("fq".into())]);
    }

    #[test]
    fn filters_are_looked_for_wherever_they_can_be_attached() {
        let (child, below_mq) = (0x0010_0000, 0x8001_0001);
        let rows: [(&str, u32, u32, &[u32]); 7] = [
            ("fq_codel", 0, ROOT, &[0]),
            ("fq_codel", FIRST_HANDLE, ROOT, &[0]),
            ("fq_codel", child, below_mq, &[child]),
            ("fq_codel", 0, 1, &[]),
            ("clsact", INGRESS, 0xffff_fff1, &CLSACT),
            ("ingress", INGRESS, 0xffff_fff1, &[INGRESS]),
            ("mq", 0, ROOT, &[]),
        ];
        for (kind, handle, parent, expected) in rows {
            let qdisc = || parsed(message(kind, handle, parent, &defaults(kind)));
            assert_eq!(qdisc().filter_parents(), expected, "{kind} {handle:x} {parent:x}");
            for at in expected {
                let filters = Finding::Filters(kind.into(), *at);
                assert_eq!(found(qdisc(), &[*at]), [filters], "{kind} {handle:x} {parent:x}");
            }
        }
    }

    #[test]
    fn sentences_name_the_command_that_helps() {
        let rows = [
            (
                Finding::Qdisc("tbf".into()),
                "eth0 has the qdisc tbf, which may shape traffic; replace it with: \
                 ip netns exec red tc qdisc replace dev eth0 root pfifo_fast",
            ),
            (
                Finding::Options("fq".into()),
                "eth0 has the qdisc fq with options that may delay, mark or drop packets; replace it with: \
                 ip netns exec red tc qdisc replace dev eth0 root pfifo_fast",
            ),
            (
                Finding::Filters("fq_codel".into(), 0),
                "eth0 has tc filters on its qdisc fq_codel; remove them with: \
                 ip netns exec red tc filter del dev eth0",
            ),
            (
                Finding::Filters("fq_codel".into(), 0x0010_0000),
                "eth0 has tc filters on its qdisc fq_codel; remove them with: \
                 ip netns exec red tc filter del dev eth0 parent 10:",
            ),
            (
                Finding::Filters("clsact".into(), CLSACT[1]),
                "eth0 has tc filters on its qdisc clsact; remove them with: \
                 ip netns exec red tc qdisc del dev eth0 clsact",
            ),
        ];
        for (finding, expected) in rows {
            assert_eq!(finding.sentence("eth0", "red"), expected);
        }
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(Message { kind: rtm::NEWQDISC, flags: 0, sequence: 0, payload: &bytes });
        }
    }
}
