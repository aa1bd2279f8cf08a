//! ESP (RFC 4303) with AES-GCM (RFC 4106), also in UDP (RFC 3948): everything besides packets that the elements
//! [`crate::elements::EspEncrypt`] and [`crate::elements::EspDecrypt`] need.
//!
//! There are four structures:
//! - A [`Key`] is the AES key and the salt. No output shows it, and it is zeroed when it is dropped.
//! - An [`Aead`] is a key in the expanded form of some library. It seals and opens [`Job`]s in place, many at once, so
//!   that a library can work on several packets at a time. The libraries are in `router`, because they need `unsafe`.
//!   Tests here use RustCrypto's.
//! - An [`Outbound`] or [`Inbound`] security association (SA) is an `Aead`, the headers that it writes or expects, the
//!   packets that it is for, and the numbers that were sent ([`Sequence`]) or have arrived ([`Window`]). Workers share
//!   it.
//! - An [`SaTable`] holds them by name. Elements keep a view of it, and check once per run whether there is a newer
//!   list. So a change affects whole batches.
//!
//! # Initialization vectors
//! Two packets with the same key, salt and IV break AES-GCM, including its key. The IV of a packet is its sequence
//! number. It comes from one counter of the SA, which returns each number once ([`Sequence`]). That holds as long as
//! the counter lives. The maker of an SA must not use its key again with a counter that starts from the beginning
//! (docs/howto/esp.md describes how `router` prevents it). Therefore numbers can be used only after they were reserved
//! ([`Sequence::reserve`]).

mod aead;
mod headers;
mod sa;
mod sequence;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod window;

pub(crate) use aead::Jobs;
pub use aead::{Aead, Job, Key, TAG};
pub use headers::{Dont, Ends, Udp};
pub(crate) use headers::{Outer, checksum, udp_checksum_is_right, udp6_checksum};
pub use sa::{Common, Inbound, Mode, Outbound, Selectors};
pub use sequence::{NoNumber, Sequence};
pub use table::{SaTable, Sas, View};
pub use window::{BadWindow, Stale, Window};

/// Length of the ESP header: SPI and sequence number.
pub(crate) const HEADER: usize = 8;
/// Length of the IV (RFC 4106 section 3.1).
pub(crate) const IV: usize = 8;
/// Length of a UDP header.
pub(crate) const UDP: usize = 8;
/// Length of pad length and next header.
pub(crate) const TRAILER: usize = 2;
/// IP protocol numbers.
pub(crate) const PROTO_ESP: u8 = 50;
pub(crate) const PROTO_IPV4: u8 = 4;
pub(crate) const PROTO_IPV6: u8 = 41;
/// The next header of a dummy packet (RFC 4303 section 2.6).
pub(crate) const PROTO_NONE: u8 = 59;
