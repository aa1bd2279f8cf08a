//! The indirection table of a NIC (`ethtool --show-rxfh-indir`): the RX queues over which the NIC spreads packets by
//! their hash (RSS). In Millrace, only this module changes it.
//!
//! Two parts of Millrace want changes. Steering takes queues out of the table ([`Spreading::reserve`]). Placing uses
//! only the first ones of the other queues ([`Spreading::use_first`]). The table that is set follows from the original
//! table and from both wishes. Without wishes it is the original table.
//!
//! A file holds the original table, its number of queues and the wishes before the first change is made. Before each
//! change, the new table is added. So after `kill -9`, the next daemon recognises a table of ours, and restores the
//! original one or goes on.
//!
//! A table that is read from the device is one of these ([`Device::see`]):
//!
//! - the expected one, or another one of ours
//! - the original one, or the default of the driver, because the driver started again: the wishes of steering are
//!   applied again, at most [`MOST_RESETS`] times in a while
//! - a table of somebody else: it is left alone from then on, unless no table of ours was set before
//!
//! Some drivers report no table, or only queue 0, while their device is down. Such an answer is ignored.

use crate::{base::guard, linux::classifier::Classifier};
use anyhow::{Context, Result, bail};
use logic::cores::in_use::{self, Spread};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A table that was reset more often than this is left alone.
const MOST_RESETS: u8 = 2;
/// Resets are forgotten after this many looks without one: an hour or more.
const FORGIVEN: u16 = 360;

/// The tables of all devices, by device number, because names change. Copies share the tables.
#[derive(Clone)]
pub struct Spreading(Arc<Mutex<Tables>>);

/// Whether placing may change the table of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spreads {
    /// It may choose how many of the first queues are in use.
    Over(Spread),
    /// It may not change the table: the number of queues in the table, and the reason.
    LeftAlone(u16, &'static str),
}

struct Tables {
    classifier: Box<dyn Classifier>,
    file: PathBuf,
    devices: BTreeMap<u32, Device>,
    /// Tables that an earlier daemon left, of devices that nobody has asked for yet.
    left: BTreeMap<u32, Table>,
}

/// A device that has an indirection table.
struct Device {
    table: Table,
    /// The table as last read or written.
    is: Vec<u32>,
    /// How often the table was reset.
    resets: u8,
    /// Looks since the last reset.
    looks: u16,
    /// Why Millrace must not change the table any more.
    lost: Option<&'static str>,
}

/// The part of a device that is written to the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Table {
    /// The name of the device at the last look.
    name: String,
    /// Its number of RX queues when the table was `was`.
    queues: u32,
    /// The original table.
    was: Vec<u32>,
    /// Our tables that are set or may be set. A driver that reports an error may have set the table all the same, or
    /// may do so later. Empty: the original table is set.
    ours: Vec<Vec<u32>>,
    reserved: Vec<u8>,
    /// The requested number of queues in use; `None`: all that are not reserved.
    used: Option<u16>,
}

const MADE: &str = "somebody else has set the table; to let Millrace change it, run ethtool -X DEVICE default and restart it";
const BETWEEN: &str = "the queues for steered flows are not the last ones";
const CHANGED: &str = "somebody else has changed the table, which is left alone until the next start";
const RESET: &str = "the table was reset again and again, and is left alone until the next start";

impl Table {
    /// The original table without the reserved queues; `None`: no queue would be left.
    fn base(&self) -> Option<Vec<u32>> {
        without(&self.was, &self.reserved)
    }

    /// The number of queues of which placing can use fewer; `None`: the table is not an even one over the first queues.
    fn all(&self) -> Option<u16> {
        in_use::evenly_over(&self.was)?;
        let base = self.base()?;
        let queues = BTreeSet::from_iter(&base);
        let all = u16::try_from(queues.len()).ok()?;
        queues.iter().all(|queue| **queue < u32::from(all)).then_some(all)
    }

