//! The addresses of connections that rules translate.
//!
//! Linux translates all packets of such a connection, wherever they pass, and asks no rule about the later ones. Packets
//! from the far end have one of these addresses: as source if the destination was translated, as destination if the source
//! was. Packets in the other direction match the rule itself, as long as it exists, or are addressed to the router.
//! ([`super::ruleset::Firewall`] holds the addresses of connections that Linux tracks already.)

use super::{
    pairs::add,
    prove::{AddressPart, Exception, Obstacle, Why},
    ruleset::{
        Addresses, Chain, Expression, Into, Operand, Register, Rule, Ruleset, STATELESS, Table, Value,
    },
    traffic::Version,
};

/// The addresses of all connections that rules may translate. Translation to an address of the router itself adds none:
/// these packets go to Linux anyway.
///
/// # Errors
/// The rule that may translate to any address.
pub fn translated(ruleset: &Ruleset, version: Version) -> Result<Vec<Exception>, Obstacle> {
    let mut all = Vec::new();
    for table in ruleset.tables.iter().filter(|table| !table.dormant && translates(table, version)) {
        for (name, chain) in table.chains.iter().filter(|(_, chain)| is_of_nat(chain)) {
            for rule in &chain.rules {
                of_rule(table, rule, version, &mut all).map_err(|what| {
                    Obstacle::new(table, name, Some(rule.handle), Why::Translates(what.to_owned()))
                })?;
            }
        }
    }
    Ok(all)
}

fn translates(table: &Table, version: Version) -> bool {
    let is_nat = |chain: &Chain| chain.base.as_ref().is_some_and(|base| base.nat);
    table.family.concerns(version) && table.chains.values().any(is_nat)
}

/// Base chains of other types translate nothing. Chains without a hook may be called by one that does.
fn is_of_nat(chain: &Chain) -> bool {
    chain.base.as_ref().is_none_or(|base| base.nat)
}

/// The error is the statement's name.
fn of_rule(
    table: &Table,
    rule: &Rule,
    version: Version,
    all: &mut Vec<Exception>,
) -> Result<(), &'static str> {
    let mut registers = Known::default();
    for step in &rule.expressions {
        match step {
            Expression::Constant { value, into } => registers.put(*into, vec![value.clone()]),
            Expression::Lookup { set, into: Into::Register(into), .. } => {
                let set = table.sets.get(set).filter(|set| !set.changing);
                let values = set.map(|set| set.elements.iter().map(|e| &e.value).chain(&set.otherwise));
                let bytes = |value: &Value| match value {
                    Value::Bytes(bytes) => Some(bytes.clone()),
                    _ => None,
                };
                match values.and_then(|values| values.map(bytes).collect()) {
                    Some(values) => registers.put(*into, values),
                    None => registers.clear(*into),
                }
            }
            Expression::Meta { into, .. }
            | Expression::Ct { into, .. }
            | Expression::Payload { into, .. }
            | Expression::DestinationType { into }
            | Expression::Load { into, .. }
            | Expression::Mask { into, .. }
            | Expression::Swap { into, .. } => registers.clear(*into),
            Expression::Translate { version: Some(of), .. } if *of != version => (),
            Expression::Translate { name, into, .. } => {
                let (part, low, high) = match into {
                    Addresses::Own => continue,
                    Addresses::Any => return Err(name),
                    // Replies go to the new source, and come from the new destination.
                    Addresses::Source(low, high) => (AddressPart::Destination, low, high),
                    Addresses::Destination(low, high) => (AddressPart::Source, low, high),
                };
                let bytes = version.address_bytes();
                let [low, high] = [low, high].map(|operand| registers.values(operand, bytes));
                let (Some(low), Some(high)) = (low, high) else { return Err(name) };
                if low.len() != high.len() {
                    return Err(name);
                }
                low.into_iter().zip(high).for_each(|(low, high)| add(all, &Exception { part, low, high }));
            }
            // Some other target of NAT?
            Expression::Hidden => return Err("unknown"),
            Expression::Other(name) if !STATELESS.contains(&name.as_str()) => return Err("unknown"),
            _ => (),
        }
    }
    Ok(())
}

/// The values that registers may have, by their first byte.
#[derive(Default)]
struct Known(Vec<(usize, Vec<Vec<u8>>)>);

impl Known {
    fn put(&mut self, into: Register, values: Vec<Vec<u8>>) {
        self.clear(into);
        self.0.push((into.0.into(), values));
    }

    /// Nothing is known of this register any more, nor of those behind it: the length of a load is not looked at.
    fn clear(&mut self, into: Register) {
        let at = usize::from(into.0);
        self.0.retain(|(begin, values)| values.iter().all(|value| begin + value.len() <= at));
    }

    fn values(&self, operand: &Operand, bytes: usize) -> Option<Vec<Vec<u8>>> {
        let part = |value: &Vec<u8>, at: usize| Some(value.get(at..at + bytes)?.to_vec());
        match operand {
            Operand::Constant(value) => Some(vec![part(value, 0)?]),
            Operand::Register(Register(at)) => {
                let at = usize::from(*at);
                let (begin, values) = self.0.iter().rev().find(|(begin, _)| *begin <= at)?;
                values.iter().map(|value| part(value, at - begin)).collect()
            }
        }
    }
}
