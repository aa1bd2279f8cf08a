//! The kernel plane's skeleton and types, generated from BTF, and the checks that `logic` encodes what `bpf/abi.h`,
//! `bpf/flow_abi.h` and `bpf/path_abi.h` say.
//!
//! Structures come from the C headers through BTF. `logic` knows no BPF and composes its words itself. The assertions
//! below check at compile time where its fields are. BTF does not hold the numbers of the headers, so the tests at the
//! end compare these.

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs, non_camel_case_types, non_snake_case)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/millrace.skel.rs"));
}

pub use skeleton::*;

use logic::{memory::words, tables::encoding};
use std::mem::offset_of;
use types::*;

/// The size of `words` words of `logic`, in bytes.
const fn bytes(words: usize) -> usize {
    words * size_of::<u64>()
}

/// `logic::memory::words`.
const _: () = {
    assert!(size_of::<fib_block>() == words::FIB_BLOCK * size_of::<u32>());
    assert!(size_of::<fib_tail>() == bytes(words::FIB_TAIL));
    assert!(size_of::<nexthop>() == bytes(words::NEXTHOP));
    assert!(size_of::<neighbour_bucket>() == bytes(words::NEIGHBOUR_BUCKET));
    assert!(size_of::<interface_bucket>() == bytes(words::INTERFACE_BUCKET));
    assert!(size_of::<interface_bucket>() == encoding::INTERFACE_WAYS * size_of::<interface_slot>());
    assert!(size_of::<router>() == bytes(words::ROUTER));
    assert!(size_of::<queue_row>() == bytes(words::QUEUE_ROW));
    assert!(size_of::<firewall>() == bytes(words::FIREWALL));
    assert!(size_of::<connection>() == bytes(words::CONNECTION));
};

/// `logic::tables::rules`.
const _: () = {
    assert!(offset_of!(firewall, pairs) == 0);
    assert!(offset_of!(firewall, range) == bytes(encoding::RANGES));
    assert!(offset_of!(firewall, ranges_used) == bytes(encoding::RANGES_USED));
    assert!(offset_of!(firewall, changes) == bytes(encoding::CHANGES));
    assert!(offset_of!(firewall, generation) == bytes(encoding::GENERATION));
    assert!(offset_of!(firewall_range, low_lo) == bytes(1));
    assert!(offset_of!(firewall_range, high_hi) == bytes(2));
    assert!(offset_of!(firewall_range, high_lo) == bytes(3));
};

/// `logic::tables::connections`. A test compares `struct connection_note`, which is not in BTF.
const _: () = {
    use logic::tables::connections::word;
    assert!(offset_of!(connection, ports) == bytes(word::KEY));
    assert!(offset_of!(connection, protocol) == bytes(word::KEY) + 4);
    assert!(offset_of!(connection, router) == bytes(word::KEY) + 5);
    assert!(offset_of!(connection, version) == bytes(word::KEY) + 6);
    assert!(offset_of!(connection, state) == bytes(word::KEY) + 7);
    assert!(offset_of!(connection, ingress) == bytes(word::WAY));
    assert!(offset_of!(connection, egress) == bytes(word::WAY) + 2);
    assert!(offset_of!(connection, other) == bytes(word::WAY) + 4);
    assert!(offset_of!(connection, generation) == bytes(word::VALID));
    assert!(offset_of!(connection, until) == bytes(word::VALID) + 4);
    assert!(offset_of!(connection, ended) == bytes(word::ENDED));
    assert!(offset_of!(connection, rest) == bytes(word::ENDED) + 4);
    assert!(offset_of!(connection, family) == bytes(word::ADDRESSES));
    assert!(offset_of!(connection4, source) == 0);
    assert!(offset_of!(connection4, destination) == 4);
    assert!(offset_of!(connection4, new_source) == bytes(word::NEW_ADDRESSES - word::ADDRESSES));
    assert!(offset_of!(connection4, new_destination) == bytes(word::NEW_ADDRESSES - word::ADDRESSES) + 4);
    assert!(offset_of!(connection4, packets) == bytes(word::PACKETS - word::ADDRESSES));
    assert!(offset_of!(connection4, bytes) == bytes(word::BYTES - word::ADDRESSES));
    assert!(offset_of!(connection6, source) == bytes(word::SOURCE - word::ADDRESSES));
    assert!(offset_of!(connection6, destination) == bytes(word::DESTINATION - word::ADDRESSES));
};

