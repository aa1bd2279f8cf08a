//! Interrupt moderation: holds a port's interrupts back, so that several packets share one wake-up. Interrupts come at
//! least the configured time apart.
//!
//! The means is the first of these that the driver accepts:
//! * the device's own timer (`ethtool -C DEVICE rx-usecs`), which then no longer adapts to the traffic;
//! * NAPI's timer (`Documentation/networking/napi.rst`, "Software IRQ coalescing"): after a poll that found packets, the
//!   interrupt stays off until a timer has polled once more.
//!
//! Nothing is done for a device without interrupts. The original setting is saved first ([`Knobs`]). If the device
//! has the original setting again, its driver has restarted, and Millrace sets its own again. Any other setting is
//! somebody else's, and the device is left alone from then on.

use super::{
    Roots, irqs,
    knob::{Knob, System, Value, What},
    knobs::Knobs,
    number,
    polled::PolledPorts,
    queues::NetdevQueues,
};
use crate::linux::ethtool::Coalescing;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
};

/// The bits of the smallest packet on a link, with preamble and gap.
const SMALLEST_BITS: u64 = 672;

/// The timer that holds interrupts back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Means {
    #[default]
    Device,
    Napi,
}

/// The setting of a timer that holds a device's interrupts back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setting {
    /// The device's timer.
    Device(Coalescing),
    /// NAPI's timer: `gro_flush_timeout` and `napi_defer_hard_irqs`.
    Napi { timeout_ns: u64, defers: u32 },
}

impl Setting {
    /// The setting that holds interrupts back for this time.
    fn within(means: Means, us: u32) -> Setting {
        match means {
            Means::Device => Setting::Device(Coalescing { us, adaptive: false }),
            // Once: after one poll without packets, the device may interrupt again.
            Means::Napi => Setting::Napi { timeout_ns: u64::from(us) * 1000, defers: 1 },
        }
    }

    pub fn means(self) -> Means {
        match self {
            Setting::Device(_) => Means::Device,
            Setting::Napi { .. } => Means::Napi,
        }
    }

    /// Reads a device's timer of this kind; `None`: it has none.
    pub fn read(
        means: Means,
        roots: &Roots,
        system: &dyn System,
        device: &str,
    ) -> io::Result<Option<Setting>> {
        match means {
            Means::Device => Ok(system.coalescing(device)?.map(Setting::Device)),
            Means::Napi => {
                let directory = roots.device(device);
                let timeout_ns = number(&directory.join("gro_flush_timeout"));
                let defers = number(&directory.join("napi_defer_hard_irqs"));
                Ok(timeout_ns.zip(defers).map(|(timeout_ns, defers)| Setting::Napi { timeout_ns, defers }))
            }
        }
    }

    /// Sets it on a device.
    pub fn write(self, roots: &Roots, system: &dyn System, device: &str) -> io::Result<()> {
        match self {
            Setting::Device(coalescing) => {
                if coalescing.adaptive {
                    // Some drivers (ice) refuse a new time while moderation is adaptive.
                    let fixed = Coalescing { adaptive: false, ..coalescing };
                    system.coalesce(device, fixed)?;
                }
                system.coalesce(device, coalescing)
            }
            Setting::Napi { timeout_ns, defers } => {
                let directory = roots.device(device);
                fs::write(directory.join("gro_flush_timeout"), timeout_ns.to_string())?;
                fs::write(directory.join("napi_defer_hard_irqs"), defers.to_string())
            }
        }
    }

    /// Whether it is the original setting. While moderation is adaptive, the driver changes the time, so only the mode
    /// counts.
    pub fn is_as(self, was: Setting) -> bool {
        match (self, was) {
            (Setting::Device(now), Setting::Device(was)) => now == was || now.adaptive && was.adaptive,
            _ => self == was,
        }
    }

    /// Whether `other` also lets packets wait, but no longer than this one.
    fn is_kept_by(self, other: Setting) -> bool {
        !matches!(other, Setting::Device(Coalescing { adaptive: true, .. }))
            && other.us() > 0.0
            && other.us() <= self.us()
    }

    /// How long packets may wait, microseconds.
    pub fn us(self) -> f64 {
        match self {
            Setting::Device(Coalescing { us, .. }) => us.into(),
            Setting::Napi { timeout_ns, .. } => timeout_ns as f64 / 1000.0,
        }
    }

