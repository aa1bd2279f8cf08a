//! Meters as rows of `flow_meters`. User space charges the same rows as the kernel plane (OpenFlow 1.3.5 section 5.7).
//!
//! A row belongs to a meter from the time it is added until the batch that removes it is over. It changes in place. One
//! word, `cost`, holds both the price and its unit, so no packet is charged for its bytes at the price of a packet.

use super::{FlowMemory, Writer, memory::words};
use crate::flow::{
    Meter,
    rule::{Band, MeterUnit},
    table::{BANDS, Count, Tables},
};
use std::{
    collections::HashMap,
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Release},
    },
};

/// Words of `struct flow_meter`.
pub mod meter_word {
    pub const PACKETS: usize = 0;
    pub const BYTES: usize = 1;
    /// The first band. Bands are sorted by rate, the highest first.
    pub const BANDS: usize = 3;
}

/// Words of `struct flow_band`.
pub mod band_word {
    pub const COST: usize = 0;
    pub const BURST: usize = 1;
    pub const EMPTY: usize = 2;
    pub const DROPPED: usize = 3;
    pub const LENGTH: usize = 5;
}

/// Ticks of a band's clock in a nanosecond.
pub const TICKS: u64 = 16;
pub const COST_SHIFT: u32 = 16;
/// Flag in a cost: the cost is per byte, not per packet.
pub const COST_BYTES: u64 = 1 << 63;
/// Attempts to charge a packet by compare and swap. After that its cost is added, and taken back if the packet is over the
/// rate.
const TRIES: usize = 4;
/// The longest burst, nine years. A time with it added still fits.
const MOST_BURST_TICKS: u128 = 1 << 62;

const TICKS_PER_SECOND: u128 = TICKS as u128 * 1_000_000_000;

/// The row of each meter.
#[derive(Default)]
pub(super) struct Meters {
    rows: HashMap<u32, u32>,
    free: Vec<u32>,
    /// The first row that was never used.
    fresh: u32,
}

impl Meters {
    pub fn row(&self, id: u32) -> Option<u32> {
        self.rows.get(&id).copied()
    }

    pub fn free(&mut self, row: u32) {
        self.free.push(row);
    }

    fn get(&mut self, id: u32, rows: usize) -> Option<u32> {
        let fresh = self.fresh;
        let row = match self.free.pop() {
            None if (fresh as usize) < rows => {
                self.fresh += 1;
                fresh
            }
            row => row?,
        };
        self.rows.insert(id, row);
        Some(row)
    }
}

/// The indices of a meter's bands in the order of its row: the highest rate first.
fn by_rate(meter: &Meter) -> Vec<usize> {
    let mut order: Vec<usize> = (0..meter.bands.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(meter.bands[i].rate));
    order
}

/// A band's cost, and its burst in ticks. Rates are in 1,000 bits or in packets per second.
fn price(meter: &Meter, band: &Band) -> (u64, u64) {
    let rate = u128::from(band.rate.max(1));
    let per_second = match meter.unit {
        MeterUnit::Kbps => rate * 1000 / 8,
        MeterUnit::Pps => rate,
    };
    let cost = ((TICKS_PER_SECOND << COST_SHIFT) + per_second / 2) / per_second;
    let burst =
        if meter.burst { u128::from(band.burst) * TICKS_PER_SECOND / rate } else { TICKS_PER_SECOND / 10 };
    let flag = if meter.unit == MeterUnit::Kbps { COST_BYTES } else { 0 };
    (cost as u64 | flag, burst.min(MOST_BURST_TICKS) as u64)
}

/// Is a packet over this band's rate? If not, it is charged. `over_band` of `bpf/flow.h` does the same.
fn over_band(band: &[AtomicU64], bytes: u64, now: u64) -> bool {
    let cost = band[band_word::COST].load(Acquire);
    let latest = now.saturating_add(band[band_word::BURST].load(Acquire));
    let units = if cost & COST_BYTES != 0 { bytes } else { 1 };
    let takes =
        (cost & !COST_BYTES).saturating_mul(units).saturating_add(1 << (COST_SHIFT - 1)) >> COST_SHIFT;
    let empty_at = &band[band_word::EMPTY];
    for _ in 0..TRIES {
        let empty = empty_at.load(Acquire);
        let after = empty.max(now).saturating_add(takes);
        if empty > now && after > latest {
            return true;
        }
        if empty_at.compare_exchange(empty, after, AcqRel, Acquire).is_ok() {
            return false;
        }
    }
    let over = empty_at.fetch_add(takes, AcqRel).saturating_add(takes) > latest;
    if over {
        empty_at.fetch_sub(takes, AcqRel);
    }
    over
}

impl<M: FlowMemory> Writer<M> {
    /// Is there a row for one more meter?
    pub fn has_room_for_meter(&self) -> bool {
        !self.meters.free.is_empty()
            || (self.meters.fresh as usize) < self.memory.meters().len() / words::METER
    }

