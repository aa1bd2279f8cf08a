//! Whether the program with flow rules is attached, and if not, why.

use crate::{linux::observer::Waker, plane::FlowMaps};
use logic::cause::{Cause, Code};
use std::sync::{Arc, mpsc::Sender};

/// The orders to the control loop, and its answers.
pub struct Charge {
    orders: Sender<Option<Arc<FlowMaps>>>,
    waker: Waker,
    in_charge: bool,
    /// The control loop has yet to answer.
    pub asked: bool,
    /// Why the last order failed.
    failed: Option<String>,
    /// The failed order waits for the next tick.
    waits: bool,
    logged: Standing,
}

/// Do packets go by rules?
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    NoRules,
    Yes,
    /// No, because of the fail mode.
    StandsAlone,
    Failed(String),
    /// The control loop is just changing that.
    Changes,
}

impl Standing {
    /// Why packets do not go by rules though there are some, and what the user can do, as a sentence.
    pub fn why_not(&self) -> Option<Cause> {
        match self {
            Standing::NoRules | Standing::Yes => None,
            Standing::StandsAlone => Some(Code::Standalone.cause(STANDS_ALONE)),
            Standing::Failed(why) => {
                let text = format!("they could not be attached; the daemon tries again each second: {why}");
                Some(Code::RulesNotAttached.cause(text))
            }
            Standing::Changes => Some(Code::RulesPending.cause("they are being attached")),
        }
    }
}

/// Why rules do not apply, and what the user can do.
pub const STANDS_ALONE: &str = "fail mode is \"standalone\" and no controller that the daemon dials is connected; they \
                                apply when one is, or with fail = \"secure\" in [openflow]";

impl Charge {
    pub fn new(orders: Sender<Option<Arc<FlowMaps>>>, waker: Waker) -> Charge {
        let (in_charge, asked, waits) = (false, false, false);
        Charge { orders, waker, in_charge, asked, failed: None, waits, logged: Standing::NoRules }
    }

    /// Do packets go by rules, according to the last answer?
    pub fn in_charge(&self) -> bool {
        self.in_charge
    }

    /// Is the wanted program attached to all ports?
    pub fn is(&self, by_rules: bool) -> bool {
        self.in_charge == by_rules && !self.asked
    }

    /// Why the wanted program is not attached; `None` once the order is given again.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref().filter(|_| self.waits)
    }

    /// Orders that these rules, or none, be put in charge. There is one order at a time.
    pub fn want(&mut self, rules: Option<&Arc<FlowMaps>>) {
        if self.in_charge != rules.is_some() && !self.asked && !self.waits {
            self.asked = self.orders.send(rules.cloned()).is_ok();
            self.waker.wake();
        }
    }

    pub fn answered(&mut self, done: Result<bool, String>) {
        self.asked = false;
        match done {
            Ok(in_charge) => (self.in_charge, self.failed) = (in_charge, None),
            Err(why) => (self.failed, self.waits) = (Some(why), true),
        }
    }

    /// Lets a failed order be given again.
    pub fn tick(&mut self) {
        self.waits = false;
    }

    /// Returns whether packets go by rules. `stands_alone`: the fail mode keeps packets from rules.
    pub fn standing(&self, has_rules: bool, stands_alone: bool) -> Standing {
        let wanted = has_rules && !stands_alone;
        match &self.failed {
            _ if self.is(wanted) && wanted => Standing::Yes,
            _ if self.is(wanted) && has_rules => Standing::StandsAlone,
            _ if self.is(wanted) => Standing::NoRules,
            Some(why) if wanted => Standing::Failed(why.clone()),
            _ => Standing::Changes,
        }
    }

    /// Logs whether rules are in charge, each time that this changes.
    pub fn log(&mut self, now: &Standing) {
        if *now == self.logged || matches!(now, Standing::Failed(_) | Standing::Changes) {
            return;
        }
        match (now, &self.logged) {
            (Standing::Yes, Standing::StandsAlone) => {
                tracing::info!("flow rules are in charge: a controller is connected");
            }
            (Standing::Yes, _) => tracing::info!("flow rules are in charge: there are some now"),
            (Standing::StandsAlone, _) => tracing::info!("flow rules are not in charge: {STANDS_ALONE}"),
            _ => tracing::info!("flow rules are not in charge: there are none any more"),
        }
        self.logged = now.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn standing_says_whether_packets_go_by_rules_and_why_not() {
        let (orders, _ordered) = mpsc::channel();
        let mut charge = Charge::new(orders, Waker::new().unwrap());
        let standing = |charge: &Charge| charge.standing(true, false);
        assert_eq!(charge.standing(false, true), Standing::NoRules);
        assert_eq!(charge.standing(true, true), Standing::StandsAlone);
        assert_eq!(standing(&charge), Standing::Changes);
        charge.answered(Err("no memory".into()));
        assert_eq!(
            (standing(&charge), charge.failed()),
            (Standing::Failed("no memory".into()), Some("no memory"))
        );
        charge.tick();
        // The order is given again. Clients do not get the old error as an answer, but the standing still shows it.
        assert_eq!((standing(&charge), charge.failed()), (Standing::Failed("no memory".into()), None));
        charge.answered(Ok(true));
        assert_eq!((standing(&charge), charge.in_charge()), (Standing::Yes, true));
        assert_eq!(charge.standing(true, true), Standing::Changes, "until they are out of charge");
    }
}
