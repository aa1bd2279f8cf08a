pub mod api;
pub mod client;
pub mod instance;
pub mod packet;
pub mod report;
