//! Counters, and the rules whose timeouts end them.

use super::{Change, Count, RuleId, Tables};

impl Tables {
    /// Sets the packets counted for a rule since its id was given out, and the time of the last one. Call this for all rules
    /// before statistics, and for those [`due`](Tables::due) before [`expire`](Tables::expire).
    pub fn count(&mut self, id: RuleId, total: Count, last_used_ms: u64) {
        if let Some(row) = self.rows.get_mut(id) {
            row.total = total;
            row.used_ms = row.used_ms.max(last_used_ms);
        }
    }

    /// The packets counted for a rule since its id was given out, as far as known.
    pub fn counted(&self, id: RuleId) -> Option<Count> {
        self.rows.get(id).map(|row| row.total)
    }

    /// All rules that end if no packet comes for some time.
    pub fn with_idle_timeout(&self) -> impl Iterator<Item = RuleId> + '_ {
        self.due.iter().map(|&(_, id)| id).filter(|&id| self.rows[id].idle_timeout > 0)
    }

    /// The rules that may end now, as far as their counters are known.
    pub fn due(&self, now_ms: u64) -> impl Iterator<Item = RuleId> + '_ {
        self.due.range(..=(now_ms, RuleId(u32::MAX))).map(|&(_, id)| id)
    }

    /// Removes the rules whose timeouts have passed. The cost is proportional to the number of rules that are
    /// [`due`](Tables::due). These are rules that end, and used rules, each once per idle timeout.
    pub fn expire(&mut self, now_ms: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(&(_, id)) = self.due.first().filter(|(due_ms, _)| *due_ms <= now_ms) {
            match self.rows[id].end() {
                Some((end_ms, reason)) if end_ms <= now_ms => changes.push(self.remove(id, reason, now_ms)),
                _ => self.schedule(id),
            }
        }
        changes
    }

    /// When to call [`expire`](Tables::expire) next, in milliseconds. Rules that are used until then may end later.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.due.first().map(|&(due_ms, _)| due_ms)
    }

    /// Plans the next check of a rule, after its timeouts or their starting point changed.
    pub(super) fn schedule(&mut self, id: RuleId) {
        let row = &mut self.rows[id];
        let due_ms = row.end().map(|(end_ms, _)| end_ms);
        let before = std::mem::replace(&mut row.due_ms, due_ms);
        if let Some(before) = before {
            self.due.remove(&(before, id));
        }
        self.due.extend(due_ms.map(|due_ms| (due_ms, id)));
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Dialect::OpenFlow13,
            tests::{add, ip, tables},
        },
        *,
    };
    use crate::flow::{FlowFlags, FlowMod, FlowRemoved, Removed};

    #[test]
    fn timeouts_end_rules_and_the_notice_says_why() {
        let mut t = tables();
        let mut request = |priority, idle_timeout, hard_timeout| {
            let flags = FlowFlags { send_removed: true, ..FlowFlags::default() };
            let request =
                FlowMod { idle_timeout, hard_timeout, flags, ..add(priority, ip(0x0a00_0000, 8), []) };
            match t.apply(&request, OpenFlow13, 1_000).as_deref() {
                Ok(&[Change::Added(id)]) => id,
                other => panic!("{other:?}"),
            }
        };
        let [idle, hard, both, used] =
            [(1, 2, 0), (2, 0, 3), (3, 2, 2), (4, 2, 5)].map(|(p, i, h)| request(p, i, h));
        let forever = request(5, 0, 0);
        assert_eq!(t.next_expiry_ms(), Some(3_000));
        t.count(used, Count { packets: 4, bytes: 240 }, 2_600);
        assert_eq!((t.due(2_999).count(), t.expire(2_999)), (0, vec![]));
        assert_eq!(t.due(3_000).collect::<Vec<_>>(), [idle, both, used]);
        let reasons = |changes: Vec<Change>| {
            let of = |change| match change {
                Change::Removed { id, notice: Some(notice), .. } => (id, notice.reason, notice.duration_sec),
                other => panic!("{other:?}"),
            };
            changes.into_iter().map(of).collect::<Vec<_>>()
        };
        let expired = t.expire(3_000);
        assert_eq!(reasons(expired), [(idle, Removed::IdleTimeout, 2), (both, Removed::HardTimeout, 2)]);
        assert_eq!(t.next_expiry_ms(), Some(4_000));
        assert_eq!(reasons(t.expire(4_599)), [(hard, Removed::HardTimeout, 3)]);
        t.count(used, Count { packets: 5, bytes: 300 }, 4_500);
        assert_eq!((t.expire(4_600), t.next_expiry_ms()), (vec![], Some(6_000)));
        let last = FlowRemoved {
            matching: ip(0x0a00_0000, 8),
            cookie: 0,
            priority: 4,
            reason: Removed::HardTimeout,
            table: 0,
            duration_sec: 5,
            duration_nsec: 250_000_000,
            idle_timeout: 2,
            hard_timeout: 5,
            packets: 5,
            bytes: 300,
        };
        let change = Change::Removed { id: used, next: None, notice: Some(Box::new(last)) };
        assert_eq!((t.expire(6_250), t.next_expiry_ms()), (vec![change], None));
        assert!(t.rule(forever).is_some() && t.expire(u64::MAX).is_empty());
    }
}
