//! The RX queues of a port: what polls each, on which core, and what can move it.
//!
//! With threaded NAPI a kernel thread polls the queue. Otherwise softirqs do, on the core where the queue's interrupt
//! fires. A virtual device without threaded NAPI has no interrupt, and receives on the core of the sender.

use super::{CoreId, QueueId, Roots, affinity::Affinity, irqs, number, numbered, threads, unless_gone};
use crate::linux::{
    ethtool::Ethtool,
    netlink::netdev::{Napi, Netdev, RxQueue},
};
use logic::{cause::Code, plan::PortId};
use std::{collections::BTreeMap, fmt, fs, io};

/// The names of NAPI threads begin with this.
const NAPI: &str = "napi/";

/// A port and its queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortQueues {
    /// The NUMA node of the device, if it is on one.
    pub node: Option<u16>,
    /// Ascending.
    pub queues: Vec<QueueSource>,
    /// The entries of each RX queue, if the driver reports them.
    pub entries: Option<u32>,
    /// Cores may have TX queues of their own. This is always assumed for a NIC, whose driver may hide its XDP queues.
    pub several_tx: bool,
}

/// One RX queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSource {
    pub id: QueueId,
    /// The id of its NAPI instance, if known.
    pub napi: Option<u32>,
    pub control: Control,
    /// The core that polls it, or polled it last.
    pub core: Option<CoreId>,
    /// Whether only this core may poll it.
    pub confined: bool,
}

impl QueueSource {
    /// The same queue with its present place; `None`: its thread or interrupt is gone.
    pub fn placed(self, roots: &Roots, affinity: &dyn Affinity) -> io::Result<Option<QueueSource>> {
        let (core, confined) = match self.control {
            Control::Thread { pid } => {
                let Some(allowed) = unless_gone(affinity.allowed(pid))? else { return Ok(None) };
                match (allowed.len(), allowed.cores().next()) {
                    // A sleeping thread is moved only when it wakes up.
                    (1, only) => (only, true),
                    _ => (threads::stat(roots, pid)?.map(|stat| stat.last_core), false),
                }
            }
            Control::Interrupt { irq } | Control::None { why: Obstacle::InterruptManaged { irq } } => {
                let Some(place) = irqs::place(roots, irq) else { return Ok(None) };
                (place.core, place.allowed.len() == 1)
            }
            Control::None { .. } => (self.core, self.confined),
        };
        Ok(Some(QueueSource { core, confined, ..self }))
    }
}

/// What moves a queue. Queues with the same control move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Control {
    /// The affinity of its NAPI thread.
    Thread { pid: u32 },
    /// The affinity of its interrupt.
    Interrupt { irq: u32 },
    /// Nothing.
    None { why: Obstacle },
}

/// Why a queue cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// It has neither an interrupt nor a NAPI thread.
    SenderCore,
    /// The device has threaded NAPI, but no thread of the queue can be seen.
    ThreadUnseen,
    /// The threads of several devices have the same names.
    Namesakes,
    /// There are more or fewer NAPI instances than queues, and the driver does not report which one polls which queue.
    Unmatched { instances: usize },
    /// No interrupt of the device is known to be the queue's.
    InterruptUnknown,
    /// The kernel refused to move it. Millrace tries again; the pause doubles each time.
    Refused,
    /// Somebody else moves it, too.
    Contested,
    /// Its original settings cannot be saved, so they could not be restored.
    Unnoted,
    /// The kernel alone places the interrupt.
    InterruptManaged { irq: u32 },
}

