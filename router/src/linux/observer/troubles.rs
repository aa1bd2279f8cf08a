//! Parts of a namespace that could not be read. Until they can be read, nothing is certain there.

use logic::observe::Settings;
use std::collections::BTreeMap;

/// A part that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
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

impl What {
    fn name(self) -> &'static str {
        match self {
            What::State => "routes, neighbours and devices",
            What::Traffic => "queueing disciplines",
            What::DeviceSettings => "settings of devices",
            What::Programs => "BPF programs on devices",
            What::Quota => "it is over its limits (raise [limits] if they are too low)",
        }
    }
}

/// A namespace that is not fully observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Name of the namespace.
    pub namespace: String,
    /// The unknown part, and the reason.
    pub what: String,
}

/// Parts of one namespace that could not be read.
#[derive(Debug, Default)]
pub(super) struct Troubles(BTreeMap<What, String>);

impl Troubles {
    /// The part could not be read. The last reason is kept.
    pub fn add(&mut self, what: What, why: String) {
        self.0.insert(what, why);
    }

    /// The part has been read.
    pub fn settle(&mut self, what: What) {
        self.0.remove(&what);
    }

    /// Did the last reading of the part fail?
    pub fn has(&self, what: What) -> bool {
        self.0.contains_key(&what)
    }

    /// Why the last reading of the part failed.
    pub fn why(&self, what: What) -> Option<&str> {
        self.0.get(&what).map(String::as_str)
    }

    /// Nothing of the namespace is accelerated until everything has been read.
    pub fn add_to(&self, settings: &mut Settings) {
        for (what, why) in &self.0 {
            let text = format!("mirror incomplete: {}: {why} (trying again)", what.name());
            settings.hazards4.push(text.clone());
            settings.hazards6.push(text);
        }
    }

    pub fn list(&self, namespace: &str) -> impl Iterator<Item = Trouble> {
        self.0.iter().map(move |(what, why)| Trouble {
            namespace: namespace.to_owned(),
            what: format!("{}: {why}", what.name()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_stays_until_it_is_settled_and_is_reported_for_both_families() {
        let mut troubles = Troubles::default();
        troubles.add(What::State, "events were lost".into());
        troubles.add(What::State, "denied".into());
        troubles.add(What::Traffic, "denied".into());
        let mut settings = Settings::default();
        troubles.add_to(&mut settings);
        let state = "mirror incomplete: routes, neighbours and devices: denied (trying again)";
        assert_eq!((settings.hazards4.len(), settings.hazards4[0].as_str()), (2, state));
        assert_eq!(settings.hazards4, settings.hazards6);
        troubles.settle(What::State);
        troubles.settle(What::Traffic);
        let mut settings = Settings::default();
        troubles.add_to(&mut settings);
        assert_eq!(settings, Settings::default());
    }
}
