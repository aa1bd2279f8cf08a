//! Firewalls: decides for which packets the rules of a namespace do nothing but accept.
//!
//! | file | contents |
//! |---|---|
//! | [`ruleset`] | tables, chains, rules and sets, as Linux holds them |
//! | [`traffic`] | what is known of the packets that a proof is about, at each hook |
//! | [`bits`] | bytes that are known in part, and comparisons with three answers |
//! | [`extension`] | the matches of iptables |
//! | [`prove`] | follows packets through the rules |
//! | [`translated`] | the addresses of connections that rules translate |
//! | [`pairs`] | decides for each pair of devices |
//! | `text` | sentences about rules |
//!
//! There are three questions ([`traffic::Scope`]). *All packets* between two devices: if these are accepted, rules
//! cannot matter there. *Established connections* between two devices: each packet of a connection that conntrack
//! calls established is accepted, whatever its addresses. *One connection*: its packets are accepted, with the
//! addresses and ports that they have at each hook.

pub mod bits;
pub mod extension;
pub mod pairs;
pub mod prove;
pub mod ruleset;
mod text;
pub mod traffic;
pub mod translated;

#[cfg(test)]
mod tests;
