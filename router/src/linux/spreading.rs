//! Over which RX queues a NIC spreads packets by their hash (RSS): its indirection table (`ethtool --show-rxfh-indir`), of which this is the
//! one owner.
//!
//! Two want something of it: who steers flows takes queues out of it ([`Spreading::reserve`]), who places queues uses the first
//! ones of the rest only ([`Spreading::use_first`]). What is in the table follows from what was, and from both; when neither wants
//! anything it is what it was.
//!
//! What it was, for how many queues, and what is wanted is written down before the first change, and with each change what is about to be
//! there, so that whoever comes after `kill -9` can tell the table from somebody else's, and put back or go on. What is read is one of four
//! things ([`Device::see`]): what we believe to be there; one of ours; what was, as drivers set it that begin anew: then it is done again,
//! [`MOST_RESETS`] times in a while; or somebody else's, which is left alone from then on, unless nothing of ours was there. A driver that answers
//! nothing, or that all goes to queue 0, as some do while their device is down, has told nothing.

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

/// A table that was made what it was so often is left alone.
const MOST_RESETS: u8 = 2;
/// After so many looks without one they are forgotten: an hour or more.
const FORGIVEN: u16 = 360;

/// The tables of all devices, each by its number, as names change; copies are the same.
#[derive(Clone)]
pub struct Spreading(Arc<Mutex<Tables>>);

/// What placing may do with a device's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spreads {
    /// Use the first ones of these queues.
    Over(Spread),
    /// Nothing: over so many queues, for this reason.
    LeftAlone(u16, &'static str),
}

struct Tables {
    classifier: Box<dyn Classifier>,
    file: PathBuf,
    devices: BTreeMap<u32, Device>,
    /// What a daemon before this one left, of devices that nobody asked for yet.
    left: BTreeMap<u32, Table>,
}

/// A device that spreads.
struct Device {
    table: Table,
    /// As last read or written.
    is: Vec<u32>,
    resets: u8,
    /// Looks since the last one.
    looks: u16,
    /// Why it is not ours to change any more.
    lost: Option<&'static str>,
}

/// What of a device is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Table {
    /// Of the device, as it was called when it was looked at last.
    name: String,
    /// Its RX queues when the table was `was`.
    queues: u32,
    was: Vec<u32>,
    /// What is there, and what may be there: a driver that reports an error may have done it all the same, or may do it later. Empty:
    /// it is what was.
    ours: Vec<Vec<u32>>,
    reserved: Vec<u8>,
    /// Queues in use; `None`: all that are not reserved.
    used: Option<u16>,
}

const MADE: &str = "somebody has set it (ethtool -X DEVICE default, and a start anew, give it to Millrace)";
const BETWEEN: &str = "queues for steered flows lie between the others";
const CHANGED: &str = "somebody else has changed it: it is left alone until the next start";
const RESET: &str = "it was made what it was again and again: it is left alone until the next start";

impl Table {
    /// Without what is reserved.
    fn base(&self) -> Option<Vec<u32>> {
        without(&self.was, &self.reserved)
    }

    /// The queues of which fewer can be in use; `None`: the table is no even one over the first queues.
    fn all(&self) -> Option<u16> {
        in_use::evenly_over(&self.was)?;
        let base = self.base()?;
        let queues = BTreeSet::from_iter(&base);
        let all = u16::try_from(queues.len()).ok()?;
        queues.iter().all(|queue| **queue < u32::from(all)).then_some(all)
    }

    /// What should be there.
    fn wanted(&self) -> Result<Vec<u32>> {
        let base = self.base().context("it spreads packets over queues for steered flows only")?;
        Ok(match self.all() {
            Some(all) => in_use::folded(&base, Spread { all, used: self.used(all) }),
            None => base,
        })
    }

    /// Of so many: no fewer than was asked for.
    fn used(&self, all: u16) -> u16 {
        let enough = |size: &u16| self.used.is_some_and(|used| *size >= used);
        in_use::sizes(all).filter(enough).last().unwrap_or(all)
    }

    /// Whoever gave the device more or fewer queues means them to be used. While ours is there the kernel leaves it as it is
    /// then, and what was is what it would have made anew.
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
    /// `left`: what a daemon before this one wrote down. What was its is this one's.
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

