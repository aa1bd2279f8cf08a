//! The numbers of ports.

use crate::base::PortName;
use logic::plan::PortId;
use std::collections::BTreeMap;

/// The ports of a configuration, by number.
pub type NumberedPorts = BTreeMap<PortId, PortName>;

/// Numbers the ports of a configuration. Those in `before` keep their numbers. Others get the lowest numbers that are
/// neither in `before` nor `taken`. At the start these are 0, 1 and so on.
pub fn number(ports: &[PortName], before: &NumberedPorts, taken: &[PortId]) -> NumberedPorts {
    let mut free = (0..=PortId::MAX).filter(|id| !before.contains_key(id) && !taken.contains(id));
    let kept = |port: &PortName| before.iter().find(|(_, name)| *name == port).map(|(id, _)| *id);
    ports.iter().filter_map(|port| Some((kept(port).or_else(|| free.next())?, port.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_keep_their_numbers_and_new_ones_fill_gaps() {
        let names = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect::<Vec<_>>();
        let first = number(&names(&["a", "b", "c"]), &NumberedPorts::new(), &[]);
        let text = |ports: &NumberedPorts| {
            format!("{:?}", ports.iter().map(|(i, n)| (*i, n.as_str())).collect::<Vec<_>>())
        };
        assert_eq!(text(&first), r#"[(0, "a"), (1, "b"), (2, "c")]"#);
        // `b` may still be in use while `d` and `e` come.
        let second = number(&names(&["d", "c", "e", "a"]), &first, &[3]);
        assert_eq!(text(&second), r#"[(0, "a"), (2, "c"), (4, "d"), (5, "e")]"#);
        let third = number(&names(&["c", "b"]), &second, &[]);
        assert_eq!(text(&third), r#"[(1, "b"), (2, "c")]"#);
    }
}
