//! A page: the series of all metrics, bounded, and its text.
//!
//! Others choose the names of routers, interfaces and paths, and there can be thousands. So each metric has a bound
//! ([`Family::most`]): further series are counted and left out. Label values are escaped twice: characters that are unsafe on a
//! terminal, as everywhere ([`Shown`]), and quotes, as OpenMetrics requires.

use super::families::{Kind, Metric};
use crate::base::foreign::Shown;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::{self, Display},
};

#[cfg(doc)]
use super::families::Family;

/// The values of a series' labels, in the order of its metric.
type Labels = Vec<String>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Count(u64),
    /// A counter of nanoseconds, written as seconds.
    Nanoseconds(u64),
    Gauge(f64),
}

#[derive(Clone, Debug, Default)]
pub struct Page {
    series: BTreeMap<Metric, BTreeMap<Labels, Value>>,
    left_out: BTreeMap<Metric, u64>,
}

impl Page {
    /// Counters of the same labels add up.
    pub fn count(&mut self, metric: Metric, labels: &[&dyn Display], n: u64) {
        self.add(metric, labels, Value::Count(n));
    }

    /// As [`Page::count`], for a time.
    pub fn time(&mut self, metric: Metric, labels: &[&dyn Display], ns: u64) {
        self.add(metric, labels, Value::Nanoseconds(ns));
    }

    /// Of gauges with the same labels, the last one stays.
    pub fn gauge(&mut self, metric: Metric, labels: &[&dyn Display], value: f64) {
        // There is no zero with a sign.
        self.add(metric, labels, Value::Gauge(value + 0.0));
    }

    pub fn flag(&mut self, metric: Metric, labels: &[&dyn Display], is: bool) {
        self.gauge(metric, labels, f64::from(u8::from(is)));
    }

    /// Notes that `n` series were left out before they came here.
    pub fn leave_out(&mut self, metric: Metric, n: u64) {
        if n > 0 {
            *self.left_out.entry(metric).or_default() += n;
        }
    }

    fn add(&mut self, metric: Metric, labels: &[&dyn Display], value: Value) {
        let family = metric.family();
        debug_assert_eq!(labels.len(), family.labels.len(), "{metric:?}");
        debug_assert_eq!(matches!(value, Value::Gauge(_)), family.kind == Kind::Gauge, "{metric:?}");
        let labels = labels.iter().map(|label| Shown(&label.to_string()).to_string()).collect();
        let series = self.series.entry(metric).or_default();
        let has_room = series.len() < family.most;
        match series.entry(labels) {
            Entry::Occupied(mut known) => {
                let sum = match (*known.get(), value) {
                    (Value::Count(a), Value::Count(b)) => Value::Count(a.wrapping_add(b)),
                    (Value::Nanoseconds(a), Value::Nanoseconds(b)) => Value::Nanoseconds(a.wrapping_add(b)),
                    _ => value,
                };
                known.insert(sum);
            }
            Entry::Vacant(new) if has_room => _ = new.insert(value),
            Entry::Vacant(_) => *self.left_out.entry(metric).or_default() += 1,
        }
    }

    /// The page as OpenMetrics text 1.0.
    ///
    /// # Errors
    /// None, because the text is written to memory.
    pub fn text(mut self) -> Result<String, fmt::Error> {
        for (metric, n) in std::mem::take(&mut self.left_out) {
            let family = metric.family();
            let unit = if family.unit.is_empty() { "" } else { "_" };
            let name = format!("{}{unit}{}", family.name, family.unit);
            self.gauge(Metric::SeriesLeftOut, &[&name], n as f64);
        }
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_collector(Box::new(self));
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (metric, series) in self.series.iter().filter(|(_, series)| !series.is_empty()) {
            let family = metric.family();
            let unit = (!family.unit.is_empty()).then(|| Unit::Other(family.unit.into()));
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut encoder = encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
            for (labels, value) in series {
                let pairs: Vec<_> =
                    family.labels.iter().copied().zip(labels.iter().map(String::as_str)).collect();
                let encoder = encoder.encode_family(&pairs)?;
                match *value {
                    Value::Count(n) => ConstCounter::new(n).encode(encoder)?,
                    Value::Nanoseconds(ns) => ConstCounter::new(ns as f64 / 1e9).encode(encoder)?,
                    Value::Gauge(value) => ConstGauge::new(value).encode(encoder)?,
                }
            }
        }
        Ok(())
    }
}

/// Keeps counters from going down.
///
/// Some counters are sums over things that come and go: the packets of a port are those of its interfaces. When an interface
/// disappears, the sum becomes smaller, and Prometheus would count all of it as new packets. So the loss is added to the counter
/// from then on. A series that is absent from a page begins again.
#[derive(Debug, Default)]
pub struct Steady(BTreeMap<Metric, BTreeMap<Labels, Seen>>);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    counted: u64,
    lost: u64,
}

impl Steady {
    pub fn follow(&mut self, page: &mut Page) {
        let before = std::mem::take(&mut self.0);
        for (metric, series) in &mut page.series {
            for (labels, value) in series {
                let (Value::Count(n) | Value::Nanoseconds(n)) = value else { continue };
                let seen =
                    before.get(metric).and_then(|series| series.get(labels)).copied().unwrap_or_default();
                let lost = seen.lost.wrapping_add(seen.counted.saturating_sub(*n));
                self.0.entry(*metric).or_default().insert(labels.clone(), Seen { counted: *n, lost });
                *n = n.wrapping_add(lost);
            }
        }
    }
}
