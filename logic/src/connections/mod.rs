//! Connections: which of those that conntrack tracks can bypass the rules of a firewall.
//!
//! Rules of a stateful firewall accept the later packets of a connection, and NAT translates them all alike. If the rules
//! provably accept all later packets of both directions, the kernel plane can forward them, NAT included. The first
//! packets, and all with SYN, FIN or RST, stay with Linux.
//!
//! Linux then no longer compares TCP's sequence numbers with the window of the connection. So TCP needs [`Consent`].
//!
//! | file | contents |
//! |---|---|
//! | [`tracked`] | connections as conntrack tracks them |
//! | [`note`] | notes of the kernel plane about connections that go to Linux |
//! | [`admission`] | decides whether a connection can be fast |
//! | [`kept`] | the connections that are fast, and how long each stays |
//! | [`again`] | what becomes of them when rules change |
//!
//! [`crate::tables::connections`] writes them into the memory of the kernel plane.

pub mod admission;
pub mod again;
pub mod kept;
pub mod note;
pub mod tracked;

#[cfg(test)]
mod tests;
