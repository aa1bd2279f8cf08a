//! Meters (OpenFlow 1.3.5 sections 5.7 and 6.6).

use super::{Change, Count, RuleId, Tables, check::demand, duration};
use crate::flow::{Meter, MeterMod, MeterStats, Refused, Removed, rule::BandKind};
use std::collections::BTreeMap;

/// The most meters.
pub const METERS: usize = 4096;
/// The most bands of a meter.
pub const BANDS: usize = 8;

/// Ids from here on are reserved (OFPM_MAX).
const RESERVED: u32 = 0xffff_0001;

struct Entry {
    meter: Meter,
    created_ms: u64,
    /// How many rules use it.
    rules: u32,
    count: Count,
    bands: Vec<Count>,
}

#[derive(Default)]
pub(super) struct Meters(BTreeMap<u32, Entry>);

impl Meters {
    pub fn contains(&self, id: u32) -> bool {
        self.0.contains_key(&id)
    }

    pub fn refer(&mut self, id: u32) {
        if let Some(entry) = self.0.get_mut(&id) {
            entry.rules += 1;
        }
    }

    pub fn unrefer(&mut self, id: u32) {
        if let Some(entry) = self.0.get_mut(&id) {
            entry.rules -= 1;
        }
    }
}

impl Tables {
    pub fn meter(&self, id: u32) -> Option<&Meter> {
        self.meters.0.get(&id).map(|entry| &entry.meter)
    }

    /// All meters by id.
    pub fn meters(&self) -> impl Iterator<Item = &Meter> {
        self.meters.0.values().map(|entry| &entry.meter)
    }

    /// Adds, modifies or deletes meters. Rules that use a deleted meter end.
    pub fn apply_meter(&mut self, request: &MeterMod, now_ms: u64) -> Result<Vec<Change>, Refused> {
        match request {
            MeterMod::Add(meter) => {
                demand(!self.meters.contains(meter.id), Refused::MeterExists)?;
                demand(self.meters.0.len() < METERS, Refused::TooManyMeters)?;
                check_meter(meter)?;
                let bands = vec![Count::default(); meter.bands.len()];
                let (count, meter) = (Count::default(), meter.clone());
                let entry = Entry { created_ms: now_ms, rules: 0, count, bands, meter };
                let id = entry.meter.id;
                self.meters.0.insert(id, entry);
                Ok(vec![Change::Meter(id)])
            }
            MeterMod::Modify(meter) => {
                let entry = self.meters.0.get_mut(&meter.id).ok_or(Refused::UnknownMeter)?;
                check_meter(meter)?;
                // The counters of the meter go on, and those of its bands start again (6.6).
                entry.bands = vec![Count::default(); meter.bands.len()];
                entry.meter = meter.clone();
                Ok(vec![Change::Meter(meter.id)])
            }
            MeterMod::Delete(id) => {
                let ids: Vec<u32> = self.meters.0.range(range(*id)).map(|(&id, _)| id).collect();
                Ok(self.remove_meters(&ids, now_ms))
            }
        }
    }

    /// Sets the packets counted for a meter since it was added, and those dropped by each band since the meter was
    /// last changed.
    pub fn count_meter(&mut self, id: u32, count: Count, bands: &[Count]) {
        if let Some(entry) = self.meters.0.get_mut(&id) {
            entry.count = count;
            entry.bands.iter_mut().zip(bands).for_each(|(to, from)| *to = *from);
        }
    }

    /// Statistics of one meter or of all, by id.
    pub fn meter_stats(&self, id: Option<u32>, now_ms: u64) -> impl Iterator<Item = MeterStats> + '_ {
        self.meters.0.range(range(id)).map(move |(&id, entry)| {
            let (duration_sec, duration_nsec) = duration(entry.created_ms, now_ms);
            MeterStats {
                id,
                flows: entry.rules,
                packets: entry.count.packets,
                bytes: entry.count.bytes,
                duration_sec,
                duration_nsec,
                bands: entry.bands.iter().map(|count| (count.packets, count.bytes)).collect(),
            }
        })
    }

    /// The rules that use a meter; with `None`, those that use any meter.
    pub fn users_of_meter(&self, id: Option<u32>) -> Vec<RuleId> {
        if self.meters.0.range(range(id)).all(|(_, entry)| entry.rules == 0) {
            return Vec::new();
        }
        let uses = |rule: &RuleId| {
            self.rows[*rule].instructions.meter.is_some_and(|meter| id.is_none_or(|id| id == meter))
        };
        self.ids().filter(uses).collect()
    }

    /// Removes meters; the rules that use them end first.
    fn remove_meters(&mut self, ids: &[u32], now_ms: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        if ids.iter().any(|id| self.meters.0[id].rules > 0) {
            let uses = |row: &super::Row| row.instructions.meter.is_some_and(|id| ids.contains(&id));
            changes = self.remove_where(uses, Removed::MeterDelete, now_ms);
        }
        for id in ids {
            self.meters.0.remove(id);
            changes.push(Change::MeterRemoved(*id));
        }
        changes
    }
}

/// The range of one id, or of all ids.
fn range(id: Option<u32>) -> std::ops::RangeInclusive<u32> {
    id.map_or(0..=u32::MAX, |id| id..=id)
}

