//! Values that many routes share, stored once and named by a number, as the kernel shares `struct fib_info`.
//!
//! A table of a million routes has a few dozen different next hops. A route then costs a few bytes. A change of a link
//! or a nexthop object is computed once per distinct value instead of once per route.

use rustc_hash::FxHashMap;
use std::{hash::Hash, num::NonZeroU32, sync::Arc};

/// Names a value of one [`Interner`] while at least one reference to it is held.
pub(super) type Id = NonZeroU32;

/// The position of `id` in a vector with one element per name.
pub(super) fn position(id: Id) -> usize {
    id.get() as usize - 1
}

fn id_at(position: usize) -> Id {
    u32::try_from(position)
        .ok()
        .and_then(|p| Id::MIN.checked_add(p))
        .expect("fewer than 2^32 distinct values")
}

pub(super) struct Interner<T> {
    slots: Vec<Slot<T>>,
    index: FxHashMap<Arc<T>, Id>,
    free: Vec<Id>,
    /// The last requested value, because dumps come in runs that share it.
    last: Option<Id>,
}

struct Slot<T> {
    value: Option<Arc<T>>,
    references: u32,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), index: FxHashMap::default(), free: Vec::new(), last: None }
    }
}

impl<T: Hash + Eq> Interner<T> {
    /// Returns the name of `value`, and adds a reference.
    pub fn acquire(&mut self, value: T) -> Id {
        let known =
            self.last.filter(|&id| *self.get(id) == value).or_else(|| self.index.get(&value).copied());
        if let Some(id) = known {
            self.last = Some(id);
            self.retain(id);
            return id;
        }
        let value = Arc::new(value);
        let slot = Slot { value: Some(value.clone()), references: 1 };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[position(id)] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                id_at(self.slots.len() - 1)
            }
        };
        self.index.insert(value, id);
        self.last = Some(id);
        id
    }

    /// Adds a reference.
    pub fn retain(&mut self, id: Id) {
        self.slots[position(id)].references += 1;
    }

    /// Removes a reference. Returns true if it was the last one; the name is then void.
    pub fn release(&mut self, id: Id) -> bool {
        let slot = &mut self.slots[position(id)];
        slot.references -= 1;
        if slot.references > 0 {
            return false;
        }
        if let Some(value) = slot.value.take() {
            self.index.remove(&value);
        }
        if self.last == Some(id) {
            self.last = None;
        }
        self.free.push(id);
        true
    }

    /// The value of a name. The caller must hold a reference: a void name is a bug.
    pub fn get(&self, id: Id) -> &T {
        self.slots[position(id)].value.as_ref().expect("a held name has a value")
    }

    /// All names in use.
    pub fn ids(&self) -> Vec<Id> {
        let used = |at: &usize| self.slots[*at].value.is_some();
        (0..self.slots.len()).filter(used).map(id_at).collect()
    }
}

#[cfg(test)]
impl<T: Hash + Eq> Interner<T> {
    /// The number of references to each name.
    pub fn references(&self) -> std::collections::BTreeMap<Id, u32> {
        assert_eq!(self.index.len() + self.free.len(), self.slots.len());
        self.ids().into_iter().map(|id| (id, self.slots[position(id)].references)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_and_freed_with_the_last_reference() {
        let mut interner = Interner::default();
        let (a, b, a2) = (interner.acquire("a"), interner.acquire("b"), interner.acquire("a"));
        assert_eq!((position(a), position(a2)), (0, 0));
        assert_eq!((position(b), *interner.get(b)), (1, "b"));
        assert!(!interner.release(a));
        assert!(interner.release(a));
        assert_eq!(interner.ids(), [b]);
        assert_eq!(interner.acquire("c"), a, "the freed name is used again");
        assert_eq!(position(interner.acquire("a")), 2);
    }
}
