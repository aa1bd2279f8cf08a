//! Interrupts of queues: /proc/irq (`Documentation/core-api/irq/irq-affinity.rst`).

use super::{CoreId, Roots, cores, numbered};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
};

/// The ends of the names of RX queues' interrupts, in lower case, before the number of the queue.
const BEFORE_NUMBER: [&str; 7] = [
    "rx-",     // eth0-TxRx-3 (ixgbe, igb, ice, i40e, bnxt, hns3), eth0-rx-3 (tg3, enic), eth0-Tx-Rx-3 (ena)
    "rxtx-",   // eth0-rxtx-3 (vmxnet3, thunderx)
    "rx",      // eth0-Rx3 (cxgb4)
    "-input.", // virtio3-input.3
    "_comp",   // mlx5_comp3@pci:0000:3b:00.0
    "-fp-",    // eth0-fp-3 (bnx2x, qede)
    "_q",      // mana_q3@pci:7870:00:00.0
];

/// Where an interrupt fires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IrqPlace {
    /// The cores where it may fire.
    pub allowed: BTreeSet<CoreId>,
    /// The core where it fires or will fire next, if that is a single core.
    pub core: Option<CoreId>,
    /// False: only the kernel sets its affinity (a "managed" interrupt).
    pub settable: bool,
}

/// Reads where an interrupt fires; `None`: there is no such interrupt.
pub fn place(roots: &Roots, irq: u32) -> Option<IrqPlace> {
    let path = affinity(roots, irq);
    let allowed = cores(&path)?;
    // Missing before Linux 4.15, and empty on machines that do not report it.
    let effective = cores(&path.with_file_name("effective_affinity_list")).filter(|cores| !cores.is_empty());
    let only = |cores: &BTreeSet<CoreId>| cores.first().copied().filter(|_| cores.len() == 1);
    // An interrupt with a new affinity fires once more on its old core, and moves then. So a single allowed core counts.
    let core = only(&allowed).or_else(|| only(effective.as_ref()?));
    let settable = fs::metadata(&path).is_ok_and(|file| file.permissions().mode() & 0o222 != 0);
    Some(IrqPlace { allowed, core, settable })
}

/// The file with the cores where an interrupt may fire. Writing it moves the interrupt.
pub fn affinity(roots: &Roots, irq: u32) -> PathBuf {
    roots.proc(format!("irq/{irq}/smp_affinity_list"))
}

/// The interrupts of a device by RX queue, as far as their names show the queue.
///
/// Message-signalled interrupts are listed with the PCI function, which is the device itself or its parent (virtio). If
/// there are none, an interrupt belongs to the device if its name begins with the device's name. Drivers that name
/// interrupts after the device do so when it comes up, so names can be older than a rename. Therefore the names of
/// listed interrupts need not begin with the device's name.
pub fn of_device(roots: &Roots, device: &str) -> BTreeMap<u16, u32> {
    let hardware = roots.device(device).join("device");
    let listed = || {
        let places = [hardware.join("msi_irqs"), hardware.join("../msi_irqs")];
        places.iter().map(|place| numbered(place, "")).find(|irqs| !irqs.is_empty())
    };
    // "virtio3-input.0": a PCI function may list the interrupts of several virtio devices.
    let bus = fs::read_link(&hardware).ok();
    let bus = bus.as_deref().and_then(|path| path.file_name()?.to_str()).unwrap_or_default();
    let Some(irqs) = listed() else {
        return by_queue(roots, &numbered(&roots.proc("irq"), ""), device, |action| begins(action, device));
    };
    by_queue(roots, &irqs, device, |action| !action.starts_with("virtio") || begins(action, bus))
}

