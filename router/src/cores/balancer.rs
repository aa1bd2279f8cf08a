//! irqbalance: most distributions start this daemon. It moves interrupts, also those that Millrace places.

use super::{Roots, numbered};
use std::{collections::BTreeSet, fs};

/// The name of its process.
const NAME: &str = "irqbalance";
const BAN: &str = "--banirq";

/// A running irqbalance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    pub pid: u32,
    /// The interrupts that its command line excludes.
    pub spares: BTreeSet<u32>,
}

impl Balancer {
    /// The running irqbalance, if there is one. Reads the name of every process, which takes about 10 us each.
    pub fn find(roots: &Roots) -> Option<Balancer> {
        let read = |pid, file| fs::read_to_string(roots.proc(format!("{pid}/{file}"))).unwrap_or_default();
        let pid = numbered(&roots.proc, "").into_iter().find(|&pid| read(pid, "comm").trim_end() == NAME)?;
        Some(Balancer { pid, spares: spared(&read(pid, "cmdline")) })
    }

    /// The problem, as a sentence, if it moves any of these interrupts.
    pub fn condition(&self, irqs: impl Iterator<Item = u32>) -> Option<String> {
        let moved: BTreeSet<u32> = irqs.filter(|irq| !self.spares.contains(irq)).collect();
        let way_out = way_out(&moved);
        (!moved.is_empty())
            .then(|| format!("irqbalance (process {}) moves interrupts of queues, too: {way_out}", self.pid))
    }
}

/// What users can do: leave these interrupts to Millrace, or all queues to irqbalance.
pub fn way_out(irqs: &BTreeSet<u32>) -> String {
    let bans: Vec<String> = irqs.iter().map(|irq| format!("{BAN}={irq}")).collect();
    format!(
        "start it with {} (IRQBALANCE_ARGS in /etc/default/irqbalance or /etc/sysconfig/irqbalance), or set policy = \"off\" in \
         [cores]",
        bans.join(" ")
    )
}

/// "--banirq=38", "--banirq 38", "-i 38", "-i38" (irqbalance(1)).
fn spared(command_line: &str) -> BTreeSet<u32> {
    let mut words = command_line.split('\0');
    let mut spared = BTreeSet::new();
    while let Some(word) = words.next() {
        let number = match word {
            BAN | "-i" => words.next(),
            _ => word.strip_prefix("--banirq=").or_else(|| word.strip_prefix("-i")),
        };
        spared.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    spared
}

#[cfg(test)]
mod tests {
    use super::{super::tree::Tree, *};

    #[test]
    fn it_is_found_with_the_interrupts_that_it_leaves_alone() {
        let tree = Tree::new();
        tree.thread(7, 7, "irqbalancer", false, "0-3", 0);
        assert_eq!(Balancer::find(&tree.roots()), None);
        tree.thread(812, 812, "irqbalance", false, "0-3", 0);
        let line = "/usr/sbin/irqbalance|--foreground|--banirq=38|-i|39|-i40|--banirq| 41|-i|";
        tree.write("proc/812/cmdline", &line.replace('|', "\0"));
        let found = Balancer::find(&tree.roots()).unwrap();
        assert_eq!(found, Balancer { pid: 812, spares: [38, 39, 40].into() });
        assert_eq!(found.condition([38, 40].into_iter()), None);
        let condition = found.condition([38, 42, 43].into_iter()).unwrap();
        assert!(
            condition.contains("(process 812)") && condition.contains("--banirq=42 --banirq=43 ("),
            "{condition}"
        );
    }
}