    /// This is there now, for so many queues.
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
            // Nobody here has changed it.
            (self.table.was, self.table.queues) = (self.is.clone(), queues);
            self.table.ours.clear();
        } else if self.is == self.table.was || is_default(&self.is, queues) {
            if self.table.queues == queues {
                (self.resets, self.looks) = (self.resets.saturating_add(1), 0);
                self.lost = (self.resets > MOST_RESETS).then_some(RESET);
            }
            (self.table.was, self.table.queues) = (self.is.clone(), queues);
            // What is in use is found out anew; what is reserved stays.
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

/// The same spreading without these queues: their entries go to the others in turn.
fn without(table: &[u32], queues: &[u8]) -> Option<Vec<u32>> {
    let is_reserved = |ring: u32| queues.iter().any(|queue| u32::from(*queue) == ring);
    let others: BTreeSet<u32> = table.iter().copied().filter(|ring| !is_reserved(*ring)).collect();
    let mut turn = others.iter().copied().cycle();
    table.iter().map(|ring| if is_reserved(*ring) { turn.next() } else { Some(*ring) }).collect()
}

/// What drivers begin with (`ethtool_rxfh_indir_default`, include/linux/ethtool.h).
fn default_table(queues: u32, entries: usize) -> Vec<u32> {
    (0..queues).cycle().take(entries).collect()
}

fn is_default(table: &[u32], queues: u32) -> bool {
    table == default_table(queues, table.len())
}

impl Spreading {
    /// What a daemon before this one wrote down is put back, but for the devices of which placing takes it over.
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

    /// From now on a device spreads packets over other queues than these; over all, if there are none. One that does not spread is
    /// as it is.
    ///
    /// # Errors
    /// It is somebody else's, or the device refuses: nothing is reserved.
    pub fn reserve(&self, ifindex: u32, queues: &[u8]) -> Result<()> {
        let mut tables = self.lock();
        if tables.look(ifindex).context("reading how it spreads packets")?.is_none() {
            return Ok(());
        }
        tables.change(ifindex, |table| table.reserved = queues.to_vec())
    }

    /// Nothing of a device is reserved any more. One that is not there any more has none.
    pub fn release(&self, ifindex: u32) -> Result<()> {
        let mut tables = self.lock();
        tables.left.entry(ifindex).and_modify(|left| left.reserved.clear());
        if !tables.devices.contains_key(&ifindex) || tables.look(ifindex)?.is_none() {
            return Ok(());
        }
        tables.change(ifindex, |table| table.reserved.clear())
    }

    /// Nobody steers flows: what a daemon before this one reserved, of any device, is not any more.
    pub fn release_all(&self) {
        let mut tables = self.lock();
        tables.left.values_mut().for_each(|left| left.reserved.clear());
        for ifindex in tables.known() {
            if let Err(error) = tables.change(ifindex, |table| table.reserved.clear()) {
                tracing::debug!("device {ifindex} spreads packets as before: {error:#}");
            }
        }
    }

    /// How a device spreads packets; `None`: it does not.
    ///
    /// # Errors
    /// It did, and its driver does not say.
    pub fn look(&self, ifindex: u32) -> io::Result<Option<Spreads>> {
        self.lock().look(ifindex)
    }

    /// From now on the first so many are in use, of those that are not reserved; how that was, and how it is. `None`: it is not there,
    /// or does not spread.
    ///
    /// # Errors
    /// It is somebody else's, or the device refuses: it spreads as before.
    pub fn use_first(&self, ifindex: u32, used: u16) -> Result<Option<[Spread; 2]>> {
        let mut tables = self.lock();
        let before = match tables.look(ifindex).context("reading how it spreads packets")? {
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

    /// All queues of a device are in use again that are not reserved.
    ///
    /// # Errors
    /// They may not be.
    pub fn let_go(&self, ifindex: u32) -> Result<()> {
        self.lock().let_go(ifindex)
    }

    /// The same of all devices; says where that failed.
    pub fn use_all(&self) -> Vec<String> {
        let mut tables = self.lock();
        let mut troubles = Vec::new();
        for ifindex in tables.known() {
            let done = tables.let_go(ifindex);
            if let (Err(error), Some(device)) = (done, tables.devices.get(&ifindex)) {
                let name = &device.table.name;
                troubles.push(format!("{name} may spread packets over the first queues only: {error:#}"));
            }
        }
        troubles
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn known(&self) -> Vec<u32> {
        self.devices.keys().copied().collect()
    }

    /// Sees what is there now. Changes it only where a device or driver began anew, or a daemon before this one had other wishes.
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
        // Who wants something else is told if it fails.
        if let Err(error) = self.change(ifindex, |_| {}) {
            tracing::debug!("device {ifindex} spreads packets as before: {error:#}");
        }
        Ok(self.devices.get(&ifindex).map(Device::spreads))
    }

    fn let_go(&mut self, ifindex: u32) -> Result<()> {
        match self.look(ifindex)? {
            Some(Spreads::Over(_)) => self.change(ifindex, |table| table.used = None),
            _ => Ok(()),
        }
    }

    /// Devices come and go.
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

    /// Changes what is wanted of a device, and its table. On an error both are as before.
    fn change(&mut self, ifindex: u32, change: impl FnOnce(&mut Table)) -> Result<()> {
        let Some(device) = self.devices.get_mut(&ifindex) else { return Ok(()) };
        let (reserved, used) = (device.table.reserved.clone(), device.table.used);
        change(&mut device.table);
        let done = self.apply(ifindex);
        if let (Err(_), Some(device)) = (&done, self.devices.get_mut(&ifindex)) {
            (device.table.reserved, device.table.used) = (reserved, used);
            // What cannot be written down is told with the next change.
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
        // On an error it may be there all the same: it stays written down.
        set(&*self.classifier, table, &wanted).context("changing over which queues it spreads packets")?;
        table.ours.retain(|ours| *ours == wanted);
        *is = wanted;
        self.write_down()
    }

    /// For whoever comes after.
    fn write_down(&self) -> Result<()> {
        let mut all = self.left.clone();
        let changed = self.devices.iter().filter(|(_, device)| !device.table.ours.is_empty());
        all.extend(changed.map(|(ifindex, device)| (*ifindex, device.table.clone())));
        write(&self.file, &all).with_context(|| format!("writing {}", self.file.display()))
    }

    /// Puts back what is left of other devices than these; says what it did.
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
                Err(error) => (Some(format!("port {}: {error}", left.name)), false),
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
        "port {name} is gone; if it went into another network namespace, it spreads packets over the first queues only there, \
         until `ethtool -X {name} default`"
    )
}

const UNTOLD: &str = "its driver tells nothing of it now";

/// The table of a device, and its RX queues. `None`: it has none, or its driver does not say.
fn ask(classifier: &dyn Classifier, name: &str) -> io::Result<Option<(Vec<u32>, u32)>> {
    let is = classifier.indirection(name)?;
    // Of an empty one, too.
    if is.iter().all(|queue| *queue == 0) {
        return Ok(None);
    }
    Ok(Some((is, classifier.queues(name)?)))
}

/// The kernel forgets that anybody has set a table if it is made the default one by its own means.
fn set(classifier: &dyn Classifier, table: &Table, wanted: &[u32]) -> io::Result<()> {
    let by_default = wanted == table.was && is_default(wanted, table.queues);
    classifier.set_indirection(&table.name, if by_default { &[] } else { wanted })
}

/// What it did, and whether there is nothing of it to be put back any more.
fn put_back(classifier: &dyn Classifier, left: &mut Table) -> (Option<String>, bool) {
    let asked = ask(classifier, &left.name).and_then(|asked| asked.ok_or_else(|| io::Error::other(UNTOLD)));
    let name = &left.name;
    match asked {
        Ok((is, _)) if !left.ours.contains(&is) => return (None, true),
        Ok((is, queues)) => left.adapt(queues, is.len()),
        // It may be somebody else's by now.
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

/// Puts back what is written down in `file`; says what it did.
pub fn clean(classifier: Box<dyn Classifier>, file: &Path) -> Vec<String> {
    if !file.exists() {
        return Vec::new();
    }
    let mut tables = Tables { classifier, devices: BTreeMap::new(), left: read(file), file: file.to_owned() };
    tables.put_back_left(|_| false)
}

#[cfg(test)]
mod tests;