    /// Which timer it is, in words.
    pub fn by(self) -> &'static str {
        match self {
            Setting::Device(_) => "the device",
            Setting::Napi { .. } => "NAPI",
        }
    }
}

/// Whether a port's interrupts are held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moderated {
    By(Setting),
    /// They are not, for this reason.
    Not(String),
}

impl fmt::Display for Moderated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moderated::By(set) => write!(f, "packets wait up to {} µs for others, by {}", set.us(), set.by()),
            Moderated::Not(why) => write!(f, "interrupts are not held back: {why}"),
        }
    }
}

const SOFTWARE: &str = "it has no known interrupts";
const SOMEBODY: &str = "somebody else has set its NAPI timer; to let Millrace set it, write 0 to its napi_defer_hard_irqs and \
                        gro_flush_timeout in /sys/class/net, and restart Millrace";
const CHANGED: &str = "somebody else has changed its timer; Millrace leaves it alone until the next start";
const REFUSED: &str = "neither its driver (ethtool -C rx-usecs) nor NAPI accepts the time";
const KEPT: &str = "its driver keeps an rx-usecs of its own (ethtool -c), and accepts no other";
const UNTOLD: &str = "its driver does not report its timer now";

/// Holds the interrupts of ports back.
#[derive(Debug)]
pub struct Moderation {
    /// For this time, microseconds.
    us: u32,
    /// The means to try, in this order.
    means: &'static [Means],
    /// Holds back only the interrupts of ports in this set, while they are in it; `None`: those of all ports.
    polled: Option<PolledPorts>,
    /// By number of the device: our setting, or why the device is left alone until the next start.
    devices: BTreeMap<u32, Result<Setting, &'static str>>,
}

/// A port, with the kernel's report about its queues.
pub struct Asked<'a> {
    pub device: &'a str,
    pub ifindex: u32,
    pub told: &'a NetdevQueues,
}

impl Asked<'_> {
    fn knob(&self, means: Means) -> Knob {
        Knob { device: self.device.into(), what: What::Moderation { ifindex: self.ifindex, means } }
    }
}

impl Moderation {
    pub fn new(us: u32) -> Moderation {
        Moderation { us, means: &[Means::Device, Means::Napi], polled: None, devices: BTreeMap::new() }
    }

    /// Keeps interrupts off while workers poll a port, by NAPI's timer, even if the device has one. `us`: a worker that has
    /// packets polls at least this often, microseconds.
    pub fn while_polled(polled: PolledPorts, us: u32) -> Moderation {
        Moderation { means: &[Means::Napi], polled: Some(polled), ..Moderation::new(us) }
    }

    /// Whether workers poll this device, if that matters.
    pub fn is_polled(&self, ifindex: u32) -> bool {
        self.polled.as_ref().is_some_and(|polled| polled.has(ifindex))
    }

    /// Holds the interrupts of a port back, unless that is done already. `None`: only polled ports are held back. This one
    /// is not polled, and it has its original setting again.
    pub fn look(&mut self, knobs: &mut Knobs, port: &Asked<'_>) -> Option<Moderated> {
        if self.polled.is_some() && !self.is_polled(port.ifindex) {
            let Some(Ok(set)) = self.devices.get(&port.ifindex) else { return None };
            let condition = knobs.put_back_one(&port.knob(set.means())).pop();
            if condition.is_none() {
                self.forget(port.ifindex);
            }
            return condition.map(Moderated::Not);
        }
        let looked = match self.devices.get(&port.ifindex) {
            Some(Err(why)) => return Some(Moderated::Not((*why).into())),
            Some(Ok(set)) => self.look_again(knobs, port, *set),
            None => self.begin(knobs, port),
        };
        Some(looked.unwrap_or_else(|error| Moderated::Not(error.to_string())))
    }

    /// Forgets a port that is gone.
    pub fn forget(&mut self, ifindex: u32) {
        self.devices.remove(&ifindex);
    }

    /// Restores the timers of polled ports, because the workers have ended. Returns the failures, as sentences.
    pub fn end(&mut self, knobs: &mut Knobs) -> Vec<String> {
        let Some(polled) = &self.polled else { return Vec::new() };
        polled.set(BTreeSet::new());
        let devices = std::mem::take(&mut self.devices).into_iter();
        let ours = devices.filter_map(|(ifindex, device)| {
            let what = What::Moderation { ifindex, means: device.ok()?.means() };
            Some(Knob { device: String::new(), what })
        });
        ours.flat_map(|knob| knobs.put_back_one(&knob)).collect()
    }

