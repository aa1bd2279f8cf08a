//! What can be measured: each subject is one small file. A subject is started on a testbed, forwards what comes to its
//! routers until it is dropped, and leaves the testbed as it was.

mod linux;
mod millrace;
mod redirect;
mod touch;

use anyhow::{Result, bail};

use crate::{addresses::Mac, testbed::Testbed};

pub use millrace::Millrace;

/// Their names, in the order of reports.
pub const NAMES: [&str; 4] = ["linux", "redirect", "touch", "millrace"];

/// A running forwarder. Dropped, it is gone.
pub trait Subject {
    /// As on the command line and in records.
    fn name(&self) -> &'static str;

    /// What it does to the packets it forwards.
    fn rewrites(&self) -> Rewrite {
        Rewrite::Full
    }

    /// For the record: what it says about itself.
    fn describe(&self) -> Result<String> {
        Ok(String::new())
    }
}

/// What a subject does to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// What a router does.
    Full,
    /// The same, always with these MACs.
    Fixed {
        /// Destination.
        to: Mac,
        /// Source.
        from: Mac,
    },
    /// Nothing.
    None,
}

/// Starts a subject by its name.
pub fn start(name: &str, testbed: &Testbed) -> Result<Box<dyn Subject>> {
    Ok(match name {
        "linux" => Box::new(linux::Linux),
        "redirect" => Box::new(redirect::Redirect::start(testbed)?),
        "touch" => Box::new(touch::Touch::start(testbed)?),
        "millrace" => Box::new(Millrace::start(testbed)?),
        _ => bail!("no subject is called {name}; there are: {}", NAMES.join(", ")),
    })
}

/// Can this subject tell virtual routers apart?
pub fn has_routers(name: &str) -> bool {
    matches!(name, "linux" | "millrace")
}
