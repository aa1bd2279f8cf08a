//! Flow rules for the subjects that have flow tables, in the syntax of `ovs-ofctl`. Each rule does what the router
//! does, so that the usual check of the output applies.

use std::fmt::Write;

use crate::{
    addresses::{egress_mac, ingress_mac, mac_text, nexthop_mac},
    packet::Target,
};

/// A table's rules.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// One rule per line, as `ovs-ofctl add-flows` and `millrace flows add --file` read them.
    pub text: String,
    /// Number of rules.
    pub count: usize,
}

/// Rules under each mask except the lowest; together 10,000 under 64 masks.
const UNDER_EACH: usize = 158;

impl Rules {
    /// A rule for each of these flows (addresses and ports), all under one mask.
    pub fn exact<'a>(flows: impl IntoIterator<Item = &'a Target>) -> Self {
        let mut rules = Self::default();
        for flow in flows {
            rules.add(100, &format!(",nw_dst={},tp_src={},tp_dst=9", flow.destination, flow.source_port));
        }
        rules
    }

    /// A rule for each of these flows, and one for all others.
    pub fn exact_and_rest<'a>(flows: impl IntoIterator<Item = &'a Target>) -> Self {
        let mut rules = Self::exact(flows);
        rules.add(1, "");
        rules
    }

    /// The same rules, which also hand packets to this core.
    pub fn handed_to(self, core: usize) -> Self {
        Self { text: self.text.replace("actions=", &format!("actions=set_core:{core},")), ..self }
    }

    /// Rules under this number of masks (2 to 256). The packets of a testbed match only the lowest mask, which tests
    /// nothing but the port. So each flow is compared under all masks. One mask covers addresses and ports, so that
    /// every flow is separate.
    pub fn masks(masks: usize) -> Self {
        let mut rules = Self::default();
        rules.add(1, "");
        for mask in 0..masks.saturating_sub(1) {
            for rule in 0..UNDER_EACH {
                let matching = match mask {
                    0 => format!(",nw_src=100.64.0.1,nw_dst=100.{rule}.0.1,tp_src=7,tp_dst=7"),
                    _ => format!(
                        ",nw_src=100.64.0.0/{},nw_dst=100.{rule}.0.0/{}",
                        16 + mask / 16,
                        16 + mask % 16
                    ),
                };
                rules.add(1000 - mask, &matching);
            }
        }
        rules
    }

    fn add(&mut self, priority: usize, matching: &str) {
        self.count += 1;
        let written = writeln!(
            self.text,
            "priority={priority},in_port=1,dl_dst={},udp{matching},\
             actions=mod_dl_src:{},mod_dl_dst:{},dec_ttl,output:2",
            mac_text(ingress_mac(0)),
            mac_text(egress_mac(0)),
            mac_text(nexthop_mac(1)),
        );
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Family, Workload};
    use std::collections::HashSet;

    fn masks_of(rules: &Rules) -> HashSet<String> {
        let mask = |line: &str| -> String {
            let matching = line.split(",actions").next().unwrap_or_default();
            let field = |f: &str| match f.split_once('/') {
                Some((name, bits)) => format!("{}/{bits}", name.split('=').next().unwrap_or_default()),
                None => f.split('=').next().unwrap_or_default().to_owned(),
            };
            matching.split(',').skip(1).map(field).collect::<Vec<_>>().join(",")
        };
        rules.text.lines().map(mask).collect()
    }

    #[test]
    fn as_many_masks_as_were_asked_for() {
        for masks in [2, 4, 64, 256] {
            let rules = Rules::masks(masks);
            assert_eq!(masks_of(&rules).len(), masks);
            assert_eq!(rules.count, 1 + (masks - 1) * UNDER_EACH);
            let distinct: HashSet<&str> = rules.text.lines().collect();
            assert_eq!(distinct.len(), rules.count);
        }
    }

    #[test]
    fn exact_and_rest_adds_one_rule() {
        let workload = Workload::benchmark(Family::V4, 99, 0..=0);
        assert_eq!(Rules::exact_and_rest(&workload.targets).count, 100);
        let only = Rules::exact_and_rest([]);
        assert!(only.count == 1 && only.text.starts_with("priority=1,in_port=1,dl_dst="), "{}", only.text);
    }

    #[test]
    fn a_rule_for_each_flow() {
        let workload = Workload::benchmark(Family::V4, 300_000, 0..=0);
        let rules = Rules::exact(&workload.targets);
        assert_eq!(masks_of(&rules).len(), 1);
        let distinct: HashSet<&str> = rules.text.lines().collect();
        assert_eq!(distinct.len(), 300_000);
        assert!(
            distinct.iter().all(|line| line.starts_with("priority=100,in_port=1,dl_dst=02:")),
            "{distinct:?}"
        );
    }
}