fn check_meter(meter: &Meter) -> Result<(), Refused> {
    demand((1..RESERVED).contains(&meter.id), Refused::InvalidMeter)?;
    demand(meter.bands.len() <= BANDS, Refused::TooManyBands)?;
    meter.bands.iter().try_for_each(|band| {
        demand(band.kind == BandKind::Drop, Refused::BadBand)?;
        demand(band.rate > 0, Refused::BadRate)?;
        demand(!meter.burst || band.burst > 0, Refused::BadBurst)
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Dialect::OpenFlow13,
            RuleId,
            tests::{add, everything, out, tables},
        },
        *,
    };
    use crate::flow::{
        FlowMod, Instructions, Match,
        rule::{Band, MeterUnit},
    };

    fn band(rate: u32) -> Band {
        Band { rate, burst: 0, kind: BandKind::Drop }
    }

    fn meter(id: u32, bands: impl Into<Vec<Band>>) -> Meter {
        Meter { id, unit: MeterUnit::Kbps, burst: false, stats: true, bands: bands.into() }
    }

    #[test]
    fn invalid_meters_are_refused() {
        use Refused::*;
        let remark = Band { kind: BandKind::DscpRemark { levels: 1 }, ..band(1) };
        let other = Band { kind: BandKind::Experimenter(1), ..band(1) };
        let bursting = Band { burst: 10, ..band(1) };
        let burst = |bands: Vec<Band>| MeterMod::Add(Meter { burst: true, ..meter(1, bands) });
        for (request, expected) in [
            (MeterMod::Add(meter(1, [band(100), band(200)])), Ok(vec![Change::Meter(1)])),
            (MeterMod::Add(meter(9, [])), Err(MeterExists)),
            (MeterMod::Modify(meter(9, [])), Ok(vec![Change::Meter(9)])),
            (MeterMod::Modify(meter(8, [])), Err(UnknownMeter)),
            (MeterMod::Delete(Some(8)), Ok(vec![])),
            (MeterMod::Delete(None), Ok(vec![Change::MeterRemoved(9)])),
            (MeterMod::Add(meter(0, [])), Err(InvalidMeter)),
            (MeterMod::Add(meter(0xffff_0000, [])), Ok(vec![Change::Meter(0xffff_0000)])),
            (MeterMod::Add(meter(0xffff_0001, [])), Err(InvalidMeter)),
            (MeterMod::Add(meter(1, vec![band(1); BANDS])), Ok(vec![Change::Meter(1)])),
            (MeterMod::Add(meter(1, vec![band(1); BANDS + 1])), Err(TooManyBands)),
            (MeterMod::Add(meter(1, [remark])), Err(BadBand)),
            (MeterMod::Modify(meter(9, [other])), Err(BadBand)),
            (MeterMod::Add(meter(1, [band(0)])), Err(BadRate)),
            (burst(vec![bursting]), Ok(vec![Change::Meter(1)])),
            (burst(vec![bursting, band(1)]), Err(BadBurst)),
        ] {
            let mut t = tables();
            t.apply_meter(&MeterMod::Add(meter(9, [band(7)])), 0).expect("good");
            let found = t.apply_meter(&request, 0);
            assert_eq!(found, expected, "{request:?}");
            assert!(found.is_ok() || t.meter(9) == Some(&meter(9, [band(7)])));
        }
        let mut t = tables();
        for id in 1..=METERS as u32 {
            t.apply_meter(&MeterMod::Add(meter(id, [])), 0).expect("good");
        }
        assert_eq!(t.apply_meter(&MeterMod::Add(meter(METERS as u32 + 1, [])), 0), Err(TooManyMeters));
    }

    #[test]
    fn deleting_a_meter_ends_the_rules_that_use_it() {
        let mut t = tables();
        for id in [3, 4] {
            t.apply_meter(&MeterMod::Add(meter(id, [band(7)])), 1_000).expect("good");
        }
        for (priority, meter) in [(1, 3), (2, 4), (3, 3)] {
            let instructions = Instructions { meter: Some(meter), ..Instructions::apply([out(1)]) };
            let request = FlowMod { instructions, ..add(priority, Match::ANY, []) };
            t.apply(&request, OpenFlow13, 0).expect("good");
        }
        let counted = Count { packets: 9, bytes: 900 };
        t.count_meter(3, counted, &[counted]);
        let stats = |t: &Tables| t.meter_stats(Some(3), 2_500).next().map(|m| (m.flows, m.packets, m.bands));
        assert_eq!(stats(&t), Some((2, 9, vec![(9, 900)])));
        t.apply_meter(&MeterMod::Modify(meter(3, [band(8)])), 2_000).expect("good");
        assert_eq!(stats(&t), Some((2, 9, vec![(0, 0)])));
        let gone = |id, next| Change::Removed { id: RuleId(id), next, notice: None };
        assert_eq!(
            t.apply_meter(&MeterMod::Delete(Some(3)), 0),
            Ok(vec![gone(0, None), gone(2, Some(RuleId(1))), Change::MeterRemoved(3)])
        );
        assert_eq!((t.aggregate(&everything()).rules, t.meters().count()), (1, 1));
    }
}
