//! How long a core that has too much to do waits until another one helps.

use crate::cores::CoreId;
use std::time::Duration;

/// Since when each core has wanted more than the high mark, without a break.
pub(super) struct Reaction {
    over: Vec<Option<Duration>>,
    pub longest: Option<Duration>,
}

impl Reaction {
    pub fn new(cores: u16) -> Self {
        Self { over: vec![None; cores.into()], longest: None }
    }

    /// Notes whether a core was over the mark in the period that began then.
    pub fn note(&mut self, core: CoreId, began: Duration, is_over: bool) {
        let over = &mut self.over[usize::from(core)];
        *over = if is_over { over.or(Some(began)) } else { None };
    }

    /// Notes that a core that did not forward takes work from this one.
    pub fn helped(&mut self, core: CoreId, now: Duration) {
        if let Some(since) = self.over[usize::from(core)].take() {
            self.longest = self.longest.max(Some(now - since));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_runs_from_the_first_period_over_the_mark_without_a_break() {
        let mut reaction = Reaction::new(2);
        let ms = Duration::from_millis;
        for (began, is_over) in [(0, true), (10, false), (20, true), (30, true)] {
            reaction.note(1, ms(began), is_over);
        }
        reaction.helped(0, ms(40));
        assert_eq!(reaction.longest, None);
        reaction.helped(1, ms(40));
        reaction.helped(1, ms(90));
        reaction.note(1, ms(50), true);
        reaction.helped(1, ms(60));
        assert_eq!(reaction.longest, Some(ms(20)));
    }
}