impl Obstacle {
    /// The code of this obstacle.
    pub fn code(self) -> Code {
        match self {
            Obstacle::SenderCore => Code::SenderCore,
            Obstacle::ThreadUnseen => Code::ThreadUnseen,
            Obstacle::Namesakes => Code::Namesakes,
            Obstacle::Unmatched { .. } => Code::NapiUnmatched,
            Obstacle::InterruptUnknown => Code::InterruptUnknown,
            Obstacle::Refused => Code::MoveRefused,
            Obstacle::Contested => Code::MovedByOthers,
            Obstacle::Unnoted => Code::SettingsUnsaved,
            Obstacle::InterruptManaged { .. } => Code::InterruptManaged,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::SenderCore => f.write_str(
                "it has no interrupt and no NAPI thread, so its packets are received on the core that sends them \
                 (to give it a thread, turn on XDP or GRO, and echo 1 > /sys/class/net/DEVICE/threaded)",
            ),
            Obstacle::ThreadUnseen => f.write_str(
                "its NAPI thread was not found: the device is down, or this PID namespace cannot see the thread",
            ),
            Obstacle::Namesakes => f.write_str(
                "devices of this name have NAPI threads in several network namespaces, and this kernel does not tell \
                 them apart (Linux 6.8 does)",
            ),
            Obstacle::Unmatched { instances } => {
                write!(f, "the driver does not report which of the device's {instances} NAPI instances polls it")
            }
            Obstacle::InterruptUnknown => {
                f.write_str("no interrupt of the device is named after the queue, and the driver does not report one")
            }
            Obstacle::Refused => f.write_str("the kernel refused to move it; Millrace tries again later"),
            Obstacle::Contested => {
                f.write_str("somebody else moves it, too; Millrace leaves it alone for a while")
            }
            Obstacle::Unnoted => {
                f.write_str("its original settings cannot be saved, so Millrace does not move it")
            }
            Obstacle::InterruptManaged { irq } => write!(f, "the kernel alone places interrupt {irq}"),
        }
    }
}

/// The kernel's reports about a device's queues, except files.
#[derive(Clone, Debug, Default)]
pub struct NetdevQueues {
    /// Ascending; `None` before Linux 6.8.
    pub queues: Option<Vec<RxQueue>>,
    /// Ascending; `None` before Linux 6.8.
    pub napis: Option<Vec<Napi>>,
    /// The entries of each RX queue; `None`: the driver does not report them.
    pub entries: Option<u32>,
}

impl NetdevQueues {
    /// Asks the kernel about a device in the calling thread's network namespace.
    pub fn ask(ifindex: u32, device: &str) -> io::Result<NetdevQueues> {
        let entries = Ethtool::open()?.rx_entries(device)?;
        let told = NetdevQueues { entries, ..NetdevQueues::default() };
        let Some(mut netdev) = Netdev::open()? else { return Ok(told) };
        Ok(NetdevQueues { queues: netdev.rx_queues(ifindex)?, napis: netdev.napis(ifindex)?, ..told })
    }
}

impl PortQueues {
    /// Whether the control of a queue is missing but may appear at any time, for example when the device comes up.
    pub fn is_incomplete(&self) -> bool {
        self.queues.iter().any(|queue| {
            let may_come =
                |why| matches!(why, Obstacle::ThreadUnseen | Obstacle::InterruptUnknown | Obstacle::Unnoted);
            matches!(queue.control, Control::None { why } if may_come(why))
        })
    }

    /// Reads the queues of the device of this name in the namespace of `roots`. `told`: the kernel's reports about it.
    ///
    /// # Errors
    /// There is no such device.
    pub fn observe(
        roots: &Roots,
        affinity: &dyn Affinity,
        port: PortId,
        device: &str,
        told: &NetdevQueues,
    ) -> io::Result<PortQueues> {
        let directory = roots.device(device);
        fs::metadata(&directory)?;
        let seen = DeviceQueues::look(roots, device, told);
        let sources = seen.queues.iter().map(|&index| seen.source(roots, affinity, QueueId { port, index }));
        Ok(PortQueues {
            // -1: none. A virtio device has the node of its parent.
            node: ["device/numa_node", "device/../numa_node"]
                .iter()
                .find_map(|file| number(&directory.join(file))),
            queues: sources.collect::<io::Result<_>>()?,
            entries: told.entries,
            several_tx: seen.hardware || numbered(&directory.join("queues"), "tx-").len() > 1,
        })
    }
}

