//! How often the router's core is taken, besides for how long (Q fig. 5): NAPI sleeps less as the load rises, and a
//! packet then costs less.
//!
//! With a NIC, the interrupt starts a poll. Between veths there is no interrupt: with threaded NAPI the sender wakes
//! the receiver's thread, which sleeps when its ring is empty. So wake-ups correspond to the paper's interrupts.

use anyhow::{Context, Result};
use serde::Serialize;

use super::{Threads, read_of_thread};

/// Counters of the router's threads and cores at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    wakeups: u64,
    context_switches: u64,
    net_rx_softirqs: u64,
    interrupts: u64,
}

/// [`Activity`] per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Wake-ups of the router's NAPI threads after a sleep: their voluntary context switches.
    pub wakeups_per_s: f64,
    /// How often the router's NAPI threads left the core, voluntarily or not.
    pub context_switches_per_s: f64,
    /// NET_RX softirqs on the router's cores: polls outside NAPI threads. On the testbed they are the sink's.
    pub net_rx_softirqs_per_s: f64,
    /// Interrupts of devices on the router's cores; none between veths. Interrupts of the timer and between cores are
    /// not included.
    pub interrupts_per_s: f64,
}

impl Activity {
    /// Reads the counters of these threads, and of these cores. Threads that have ended count 0.
    pub fn now(threads: &Threads, cores: &[usize]) -> Result<Self> {
        let mut all = Self::default();
        let (softirq_table, interrupt_table) = (read("/proc/softirqs")?, read("/proc/interrupts")?);
        for &core in cores {
            all.net_rx_softirqs += softirqs(&softirq_table, "NET_RX", core).context("/proc/softirqs")?;
            all.interrupts += device_interrupts(&interrupt_table, core).context("/proc/interrupts")?;
        }
        for id in &threads.0 {
            let path = format!("/proc/{id}/status");
            let Some(status) = read_of_thread(&path)? else { continue };
            let (voluntary, forced) = switches(&status).with_context(|| path.clone())?;
            all.wakeups += voluntary;
            all.context_switches += voluntary + forced;
        }
        Ok(all)
    }

    /// What happened since `before`, which was `seconds` ago.
    pub fn rates(self, before: Self, seconds: f64) -> Rates {
        let rate = |of: fn(&Self) -> u64| of(&self).saturating_sub(of(&before)) as f64 / seconds;
        Rates {
            wakeups_per_s: rate(|activity| activity.wakeups),
            context_switches_per_s: rate(|activity| activity.context_switches),
            net_rx_softirqs_per_s: rate(|activity| activity.net_rx_softirqs),
            interrupts_per_s: rate(|activity| activity.interrupts),
        }
    }
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.to_owned())
}

/// Voluntary and involuntary context switches, from /proc/TID/status.
fn switches(status: &str) -> Option<(u64, u64)> {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((field("voluntary_ctxt_switches:")?, field("nonvoluntary_ctxt_switches:")?))
}

/// Column of a core in a table whose first line names the cores that are online.
fn column(table: &str, core: usize) -> Option<usize> {
    let name = format!("CPU{core}");
    table.lines().next()?.split_whitespace().position(|word| word == name)
}

fn softirqs(table: &str, name: &str, core: usize) -> Option<u64> {
    let column = column(table, core)?;
    let row = table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    row.split_whitespace().nth(column)?.parse().ok()
}

/// Sum of the rows whose name is a number: devices.
fn device_interrupts(table: &str, core: usize) -> Option<u64> {
    let column = column(table, core)?;
    let of_row = |line: &str| -> Option<u64> {
        let (name, counts) = line.split_once(':')?;
        name.trim().parse::<u32>().ok()?;
        counts.split_whitespace().nth(column)?.parse().ok()
    };
    Some(table.lines().skip(1).filter_map(of_row).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Core 1 is offline.
    const INTERRUPTS: &str = "\
           CPU0       CPU2
 24:          1          0  IO-APIC   5-edge      ACPI:Ged
 26:          0         15  IO-APIC   4-edge      ttyS0
 29:         77         30  PCI-MSIX-0000:00:01.0   1-edge      virtio0-input.0
NMI:          0          0   Non-maskable interrupts
LOC:     399902     359848   Local timer interrupts
RES:       3606       4263   Rescheduling interrupts
ERR:          0
MIS:          0
";

    const SOFTIRQS: &str = "                    CPU0       CPU2
          HI:          0          0
      NET_TX:       3606       4263
      NET_RX:    1215861   75994135
";

    #[test]
    fn counters_are_those_of_the_core() {
        assert_eq!(device_interrupts(INTERRUPTS, 0), Some(78));
        assert_eq!(device_interrupts(INTERRUPTS, 2), Some(45));
        assert_eq!(device_interrupts(INTERRUPTS, 1), None);
        assert_eq!(softirqs(SOFTIRQS, "NET_RX", 2), Some(75_994_135));
        assert_eq!(softirqs(SOFTIRQS, "NET_RX", 1), None);
        assert_eq!(softirqs(SOFTIRQS, "NET", 0), None);
    }

    #[test]
    fn wakeups_are_voluntary_switches() {
        let status =
            "Name:\tnapi/eth1-8193\nvoluntary_ctxt_switches:\t113\nnonvoluntary_ctxt_switches:\t25\n";
        assert_eq!(switches(status), Some((113, 25)));
        assert_eq!(switches("Name:\tgone\n"), None);
    }

    #[test]
    fn a_thread_that_has_ended_counts_0() {
        // No kernel gives this id: the largest is 4194304 (proc(5), pid_max).
        assert_eq!(Activity::now(&Threads(vec![i32::MAX]), &[]).unwrap(), Activity::default());
    }

    #[test]
    fn rates_are_per_second() {
        let before = Activity { wakeups: 10, context_switches: 20, net_rx_softirqs: 5, interrupts: 0 };
        let now = Activity { wakeups: 110, context_switches: 140, net_rx_softirqs: 5, interrupts: 1 };
        let rates = now.rates(before, 2.0);
        let seen = (
            rates.wakeups_per_s,
            rates.context_switches_per_s,
            rates.net_rx_softirqs_per_s,
            rates.interrupts_per_s,
        );
        assert_eq!(seen, (50.0, 60.0, 0.0, 0.5));
    }
}
