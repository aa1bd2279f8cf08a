//! Interrupt moderation: holds a port's interrupts back, so that several packets share one wake-up. Interrupts come at
//! least the configured time apart.
//!
//! The means is the first of these that the driver accepts:
//! * the device's own timer (`ethtool -C DEVICE rx-usecs`), which then no longer adapts to the traffic;
//! * NAPI's timer (`Documentation/networking/napi.rst`, "Software IRQ coalescing"): after a poll that found packets, the
//!   interrupt stays off until a timer has polled once more.
//!
//! Nothing is done for a device without interrupts. The original setting is saved first ([`Originals`]). If the device
//! has the original setting again, its driver has restarted, and Millrace sets its own again. Any other setting is
//! somebody else's, and the device is left alone from then on.

use super::{
    Roots, irqs, number,
    originals::{Originals, System},
    queues::NetdevQueues,
};
use crate::linux::ethtool::Coalescing;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, fs, io};

/// The bits of the smallest packet on a link, with preamble and gap.
const SMALLEST_BITS: u64 = 672;

/// The timer that holds interrupts back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
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

    fn means(self) -> Means {
        match self {
            Setting::Device(_) => Means::Device,
            Setting::Napi { .. } => Means::Napi,
        }
    }

    /// Reads a device's timer of this kind; `None`: it has none.
    fn read(means: Means, roots: &Roots, system: &impl System, device: &str) -> io::Result<Option<Setting>> {
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

    /// Whether a device still has this setting.
    pub fn is_set(self, roots: &Roots, system: &impl System, device: &str) -> io::Result<bool> {
        Ok(Setting::read(self.means(), roots, system, device)? == Some(self))
    }

    /// Sets it on a device.
    pub fn write(self, roots: &Roots, system: &impl System, device: &str) -> io::Result<()> {
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
    fn is_as(self, was: Setting) -> bool {
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
    /// By number of the device.
    devices: BTreeMap<u32, Device>,
}

/// What is known about a device.
#[derive(Clone, Debug)]
enum Device {
    Ours {
        set: Setting,
        was: Setting,
    },
    /// It is left alone until the next start, for this reason.
    LeftAlone(&'static str),
}

/// A port, with the kernel's report about its queues.
pub struct Asked<'a> {
    pub device: &'a str,
    pub ifindex: u32,
    pub told: &'a NetdevQueues,
}

impl Moderation {
    pub fn new(us: u32) -> Moderation {
        Moderation { us, means: &[Means::Device, Means::Napi], devices: BTreeMap::new() }
    }

    /// Uses only NAPI's timer, even if the device has one.
    pub fn by_napi(us: u32) -> Moderation {
        Moderation { means: &[Means::Napi], ..Moderation::new(us) }
    }

    /// Whether this device has a setting of ours.
    pub fn is_ours(&self, ifindex: u32) -> bool {
        matches!(self.devices.get(&ifindex), Some(Device::Ours { .. }))
    }

    /// All devices that have a setting of ours.
    pub fn all_of_ours(&self) -> Vec<u32> {
        self.devices.keys().copied().filter(|ifindex| self.is_ours(*ifindex)).collect()
    }

    /// Holds the interrupts of a port back, unless that is done already.
    pub fn look(
        &mut self,
        roots: &Roots,
        system: &impl System,
        originals: &mut Originals,
        port: &Asked<'_>,
    ) -> Moderated {
        let looked = match self.devices.get(&port.ifindex) {
            Some(Device::LeftAlone(why)) => return Moderated::Not((*why).into()),
            Some(&Device::Ours { set, was }) => self.look_again(roots, system, originals, port, [set, was]),
            None => self.begin(roots, system, originals, port),
        };
        match looked {
            Ok(moderated) => moderated,
            Err(error) => Moderated::Not(error.to_string()),
        }
    }

    /// Forgets a port that is gone.
    pub fn forget(&mut self, ifindex: u32) {
        self.devices.remove(&ifindex);
    }

    fn look_again(
        &mut self,
        roots: &Roots,
        system: &impl System,
        originals: &mut Originals,
        port: &Asked<'_>,
        [set, was]: [Setting; 2],
    ) -> io::Result<Moderated> {
        let Some(now) = Setting::read(set.means(), roots, system, port.device)? else {
            return Ok(Moderated::Not(UNTOLD.into()));
        };
        if now == set {
            return Ok(Moderated::By(set));
        }
        if now.is_as(was) {
            let again = self.set(roots, system, originals, port, [now, was])?;
            return Ok(again.unwrap_or_else(|| self.leave(port, REFUSED)));
        }
        Ok(self.leave(port, CHANGED))
    }

    fn leave(&mut self, port: &Asked<'_>, why: &'static str) -> Moderated {
        self.devices.insert(port.ifindex, Device::LeftAlone(why));
        Moderated::Not(why.into())
    }

    fn ours(&mut self, port: &Asked<'_>, set: Setting, was: Setting) -> Moderated {
        self.devices.insert(port.ifindex, Device::Ours { set, was });
        Moderated::By(set)
    }

    fn begin(
        &mut self,
        roots: &Roots,
        system: &impl System,
        originals: &mut Originals,
        port: &Asked<'_>,
    ) -> io::Result<Moderated> {
        let napis = port.told.napis.iter().flatten();
        if irqs::of_device(roots, port.device).is_empty() && napis.clone().all(|napi| napi.irq.is_none()) {
            return Ok(Moderated::Not(SOFTWARE.into()));
        }
        let noted = originals.moderation(port.ifindex);
        let is_noted = |means| noted.is_none_or(|(_, was)| was.means() == means);
        for means in self.means.iter().copied().filter(|means| is_noted(*means)) {
            let Some(now) = Setting::read(means, roots, system, port.device)? else { continue };
            // The saved setting is from an earlier daemon, which may have ended before it saved what it set.
            let is_ours = |(set, _): &(Option<Setting>, Setting)| set.is_none_or(|set| set == now);
            let was = noted.filter(is_ours).map_or(now, |(_, was)| was);
            let is_taken = || was != Setting::Napi { timeout_ns: 0, defers: 0 };
            if means == Means::Napi && (is_taken() || napis.clone().any(|napi| was == now && napi.defers)) {
                return Ok(self.leave(port, SOMEBODY));
            }
            if let Some(done) = self.set(roots, system, originals, port, [now, was])? {
                return Ok(done);
            }
            // If the device has a timer, NAPI's must not be set, because the two times would add up.
            if matches!(now, Setting::Device(Coalescing { us, adaptive }) if us > 0 || adaptive) {
                return Ok(self.leave(port, KEPT));
            }
        }
        Ok(self.leave(port, REFUSED))
    }

    /// Sets the timer; `None`: the driver does not accept it, and the device has its original setting.
    fn set(
        &mut self,
        roots: &Roots,
        system: &impl System,
        originals: &mut Originals,
        port: &Asked<'_>,
        [now, was]: [Setting; 2],
    ) -> io::Result<Option<Moderated>> {
        let (means, device) = (was.means(), port.device);
        let wanted = Setting::within(means, self.us);
        if now == wanted {
            if was != now {
                originals.note_moderation(device, port.ifindex, Some(now), was)?;
            }
            return Ok(Some(self.ours(port, now, was)));
        }
        originals.note_moderation(device, port.ifindex, None, was)?;
        let written = wanted.write(roots, system, device);
        // Drivers round, possibly to the original value. Some report success and do nothing. Some report an error after
        // they have changed something.
        let set = Setting::read(means, roots, system, device)?.unwrap_or(was);
        if written.is_ok() && set == was && wanted.is_kept_by(set) {
            originals.forget_moderation(port.ifindex)?;
            return Ok(Some(self.ours(port, set, was)));
        }
        if written.is_ok() && !set.is_as(was) {
            originals.note_moderation(device, port.ifindex, Some(set), was)?;
            return Ok(Some(self.ours(port, set, was)));
        }
        if set != was
            && let Err(error) = was.write(roots, system, device)
            && !was.is_set(roots, system, device)?
        {
            return Err(error);
        }
        originals.forget_moderation(port.ifindex)?;
        match written {
            Err(error) if !is_refusal(&error) => Err(error),
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