/// A device's queues, and the threads and interrupts that could poll them.
struct DeviceQueues {
    queues: Vec<u16>,
    threaded: bool,
    /// The device is on a bus, so it is not purely virtual.
    hardware: bool,
    napis: BTreeMap<u16, Napi>,
    irqs: BTreeMap<u16, u32>,
    /// Why a threaded queue has no thread.
    unseen: Obstacle,
}

impl DeviceQueues {
    fn look(roots: &Roots, device: &str, told: &NetdevQueues) -> DeviceQueues {
        let directory = roots.device(device);
        let queues = roots.rx_queues(device);
        let threaded = number::<u8>(&directory.join("threaded")).is_some_and(|threaded| threaded != 0);
        let by_name = || if threaded { napis_by_name(roots, device) } else { Vec::new() };
        let instances = told.napis.clone().unwrap_or_else(by_name);
        let unseen = match instances.len() {
            0 => Obstacle::ThreadUnseen,
            more if told.napis.is_none() && more > queues.len() => Obstacle::Namesakes,
            instances if instances != queues.len() => Obstacle::Unmatched { instances },
            _ => Obstacle::ThreadUnseen,
        };
        let napis = by_queue(&queues, &instances, told.queues.as_deref().unwrap_or_default());
        let hardware = directory.join("device").exists();
        let irqs = if hardware { irqs::of_device(roots, device) } else { BTreeMap::new() };
        DeviceQueues { queues, threaded, hardware, napis, irqs, unseen }
    }

    fn source(&self, roots: &Roots, affinity: &dyn Affinity, id: QueueId) -> io::Result<QueueSource> {
        let napi = self.napis.get(&id.index);
        let threaded = napi.and_then(|napi| napi.threaded).unwrap_or(self.threaded);
        let control = if threaded { self.thread(roots, napi)? } else { self.interrupt(roots, id.index) };
        let source = QueueSource { id, napi: napi.map(|napi| napi.id), control, core: None, confined: false };
        let why = if threaded { Obstacle::ThreadUnseen } else { Obstacle::InterruptUnknown };
        let gone = QueueSource { control: Control::None { why }, ..source };
        Ok(source.placed(roots, affinity)?.unwrap_or(gone))
    }

    fn thread(&self, roots: &Roots, napi: Option<&Napi>) -> io::Result<Control> {
        let Some(pid) = napi.and_then(|napi| napi.pid) else {
            return Ok(Control::None { why: self.unseen });
        };
        // Netlink reports pids of the first PID namespace. In this one they may belong to other threads.
        let is_napi = |stat: threads::Stat| stat.kernel && stat.name.starts_with(NAPI);
        let unseen = Control::None { why: Obstacle::ThreadUnseen };
        Ok(if threads::stat(roots, pid)?.is_some_and(is_napi) { Control::Thread { pid } } else { unseen })
    }

    fn interrupt(&self, roots: &Roots, queue: u16) -> Control {
        // Drivers report 0 if there is no interrupt.
        let told = self.napis.get(&queue).and_then(|napi| napi.irq).filter(|irq| *irq != 0);
        let irq = told.or_else(|| self.irqs.get(&queue).copied());
        let why = match irq.and_then(|irq| Some((irq, irqs::place(roots, irq)?))) {
            Some((irq, place)) if place.settable => return Control::Interrupt { irq },
            Some((irq, _)) => Obstacle::InterruptManaged { irq },
            None if self.hardware => Obstacle::InterruptUnknown,
            None => Obstacle::SenderCore,
        };
        Control::None { why }
    }
}

