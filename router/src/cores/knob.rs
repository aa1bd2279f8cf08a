//! One setting of the kernel that is changed for cores: how it is recognised, read and written.

use super::{
    CoreId, Roots,
    affinity::{self, Scheduling},
    apply::xps,
    irqs, is_gone,
    local::Table,
    moderation::{Means, Setting},
    number, resume, serve, threads, unless_gone,
};
use crate::{
    base::priority::Urgency,
    linux::{
        ethtool::{Coalescing, Ethtool},
        netns,
    },
};
use logic::cpus;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// All settings that are changed by system calls, not by files.
pub trait System: Scheduling + Send + 'static {
    /// Reads the interrupt moderation of a device; `Ok(None)`: the driver does not report it.
    fn coalescing(&self, device: &str) -> io::Result<Option<Coalescing>>;
    /// Sets the interrupt moderation of a device.
    fn coalesce(&self, device: &str, coalescing: Coalescing) -> io::Result<()>;
}

/// Devices are those of the calling thread's network namespace.
impl System for affinity::Kernel {
    fn coalescing(&self, device: &str) -> io::Result<Option<Coalescing>> {
        Ethtool::open()?.coalescing(device)
    }

    fn coalesce(&self, device: &str, coalescing: Coalescing) -> io::Result<()> {
        Ethtool::open()?.coalesce(device, coalescing)
    }
}

/// A setting of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knob {
    /// The port that it is changed for; empty: it belongs to no port.
    pub device: String,
    pub what: What,
}

/// Which setting it is, with data that tell its owner from a later one of the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// The allowed cores of a NAPI thread of this name.
    Thread { pid: u32, name: String },
    /// The allowed cores of an interrupt with handlers of these names.
    Interrupt { irq: u32, actions: Vec<String> },
    /// The cores of a TX queue of the device, which has this number.
    Transmit { ifindex: Option<u32>, queue: u16 },
    /// The scheduling of a NAPI thread of this name.
    Urgency { pid: u32, name: String },
    /// The cores of a control group.
    Cpuset { directory: PathBuf },
    /// The number of entries of a table of local delivery. The table of an RX queue belongs to the device of this number.
    Table { table: Table, ifindex: Option<u32> },
    /// The timer of this kind, which moderates the interrupts of the device of this number.
    Moderation {
        ifindex: u32,
        /// Not in the file, because it follows from the original value.
        #[serde(skip)]
        means: Means,
    },
    /// The wake-up limit of a core.
    Resume { core: CoreId },
}

/// The value of a knob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    Cores(BTreeSet<CoreId>),
    /// The text of the file.
    Text(String),
    Urgency(Urgency),
    Entries(u32),
    Setting(Setting),
}

impl Value {
    /// Whether it is the same as an original value. While moderation is adaptive, the driver changes the time.
    pub fn is_as(&self, was: &Value) -> bool {
        match (self, was) {
            (Value::Setting(now), Value::Setting(was)) => now.is_as(*was),
            _ => self == was,
        }
    }
}

impl Knob {
    /// Whether both are the same setting. A device keeps its number when it gets another name.
    pub fn is(&self, other: &Knob) -> bool {
        self.what == other.what
            && (self.device == other.device || matches!(self.what, What::Moderation { .. }))
    }

    /// The problem, as a sentence, if it could not be restored.
    pub fn kept(&self) -> String {
        let device = &self.device;
        match &self.what {
            What::Thread { name, .. } => format!("thread {name} keeps its cores"),
            What::Urgency { name, .. } => format!("thread {name} keeps its priority"),
            What::Cpuset { directory } => format!("{} keeps its cores", directory.display()),
            What::Interrupt { irq, .. } => format!("interrupt {irq} of {device} keeps its cores"),
            What::Transmit { queue, .. } => format!("TX queue {queue} of {device} keeps its cores"),
            What::Table { table, .. } => format!("{table} keeps its entries"),
            What::Moderation { .. } => format!("the interrupt moderation of {device} is not restored"),
            What::Resume { core } => format!("core {core} keeps its wake-up limit"),
        }
    }

    /// Whether its thread, interrupt or device is still the same. Other settings always are.
    fn is_the_same(&self, roots: &Roots) -> io::Result<bool> {
        Ok(match &self.what {
            What::Thread { pid, name } | What::Urgency { pid, name } => {
                threads::stat(roots, *pid)?.is_some_and(|stat| stat.name == *name)
            }
            What::Interrupt { irq, actions } => {
                // After a device was renamed, its handlers get new names when it comes up.
                let is_devices = || irqs::of_device(roots, &self.device).values().any(|of| of == irq);
                irqs::actions(roots, *irq) == *actions || is_devices()
            }
            What::Transmit { ifindex, .. } | What::Table { table: Table::Flows { .. }, ifindex } => {
                number_of(roots, &self.device) == *ifindex
            }
            _ => true,
        })
    }