    /// The table to set.
    fn wanted(&self) -> Result<Vec<u32>> {
        let base = self.base().context("all its queues are reserved for steered flows")?;
        Ok(match self.all() {
            Some(all) => in_use::folded(&base, Spread { all, used: self.used(all) }),
            None => base,
        })
    }

    /// The number of queues in use out of `all`: the smallest possible number that is not below the request.
    fn used(&self, all: u16) -> u16 {
        let enough = |size: &u16| self.used.is_some_and(|used| *size >= used);
        in_use::sizes(all).filter(enough).last().unwrap_or(all)
    }

    /// Adapts the original table to the number of queues. Somebody who gives the device more or fewer queues wants them
    /// to be used. The kernel keeps our table in this case, so the new original is the table that the kernel would have
    /// created.
    fn adapt(&mut self, queues: u32, entries: usize) {
        let is_as_ever = self.queues == queues && self.was.len() == entries;
        let fits = self.was.len() == entries && self.was.iter().all(|queue| *queue < queues);
        if !is_as_ever && (!fits || is_default(&self.was, self.queues)) {
            self.was = default_table(queues, entries);
        }
        self.queues = queues;
    }
}

impl Device {
    /// `left` is the record of an earlier daemon. If the present table `is` is one of its tables, this daemon takes the
    /// record over.
    fn new(name: String, queues: u32, is: Vec<u32>, left: Option<Table>) -> Device {
        let table = match left.filter(|left| left.ours.contains(&is)) {
            Some(mut left) => {
                left.adapt(queues, is.len());
                Table { name, ..left }
            }
            None => {
                Table { name, queues, was: is.clone(), ours: Vec::new(), reserved: Vec::new(), used: None }
            }
        };
        Device { table, is, resets: 0, looks: 0, lost: None }
    }

    /// Takes in the present table and the present number of queues.
    fn see(&mut self, is: Vec<u32>, queues: u32) {
        self.looks = self.looks.saturating_add(1);
        if self.looks > FORGIVEN {
            self.resets = 0;
        }
        let was_ours = self.is != self.table.was;
        let before = std::mem::replace(&mut self.is, is);
        if self.table.ours.contains(&self.is) {
            self.lost = self.lost.filter(|why| *why == RESET);
            self.table.adapt(queues, self.is.len());
        } else if self.lost.is_some() || self.is == before && self.table.queues == queues {
        } else if !was_ours {
            // No table of ours was set, so this is the original one.
            (self.table.was, self.table.queues) = (self.is.clone(), queues);
            self.table.ours.clear();
        } else if self.is == self.table.was || is_default(&self.is, queues) {
            if self.table.queues == queues {
                (self.resets, self.looks) = (self.resets.saturating_add(1), 0);
                self.lost = (self.resets > MOST_RESETS).then_some(RESET);
            }
            (self.table.was, self.table.queues) = (self.is.clone(), queues);
            // Placing decides again. Reserved queues stay reserved.
            self.table.used = None;
        } else {
            self.lost = Some(CHANGED);
        }
    }

    fn spreads(&self) -> Spreads {
        let left_alone = |why| Spreads::LeftAlone(BTreeSet::from_iter(&self.is).len() as u16, why);
        match (self.lost, self.table.all()) {
            (Some(why), _) => left_alone(why),
            (None, Some(all)) => Spreads::Over(Spread { all, used: self.table.used(all) }),
            (None, None) if in_use::evenly_over(&self.table.was).is_none() => left_alone(MADE),
            (None, None) => left_alone(BETWEEN),
        }
    }
}

/// The same table without these queues. Their entries go to the other queues in turn. `None`: no queue is left.
fn without(table: &[u32], queues: &[u8]) -> Option<Vec<u32>> {
    let is_reserved = |ring: u32| queues.iter().any(|queue| u32::from(*queue) == ring);
    let others: BTreeSet<u32> = table.iter().copied().filter(|ring| !is_reserved(*ring)).collect();
    let mut turn = others.iter().copied().cycle();
    table.iter().map(|ring| if is_reserved(*ring) { turn.next() } else { Some(*ring) }).collect()
}