/// The NAPI instances with threads named after the device (`napi_kthread_create`, net/core/dev.c), ascending. Device
/// names repeat across network namespaces, and a thread keeps the name that its device had when it started. Instances
/// that only transmit have id 0.
fn napis_by_name(roots: &Roots, device: &str) -> Vec<Napi> {
    let napi = |(pid, rest): (u32, String)| {
        let (name, id) = rest.rsplit_once('-')?;
        let id = id.parse().ok().filter(|id| *id != 0 && name == device)?;
        Some(Napi { id, irq: None, pid: Some(pid), threaded: Some(true), defers: false })
    };
    let mut napis: Vec<Napi> = threads::kernel_threads(roots, NAPI).into_iter().filter_map(napi).collect();
    napis.sort_unstable();
    napis
}

/// Which NAPI instance polls which queue. This is what the driver reported. Otherwise it is the order of ids, if there are
/// as many instances as queues.
///
/// Ids count up as instances are added (`napi_hash_add`, net/core/dev.c, from `netif_napi_add_weight`). Drivers that
/// report nothing add instances queue by queue (veth: `__veth_napi_enable_range`, drivers/net/veth.c).
fn by_queue(queues: &[u16], napis: &[Napi], told: &[RxQueue]) -> BTreeMap<u16, Napi> {
    let polled_by = |queue: &RxQueue| {
        let napi = napis.iter().find(|napi| Some(napi.id) == queue.napi)?;
        Some((u16::try_from(queue.index).ok()?, *napi))
    };
    let told: BTreeMap<u16, Napi> = told.iter().filter_map(polled_by).collect();
    if told.is_empty() && napis.len() == queues.len() {
        return queues.iter().copied().zip(napis.iter().copied()).collect();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::{super::tree::Tree, *};

    fn observe(tree: &Tree, device: &str, told: &NetdevQueues) -> PortQueues {
        PortQueues::observe(&tree.roots(), &tree, 4, device, told).unwrap()
    }

    fn napi(id: u32, irq: Option<u32>, pid: Option<u32>) -> Napi {
        Napi { id, irq, pid, threaded: None, defers: false }
    }

    fn source(
        index: u16,
        napi: Option<u32>,
        control: Control,
        core: Option<u16>,
        confined: bool,
    ) -> QueueSource {
        QueueSource { id: QueueId { port: 4, index }, napi, control, core, confined }
    }

    fn none(why: Obstacle) -> Control {
        Control::None { why }
    }

    #[test]
    fn a_nic_whose_driver_reports_everything() {
        let tree = Tree::two_sockets();
        tree.device("eth9", 2, false);
        tree.hardware("eth9", "", 1, &[41, 42]);
        // The names contradict the driver's report.
        tree.irq(41, "mlx5_comp1@pci:0000:3b:00.0", "0-7", "2");
        tree.irq(42, "mlx5_comp0@pci:0000:3b:00.0", "3", "3");
        let told = NetdevQueues {
            // The NAPI instances were added in another order than the queues.
            queues: Some(vec![RxQueue { index: 0, napi: Some(601) }, RxQueue { index: 1, napi: Some(600) }]),
            napis: Some(vec![napi(600, Some(42), None), napi(601, Some(41), None)]),
            entries: Some(1024),
        };
        let port = observe(&tree, "eth9", &told);
        let queues = vec![
            source(0, Some(601), Control::Interrupt { irq: 41 }, Some(2), false),
            source(1, Some(600), Control::Interrupt { irq: 42 }, Some(3), true),
        ];
        assert_eq!(port, PortQueues { node: Some(1), queues, entries: Some(1024), several_tx: true });
    }

    #[test]
    fn a_virtio_device_is_known_by_the_names_of_its_interrupts() {
        let tree = Tree::new();
        tree.device("eth0", 2, false);
        tree.hardware("eth0", "virtio3", -1, &[38, 39, 40]);
        tree.irq(38, "virtio3-input.0", "0-7", "5");
        tree.irq(39, "virtio3-output.0", "0-7", "6");
        let port = observe(&tree, "eth0", &NetdevQueues::default());
        assert_eq!(port.node, None);
        assert_eq!(
            port.queues,
            [
                source(0, None, Control::Interrupt { irq: 38 }, Some(5), false),
                source(1, None, none(Obstacle::InterruptUnknown), None, false),
            ]
        );
    }

    #[test]
    fn an_interrupt_that_the_kernel_places_cannot_be_moved() {
        use std::os::unix::fs::PermissionsExt;
        let tree = Tree::new();
        tree.device("eth0", 1, false);
        tree.hardware("eth0", "", 0, &[38]);
        tree.irq(38, "eth0-TxRx-0", "5", "5");
        let file = tree.path("proc/irq/38/smp_affinity_list");
        fs::set_permissions(file, fs::Permissions::from_mode(0o444)).unwrap();
        let managed = none(Obstacle::InterruptManaged { irq: 38 });
        assert_eq!(
            observe(&tree, "eth0", &NetdevQueues::default()).queues,
            [source(0, None, managed, Some(5), true)]
        );
    }

    #[test]
    fn a_veth_without_threads_stays_where_its_sender_is() {
        let tree = Tree::new();
        tree.device("veth0", 1, false);
        // Some kernels keep a thread after threaded NAPI was turned off.
        tree.thread(70, 70, "napi/veth0-601", true, "3", 3);
        let napis = Some(vec![napi(601, None, Some(70))]);
        let told = NetdevQueues { queues: Some(Vec::new()), napis, ..NetdevQueues::default() };
        let queues = observe(&tree, "veth0", &told).queues;
        assert_eq!(queues, [source(0, Some(601), none(Obstacle::SenderCore), None, false)]);
        assert!(PortQueues::observe(&tree.roots(), &&tree, 4, "veth1", &told).is_err());
    }

    #[test]
    fn the_threads_of_a_veth_are_in_the_order_of_its_queues() {
        let tree = Tree::new();
        tree.device("veth0", 3, true);
        tree.thread(72, 72, "napi/veth0-601", true, "3", 1);
        tree.thread(71, 71, "napi/veth0-602", true, "0-7", 6);
        tree.thread(73, 73, "sleep", false, "0-7", 6);
        let napis = vec![napi(601, None, Some(72)), napi(602, None, Some(71)), napi(603, None, Some(73))];
        let told = NetdevQueues { queues: Some(Vec::new()), napis: Some(napis), ..NetdevQueues::default() };
        let queues = |told: &NetdevQueues| observe(&tree, "veth0", told).queues;
        assert_eq!(
            queues(&told),
            [
                source(0, Some(601), Control::Thread { pid: 72 }, Some(3), true),
                source(1, Some(602), Control::Thread { pid: 71 }, Some(6), false),
                source(2, Some(603), none(Obstacle::ThreadUnseen), None, false),
            ]
        );
        let fewer = NetdevQueues { napis: Some(vec![napi(601, None, Some(72))]), ..NetdevQueues::default() };
        let unmatched = none(Obstacle::Unmatched { instances: 1 });
        assert!(queues(&fewer).iter().all(|queue| queue.control == unmatched));
    }

    #[test]
    fn on_older_kernels_threads_are_found_by_name() {
        let tree = Tree::new();
        tree.device("eth0", 2, true);
        let queues = || observe(&tree, "eth0", &NetdevQueues::default()).queues;
        assert_eq!(queues()[0].control, none(Obstacle::ThreadUnseen));
        tree.thread(70, 70, "napi/eth0-602", true, "0-7", 6);
        tree.thread(71, 71, "napi/eth0-601", true, "3", 1);
        tree.thread(72, 72, "napi/eth0-0", true, "3", 1);
        tree.thread(73, 73, "napi/veth0-5", true, "3", 1);
        tree.thread(74, 74, "napi/eth0-7", false, "3", 1);
        assert_eq!(
            queues(),
            [
                source(0, Some(601), Control::Thread { pid: 71 }, Some(3), true),
                source(1, Some(602), Control::Thread { pid: 70 }, Some(6), false),
            ]
        );
        tree.thread(75, 75, "napi/eth0-603", true, "3", 1);
        assert!(queues().iter().all(|queue| queue.control == none(Obstacle::Namesakes)));
    }
}
