//! Why the kernel plane did not forward a packet: `bpf/reasons.h` as a Rust enum.

include!(concat!(env!("OUT_DIR"), "/reasons.rs"));

/// What happens to a packet for this [`Reason`], and which limit it counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// To the kernel, without a limit: packets for the box itself, or plain Linux forwarding.
    Pass,
    /// To the kernel, which forwards it at a higher cost. Packets over the router's limit go up only while no other
    /// router loses packets because of them.
    Slow,
    /// To the kernel, within the router's limit for packets that need the slow path.
    Exception,
    /// To the kernel, within the reserve for ARP and neighbour discovery.
    Control,
    /// Dropped.
    Drop,
    /// Dropped by the program after user space got a copy. User space does the rest.
    Taken,
    /// Forwarded, and lost on its way out.
    Lost,
}

impl Reason {
    /// Number of reasons.
    pub const COUNT: usize = TABLE.len();

    /// All reasons, in ABI order.
    pub fn all() -> impl Iterator<Item = Reason> {
        TABLE.iter().map(|row| row.0)
    }

    /// The reason with this number in the ABI.
    pub fn from_abi(number: u32) -> Option<Reason> {
        TABLE.get(number as usize).map(|row| row.0)
    }

    /// Its limit and verdict.
    pub fn class(self) -> Class {
        TABLE[self as usize].1
    }

    /// Short name, for counters and JSON: `ttl_exceeded`.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].2
    }

    /// One line for people.
    pub fn text(self) -> &'static str {
        TABLE[self as usize].3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::Loss;

    const PAGE: &str = include_str!("../../docs/reference/reasons.md");
    const TROUBLE: &str = include_str!("../../docs/howto/trouble.md");

    /// The cells of the rows of all tables of a page that have these columns.
    fn rows(page: &'static str, columns: &str) -> Vec<Vec<&'static str>> {
        let tables = page.split("\n\n").map(str::trim_start).filter(|part| part.starts_with(columns));
        let rows = tables.flat_map(|table| table.lines().skip(2));
        rows.map(|row| row.split('|').map(str::trim).collect()).collect()
    }

    /// The names in the first cells of these tables, in alphabetical order.
    fn names(page: &'static str, columns: &str) -> Vec<&'static str> {
        let quoted = |cell: &'static str| cell.split('`').skip(1).step_by(2);
        let mut names: Vec<_> = rows(page, columns).iter().flat_map(|row| quoted(row[1])).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn the_page_has_each_reason_once_with_its_class() {
        let name = |class: Class| format!("{class:?}").to_lowercase();
        let expected = Reason::all().map(|r| (format!("`{}`", r.name()), name(r.class())));
        let rows = rows(PAGE, "| reason | class | meaning | what you can do |");
        let mut shown: Vec<_> = rows.iter().map(|row| (row[1].to_string(), row[2].to_string())).collect();
        let mut expected: Vec<_> = expected.collect();
        shown.sort_unstable();
        expected.sort_unstable();
        assert_eq!(shown, expected);

        let mut classes: Vec<_> = Reason::all().map(|r| name(r.class())).collect();
        classes.sort_unstable();
        classes.dedup();
        assert_eq!(names(PAGE, "| class | what happens |"), classes);
        let mut losses = Loss::ALL.map(Loss::name);
        losses.sort_unstable();
        assert_eq!(names(PAGE, "| reason | meaning |"), losses);

        let causes = ["| reason | cause | cure |", "| counter | cause | cure |"].map(|c| names(TROUBLE, c));
        for name in causes.iter().inspect(|names| assert!(!names.is_empty())).flatten() {
            assert!(Reason::all().any(|r| r.name() == *name), "docs/howto/trouble.md: {name}");
        }
    }

    #[test]
    fn numbers_are_positions() {
        for (i, reason) in Reason::all().enumerate() {
            assert_eq!(reason as usize, i);
            assert_eq!(Reason::from_abi(i as u32), Some(reason));
        }
        assert_eq!(Reason::from_abi(Reason::COUNT as u32), None);
        assert_eq!(Reason::TtlExceeded.name(), "ttl_exceeded");
        assert_eq!(Reason::Policed.class(), Class::Drop);
        assert_eq!((Reason::RuleSlow.class(), Reason::RuleController.class()), (Class::Taken, Class::Taken));
    }
}
