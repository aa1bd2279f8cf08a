//! The cores of applications that give way to forwarding (Q1).

use super::{CoreId, Plan, View};
use std::collections::BTreeSet;

/// The cores that applications should have beside a plan, out of those that they may have: those that are online and do not
/// forward. If all forward, applications have all, and Linux and the floor divide them.
pub fn serving(view: &View, plan: &Plan, may: &BTreeSet<CoreId>) -> BTreeSet<CoreId> {
    let used = plan.cores();
    let online: BTreeSet<CoreId> =
        view.cores.iter().map(|core| core.id).filter(|core| may.contains(core)).collect();
    let free: BTreeSet<CoreId> = online.difference(&used).copied().collect();
    if free.is_empty() { online } else { free }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{core, queue},
        *,
    };

    #[test]
    fn applications_have_the_cores_that_do_not_forward() {
        let view = View { cores: (0..4).map(core).collect(), queues: Vec::new() };
        let serving = |homes: &[CoreId], may: &[CoreId]| {
            let home = (0..).zip(homes).map(|(index, &home)| (queue(index, 0).id, home)).collect();
            let plan = Plan { home, ..Plan::default() };
            Vec::from_iter(serving(&view, &plan, &may.iter().copied().collect()))
        };
        assert_eq!(serving(&[1, 1], &[0, 1, 2, 3]), [0, 2, 3]);
        assert_eq!(serving(&[], &[1, 2, 9]), [1, 2], "9 is offline");
        assert_eq!(serving(&[1, 2], &[1, 2]), [1, 2], "all forward");
        assert_eq!(serving(&[0, 1, 2, 3], &[0, 3]), [0, 3]);
        let split = Plan { home: [(queue(0, 0).id, 0)].into(), split: [(queue(0, 0).id, vec![0, 2])].into() };
        assert_eq!(Vec::from_iter(super::serving(&view, &split, &[0, 1, 2].into())), [1]);
    }
}
