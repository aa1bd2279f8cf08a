//! Captures and samples of the kernel plane's packets (`bpf/capture.h`).
//!
//! | file | holds |
//! |---|---|
//! | `filter.rs` | classic BPF, as libpcap compiles it, as instructions of the program |
//! | `routed.rs` | whether a filter must run again after a packet was routed |
//! | `record.rs` | the records of the ring |

pub mod filter;
pub mod record;
pub mod routed;
