//! Neighbours that change, vanish, or cannot be resolved.

use super::Change;
use crate::{draft::Draft, sides::GATEWAYS};

pub fn neighbour(draft: &mut Draft<'_>) -> Change {
    let tenant = draft.one_in(4);
    let (side, v6) = (draft.side(tenant), draft.rng.bool());
    let (first, count) =
        if draft.rng.bool() { (17, 1) } else { (GATEWAYS.start, GATEWAYS.end - GATEWAYS.start) };
    let device = side.device();
    // The tenant's MACs are on this box; 02:10:.. belong to other hosts of the wire.
    let change = draft.pick(&[
        "replace ADDRESS lladdr 02:99:00:00:00:01 dev DEVICE nud permanent",
        "replace ADDRESS lladdr 02:99:00:00:00:02 dev DEVICE nud noarp",
        "replace ADDRESS lladdr 02:99:00:00:00:02 dev DEVICE nud reachable",
        "replace ADDRESS lladdr 02:20:01:00:00:01 dev DEVICE nud permanent",
        "replace ADDRESS lladdr ff:ff:ff:ff:ff:ff dev DEVICE nud permanent",
        "replace ADDRESS lladdr 01:00:5e:00:00:05 dev DEVICE nud permanent",
        "replace ADDRESS lladdr 00:00:00:00:00:00 dev DEVICE nud permanent",
        "replace ADDRESS lladdr 02:99:00:00:00:03 dev DEVICE nud permanent router",
        "replace ADDRESS lladdr 02:99:00:00:00:03 dev DEVICE nud permanent extern_learn",
        "del ADDRESS dev DEVICE",
        "change ADDRESS dev DEVICE nud failed",
        "add proxy ADDRESS dev DEVICE",
    ]);
    let make = (first..first + count).map(|n| {
        let address = if v6 { side.host6(n).to_string() } else { side.host4(n).to_string() };
        format!("ip neigh {}", change.replace("ADDRESS", &address).replace("DEVICE", &device))
    });
    let make = make.collect();
    let undo = vec![format!("neighbours {device}")];
    Change::new("neighbours", make, undo).of(tenant)
}
