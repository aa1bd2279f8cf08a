//! What the program finds in the memory, step by step, for tests, fuzzing and explanations: `bpf/flow_rules.h` and
//! `bpf/flow_cache.h` in Rust. It leaves out what actions do to a packet between tables.

use super::{
    CACHE_WAYS, FRONT, FlowMemory, Seed,
    index::Index,
    masks,
    memory::{ORDER_RANK_SHIFT, TABLE_ROWS, words},
    order::{self, Order},
    ranges::Range,
    rule_word, verdict,
};
use crate::flow::{Key, rule::CORE_TABLE};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

type Words = [u64; Key::WORDS];

/// The result of a packet that looked the rules up and has not cached it yet.
#[derive(Clone, Debug)]
pub struct Looked {
    key: Words,
    /// Generation and row of each rule that decided.
    rules: Vec<u64>,
    /// User space decides: the result must not be cached.
    pub slow: bool,
}

impl Looked {
    /// The key of the packet.
    pub fn key(&self) -> Key {
        Key::from_words(self.key)
    }

    /// The rows of the rules that decided, in order.
    pub fn rows(&self) -> Vec<u32> {
        self.rules.iter().map(|rule| *rule as u32).collect()
    }
}

/// The program's lookup, over this memory.
pub struct Reader<'a, M> {
    pub(super) memory: &'a M,
    pub(super) seed: Seed,
}

impl<M: FlowMemory> Reader<'_, M> {
    fn mask(&self, row: u16) -> Words {
        std::array::from_fn(|i| self.memory.masks()[usize::from(row) * words::MASK + i].load(Acquire))
    }

    fn rule(&self, row: u32, word: usize) -> u64 {
        self.memory.rules()[row as usize * words::RULE + word].load(Acquire)
    }

    fn generation(&self, row: u32) -> u32 {
        self.rule(row, rule_word::HEAD) as u32
    }

    /// The precedence of a rule among the rules that match this key. `None` if it does not match.
    fn precedence(&self, row: u32, key: &Words) -> Option<u64> {
        let head = self.rule(row, rule_word::HEAD);
        let (mask_row, priority) = ((head >> 32) as u16, head >> 48);
        let mask = self.mask(mask_row);
        let rest = self.rule(row, rule_word::REST) as u32 as usize * words::REST;
        let matches = (0..Key::WORDS).all(|i| {
            key[i] & mask[i]
                == match i.checked_sub(FRONT) {
                    None => self.rule(row, rule_word::KEY + i),
                    Some(at) => self.memory.rest()[rest + at].load(Acquire),
                }
        });
        let rank = self.memory.masks()[usize::from(mask_row) * words::MASK + masks::RANK_WORD].load(Acquire);
        matches.then_some((priority << (48 - ORDER_RANK_SHIFT) | rank) + 1)
    }

    /// The rules that may match this key, from the buckets of a mask.
    fn probe(&self, key: &Words, mask_row: u16) -> Vec<u32> {
        let at = self.memory.masks()[usize::from(mask_row) * words::MASK + Key::WORDS + 2].load(Acquire);
        let range = Range { first: at as u32, count: (at >> 32) as u32 + 1 };
        Index::new(self.memory.index(), range).find(self.seed.key(key, &self.mask(mask_row))).collect()
    }

    fn lookup(&self, table: u8, key: &Words) -> u32 {
        let order = Order::of(self.memory, table);
        let (mut best, mut best_precedence) = (1 + u32::from(table), 0);
        for entry in (0..order.length()).map(|at| order.get(at)) {
            if order::row_of(entry) == 0 || best_precedence > entry >> ORDER_RANK_SHIFT {
                continue;
            }
            for row in self.probe(key, order::row_of(entry)) {
                if let Some(precedence) = self.precedence(row, key).filter(|it| *it > best_precedence) {
                    (best, best_precedence) = (row, precedence);
                }
            }
        }
        best
    }

    /// Looks a key up in the tables.
    pub fn look(&self, key: &Key) -> Looked {
        let mut seen = key.words();
        let has_core_table = Order::of(self.memory, CORE_TABLE).length() > 0;
        let first = if has_core_table { CORE_TABLE } else { 0 };
        let (mut rules, mut table, mut slow) = (Vec::new(), first, false);
        for _ in 0..TABLE_ROWS {
            let row = self.lookup(table, &seen);
            rules.push(u64::from(self.generation(row)) << 32 | u64::from(row));
            if table == CORE_TABLE {
                table = 0;
                continue;
            }
            let decision = self.rule(row, rule_word::DECISION);
            let next = (decision >> 8) as u8;
            if decision as u8 == verdict::SLOW {
                slow = true;
                break;
            }
            if next == 0 {
                break;
            }
            table = next;
            let patch = (self.rule(row, rule_word::REST) >> 32) as usize * words::PATCH;
            let word = |at: usize| self.memory.patches()[patch + at].load(Acquire);
            if patch != 0 {
                seen = std::array::from_fn(|i| seen[i] & !word(Key::WORDS + i) | word(i));
            }
        }
        Looked { key: key.words(), rules, slow }
    }

    /// The places that a flow may have in the first CPU's cache.
    fn places(&self, key: &Words) -> [&[AtomicU64]; CACHE_WAYS] {
        let sets = self.memory.cache().len() / (words::CACHED * CACHE_WAYS * self.memory.cpus());
        let hash = self.seed.key(key, &self.mask(0));
        std::array::from_fn(|way| &self.memory.cache()[Seed::place(hash, way, sets)..][..words::CACHED])
    }

    /// Writes the result into the first CPU's cache, under the current union of masks. Keys with rest bits under the union
    /// are left out, because their words are not in this memory.
    pub fn cache(&self, looked: &Looked) {
        let union = self.mask(0);
        if looked.slow || looked.rules.len() > FRONT || union[FRONT..].iter().any(|word| *word != 0) {
            return;
        }
        let [first, second] = self.places(&looked.key);
        let flow = if first[FRONT].load(Acquire) == 0 { first } else { second };
        (0..FRONT).for_each(|i| flow[i].store(looked.key[i] & union[i], Release));
        (0..FRONT).for_each(|i| flow[FRONT + i].store(looked.rules.get(i).copied().unwrap_or(0), Release));
    }

    /// The rules of a cached flow, unless it is void.
    pub fn cached(&self, key: &Key) -> Option<Vec<u32>> {
        let (key, union) = (key.words(), self.mask(0));
        self.places(&key).into_iter().find_map(|flow| {
            let same = (0..FRONT).all(|i| flow[i].load(Acquire) == key[i] & union[i]);
            let rules: Vec<u64> =
                flow[FRONT..].iter().map(|r| r.load(Acquire)).take_while(|rule| *rule != 0).collect();
            let current = rules.iter().all(|rule| u64::from(self.generation(*rule as u32)) == rule >> 32);
            (same && current && !rules.is_empty()).then(|| rules.iter().map(|rule| *rule as u32).collect())
        })
    }
}