/// Whether an action's name begins with a device's name. Device names end in digits too, so `eth1` does not match
/// `eth10-rx-0`.
fn begins(action: &str, device: &str) -> bool {
    action.strip_prefix(device).is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

fn by_queue(roots: &Roots, irqs: &[u32], device: &str, ours: impl Fn(&str) -> bool) -> BTreeMap<u16, u32> {
    let actions = irqs.iter().flat_map(|&irq| actions(roots, irq).into_iter().map(move |name| (irq, name)));
    let actions: Vec<(u32, String)> = actions.filter(|(_, name)| ours(name)).collect();
    let queues: BTreeMap<u16, u32> =
        actions.iter().filter_map(|(irq, name)| Some((queue_of(name, device)?, *irq))).collect();
    match &actions[..] {
        // The only interrupt of a device has no queue number in its name.
        [(irq, _)] if queues.is_empty() => [(0, *irq)].into(),
        _ => queues,
    }
}

/// The names of an interrupt's handlers, sorted. Each has a directory (`register_handler_proc`, kernel/irq/proc.c).
pub fn actions(roots: &Roots, irq: u32) -> Vec<String> {
    let entries = fs::read_dir(roots.proc(format!("irq/{irq}"))).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut actions: Vec<String> =
        directories.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    actions.sort_unstable();
    actions
}

/// The RX queue in the name of an interrupt of `device`.
pub fn queue_of(name: &str, device: &str) -> Option<u16> {
    let name = name.split('@').next()?;
    let word = name.trim_end_matches(|last: char| last.is_ascii_digit());
    let number = name[word.len()..].parse().ok()?;
    // "eth0-3" (sfc).
    let plain = word.strip_prefix(device) == Some("-");
    let word = word.to_ascii_lowercase();
    (plain || BEFORE_NUMBER.iter().any(|end| word.ends_with(end))).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::{super::tree::Tree, *};
    use proptest::prelude::*;

    #[test]
    fn names_contain_the_queue() {
        let table = [
            ("virtio3-input.0", Some(0)),
            ("virtio3-output.0", None),
            ("virtio3-config", None),
            ("eth0-TxRx-3", Some(3)),
            ("i40e-eth0-TxRx-12", Some(12)),
            ("eth0-Tx-Rx-5", Some(5)),
            ("eth0-rx-1", Some(1)),
            ("eth0-tx-1", None),
            ("eth0-rxtx-4", Some(4)),
            ("eth0-Rx7", Some(7)),
            ("eth0-fp-2", Some(2)),
            ("eth0-3", Some(3)),
            ("eth0", None),
            ("mlx5_comp3@pci:0000:3b:00.0", Some(3)),
            ("mlx5_async0@pci:0000:3b:00.0", None),
            ("mana_q3@pci:7870:00:00.0", Some(3)),
            ("eth0-rx-99999", None),
            ("", None),
        ];
        for (name, queue) in table {
            assert_eq!(queue_of(name, "eth0"), queue, "{name}");
        }
    }

    #[test]
    fn interrupts_of_a_pci_function_are_found_by_queue() {
        let tree = Tree::new();
        tree.device("eth9", 2, false);
        tree.hardware("eth9", "", 1, &[40, 41, 42]);
        tree.irq(40, "mlx5_async0@pci:0000:3b:00.0", "0-7", "0");
        tree.irq(41, "mlx5_comp0@pci:0000:3b:00.0", "0-3", "2");
        tree.irq(42, "mlx5_comp1@pci:0000:3b:00.0", "3", "3");
        tree.irq(43, "mlx5_comp0@pci:0000:5e:00.0", "3", "3");
        assert_eq!(of_device(&tree.roots(), "eth9"), [(0, 41), (1, 42)].into());
        let place = |irq| place(&tree.roots(), irq).unwrap();
        assert_eq!(place(41), IrqPlace { allowed: [0, 1, 2, 3].into(), core: Some(2), settable: true });
        assert_eq!(place(42), IrqPlace { allowed: [3].into(), core: Some(3), settable: true });
        assert_eq!(super::place(&tree.roots(), 44), None);
    }

    #[test]
    fn interrupts_of_a_virtio_device_are_listed_with_its_parent() {
        let tree = Tree::new();
        tree.device("eth0", 1, false);
        tree.hardware("eth0", "virtio3", -1, &[38, 39, 41]);
        tree.irq(38, "virtio3-input.0", "0-7", "5");
        tree.irq(39, "virtio3-output.0", "0-7", "6");
        tree.irq(41, "virtio31-input.0", "0-7", "7");
        assert_eq!(of_device(&tree.roots(), "eth0"), [(0, 38)].into());
    }

    #[test]
    fn without_a_list_the_name_of_the_device_decides() {
        let tree = Tree::new();
        tree.device("eth1", 1, false);
        tree.irq(30, "eth10", "0-7", "5");
        tree.irq(31, "eth1", "0-7", "5");
        tree.irq(32, "ahci", "0-7", "5");
        assert_eq!(of_device(&tree.roots(), "eth1"), [(0, 31)].into());
        tree.device("eth2", 2, false);
        tree.irq(33, "eth2-rx-0", "0-7", "5");
        tree.irq(34, "eth2-rx-1", "0-7", "5");
        assert_eq!(of_device(&tree.roots(), "eth2"), [(0, 33), (1, 34)].into());
    }

    proptest! {
        #[test]
        fn any_name_is_parsed_without_a_panic(name in any::<String>()) {
            let _ = queue_of(&name, "eth0");
        }
    }
}