    fn look_again(&mut self, knobs: &mut Knobs, port: &Asked<'_>, set: Setting) -> io::Result<Moderated> {
        let knob = port.knob(set.means());
        let Some(now) = knobs.read(&knob)? else { return Ok(Moderated::Not(UNTOLD.into())) };
        if now == Value::Setting(set) {
            return Ok(Moderated::By(set));
        }
        if knobs.saved(&knob).is_some_and(|was| now.is_as(was)) {
            let again = self.set(knobs, port, set.means())?;
            return Ok(again.unwrap_or_else(|| self.leave(port, REFUSED)));
        }
        Ok(self.leave(port, CHANGED))
    }

    fn leave(&mut self, port: &Asked<'_>, why: &'static str) -> Moderated {
        self.devices.insert(port.ifindex, Err(why));
        Moderated::Not(why.into())
    }

    fn begin(&mut self, knobs: &mut Knobs, port: &Asked<'_>) -> io::Result<Moderated> {
        let napis = port.told.napis.iter().flatten();
        if irqs::of_device(&knobs.roots, port.device).is_empty()
            && napis.clone().all(|napi| napi.irq.is_none())
        {
            return Ok(Moderated::Not(SOFTWARE.into()));
        }
        // An earlier daemon may have set one of the timers.
        let saved = |means: &Means| knobs.saved(&port.knob(*means)).is_some();
        let saved = [Means::Device, Means::Napi].into_iter().find(saved);
        for means in self.means.iter().copied().filter(|means| saved.is_none_or(|saved| saved == *means)) {
            let knob = port.knob(means);
            let Some(now) = knobs.read(&knob)? else { continue };
            let was = knobs.original(&knob, now.clone());
            let is_taken = || was != Value::Setting(Setting::Napi { timeout_ns: 0, defers: 0 });
            if means == Means::Napi && (is_taken() || napis.clone().any(|napi| was == now && napi.defers)) {
                return Ok(self.leave(port, SOMEBODY));
            }
            if let Some(done) = self.set(knobs, port, means)? {
                return Ok(done);
            }
            // If the device has a timer, NAPI's must not be set, because the two times would add up.
            if matches!(now, Value::Setting(Setting::Device(Coalescing { us, adaptive })) if us > 0 || adaptive)
            {
                return Ok(self.leave(port, KEPT));
            }
        }
        Ok(self.leave(port, REFUSED))
    }

    /// Sets a timer; `None`: the driver does not accept the time, and the device has its original setting.
    fn set(&mut self, knobs: &mut Knobs, port: &Asked<'_>, means: Means) -> io::Result<Option<Moderated>> {
        let (knob, wanted) = (port.knob(means), Setting::within(means, self.us));
        let set = match knobs.set(&knob, &Value::Setting(wanted)) {
            // The original cannot be saved, so nothing was set.
            Err(error) if error.kind() == io::ErrorKind::Other => return Err(error),
            set => set,
        };
        // Drivers round, possibly to the original value.
        let is_new = |set: &Value| knobs.saved(&knob).is_some_and(|was| !set.is_as(was));
        if let Ok(now @ Value::Setting(set)) = &set
            && (is_new(now) || wanted.is_kept_by(*set))
        {
            self.devices.insert(port.ifindex, Ok(*set));
            return Ok(Some(Moderated::By(*set)));
        }
        match (set, knobs.put_back_one(&knob).pop()) {
            (_, Some(condition)) => Err(io::Error::other(condition)),
            (Err(error), None) if !is_refusal(&error) => Err(error),
            _ => Ok(None),
        }
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE))
}

/// Returns a problem, as a sentence, if a queue may overflow while packets wait.
pub fn overflows(roots: &Roots, device: &str, entries: Option<u32>, set: Setting) -> Option<String> {
    // -1 where the driver does not know.
    let speed: u32 = number(&roots.device(device).join("speed")).filter(|speed| *speed > 0)?;
    let entries = entries.filter(|entries| *entries > 0)?;
    let holds_us = (u64::from(entries) * SMALLEST_BITS) as f64 / f64::from(speed);
    (holds_us < set.us()).then(|| {
        format!(
            "packets of {device} wait up to {} µs, but at {speed} Mbit/s the smallest packets fill the {entries} entries of a \
             queue in {holds_us:.0} µs: enlarge the queues (ethtool -G {device} rx N), or shorten experimental.moderation",
            set.us()
        )
    })
}

#[cfg(test)]
mod tests;