/// `logic::capture::record`.
const _: () = {
    use logic::capture::record::{HEAD_BYTES, MOST_FRAME_BYTES, at};
    assert!(offset_of!(capture_record, time_ns) == at::TIME);
    assert!(offset_of!(capture_record, in_data) == at::IN_DATA);
    assert!(offset_of!(capture_record, out_data) == at::OUT_DATA);
    assert!(offset_of!(capture_record, in_bytes) == at::IN_BYTES);
    assert!(offset_of!(capture_record, out_bytes) == at::OUT_BYTES);
    assert!(offset_of!(capture_record, frame_bytes) == at::FRAME_BYTES);
    assert!(offset_of!(capture_record, ahead) == at::AHEAD);
    assert!(offset_of!(capture_record, in_port) == at::IN_PORT);
    assert!(offset_of!(capture_record, out_port) == at::OUT_PORT);
    assert!(offset_of!(capture_record, head_bytes) == at::HEAD_BYTES);
    assert!(offset_of!(capture_record, reason) == at::REASON);
    assert!(offset_of!(capture_record, core) == at::CORE);
    assert!(offset_of!(capture_record, router) == at::ROUTER);
    assert!(offset_of!(capture_record, has_router) == at::HAS_ROUTER);
    assert!(offset_of!(capture_record, cpu) == at::CPU);
    assert!(offset_of!(capture_record, head) == at::HEAD);
    assert!(offset_of!(capture_record, frame) == at::FRAME);
    assert!(at::FRAME - at::HEAD == HEAD_BYTES);
    assert!(size_of::<capture_record>() == at::FRAME + MOST_FRAME_BYTES);
};

/// `logic::tables::queues`.
const _: () = {
    assert!(offset_of!(queue_row, version) == bytes(0));
    assert!(offset_of!(queue_row, mac_port) == bytes(1));
    assert!(offset_of!(queue_row, slot) == bytes(2));
    assert!(offset_of!(queue_row, lo) == bytes(3));
    assert!(offset_of!(queue_row, hi) == bytes(4));
    assert!(offset_of!(queue_row, nexthop) == bytes(5));
    assert!(offset_of!(queue_row, mtu) == bytes(5) + 4);
};

/// `logic::tables::nexthops`.
const _: () = {
    assert!(offset_of!(nexthop, link) == bytes(0));
    assert!(offset_of!(nexthop, source_port) == bytes(1));
    assert!(offset_of!(nexthop, vlan) == bytes(2));
    assert!(offset_of!(nexthop, mtu) == bytes(2) + 4);
    assert!(offset_of!(nexthop, interface) == bytes(3));
    assert!(offset_of!(nexthop, kind) == bytes(3) + 2);
    assert!(offset_of!(nexthop, reason) == bytes(3) + 3);
    assert!(offset_of!(nexthop, flags) == bytes(3) + 4);
    assert!(offset_of!(nexthop, family) == bytes(3) + 5);
    assert!(offset_of!(nexthop, address) == bytes(4));
    assert!(offset_of!(nexthop, used) == bytes(6));
};

/// `logic::tables::links`.
const _: () = {
    assert!(offset_of!(interface_slot, mac) == bytes(0));
    assert!(offset_of!(interface_slot, port) == bytes(0) + 6);
    assert!(offset_of!(interface_slot, vlan) == bytes(1));
    assert!(offset_of!(interface_slot, interface) == bytes(1) + 4);
    assert!(offset_of!(interface_slot, router) == bytes(1) + 6);
    assert!(offset_of!(interface_slot, flags) == bytes(1) + 7);
};