/// The initial table of drivers (`ethtool_rxfh_indir_default`, include/linux/ethtool.h).
fn default_table(queues: u32, entries: usize) -> Vec<u32> {
    (0..queues).cycle().take(entries).collect()
}

fn is_default(table: &[u32], queues: u32) -> bool {
    table == default_table(queues, table.len())
}

impl Spreading {
    /// Restores the original tables that an earlier daemon changed, except on devices whose tables placing takes over.
    pub fn open(
        classifier: Box<dyn Classifier>,
        file: PathBuf,
        takes_over: impl Fn(&str) -> bool,
    ) -> Spreading {
        let mut tables = Tables { classifier, devices: BTreeMap::new(), left: read(&file), file };
        for line in tables.put_back_left(takes_over) {
            tracing::info!("{line}");
        }
        Spreading(Arc::new(Mutex::new(tables)))
    }

    /// Makes a device spread packets only over other queues than these. With an empty list, all queues are used again.
    /// A device without a table stays as it is.
    ///
    /// # Errors
    /// The table is somebody else's, or the device refuses the change. Nothing is reserved then.
    pub fn reserve(&self, ifindex: u32, queues: &[u8]) -> Result<()> {
        let mut tables = self.lock();
        if tables.look(ifindex).context("reading its indirection table")?.is_none() {
            return Ok(());
        }
        tables.change(ifindex, |table| table.reserved = queues.to_vec())
    }

    /// Ends the reservations of a device. A device that is gone has none.
    pub fn release(&self, ifindex: u32) -> Result<()> {
        let mut tables = self.lock();
        tables.left.entry(ifindex).and_modify(|left| left.reserved.clear());
        if !tables.devices.contains_key(&ifindex) || tables.look(ifindex)?.is_none() {
            return Ok(());
        }
        tables.change(ifindex, |table| table.reserved.clear())
    }

    /// Ends the reservations of all devices, also those of an earlier daemon, because nobody steers flows.
    pub fn release_all(&self) {
        let mut tables = self.lock();
        tables.left.values_mut().for_each(|left| left.reserved.clear());
        for ifindex in tables.known() {
            if let Err(error) = tables.change(ifindex, |table| table.reserved.clear()) {
                tracing::debug!("cannot change the indirection table of device {ifindex}: {error:#}");
            }
        }
    }

    /// How a device spreads packets; `None`: it has no table.
    ///
    /// # Errors
    /// The device had a table, and its driver does not report one now.
    pub fn look(&self, ifindex: u32) -> io::Result<Option<Spreads>> {
        self.lock().look(ifindex)
    }

    /// Puts the first `used` queues in use, of those that are not reserved. Returns how the device spread packets
    /// before and how it does now. `None`: the device is gone, or has no table.
    ///
    /// # Errors
    /// The table is somebody else's, or the device refuses the change. It spreads packets as before then.
    pub fn use_first(&self, ifindex: u32, used: u16) -> Result<Option<[Spread; 2]>> {
        let mut tables = self.lock();
        let before = match tables.look(ifindex).context("reading its indirection table")? {
            Some(Spreads::Over(before)) => before,
            Some(Spreads::LeftAlone(_, why)) => bail!("{why}"),
            None => return Ok(None),
        };
        tables.change(ifindex, |table| table.used = Some(used))?;
        match tables.devices.get(&ifindex).map(Device::spreads) {
            Some(Spreads::Over(after)) => Ok(Some([before, after])),
            _ => Ok(None),
        }
    }

    /// Puts all queues of a device in use again, except reserved ones.
    ///
    /// # Errors
    /// Some queues may still be unused.
    pub fn let_go(&self, ifindex: u32) -> Result<()> {
        self.lock().let_go(ifindex)
    }

