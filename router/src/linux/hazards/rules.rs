//! Policy routing rules, except those that every namespace has at its start (`RTM_GETRULE`, `struct fib_rule_hdr`).
//!
//! The mirror looks up routes as those rules do: in local, main and default for IPv4, in local and main for IPv6. With
//! one rule more or less, its result would be wrong.

use super::{ByFamily, IN_NAMESPACE, MOST_SENTENCES};
use crate::linux::netlink::{
    INET, INET6, rtm,
    socket::Socket,
    wire::{self, Message, Request},
};
use logic::cause::{Cause, Code};
use std::io;

const FRA_PRIORITY: u16 = 6;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_PAD: u16 = 18;
const FRA_PROTOCOL: u16 = 21;
const FR_ACT_TO_TBL: u8 = 1;
const HEADER: usize = 12;

/// (priority, table) of the rules that a namespace has at its start.
const DEFAULTS: [&[(u32, u32)]; 2] = [&[(0, 255), (32766, 254), (32767, 253)], &[(0, 255), (32766, 254)]];

/// A rule, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    priority: u32,
    /// The table that the rule looks up for every packet. `None`: it does something else.
    table: Option<u32>,
}

/// Returns a sentence for each rule that was added, and for each usual rule that is missing.
pub fn read(socket: &mut Socket) -> io::Result<ByFamily> {
    let mut sentences = ByFamily::default();
    for (i, family) in [INET, INET6].into_iter().enumerate() {
        let mut header = [0; HEADER];
        header[0] = family;
        let rules = match socket.dump(Request::new(rtm::GETRULE, wire::DUMP, &header), parse) {
            // The kernel lacks policy routing for this family, or the family itself.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) => continue,
            other => other?,
        };
        sentences[i] = judge(&rules, i);
    }
    Ok(sentences)
}

fn judge(rules: &[Rule], family: usize) -> Vec<Cause> {
    let ip = ["ip", "ip -6"][family];
    let mut sentences = Vec::new();
    let mut missing: Vec<(u32, u32)> = DEFAULTS[family].to_vec();
    let mut more = 0;
    for rule in rules {
        let known = missing.iter().position(|(p, t)| *p == rule.priority && Some(*t) == rule.table);
        if let Some(known) = known {
            missing.remove(known);
        } else if sentences.len() == MOST_SENTENCES {
            more += 1;
        } else {
            sentences.push(Code::PolicyRule.cause(format!(
                "policy rule with priority {0}; remove it with: {IN_NAMESPACE}{ip} rule del priority {0}",
                rule.priority
            )));
        }
    }
    if more > 0 {
        let text = format!("{more} more policy rules; list them with: {IN_NAMESPACE}{ip} rule");
        sentences.push(Code::PolicyRule.cause(text));
    }
    sentences.extend(missing.iter().map(|(priority, table)| {
        Code::PolicyRuleMissing.cause(format!(
            "the usual policy rule for table {table} is missing; \
             add it with: {IN_NAMESPACE}{ip} rule add priority {priority} table {table}"
        ))
    }));
    sentences
}

pub(crate) fn parse(message: Message<'_>) -> Option<Rule> {
    let payload = message.payload;
    if message.kind != rtm::NEWRULE || payload.len() < HEADER {
        return None;
    }
    let [_, destination, source, tos, table, _, _, action] = *payload.first_chunk()?;
    let flags = wire::u32_at(payload, 8)?;
    let mut rule = Rule { priority: 0, table: Some(table.into()) };
    let mut plain = (destination, source, tos, flags, action) == (0, 0, 0, 0, FR_ACT_TO_TBL);
    for (kind, value) in wire::attributes(&payload[HEADER..]) {
        match kind {
            FRA_PRIORITY => rule.priority = wire::u32_at(value, 0)?,
            FRA_TABLE => rule.table = wire::u32_at(value, 0),
            FRA_PROTOCOL | FRA_PAD => (),
            FRA_SUPPRESS_PREFIXLEN if wire::u32_at(value, 0) == Some(u32::MAX) => (),
            _ => plain = false,
        }
    }
    if !plain {
        rule.table = None;
    }
    Some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(priority: u32, table: u32) -> Request {
        Request::new(rtm::NEWRULE, 0, &[INET, 0, 0, 0, 0, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0])
            .with(FRA_TABLE, &table.to_ne_bytes())
            .with(FRA_SUPPRESS_PREFIXLEN, &u32::MAX.to_ne_bytes())
            .with(FRA_PROTOCOL, &[2])
            .with(FRA_PRIORITY, &priority.to_ne_bytes())
    }

    fn judged(requests: Vec<Request>) -> Vec<Cause> {
        let rules: Vec<Rule> = requests
            .into_iter()
            .filter_map(|mut r| wire::messages(r.bytes(1)).next().and_then(parse))
            .collect();
        judge(&rules, 0)
    }

    #[test]
    fn only_the_usual_rules_are_no_hazard() {
        let usual = || vec![rule(0, 255), rule(32766, 254), rule(32767, 253)];
        assert!(judged(usual()).is_empty());
        let mut more = usual();
        more.push(rule(100, 254));
        assert_eq!(
            judged(more),
            [format!(
                "policy rule with priority 100; remove it with: {IN_NAMESPACE}ip rule del priority 100"
            )]
        );
        assert_eq!(judged(usual().split_off(1)).len(), 1);
        let fwmark = 10;
        let mut marked = usual();
        marked[0] = rule(0, 255).with(fwmark, &[1, 0, 0, 0]);
        assert_eq!(judged(marked).len(), 2);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(Message { kind: rtm::NEWRULE, flags: 0, sequence: 0, payload: &bytes });
        }
    }
}