/// `logic::tables::routes` and `logic::fib`.
const _: () = {
    assert!(offset_of!(router, fib4) == bytes(0));
    assert!(offset_of!(router, fib6) == bytes(1));
    assert!(offset_of!(router, flags) == bytes(2));
    assert!(offset_of!(router, local4) == bytes(8));
    assert!(offset_of!(fib_tail, hi) == bytes(0));
    assert!(offset_of!(fib_tail, lo) == bytes(1));
    assert!(offset_of!(fib_tail, r#match) == bytes(2));
    assert!(offset_of!(fib_tail, miss) == bytes(2) + 4);
    assert!(offset_of!(fib_tail, length) == bytes(3));
};

/// `logic::flow::kernel`.
const _: () = {
    use logic::flow::{
        Key,
        kernel::{
            FRONT,
            encoding::{band_word, meter_word, rule_word},
            words,
        },
    };
    assert!(size_of::<flow_key>() == Key::BYTES);
    assert!(size_of::<flow_mask>() == bytes(words::MASK));
    assert!(offset_of!(flow_mask, rest_count) == Key::BYTES);
    assert!(offset_of!(flow_mask, rest) == Key::BYTES + 1);
    assert!(offset_of!(flow_mask, index) == Key::BYTES + 16);
    assert!(offset_of!(flow_mask, rank) == Key::BYTES + 32);
    assert!(size_of::<flow_table>() == bytes(words::TABLE));
    assert!(size_of::<flow_bucket>() == bytes(words::BUCKET));
    assert!(size_of::<flow_rule>() == bytes(words::RULE));
    assert!(offset_of!(flow_rule, generation) == bytes(rule_word::HEAD));
    assert!(offset_of!(flow_rule, mask) == bytes(rule_word::HEAD) + 4);
    assert!(offset_of!(flow_rule, priority) == bytes(rule_word::HEAD) + 6);
    assert!(offset_of!(flow_rule, kind) == bytes(rule_word::DECISION));
    assert!(offset_of!(flow_rule, next_table) == bytes(rule_word::DECISION) + 1);
    assert!(offset_of!(flow_rule, port) == bytes(rule_word::DECISION) + 2);
    assert!(offset_of!(flow_rule, steps) == bytes(rule_word::DECISION) + 4);
    assert!(offset_of!(flow_rule, key) == bytes(rule_word::KEY));
    assert!(offset_of!(flow_rule, rest) == bytes(rule_word::REST));
    assert!(offset_of!(flow_rule, patch) == bytes(rule_word::REST) + 4);
    assert!(offset_of!(flow_rule, set_steps) == bytes(rule_word::SET));
    assert!(offset_of!(flow_rule, set_ranks) == bytes(rule_word::SET) + 4);
    assert!(offset_of!(flow_rule, flags) == bytes(rule_word::SET) + 6);
    assert!(size_of::<flow_rest>() == bytes(words::REST));
    assert!(size_of::<flow_patch>() == bytes(words::PATCH));
    assert!(offset_of!(flow_patch, mask) == Key::BYTES);
    assert!(offset_of!(flow_patch, needs) == 2 * Key::BYTES);
    assert!(size_of::<flow_step>() == bytes(words::STEP));
    assert!(offset_of!(flow_step, a) == 1 && offset_of!(flow_step, b) == 2 && offset_of!(flow_step, c) == 4);
    assert!(offset_of!(flow_step, d) == bytes(1));
    assert!(size_of::<flow_group>() == bytes(words::GROUP));
    assert!(size_of::<flow_meter>() == bytes(words::METER));
    assert!(offset_of!(flow_meter, packets) == bytes(meter_word::PACKETS));
    assert!(offset_of!(flow_meter, bytes) == bytes(meter_word::BYTES));
    assert!(offset_of!(flow_meter, band) == bytes(meter_word::BANDS));
    assert!(size_of::<flow_band>() == bytes(band_word::LENGTH));
    assert!(offset_of!(flow_band, cost) == bytes(band_word::COST));
    assert!(offset_of!(flow_band, burst_ticks) == bytes(band_word::BURST));
    assert!(offset_of!(flow_band, empty_ticks) == bytes(band_word::EMPTY));
    assert!(offset_of!(flow_band, dropped_packets) == bytes(band_word::DROPPED));
    assert!(offset_of!(flow_band, dropped_bytes) == bytes(band_word::DROPPED) + 8);
    assert!(size_of::<flow_cached>() == bytes(words::CACHED));
    assert!(offset_of!(flow_cached, rule) == bytes(FRONT));
    assert!(size_of::<flow_count>() == bytes(words::COUNT));
    assert!(size_of::<flow_notice>() == logic::flow::kernel::Notice::BYTES);
    assert!(offset_of!(flow_notice, rule) == 0 && offset_of!(flow_notice, frame_bytes) == 4);
    assert!(offset_of!(flow_notice, bytes) == 8 && offset_of!(flow_notice, port) == 12);
    assert!(offset_of!(flow_notice, reason) == 14);
    assert!(offset_of!(flow_scratch, key) == 0);
    assert!(size_of::<flow_scratch>().is_multiple_of(64));
};

/// `logic::paths::rows`.
const _: () = {
    use logic::paths::rows::{KEY, MOST_PATHS, TABLE, TABLES, words};
    assert!(size_of::<path_row>() == bytes(words::ROW));
    assert!(offset_of!(path_row, value) == KEY);
    assert!(offset_of!(path_row, bytes_mask) == 2 * KEY);
    assert!(offset_of!(path_row, bytes_value) == 2 * KEY + 2);
    assert!(offset_of!(path_row, bytes_offset) == 2 * KEY + 4);
    assert!(offset_of!(path_row, path) == 2 * KEY + 5);
    assert!(offset_of!(path_row, otherwise) == 2 * KEY + 6);
    assert!(offset_of!(path_classes, rows) == bytes(0));
    assert!(offset_of!(path_classes, drops) == bytes(1));
    assert!(offset_of!(path_classes, asks_router) == bytes(2));
    assert!(offset_of!(path_classes, place) == bytes(2) + 4);
    assert!(offset_of!(path_classes, own_router) == bytes(3));
    assert!(offset_of!(path_classes, row) == bytes(words::HEAD));
    assert!(offset_of!(path_classes, may) == bytes(words::HEAD + MOST_PATHS * words::ROW));
    assert!(size_of::<path_classes>() == bytes(words::CLASSES));
    assert!(size_of::<path_classes>() - offset_of!(path_classes, may) == bytes(TABLES * TABLE));
    assert!(size_of::<path_count>() == 128);
};

/// `crate::plane`.
const _: () = {
    assert!(offset_of!(port, ifindex) == 0);
    assert!(offset_of!(port, id) == 4);
    assert!(offset_of!(port, flags) == 6);
    assert!(size_of::<port>() == size_of::<u64>());
    assert!(offset_of!(control, deadline_ns) == bytes(0));
    assert!(offset_of!(control, deadline_jiffies) == bytes(1));
    assert!(offset_of!(control, jiffies) == bytes(2));
    assert!(offset_of!(control, rules_deadline_jiffies) == bytes(4));
};

/// The numbers of `bpf/abi.h` that BTF does not hold, for tests.
#[cfg(test)]
pub(crate) mod header {
    use std::collections::BTreeMap;

    pub const TEXT: &str = include_str!("../../bpf/abi.h");

    /// Every `#define NAME NUMBER`, and every member of an enum that has a number or follows one that has.
    pub fn numbers() -> BTreeMap<&'static str, u32> {
        numbers_of(TEXT)
    }

    /// The numbers of `bpf/flow_abi.h`.
    pub fn flow_numbers() -> BTreeMap<&'static str, u32> {
        numbers_of(include_str!("../../bpf/flow_abi.h"))
    }

    /// The numbers of `bpf/path_abi.h`.
    pub fn path_numbers() -> BTreeMap<&'static str, u32> {
        numbers_of(include_str!("../../bpf/path_abi.h"))
    }

    fn numbers_of(text: &'static str) -> BTreeMap<&'static str, u32> {
        let mut numbers = BTreeMap::new();
        let mut next = None;
        for line in text.lines() {
            let mut words = line.split([' ', '\t', ',', '=']).filter(|word| !word.is_empty());
            let Some(first) = words.next() else { continue };
            let is_name = |word: &str| word.starts_with(|c: char| c.is_ascii_uppercase());
            match (first, words.next()) {
                ("#define", Some(name)) => {
                    if let Some(number) = words.next().and_then(|n| n.parse().ok()) {
                        numbers.insert(name, number);
                    }
                }
                (name, second) if line.starts_with('\t') && is_name(name) => {
                    next = second.and_then(|n| n.parse().ok()).or(next);
                    if let Some(number) = next {
                        numbers.insert(name, number);
                        next = Some(number + 1);
                    }
                }
                _ => next = None,
            }
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::{MAX_PORTS, MAX_ROUTERS, PORT_HANDS_OVER, PORT_NO_RECV, PORT_READY, PORT_SPLITS};

    #[test]
    fn numbers_of_flow_rules_are_those_of_the_header() {
        use logic::flow::{
            Key,
            kernel::{self, encoding},
            program::needs,
            rule::{CORE_TABLE, TABLES},
        };
        let header = header::flow_numbers();
        let v = |number: u8| u32::from(number);
        let ours = [
            ("FLOW_TABLES", TABLES.into()),
            ("FLOW_CORE_TABLE", CORE_TABLE.into()),
            ("FLOW_RULES", kernel::TABLE_ROWS as u32),
            ("FLOW_MASKS", kernel::MASKS as u32),
            ("FLOW_WORDS", Key::WORDS as u32),
            ("FLOW_FRONT", kernel::FRONT as u32),
            ("FLOW_RANK_SHIFT", encoding::ORDER_RANK_SHIFT),
            ("FLOW_ORDER_ROW", (1 << encoding::ORDER_RANK_SHIFT) - 1),
            ("FLOW_RANK_BITS", 48 - encoding::ORDER_RANK_SHIFT),
            ("FLOW_CACHE_WAYS", kernel::CACHE_WAYS as u32),
            ("FLOW_WAYS", kernel::words::BUCKET as u32),
            ("FLOW_RULE_CLEAR", encoding::FLAG_CLEAR as u32),
            ("FLOW_RULE_SENDS", encoding::FLAG_SENDS as u32),
            ("FLOW_RULE_BROADCASTS", encoding::FLAG_BROADCASTS as u32),
            ("FLOW_RULE_CORE_OF_SET", encoding::FLAG_CORE_OF_SET as u32),
            ("FLOW_RULE_CORE_SHIFT", encoding::CORE_SHIFT),
            ("FLOW_NEEDS_TAG", needs::TAG as u32),
            ("FLOW_NEEDS_IPV4", needs::IPV4 as u32),
            ("FLOW_NEEDS_IPV6", needs::IPV6 as u32),
            ("FLOW_NEEDS_ARP", needs::ARP as u32),
            ("FLOW_NEEDS_TCP", needs::TCP as u32),
            ("FLOW_NEEDS_UDP", needs::UDP as u32),
            ("FLOW_NEEDS_ROOM", needs::ROOM as u32),
            ("FLOW_DROP", v(encoding::verdict::DROP)),
            ("FLOW_OUTPUT", v(encoding::verdict::OUTPUT)),
            ("FLOW_NORMAL", v(encoding::verdict::NORMAL)),
            ("FLOW_LOCAL", v(encoding::verdict::LOCAL)),
            ("FLOW_BROADCAST", v(encoding::verdict::BROADCAST)),
            ("FLOW_IN_PORT", v(encoding::verdict::IN_PORT)),
            ("FLOW_SLOW", v(encoding::verdict::SLOW)),
            ("FLOW_STEPS", v(encoding::verdict::STEPS)),
            ("FLOW_CORE", v(encoding::verdict::CORE)),
            ("FLOW_CONTROLLER", v(encoding::verdict::CONTROLLER)),
            ("FLOW_CONTROLLER_LOST", v(encoding::verdict::CONTROLLER_LOST)),
            ("FLOW_PATH", v(encoding::verdict::PATH)),
            ("FLOW_CHOOSE", encoding::CHOOSE.into()),
            ("FLOW_CHOOSE_FIRST", encoding::CHOOSE_FIRST.into()),
            ("CHOICE_SLOTS", crate::plane::choices::SLOTS as u32),
            ("CHOICE_RING", crate::plane::choices::RING as u32),
            ("CHOICE_RING", logic::cores::choice::RING as u32),
            ("FLOW_GROUP_SLOTS", logic::flow::group::SLOTS as u32),
            ("FLOW_BANDS", logic::flow::table::BANDS as u32),
            ("FLOW_TICKS", encoding::TICKS as u32),
            ("FLOW_COST_SHIFT", encoding::COST_SHIFT),
            ("NOTICE_ACTION", kernel::NoticeReason::Action as u32),
            ("NOTICE_TTL", kernel::NoticeReason::Ttl as u32),
            ("NOTICE_SLOW", kernel::NoticeReason::Slow as u32),
        ];
        let ops = encoding::OPS.map(|(name, number)| (name, v(number)));
        for (name, number) in ours.into_iter().chain(ops) {
            assert_eq!(header.get(name), Some(&number), "{name}");
        }
    }

    #[test]
    fn numbers_of_paths_are_those_of_the_header() {
        use logic::paths::rows::{self, flags};
        let header = header::path_numbers();
        let ours = [
            ("MAX_PATHS", rows::MOST_PATHS),
            ("PATH_WORDS", rows::WORDS),
            ("PATH_DEPTH", rows::DEPTH),
            ("PATH_TABLES", rows::TABLES),
            ("PATH_TABLE_SIZE", rows::TABLE),
            ("PATH_IPV4", flags::IPV4.into()),
            ("PATH_IPV6", flags::IPV6.into()),
            ("PATH_IP", flags::IP.into()),
            ("PATH_PORTS", flags::PORTS.into()),
            ("PATH_SYN", flags::SYN.into()),
            ("PATH_REASONS", crate::plane::NOT_GIVEN.len()),
        ];
        for (name, number) in ours {
            assert_eq!(header.get(name), Some(&(number as u32)), "{name}");
        }
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        use logic::tables::connections;
        let header = header::numbers();
        let ours = [
            ("NEXTHOP_PASS", encoding::KIND_PASS.into()),
            ("NEXTHOP_ONLINK", encoding::KIND_ONLINK.into()),
            ("NEXTHOP_VIA", encoding::KIND_VIA.into()),
            ("NEXTHOP_UNICAST", encoding::FLAG_UNICAST.into()),
            ("NEXTHOP_FRAGS", encoding::FLAG_FRAGS.into()),
            ("NEXTHOP_LOCAL", encoding::FLAG_LOCAL.into()),
            ("IF_IPV4", encoding::IF_IPV4.into()),
            ("IF_IPV6", encoding::IF_IPV6.into()),
            ("IF_RPF_LOOSE", encoding::IF_RPF_LOOSE.into()),
            ("IF_RPF_STRICT", encoding::IF_RPF_STRICT.into()),
            ("IF_REDIRECTS", encoding::IF_REDIRECTS.into()),
            ("IF_ACCEPT_LOCAL", encoding::IF_ACCEPT_LOCAL.into()),
            ("IF_PRIORITY_TAGS", encoding::IF_PRIORITY_TAGS.into()),
            ("IF_LOOK_AT_SOURCES", encoding::IF_LOOK_AT_SOURCES.into()),
            ("INTERFACE_WAYS", encoding::INTERFACE_WAYS as u32),
            ("NEIGHBOUR_WAYS", words::NEIGHBOUR_BUCKET as u32),
            ("FIB_SLOTS", words::FIB_BLOCK as u32),
            ("FIB_NEXTHOP", logic::fib::Kind::Nexthop as u32),
            ("FIB_GROUP", logic::fib::Kind::Group as u32),
            ("FIB_CHILD", logic::fib::Kind::Child as u32),
            ("FIB_TAIL", logic::fib::Kind::Tail as u32),
            ("FIB_KIND_SHIFT", (logic::fib::MAX_INDEX + 1).trailing_zeros()),
            ("PORT_READY", PORT_READY as u32),
            ("PORT_NO_RECV", PORT_NO_RECV as u32),
            ("PORT_HANDS_OVER", PORT_HANDS_OVER as u32),
            ("MAX_QUEUES", encoding::MAX_QUEUES as u32),
            ("QUEUE_WAYS", encoding::QUEUE_WAYS as u32),
            ("QUEUE_FAMILY_WAYS", encoding::FAMILY_WAYS as u32),
            ("PORT_SPLITS", PORT_SPLITS as u32),
            ("HELP_STEPS", logic::cores::HELPERS as u32),
            ("SPLIT_BUCKETS", logic::cores::split::BUCKETS as u32),
            ("SPLIT_QUEUES", crate::plane::splits::QUEUES as u32),
            ("CORE_QUEUE_PACKETS", crate::plane::cores::QUEUE_PACKETS),
            ("PLACE_JIFFIES_SHIFT", crate::plane::choices::JIFFIES_SHIFT),
            ("MAX_PORTS", MAX_PORTS as u32),
            ("MAX_ROUTERS", MAX_ROUTERS as u32),
            ("LEARNED_NOTES", crate::plane::icmp_errors::LEARNED_NOTES as u32),
            ("ROUTER_CONNECTIONS", encoding::ROUTER_CONNECTIONS as u32),
            ("CONNECTION_WAYS", words::CONNECTION_WAYS as u32),
            ("CONNECTION_UNTIL_SHIFT", connections::UNTIL_SHIFT),
            ("CONNECTION_REST", connections::REST as u32),
            ("CONNECTION_NEW_SOURCE", connections::state::NEW_SOURCE as u32),
            ("CONNECTION_NEW_DESTINATION", connections::state::NEW_DESTINATION as u32),
            ("CONNECTION_GONE", connections::state::GONE as u32),
            ("CONNECTION_NOTES", crate::plane::connections::CONNECTION_NOTES as u32),
            ("LOCAL_NOTES", crate::plane::connections::LOCAL_NOTES as u32),
            ("LOCAL_CANDIDATES", crate::plane::connections::LOCAL_CANDIDATES as u32),
            ("CAPTURE_RING_BYTES", crate::plane::capture::RING_BYTES),
            ("SAMPLE_RING_BYTES", crate::plane::capture::SAMPLE_RING_BYTES),
            ("CAPTURE_FILTER_ROOM", logic::capture::filter::ROOM as u32),
            ("CAPTURE_FILTER_MARK", crate::plane::capture::MARK as u32),
        ];
        for (name, number) in ours {
            assert_eq!(header.get(name), Some(&number), "{name}");
        }
        // `plane::counters` has the same.
        assert!(header::TEXT.contains("#define CHARGE_ROWS (MAX_ROUTERS + MAX_PORTS + 1)\n"));
    }
}
