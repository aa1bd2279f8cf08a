//! The OpenFlow switch.

pub mod net;