    /// Reads its value; `None`: its thread, interrupt, device or file is gone, or is another one by now.
    pub fn read(&self, roots: &Roots, system: &dyn System) -> io::Result<Option<Value>> {
        if !self.is_the_same(roots)? {
            return Ok(None);
        }
        let text = || self.on_file(roots, |path| fs::read_to_string(path)).map(|text| text.trim().to_owned());
        unless_gone(match &self.what {
            What::Thread { pid, .. } => {
                system.allowed(*pid).map(|allowed| Value::Cores(allowed.cores().collect()))
            }
            What::Urgency { pid, .. } => system.urgency(*pid).map(Value::Urgency),
            What::Table { .. } => {
                text().and_then(|text| text.parse().map(Value::Entries).map_err(io::Error::other))
            }
            What::Moderation { ifindex, means } => {
                let Some(device) = named(roots, *ifindex) else { return Ok(None) };
                // A driver that answers nothing for a while still has the device.
                return Ok(Setting::read(*means, roots, system, &device)?.map(Value::Setting));
            }
            _ => text().map(Value::Text),
        })
    }

    /// Sets its value.
    pub fn write(&self, roots: &Roots, system: &dyn System, value: &Value) -> io::Result<()> {
        let text = match (&self.what, value) {
            (What::Thread { pid, .. }, Value::Cores(cores)) => return system.allow(*pid, cores),
            (What::Urgency { pid, .. }, Value::Urgency(urgency)) => {
                return system.set_urgency(*pid, *urgency);
            }
            (What::Moderation { ifindex, .. }, Value::Setting(setting)) => {
                let device = named(roots, *ifindex).ok_or(io::ErrorKind::NotFound)?;
                return setting.write(roots, system, &device);
            }
            (What::Table { .. }, Value::Entries(entries)) => &entries.to_string(),
            // Writing no bytes at all would have no effect, so an empty list needs its newline.
            (_, Value::Text(text)) if text.is_empty() => "\n",
            (_, Value::Text(text)) => text,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        self.on_file(roots, |path| {
            OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
        })
    }

    fn on_file<T: Send>(
        &self,
        roots: &Roots,
        task: impl Fn(&Path) -> io::Result<T> + Send + Sync,
    ) -> io::Result<T> {
        let path = match &self.what {
            What::Interrupt { irq, .. } => irqs::affinity(roots, *irq),
            What::Transmit { queue, .. } => xps(roots, &self.device, *queue),
            What::Cpuset { directory } => serve::file(directory),
            What::Resume { core } => resume::file(roots, *core),
            What::Table { table: Table::Flows { device, queue }, .. } => {
                roots.device(device).join(format!("queues/rx-{queue}/rps_flow_cnt"))
            }
            What::Table { table: Table::Sockets, .. } => {
                let path = roots.proc("sys/net/core/rps_sock_flow_entries");
                return match task(&path) {
                    // The file exists only in the machine's first network namespace. Kernel threads are there, and
                    // process 2 is their parent.
                    Err(error) if is_gone(&error) => {
                        netns::inside(&File::open(roots.proc("2/ns/net"))?, || task(&path))?
                    }
                    done => done,
                };
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        task(&path)
    }

    /// The only core in a value of a queue's setting; `None`: there are several.
    pub fn core(&self, value: &Value) -> Option<CoreId> {
        let cores = match (&self.what, value) {
            (What::Interrupt { .. }, Value::Text(list)) => cpus::parse_list(list)?,
            (What::Transmit { .. }, Value::Text(mask)) => cpus::parse_mask(mask)?,
            (_, Value::Cores(cores)) => cores.clone(),
            _ => return None,
        };
        cores.first().copied().filter(|_| cores.len() == 1)
    }
}

/// The present name of the device with this number; `None`: it is not in this network namespace.
pub(super) fn named(roots: &Roots, ifindex: u32) -> Option<String> {
    let devices = fs::read_dir(roots.sys("class/net")).ok()?.flatten();
    let mut names = devices.filter_map(|device| device.file_name().into_string().ok());
    names.find(|name| number_of(roots, name) == Some(ifindex))
}

/// The number of a device, if the machine reports it.
pub(super) fn number_of(roots: &Roots, device: &str) -> Option<u32> {
    number(&roots.device(device).join("ifindex"))
}