    /// Does a packet of user space pass a meter? `now_ns` is CLOCK_MONOTONIC, as in the kernel plane. No packet passes a
    /// meter that does not exist.
    pub fn meter_passes(&self, id: u32, bytes: u64, now_ns: u64) -> bool {
        let Some(row) = self.meters.row(id) else { return false };
        let words = self.meter(row);
        let now = now_ns.saturating_mul(TICKS);
        words[meter_word::PACKETS].fetch_add(1, AcqRel);
        words[meter_word::BYTES].fetch_add(bytes, AcqRel);
        let bands = words[meter_word::BANDS..].chunks_exact(band_word::LENGTH).take(BANDS);
        let mut bands = bands.take_while(|band| band[band_word::COST].load(Acquire) != 0);
        let Some(over) = bands.find(|band| over_band(band, bytes, now)) else { return true };
        over[band_word::DROPPED].fetch_add(1, AcqRel);
        over[band_word::DROPPED + 1].fetch_add(bytes, AcqRel);
        false
    }

    /// The packets that reached a meter since it was added, and those that each of its bands dropped since the meter was
    /// last changed.
    pub fn metered(&self, meter: &Meter) -> Option<(Count, Vec<Count>)> {
        let words = self.meter(self.meters.row(meter.id)?);
        let count =
            |at: usize| Count { packets: words[at].load(Acquire), bytes: words[at + 1].load(Acquire) };
        let mut bands = vec![Count::default(); meter.bands.len()];
        for (at, band) in by_rate(meter).into_iter().enumerate() {
            bands[band] = count(meter_word::BANDS + at * band_word::LENGTH + band_word::DROPPED);
        }
        Some((count(meter_word::PACKETS), bands))
    }

    /// Updates a meter that is new or was changed. Its own counters go on, and its bands start again (section 6.6).
    pub(super) fn set_meter(&mut self, tables: &Tables, id: u32) {
        let Some(meter) = tables.meter(id) else { return };
        let known = self.meters.row(id);
        let rows = self.memory.meters().len() / words::METER;
        let Some(row) = known.or_else(|| self.meters.get(id, rows)) else { return };
        let words = self.meter(row);
        if known.is_none() {
            words.iter().for_each(|word| word.store(0, Release));
        }
        let bands = words[meter_word::BANDS..].chunks_exact(band_word::LENGTH).take(BANDS);
        let prices = by_rate(meter).into_iter().map(|i| price(meter, &meter.bands[i]));
        for (band, (cost, burst)) in bands.zip(prices.chain(std::iter::repeat((0, 0)))) {
            band[band_word::BURST].store(burst, Release);
            band[band_word::COST].store(cost, Release);
            band[band_word::EMPTY..].iter().for_each(|word| word.store(0, Release));
        }
    }

    pub(super) fn remove_meter(&mut self, id: u32) {
        self.batch.meters.extend(self.meters.rows.remove(&id));
    }

