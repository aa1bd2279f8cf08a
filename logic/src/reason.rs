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
