//! `GET /metrics`: the numbers of the API's reports, as OpenMetrics text for Prometheus. docs/reference/metrics.md lists all
//! metrics.
//!
//! | file | holds |
//! |---|---|
//! | `families.rs` | the table of all metrics: names, labels, bounds, meanings |
//! | `page.rs` | a page: bounded series, and their text |
//! | `kernel.rs`, `cores.rs`, `rules.rs`, `paths.rs` | make series of reports |
//! | `source.rs` | makes a page when one is asked for, but not too often |
//! | `listen.rs` | `[metrics] listen`: the page over TCP |

mod cores;
mod families;
mod kernel;
pub mod listen;
mod page;
mod paths;
mod rules;
mod source;
#[cfg(test)]
mod tests;

use crate::{
    api::{
        cores::CoresReport,
        sas::SasReport,
        status::{InterfaceReport, Status},
    },
    switch::controllers::ControllersReport,
};
use page::Page;
use serde::{Deserialize, Serialize};

pub use families::INTERFACES as MOST_INTERFACES;
pub use source::{OPEN_METRICS, Source};

/// What the control thread adds to a page. It is of one moment.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Observed {
    pub status: Status,
    /// At most [`MOST_INTERFACES`].
    pub interfaces: Vec<InterfaceReport>,
    /// The number of other interfaces.
    pub interfaces_left_out: u64,
}

/// What the other threads add.
#[derive(Debug, Default)]
struct Beside {
    cores: CoresReport,
    controllers: ControllersReport,
    sas: SasReport,
}

fn page(observed: &Observed, beside: &Beside) -> Page {
    let (mut page, status) = (Page::default(), &observed.status);
    kernel::add_daemon(&mut page, status);
    kernel::add_ports(&mut page, &status.ports);
    kernel::add_routers(&mut page, &status.routers);
    kernel::add_interfaces(&mut page, &observed.interfaces, observed.interfaces_left_out);
    cores::add_cores(&mut page, &beside.cores);
    kernel::add_copies(&mut page, status);
    rules::add_flows(&mut page, &status.flows);
    rules::add_controllers(&mut page, &beside.controllers.controllers);
    rules::add_sas(&mut page, &beside.sas.sas);
    paths::add_paths(&mut page, &status.paths);
    paths::add_workers(&mut page, &status.workers);
    page
}
