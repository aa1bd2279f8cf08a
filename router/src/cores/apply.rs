//! Moves a queue to another core: first its thread or interrupt, then the TX queue of the same number (Q1, XPS).
//!
//! Moving waits only for the cores concerned. Setting XPS waits for the lock of all network configuration (RTNL), which
//! anybody may hold for long. So the thread that places queues must not do it.

use super::{
    CoreId, Roots,
    affinity::Affinity,
    irqs, is_gone,
    queues::{Control, Obstacle},
};
use logic::cpus;
use std::{collections::BTreeSet, fs, io, path::PathBuf};

/// Why a queue was not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error("the queue cannot be moved: {0}")]
    Immovable(Obstacle),
    /// The port is gone, or another thread polls the queue now. A new look finds out.
    #[error("its thread or interrupt no longer exists")]
    Gone,
    #[error("core {core} is offline, or not allowed for the queue: {error}")]
    Core { core: CoreId, error: io::Error },
    #[error("{0}")]
    Io(io::Error),
}

/// Moves a queue. Moving it twice is harmless.
///
/// # Errors
/// See [`MoveError`]; nothing has been moved then. If the driver refuses, the error is [`Obstacle::InterruptManaged`].
pub fn move_queue(
    roots: &Roots,
    affinity: &impl Affinity,
    control: Control,
    core: CoreId,
) -> Result<(), MoveError> {
    match control {
        Control::Thread { pid } => {
            affinity.allow(pid, &BTreeSet::from([core])).map_err(|error| classify(error, core, None))
        }
        Control::Interrupt { irq } => fs::write(irqs::affinity(roots, irq), core.to_string())
            .map_err(|error| classify(error, core, Some(irq))),
        Control::None { why } => Err(MoveError::Immovable(why)),
    }
}

/// Lets only this core use a TX queue of a device. Returns whether that succeeded. It does not if the device has no such
/// TX queue, or only one.
pub fn transmit_from(roots: &Roots, device: &str, queue: u16, core: CoreId) -> bool {
    let xps = xps(roots, device, queue);
    // A device with one TX queue also answers ENOENT.
    xps.exists() && fs::write(xps, cpus::mask(&BTreeSet::from([core]))).is_ok()
}

/// The file with the cores that send on a TX queue.
pub(super) fn xps(roots: &Roots, device: &str, queue: u16) -> PathBuf {
    roots.device(device).join(format!("queues/tx-{queue}/xps_cpus"))
}

/// Explains a failed move. `irq`: the interrupt whose affinity was set, if it was one (`write_irq_affinity`,
/// kernel/irq/proc.c).
fn classify(error: io::Error, core: CoreId, irq: Option<u32>) -> MoveError {
    match (error.raw_os_error(), irq) {
        _ if is_gone(&error) => MoveError::Gone,
        (Some(libc::EIO | libc::EPERM), Some(irq)) => {
            MoveError::Immovable(Obstacle::InterruptManaged { irq })
        }
        // The core is offline or outside of the cpuset. Interrupts return EOVERFLOW for a core that cannot exist.
        (Some(libc::EINVAL | libc::EOVERFLOW), _) => MoveError::Core { core, error },
        _ => MoveError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{affinity::CoreMask, tree::Tree},
        *,
    };
    use std::cell::RefCell;

    /// Records all calls, and returns an error if its number is not 0.
    struct Fake(RefCell<Vec<(u32, Vec<CoreId>)>>, i32);

    impl Affinity for Fake {
        fn allowed(&self, _: u32) -> io::Result<CoreMask> {
            unreachable!("a move reads no affinity")
        }

        fn allow(&self, thread: u32, cores: &BTreeSet<CoreId>) -> io::Result<()> {
            self.0.borrow_mut().push((thread, cores.iter().copied().collect()));
            if self.1 == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(self.1)) }
        }
    }

    #[test]
    fn a_thread_is_moved_and_its_tx_queue_follows() {
        let (tree, fake) = (Tree::new(), Fake(Default::default(), 0));
        tree.device("eth0", 2, true);
        move_queue(&tree.roots(), &fake, Control::Thread { pid: 70 }, 35).unwrap();
        assert_eq!(*fake.0.borrow(), [(70, vec![35])]);
        assert!(transmit_from(&tree.roots(), "eth0", 1, 35));
        assert_eq!(tree.read("sys/class/net/eth0/queues/tx-1/xps_cpus"), "00000008,00000000");
        assert_eq!(tree.read("sys/class/net/eth0/queues/tx-0/xps_cpus"), "00000000\n");
        assert!(!transmit_from(&tree.roots(), "eth0", 2, 1), "more RX queues than TX queues");
    }

    #[test]
    fn an_interrupt_is_moved() {
        let (tree, fake) = (Tree::new(), Fake(Default::default(), 0));
        tree.irq(38, "eth0-TxRx-0", "0-7", "0");
        let moving = |control| move_queue(&tree.roots(), &fake, control, 5);
        moving(Control::Interrupt { irq: 38 }).unwrap();
        assert_eq!(tree.read("proc/irq/38/smp_affinity_list"), "5");
        assert!(matches!(moving(Control::Interrupt { irq: 39 }), Err(MoveError::Gone)));
        let why = Obstacle::SenderCore;
        assert!(matches!(moving(Control::None { why }), Err(MoveError::Immovable(Obstacle::SenderCore))));
        assert_eq!(fake.0.borrow().len(), 0);
    }

    #[test]
    fn each_error_of_the_kernel_has_its_own_variant() {
        let tree = Tree::new();
        let refused = |errno| {
            let fake = Fake(Default::default(), errno);
            move_queue(&tree.roots(), &fake, Control::Thread { pid: 70 }, 5).unwrap_err()
        };
        assert!(matches!(refused(libc::ESRCH), MoveError::Gone));
        assert!(matches!(refused(libc::EINVAL), MoveError::Core { core: 5, .. }));
        assert!(matches!(refused(libc::EPERM), MoveError::Io(_)));
        let irq = |errno| classify(io::Error::from_raw_os_error(errno), 5, Some(38));
        for errno in [libc::EIO, libc::EPERM] {
            assert!(matches!(irq(errno), MoveError::Immovable(Obstacle::InterruptManaged { irq: 38 })));
        }
        assert!(matches!(irq(libc::EINVAL), MoveError::Core { core: 5, .. }));
    }
}