    fn meter(&self, row: u32) -> &[AtomicU64] {
        &self.memory.meters()[row as usize * words::METER..][..words::METER]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{
        MeterMod, Refused,
        flows::Flows,
        kernel::{HeapFlows, Seed, tests::SMALL},
        rule::BandKind,
    };

    const SECOND_NS: u64 = 1_000_000_000;

    fn flows() -> Flows<HeapFlows> {
        Flows::new(HeapFlows::new(SMALL, 2), Seed::default(), &Default::default())
    }

    fn meter(id: u32, unit: MeterUnit, burst: bool, bands: &[(u32, u32)]) -> Meter {
        let bands = bands.iter().map(|&(rate, burst)| Band { rate, burst, kind: BandKind::Drop }).collect();
        Meter { id, unit, burst, stats: true, bands }
    }

    /// How many of so many simultaneous packets pass.
    fn pass(f: &Flows<HeapFlows>, packets: u32, bytes: u64, now_ns: u64) -> usize {
        (0..packets).filter(|_| f.meter_passes(1, bytes, now_ns)).count()
    }

    #[test]
    fn a_band_costs_what_its_rate_says() {
        let price = |unit, burst: bool, band: (u32, u32)| {
            let meter = meter(1, unit, burst, &[band]);
            price(&meter, &meter.bands[0])
        };
        let (ticks, shift) = (16 * SECOND_NS, 1 << 16);
        // 8 microseconds per byte, 100 ms.
        assert_eq!(price(MeterUnit::Kbps, false, (1000, 7)), (COST_BYTES | (8 * 16_000 * shift), ticks / 10));
        // 100 Gbit/s: 80 ps per byte, and a burst of 2,000 Mbit: 20 ms.
        let gbit100 = price(MeterUnit::Kbps, true, (100_000_000, 2_000_000));
        assert_eq!(gbit100, (COST_BYTES | (16 * 80 * shift / 1000), ticks / 50));
        assert_eq!(price(MeterUnit::Pps, true, (4, 2)), (ticks / 4 * shift, ticks / 2));
        assert_eq!(price(MeterUnit::Pps, true, (1, u32::MAX)).1, 1 << 62);
        assert_ne!(price(MeterUnit::Kbps, true, (u32::MAX, 1)).0, COST_BYTES);
    }

    #[test]
    fn a_meter_passes_the_burst_and_then_the_rate() {
        let mut f = flows();
        // 125,000 bytes per second, 12,500 at once.
        f.apply_meter(&MeterMod::Add(meter(1, MeterUnit::Kbps, false, &[(1000, 0)])), 0).unwrap();
        assert_eq!(pass(&f, 20, 1000, 5 * SECOND_NS), 12);
        assert_eq!(pass(&f, 2, 1000, 5 * SECOND_NS + 3_900_000), 0);
        assert_eq!(pass(&f, 2, 1000, 5 * SECOND_NS + 4_000_000), 1);
        let twice_the_rate = |i: u64| f.meter_passes(1, 1000, 10 * SECOND_NS + i * 4_000_000);
        assert_eq!((0..25_000).filter(|&i| twice_the_rate(i)).count(), 12_500 + 12);
        // A packet larger than the burst passes an empty queue, and is charged.
        assert_eq!(pass(&f, 1, 125_000, 200 * SECOND_NS), 1);
        assert_eq!(pass(&f, 1, 1, 200 * SECOND_NS + 899_000_000), 0);
        assert_eq!(pass(&f, 1, 1, 200 * SECOND_NS + 901_000_000), 1);
        assert!(!f.meter_passes(2, 1, 0), "no such meter");
    }

    #[test]
    fn the_highest_band_that_is_exceeded_drops_and_lower_ones_do_not_pay() {
        let mut f = flows();
        let request = meter(1, MeterUnit::Pps, true, &[(10, 10), (1000, 15), (100, 12)]);
        f.apply_meter(&MeterMod::Add(request.clone()), 0).unwrap();
        assert_eq!(pass(&f, 20, 100, SECOND_NS), 10);
        let stats = |f: &mut Flows<_>| f.meter_stats(Some(1), 0).pop().map(|m| (m.packets, m.bytes, m.bands));
        let count = |packets| (packets, 100 * packets);
        assert_eq!(stats(&mut f), Some((20, 2000, vec![count(2), count(5), count(3)])));
        let (low, high) = ((100, 40), (1000, 1));
        f.apply_meter(&MeterMod::Add(Meter { id: 2, ..meter(1, MeterUnit::Pps, true, &[low, high]) }), 0)
            .unwrap();
        let passed = (0..=100_000).filter(|i| f.meter_passes(2, 100, SECOND_NS + i * 100_000)).count();
        assert_eq!(passed, 1000 + 40, "ten seconds of ten times the higher rate");
        f.apply_meter(&MeterMod::Modify(meter(1, MeterUnit::Pps, true, &[(10, 3)])), 0).unwrap();
        assert_eq!(stats(&mut f), Some((20, 2000, vec![count(0)])));
        assert_eq!(pass(&f, 5, 100, SECOND_NS), 3);
        assert_eq!(stats(&mut f), Some((25, 2500, vec![count(2)])));
    }

    #[test]
    fn simultaneous_packets_are_each_charged() {
        let mut f = flows();
        f.apply_meter(&MeterMod::Add(meter(1, MeterUnit::Pps, true, &[(1, 10_000)])), 0).unwrap();
        let passed: usize = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| pass(&f, 5000, 1, SECOND_NS))).collect();
            all.into_iter().map(|one| one.join().unwrap_or(0)).sum()
        });
        assert_eq!(passed, 10_000);
    }

    #[test]
    fn a_row_is_used_again_when_its_batch_is_over() {
        let mut f = flows();
        let add = |f: &mut Flows<_>, id| {
            f.apply_meter(&MeterMod::Add(meter(id, MeterUnit::Pps, false, &[(1, 0)])), 0)
        };
        assert_eq!((1..=5).map(|id| add(&mut f, id)).filter(Result::is_ok).count(), SMALL.meters);
        assert_eq!(add(&mut f, 5), Err(Refused::TooManyMeters));
        assert_eq!(add(&mut f, 4), Err(Refused::MeterExists));
        assert_eq!(pass(&f, 3, 60, SECOND_NS), 1);
        f.apply_meter(&MeterMod::Delete(Some(1)), 0).unwrap();
        assert_eq!(add(&mut f, 5), Err(Refused::TooManyMeters));
        f.seal();
        f.void();
        f.finish();
        assert_eq!(add(&mut f, 5), Ok(()));
        assert_eq!(f.meter_stats(Some(5), 0)[0].packets, 0, "a new owner begins at 0");
    }
}
