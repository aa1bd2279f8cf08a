//! ESP (RFC 4303) with AES-GCM (RFC 4106), in UDP too (RFC 3948): what elements [`crate::elements::EspEncrypt`] and
//! [`crate::elements::EspDecrypt`] need besides packets.
//!
//! Four structures:
//! - A [`Key`] is AES key and salt. It is shown nowhere, and zeroed when it is dropped.
//! - An [`Aead`] is a key as some library has expanded it. It seals and opens [`Job`]s in place, many at once, so that a library can
//!   have several packets under way. Libraries are in `router`, as they need `unsafe`; tests here use RustCrypto's.
//! - An [`Outbound`] or [`Inbound`] security association (SA) is an `Aead`, what headers it writes or wants, which packets it is for, and
//!   what was sent ([`Sequence`]) or came ([`Window`]). Workers share it.
//! - An [`SaTable`] has them by name. Elements keep a view of it, and look once a run whether there is a newer one: so a change is seen by
//!   whole batches or not at all.
//!
//! # Initialization vectors
//! AES-GCM is broken, key and all, by two packets with one key, salt and IV. The IV of a packet is its sequence number, which is taken from
//! one counter of the SA and never twice ([`Sequence`]). That holds as long as the counter lives. The maker of an SA must not use
//! its key again with a counter that starts from the beginning (docs/howto/esp.md says how `router` prevents it). This is why numbers
//! can be used only after they were reserved ([`Sequence::reserve`]).

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

/// Bytes of the ESP header: SPI and sequence number.
pub(crate) const HEADER: usize = 8;
/// Bytes of the IV (RFC 4106 section 3.1).
pub(crate) const IV: usize = 8;
/// Bytes of a UDP header.
pub(crate) const UDP: usize = 8;
/// Pad length and next header.
pub(crate) const TRAILER: usize = 2;
/// IP protocols.
pub(crate) const PROTO_ESP: u8 = 50;
pub(crate) const PROTO_IPV4: u8 = 4;
pub(crate) const PROTO_IPV6: u8 = 41;
/// What a dummy packet carries (RFC 4303 section 2.6).
pub(crate) const PROTO_NONE: u8 = 59;
