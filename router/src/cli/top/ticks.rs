//! How cores have spent their time since boot, from /proc/stat.

use logic::cores::CoreId;

/// The most bytes that are read of /proc/stat.
pub const MOST_BYTES: u64 = 4 << 20;

/// The time of a core, in ticks of 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    pub core: CoreId,
    /// Processes in user mode, and virtual machines.
    pub applications: u64,
    /// System calls, kernel threads, interrupts and softirqs, forwarding included.
    pub kernel: u64,
    /// Idle, and waiting for disks.
    pub idle: u64,
    /// Time that the hypervisor gave to others.
    pub stolen: u64,
}

impl Ticks {
    /// The sum of all kinds.
    pub fn sum(&self) -> u64 {
        let Ticks { applications, kernel, idle, stolen, .. } = *self;
        applications.saturating_add(kernel).saturating_add(idle).saturating_add(stolen)
    }
}

/// A row for each core that is online.
pub fn parse(text: &str) -> Vec<Ticks> {
    text.lines().take_while(|line| line.starts_with("cpu")).filter_map(parse_line).collect()
}

/// Parses "cpu3 user nice system idle iowait irq softirq steal ..." (proc_stat(5)). `user` and `nice` include guests.
fn parse_line(line: &str) -> Option<Ticks> {
    let mut fields = line.strip_prefix("cpu")?.split(' ');
    let core = fields.next()?.parse().ok()?;
    let mut next = || fields.next()?.parse::<u64>().ok();
    let [user, nice, system, idle, iowait, irq, softirq] =
        [next()?, next()?, next()?, next()?, next()?, next()?, next()?];
    Some(Ticks {
        core,
        applications: user.saturating_add(nice),
        kernel: system.saturating_add(irq).saturating_add(softirq),
        idle: idle.saturating_add(iowait),
        stolen: next().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_core_is_a_row() {
        let row =
            |core, applications, kernel, idle, stolen| Ticks { core, applications, kernel, idle, stolen };
        let max = u64::MAX;
        let table: [(String, &[Ticks]); 7] = [
            (
                "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 4 8 16 32 64 128 256 512\n".into(),
                &[row(0, 3, 100, 24, 128)],
            ),
            ("cpu1 1 0 0 0 0 0 0\nintr 5\ncpu2 1 0 0 0 0 0 0\n".into(), &[row(1, 1, 0, 0, 0)]),
            (format!("cpu7 {max} {max} {max} {max} {max} {max} {max} {max}"), &[row(7, max, max, max, max)]),
            ("cpu1 1 2 3\n".into(), &[]),
            ("cpu1 1 x 3 4 5 6 7\n".into(), &[]),
            ("cpu99999 1 2 3 4 5 6 7\n".into(), &[]),
            (String::new(), &[]),
        ];
        for (text, rows) in table {
            assert_eq!(parse(&text), rows, "{text}");
            assert!(parse(&text).iter().all(|ticks| ticks.sum() >= ticks.idle));
        }
        assert!(!parse(&std::fs::read_to_string("/proc/stat").unwrap()).is_empty());
    }
}
