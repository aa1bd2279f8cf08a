//! The numbers of ports.

use crate::{base::PortName, plane::MAX_PORTS};
use logic::plan::PortId;
use std::collections::{BTreeMap, BTreeSet};

/// The ports of a configuration, by number.
pub type NumberedPorts = BTreeMap<PortId, PortName>;

/// The numbers that ports have had since the start, each with its last port.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsedNumbers(NumberedPorts);

/// Numbers the ports of a configuration: 0, 1 and so on.
pub fn first(ports: &[PortName]) -> NumberedPorts {
    (0..).zip(ports.iter().cloned()).collect()
}

impl UsedNumbers {
    pub fn iter(&self) -> impl Iterator<Item = (PortId, &PortName)> {
        self.0.iter().map(|(id, name)| (*id, name))
    }

    pub fn add(&mut self, ports: &NumberedPorts) {
        self.0.extend(ports.clone());
    }

    /// Numbers the ports of another configuration. Those in `before` keep their numbers. Others get a number that is not
    /// `taken`: their last one, or one that no port has had, or the lowest. Flow rules may name the numbers of other ports.
    ///
    /// # Errors
    /// No number is left for this port.
    pub fn number(
        &self,
        ports: &[PortName],
        before: &NumberedPorts,
        taken: &BTreeSet<PortId>,
    ) -> Result<NumberedPorts, PortName> {
        let all = 0..MAX_PORTS as PortId;
        let mut free: Vec<PortId> =
            all.filter(|id| !before.contains_key(id) && !taken.contains(id)).collect();
        free.sort_by_key(|id| self.0.contains_key(id));
        let of = |numbered: &NumberedPorts, port: &PortName| {
            numbered.iter().find(|(_, name)| *name == port).map(|(id, _)| *id)
        };
        let mut numbered = NumberedPorts::new();
        for port in ports {
            let last = of(&self.0, port).filter(|id| free.contains(id));
            if let Some(id) = of(before, port).or(last) {
                free.retain(|other| *other != id);
                numbered.insert(id, port.clone());
            }
        }
        let mut free = free.into_iter();
        for port in ports {
            if of(&numbered, port).is_none() {
                numbered.insert(free.next().ok_or_else(|| port.clone())?, port.clone());
            }
        }
        Ok(numbered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<PortName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn ports_keep_their_numbers_and_get_them_again() {
        let text = |ports: &NumberedPorts| {
            ports.iter().map(|(id, name)| format!("{id}{name}")).collect::<Vec<_>>().join(" ")
        };
        let (before, mut used) = (first(&names(&["a", "b", "c"])), UsedNumbers::default());
        assert_eq!(text(&before), "0a 1b 2c");
        used.add(&before);
        // The device of `b` may still be attached.
        let taken = BTreeSet::from([0, 1, 2]);
        let second = used.number(&names(&["d", "c", "e", "a"]), &before, &taken).unwrap();
        assert_eq!(text(&second), "0a 2c 3d 4e");
        used.add(&second);
        // `b` comes back, and `f` is new.
        let third = used.number(&names(&["f", "c", "b"]), &second, &BTreeSet::from([0, 2, 3, 4])).unwrap();
        assert_eq!(text(&third), "1b 2c 5f");
    }

    #[test]
    fn no_number_is_above_the_limit() {
        let many =
            |prefix: &str, count| (0..count).map(|n| format!("{prefix}{n}").parse().unwrap()).collect();
        let (full, mut used): (Vec<PortName>, _) = (many("a", MAX_PORTS), UsedNumbers::default());
        let before = first(&full);
        used.add(&before);
        let mut other = full.clone();
        other[0] = "b".parse().unwrap();
        // While `a0` is attached, no number is free.
        let taken = before.keys().copied().collect();
        assert_eq!(used.number(&other, &before, &taken), Err("b".parse().unwrap()));
        let mut before = before;
        before.remove(&0);
        assert_eq!(used.number(&other, &before, &before.keys().copied().collect()).unwrap().len(), MAX_PORTS);
        let half: Vec<PortName> = many("c", MAX_PORTS / 2);
        let numbered = UsedNumbers::default().number(&half, &first(&many("a", 32)), &(0..32).collect());
        assert_eq!(numbered.unwrap().last_key_value().unwrap().0, &63);
    }
}
