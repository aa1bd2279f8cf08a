//! Everything of Millrace that touches Linux.

pub mod abi;
pub mod plane;
