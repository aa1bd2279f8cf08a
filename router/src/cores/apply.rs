//! Moving a queue to another core: what polls it first, then what is sent on the TX queue of the same number (Q1, XPS).

use super::{
    CoreId, Roots,
    affinity::Affinity,
    irqs, is_gone,
    queues::{Control, Obstacle, QueueSource},
};
use logic::cpus;
use std::{collections::BTreeSet, fs, io, path::PathBuf};

/// A queue was not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error("the queue cannot be moved: {0}")]
    Immovable(Obstacle),
    /// With its port, or to another thread: look again.
    #[error("what polled the queue is not there any more")]
    Gone,
    #[error("core {core} is not there for the queue: {error}")]
    Core { core: CoreId, error: io::Error },
    #[error("{0}")]
    Io(io::Error),
}

/// A queue was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// So was its TX queue; not where there is none, or a single one.
    pub transmit: bool,
}

/// Moves a queue of this device. Doing it twice is harmless.
///
/// # Errors
/// See [`MoveError`]; nothing has been moved then. A driver that refuses is [`Obstacle::InterruptManaged`].
pub fn move_queue(
    roots: &Roots,
    affinity: &impl Affinity,
    device: &str,
    queue: &QueueSource,
    core: CoreId,
) -> Result<Moved, MoveError> {
    let only = BTreeSet::from([core]);
    match queue.control {
        Control::Thread { pid } => affinity.allow(pid, &only).map_err(|error| classify(error, core, None))?,
        Control::Interrupt { irq } => fs::write(irqs::affinity(roots, irq), core.to_string())
            .map_err(|error| classify(error, core, Some(irq)))?,
        Control::None { why } => return Err(MoveError::Immovable(why)),
    }
    let xps = xps(roots, device, queue.id.index);
    // ENOENT is also what a device with one TX queue answers.
    Ok(Moved { transmit: xps.exists() && fs::write(xps, cpus::mask(&only)).is_ok() })
}

/// The file that says, and sets, which cores send on a TX queue.
pub(super) fn xps(roots: &Roots, device: &str, queue: u16) -> PathBuf {
    roots.device(device).join(format!("queues/tx-{queue}/xps_cpus"))
}

/// `irq`: it was an interrupt's affinity that was set (`write_irq_affinity`, kernel/irq/proc.c).
fn classify(error: io::Error, core: CoreId, irq: Option<u32>) -> MoveError {
    match (error.raw_os_error(), irq) {
        _ if is_gone(&error) => MoveError::Gone,
        (Some(libc::EIO | libc::EPERM), Some(irq)) => {
            MoveError::Immovable(Obstacle::InterruptManaged { irq })
        }
        // Offline, or outside of the cpuset; of interrupts EOVERFLOW is a core that cannot be.
        (Some(libc::EINVAL | libc::EOVERFLOW), _) => MoveError::Core { core, error },
        _ => MoveError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{QueueId, affinity::CoreMask, tree::Tree},
        *,
    };
    use std::cell::RefCell;

    /// Notes what it is told, or refuses with an error.
    struct Fake(RefCell<Vec<(u32, Vec<CoreId>)>>, i32);

    impl Affinity for Fake {
        fn allowed(&self, _: u32) -> io::Result<CoreMask> {
            unreachable!("moving asks nothing")
        }

        fn allow(&self, thread: u32, cores: &BTreeSet<CoreId>) -> io::Result<()> {
            self.0.borrow_mut().push((thread, cores.iter().copied().collect()));
            if self.1 == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(self.1)) }
        }
    }

    fn queue(index: u16, control: Control) -> QueueSource {
        QueueSource { id: QueueId { port: 0, index }, napi: None, control, core: None, confined: false }
    }

    #[test]
    fn a_thread_is_moved_and_its_tx_queue_follows() {
        let (tree, fake) = (Tree::new(), Fake(Default::default(), 0));
        tree.device("eth0", 2, true);
        let moved = |index, core| {
            let queue = queue(index, Control::Thread { pid: 70 });
            move_queue(&tree.roots(), &fake, "eth0", &queue, core).unwrap()
        };
        assert_eq!(moved(1, 35), Moved { transmit: true });
        assert_eq!(tree.read("sys/class/net/eth0/queues/tx-1/xps_cpus"), "00000008,00000000");
        assert_eq!(tree.read("sys/class/net/eth0/queues/tx-0/xps_cpus"), "00000000\n");
        assert_eq!(moved(2, 1), Moved { transmit: false }, "more RX queues than TX queues");
        assert_eq!(*fake.0.borrow(), [(70, vec![35]), (70, vec![1])]);
    }

    #[test]
    fn an_interrupt_is_moved() {
        let (tree, fake) = (Tree::new(), Fake(Default::default(), 0));
        tree.device("eth0", 1, false);
        tree.irq(38, "eth0-TxRx-0", "0-7", "0");
        let moving = |control| move_queue(&tree.roots(), &fake, "eth0", &queue(0, control), 5);
        moving(Control::Interrupt { irq: 38 }).unwrap();
        assert_eq!(tree.read("proc/irq/38/smp_affinity_list"), "5");
        assert!(matches!(moving(Control::Interrupt { irq: 39 }), Err(MoveError::Gone)));
        let why = Obstacle::SenderCore;
        assert!(matches!(moving(Control::None { why }), Err(MoveError::Immovable(Obstacle::SenderCore))));
        assert_eq!(fake.0.borrow().len(), 0);
    }

    #[test]
    fn what_was_not_moved_has_a_name_and_leaves_transmission_alone() {
        let tree = Tree::new();
        tree.device("eth0", 1, true);
        let refused = |errno| {
            let fake = Fake(Default::default(), errno);
            let queue = queue(0, Control::Thread { pid: 70 });
            move_queue(&tree.roots(), &fake, "eth0", &queue, 5).unwrap_err()
        };
        assert!(matches!(refused(libc::ESRCH), MoveError::Gone));
        assert!(matches!(refused(libc::EINVAL), MoveError::Core { core: 5, .. }));
        assert!(matches!(refused(libc::EPERM), MoveError::Io(_)));
        assert_eq!(tree.read("sys/class/net/eth0/queues/tx-0/xps_cpus"), "00000000\n");
        let irq = |errno| classify(io::Error::from_raw_os_error(errno), 5, Some(38));
        for errno in [libc::EIO, libc::EPERM] {
            assert!(matches!(irq(errno), MoveError::Immovable(Obstacle::InterruptManaged { irq: 38 })));
        }
        assert!(matches!(irq(libc::EINVAL), MoveError::Core { core: 5, .. }));
    }
}
