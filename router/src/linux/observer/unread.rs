//! Parts of a namespace that could not be read. Until they can be read, nothing is certain there.

use crate::base::conditions::{Condition, ConditionKind};
use logic::{cause::Code, observe::Settings};
use std::collections::BTreeMap;

/// A part that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Events were lost, or a dump failed: routes, neighbours and devices are unknown.
    State,
    /// Queueing disciplines and filters.
    Traffic,
    /// Settings of devices.
    DeviceSettings,
    /// Programs on devices.
    Programs,
    /// The namespace is over its limits and left alone.
    Quota,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::State => "routes, neighbours and devices",
            Part::Traffic => "queueing disciplines",
            Part::DeviceSettings => "settings of devices",
            Part::Programs => "BPF programs on devices",
            Part::Quota => "it is over its limits (raise [limits] if they are too low)",
        }
    }
}

/// The condition of a router whose namespace is not fully observed.
pub(super) fn unread(router: &str, text: String) -> Condition {
    Condition { subject: format!("router {router}"), ..Condition::new(ConditionKind::Linux, text) }
}

/// Parts of one namespace that could not be read.
#[derive(Debug, Default)]
pub(super) struct Unread(BTreeMap<Part, String>);

impl Unread {
    /// The part could not be read. The last reason is kept.
    pub fn add(&mut self, part: Part, why: String) {
        self.0.insert(part, why);
    }

    /// The part has been read.
    pub fn settle(&mut self, part: Part) {
        self.0.remove(&part);
    }

    /// Did the last reading of the part fail?
    pub fn has(&self, part: Part) -> bool {
        self.0.contains_key(&part)
    }

    /// Why the last reading of the part failed.
    pub fn why(&self, part: Part) -> Option<&str> {
        self.0.get(&part).map(String::as_str)
    }

    /// Nothing of the namespace is accelerated until everything has been read.
    pub fn add_to(&self, settings: &mut Settings) {
        for (part, why) in &self.0 {
            let text = format!("mirror incomplete: {}: {why} (trying again)", part.name());
            let cause = Code::Unreadable.cause(text);
            settings.hazards4.push(cause.clone());
            settings.hazards6.push(cause);
        }
    }

    /// The unknown parts, each with the reason, as sentences.
    pub fn sentences(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(part, why)| format!("{}: {why}", part.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unread_part_stays_until_it_is_settled_and_is_reported_for_both_families() {
        let mut unread = Unread::default();
        unread.add(Part::State, "events were lost".into());
        unread.add(Part::State, "denied".into());
        unread.add(Part::Traffic, "denied".into());
        let mut settings = Settings::default();
        unread.add_to(&mut settings);
        let state = "mirror incomplete: routes, neighbours and devices: denied (trying again)";
        assert_eq!((settings.hazards4.len(), &*settings.hazards4[0]), (2, state));
        assert_eq!(settings.hazards4, settings.hazards6);
        unread.settle(Part::State);
        unread.settle(Part::Traffic);
        let mut settings = Settings::default();
        unread.add_to(&mut settings);
        assert_eq!(settings, Settings::default());
    }
}