    /// As [`Spreading::let_go`], for all devices. Returns a message for each failure.
    pub fn use_all(&self) -> Vec<String> {
        let mut tables = self.lock();
        let mut conditions = Vec::new();
        for ifindex in tables.known() {
            let done = tables.let_go(ifindex);
            if let (Err(error), Some(device)) = (done, tables.devices.get(&ifindex)) {
                let name = &device.table.name;
                conditions.push(format!("{name} may spread packets over the first queues only: {error:#}"));
            }
        }
        conditions
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn known(&self) -> Vec<u32> {
        self.devices.keys().copied().collect()
    }

    /// Reads the present table. Changes it only if a device or driver started again, or an earlier daemon had other
    /// wishes.
    fn look(&mut self, ifindex: u32) -> io::Result<Option<Spreads>> {
        let Some(name) = self.classifier.name(ifindex)? else { return Ok(None) };
        let Some((is, queues)) = ask(&*self.classifier, &name)? else {
            let is_known = self.devices.contains_key(&ifindex) || self.left.contains_key(&ifindex);
            return if is_known { Err(io::Error::other(UNTOLD)) } else { Ok(None) };
        };
        if let Some(device) = self.devices.get_mut(&ifindex) {
            device.table.name = name;
            device.see(is, queues);
        } else {
            self.forget_gone();
            let left = self.left.remove(&ifindex);
            self.devices.insert(ifindex, Device::new(name, queues, is, left));
        }
        // A caller that wants a change gets the error from that change.
        if let Err(error) = self.change(ifindex, |_| {}) {
            tracing::debug!("cannot change the indirection table of device {ifindex}: {error:#}");
        }
        Ok(self.devices.get(&ifindex).map(Device::spreads))
    }

    fn let_go(&mut self, ifindex: u32) -> Result<()> {
        match self.look(ifindex)? {
            Some(Spreads::Over(_)) => self.change(ifindex, |table| table.used = None),
            _ => Ok(()),
        }
    }

    /// Forgets devices that are gone.
    fn forget_gone(&mut self) {
        let classifier = &*self.classifier;
        self.devices.retain(|ifindex, device| {
            let is_there = !matches!(classifier.name(*ifindex), Ok(None));
            if !is_there && !device.table.ours.is_empty() {
                tracing::warn!("{}", is_gone(&device.table.name));
            }
            is_there
        });
    }

    /// Changes the wishes for a device, and its table. After an error, both are as before.
    fn change(&mut self, ifindex: u32, change: impl FnOnce(&mut Table)) -> Result<()> {
        let Some(device) = self.devices.get_mut(&ifindex) else { return Ok(()) };
        let (reserved, used) = (device.table.reserved.clone(), device.table.used);
        change(&mut device.table);
        let done = self.apply(ifindex);
        if let (Err(_), Some(device)) = (&done, self.devices.get_mut(&ifindex)) {
            (device.table.reserved, device.table.used) = (reserved, used);
            // An error of the file is reported with the next change.
            let _ = self.write_down();
        }
        done
    }

    fn apply(&mut self, ifindex: u32) -> Result<()> {
        let Some(Device { table, is, lost, .. }) = self.devices.get_mut(&ifindex) else { return Ok(()) };
        if let Some(why) = *lost {
            self.write_down()?;
            bail!("{why}");
        }
        let wanted = table.wanted()?;
        if *is == wanted {
            return self.write_down();
        }
        if wanted != table.was && !table.ours.contains(&wanted) {
            table.ours.push(wanted.clone());
        }
        self.write_down()?;
        let Some(Device { table, is, .. }) = self.devices.get_mut(&ifindex) else { return Ok(()) };
        // After an error the table may be set all the same, so it stays in the file.
        set(&*self.classifier, table, &wanted).context("changing its indirection table")?;
        table.ours.retain(|ours| *ours == wanted);
        *is = wanted;
        self.write_down()
    }

    /// Writes the file, for the next daemon or `millrace stop`.
    fn write_down(&self) -> Result<()> {
        let mut all = self.left.clone();
        let changed = self.devices.iter().filter(|(_, device)| !device.table.ours.is_empty());
        all.extend(changed.map(|(ifindex, device)| (*ifindex, device.table.clone())));
        write(&self.file, &all).with_context(|| format!("writing {}", self.file.display()))
    }

    /// Restores the tables that an earlier daemon left, except on devices that `keeps` selects. Returns messages about
    /// the result.
    fn put_back_left(&mut self, keeps: impl Fn(&str) -> bool) -> Vec<String> {
        let mut done = Vec::new();
        let classifier = &*self.classifier;
        self.left.retain(|&ifindex, left| {
            let (line, is_done) = match classifier.name(ifindex) {
                Ok(Some(name)) if keeps(&name) => return true,
                Ok(Some(name)) => {
                    left.name = name;
                    put_back(classifier, left)
                }
                Ok(None) => (Some(is_gone(&left.name)), true),
                Err(error) => {
                    (Some(format!("port {}: cannot look up its device: {error}", left.name)), false)
                }
            };
            done.extend(line);
            !is_done
        });
        if let Err(error) = write(&self.file, &self.left) {
            done.push(format!("{} cannot be written: {error}", self.file.display()));
        }
        done
    }
}

fn is_gone(name: &str) -> String {
    format!(
        "port {name} is gone; if it went into another network namespace, it spreads packets over the first queues only, \
         until you run there: ethtool -X {name} default"
    )
}

const UNTOLD: &str = "its driver does not report its indirection table now";

/// Reads the table of a device and its number of RX queues. `None`: the device has no table, or its driver does not
/// report it now.
fn ask(classifier: &dyn Classifier, name: &str) -> io::Result<Option<(Vec<u32>, u32)>> {
    let is = classifier.indirection(name)?;
    // This is also true for an empty table.
    if is.iter().all(|queue| *queue == 0) {
        return Ok(None);
    }
    Ok(Some((is, classifier.queues(name)?)))
}

/// Sets a table. The default table is requested as such, so that the kernel forgets that somebody has set one.
fn set(classifier: &dyn Classifier, table: &Table, wanted: &[u32]) -> io::Result<()> {
    let by_default = wanted == table.was && is_default(wanted, table.queues);
    classifier.set_indirection(&table.name, if by_default { &[] } else { wanted })
}

/// Restores the original table. Returns a message, and whether nothing is left to restore.
fn put_back(classifier: &dyn Classifier, left: &mut Table) -> (Option<String>, bool) {
    let asked = ask(classifier, &left.name).and_then(|asked| asked.ok_or_else(|| io::Error::other(UNTOLD)));
    let name = &left.name;
    match asked {
        Ok((is, _)) if !left.ours.contains(&is) => return (None, true),
        Ok((is, queues)) => left.adapt(queues, is.len()),
        // The table may be somebody else's by now.
        Err(error) => {
            let why = format!("port {name}: packets may be spread over the first queues only: {error}");
            return (Some(why), false);
        }
    }
    let name = &left.name;
    match set(classifier, left, &left.was) {
        Ok(()) => (Some(format!("port {name}: packets are spread over all queues again")), true),
        Err(error) => {
            (Some(format!("port {name}: packets are spread over the first queues only: {error}")), false)
        }
    }
}

fn read(file: &Path) -> BTreeMap<u32, Table> {
    let text = guard::read_ours(file).ok();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn write(file: &Path, all: &BTreeMap<u32, Table>) -> io::Result<()> {
    if all.is_empty() {
        return match fs::remove_file(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
    }
    let text = serde_json::to_vec(all)?;
    if fs::read(file).is_ok_and(|there| there == text) {
        return Ok(());
    }
    guard::replace(file, &text)
}

/// Restores the original tables that `file` holds. Returns messages about the result.
pub fn clean(classifier: Box<dyn Classifier>, file: &Path) -> Vec<String> {
    if !file.exists() {
        return Vec::new();
    }
    let mut tables = Tables { classifier, devices: BTreeMap::new(), left: read(file), file: file.to_owned() };
    tables.put_back_left(|_| false)
}

#[cfg(test)]
mod tests;
