//! Routes and nexthop objects.

use super::Change;
use crate::draft::Draft;
use std::fmt::Write as _;

/// A few routes are added, replaced and deleted.
pub fn some(draft: &mut Draft<'_>) -> Change {
    let tenant = draft.one_in(4);
    let (mut make, mut undo) = (Vec::new(), Vec::new());
    for _ in 0..draft.rng.usize(2..7) {
        let v6 = draft.rng.bool();
        let family = if v6 { "-6" } else { "-4" };
        let verb = draft.pick(&["add", "append", "prepend", "replace", "replace"]);
        let route = draft.route(tenant, v6);
        make.push(format!("ip {family} route {verb} {route}"));
        let opposite = draft.pick(&["del", "del", "replace blackhole"]);
        let prefix = route.split(' ').find(|word| word.contains('/')).unwrap_or("default");
        undo.push(format!("ip {family} route {opposite} {prefix}"));
    }
    Change::new("routes", make, undo).of(tenant)
}

/// Routes whose packets Linux encapsulates.
pub fn encap(draft: &mut Draft<'_>) -> Change {
    let kinds = [
        ("encap ip", "-4 route replace PREFIX4 encap ip id 5 dst 10.0.0.10 dev p0"),
        ("encap mpls", "-4 route replace PREFIX4 encap mpls 100 via 10.0.0.10 dev p0"),
        ("encap seg6", "-6 route replace PREFIX6 encap seg6 mode encap segs 2001:db8:0:1::10 dev p1"),
        ("encap seg6", "-6 route replace PREFIX6 encap seg6 mode inline segs 2001:db8:0:1::10 dev p1"),
        ("encap seg6local", "-6 route replace PREFIX6 encap seg6local action End dev p1"),
        (
            "encap seg6local",
            "-6 route replace PREFIX6 encap seg6local action End.X nh6 2001:db8:0:1::a dev p1",
        ),
    ];
    let there: Vec<_> = kinds.iter().filter(|kind| draft.kernel.has(kind.0)).map(|kind| kind.1).collect();
    if there.is_empty() {
        return some(draft);
    }
    let line = draft.pick(&there);
    let (prefix4, prefix6) = (draft.prefix4(false), draft.prefix6());
    let line = line.replace("PREFIX4", &prefix4).replace("PREFIX6", &prefix6);
    let prefix = line.split(' ').nth(3).unwrap();
    let family = line.split(' ').next().unwrap();
    let undo = vec![format!("ip {family} route del {prefix}")];
    Change::new("routes", vec![format!("ip {line}")], undo)
}

/// Nexthop objects and groups of them, made, used, replaced and deleted.
pub fn objects(draft: &mut Draft<'_>) -> Change {
    if !draft.kernel.has("nexthop") {
        return some(draft);
    }
    let (tenant, v6) = (draft.one_in(4), draft.rng.bool());
    let mut make = members(draft, tenant, v6, 4);
    let group = group(draft, first(v6), 4);
    make.push(format!("ip nexthop replace id {} group {group}", first(v6) + 9));
    make.extend(users(draft, tenant, v6, &[0, 1, 9, 9]));
    // The objects are replaced under the routes that use them.
    for _ in 0..draft.rng.usize(0..3) {
        let id = first(v6) + draft.rng.u32(0..4);
        let family = family(v6);
        make.push(match draft.rng.u8(0..4) {
            0 => format!("ip nexthop del id {id}"),
            1 => format!("ip {family} nexthop replace id {id} blackhole"),
            2 => {
                let group = self::group(draft, first(v6), 4);
                format!("ip nexthop replace id {} group {group}", first(v6) + 9)
            }
            _ => format!("ip {family} nexthop replace id {id} {}", draft.hop(tenant, v6)),
        });
    }
    Change::new("nexthops", make, vec![format!("ip nexthop del id {}", first(v6) + 9)]).of(tenant)
}

/// A resilient group, and one that becomes resilient.
pub fn resilient(draft: &mut Draft<'_>) -> Change {
    if !draft.kernel.has("nexthop") {
        return some(draft);
    }
    let (tenant, v6) = (draft.one_in(4), draft.rng.bool());
    let mut make = members(draft, tenant, v6, 3);
    let (id, group) = (first(v6) + 8, group(draft, first(v6), 3));
    make.push(format!("ip nexthop add id {id} group {group} type resilient buckets 32 idle_timer 4000"));
    make.extend(users(draft, tenant, v6, &[8, 8]));
    if draft.rng.bool() {
        make.push(format!("ip nexthop del id {}", first(v6) + 1));
    }
    Change::new("nexthops", make, vec![format!("ip nexthop del id {id}")]).of(tenant)
}

fn family(v6: bool) -> &'static str {
    if v6 { "-6" } else { "-4" }
}

fn first(v6: bool) -> u32 {
    if v6 { 60 } else { 40 }
}

fn members(draft: &mut Draft<'_>, tenant: bool, v6: bool, count: u32) -> Vec<String> {
    let member = |id| format!("ip {} nexthop replace id {id} {}", family(v6), draft.hop(tenant, v6));
    (first(v6)..first(v6) + count).map(member).collect()
}

/// Members with weights. Each comes once.
fn group(draft: &mut Draft<'_>, first: u32, count: u32) -> String {
    let mut members: Vec<u32> = (first..first + count).collect();
    draft.rng.shuffle(&mut members);
    members.truncate(draft.rng.usize(1..=count as usize));
    let mut text = String::new();
    for member in members {
        let slash = if text.is_empty() { "" } else { "/" };
        write!(text, "{slash}{member},{}", draft.rng.u8(1..5)).unwrap();
    }
    text
}

/// Routes that use these objects.
fn users(draft: &mut Draft<'_>, tenant: bool, v6: bool, objects: &[u32]) -> Vec<String> {
    let user = |object: &u32| {
        let prefix = if v6 { draft.prefix6() } else { draft.prefix4(tenant) };
        // An IPv6 object caches an MTU on each processor, so its routes have none.
        let mtu = if draft.objects_have_mtu && !v6 { " mtu 1300" } else { "" };
        let attributes = draft.pick(&["", "", "", " metric 5", " advmss 1000", " proto bgp"]);
        format!("ip {} route replace {prefix} nhid {}{attributes}{mtu}", family(v6), first(v6) + object)
    };
    objects.iter().map(user).collect()
}
