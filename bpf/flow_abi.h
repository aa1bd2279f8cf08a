/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The layout of the maps of flow rules; abi.h has the other maps. A rule leads from a key to a decision. A cache in front
 * of the rules leads from a packet to the rules that decided about the last packet like it.
 *
 * Who writes what
 *   user space writes: flow_masks, flow_tables, flow_index, flow_rules, flow_rest, flow_steps, flow_groups, flow_meters,
 *                      core_rings; it zeroes words of flow_cache
 *   the program writes: flow_cache, flow_cache_rest, flow_seen, flow_counters, flow_scratch (each CPU its own rows);
 *                      rule_seats
 *   both write, by atomic operations: the queues and counters of flow_meters; flow_choices; core_ring.turn; `leave` and
 *                      `leave_first` of core_queues
 *   flow_counters has more rows behind those of the CPUs: user space counts the packets there that it forwards itself
 */
#pragma once

#define FLOW_TABLES	16
#define FLOW_CORE_TABLE	16	/* asked first, while it has rules: names the core that goes on with a packet */
#define FLOW_RULES	17	/* that may decide about a packet, one of each table */
#define FLOW_MASKS	4096	/* one for each mask of a table; row 0 is the union of all */

/*
 * The fields of a packet that rules can match, in network byte order. logic::flow::field says which bits belong to which
 * field. Rules about Ethernet, IPv4, TCP and UDP need only the front words. The rest words are read only if some rule
 * needs them.
 */
#define FLOW_WORDS	19
#define FLOW_FRONT	4
#define FLOW_REST	(FLOW_WORDS - FLOW_FRONT)

struct flow_key {
	__u64 word[FLOW_WORDS];
};

/* A lookup searches the buckets of each mask in the table's order. They may also hold rules with other masks. */
struct flow_mask {		/* 192 bytes */
	__u64 word[FLOW_WORDS];
	__u8  rest_count;	/* the number of rest words that it uses */
	__u8  rest[FLOW_REST];	/* these words: 0 is word FLOW_FRONT */
	__u64 index;		/* its buckets, a power of two: bits 0..31 the first in flow_index, 32..63 their number - 1 */
	__u64 fragments;	/* row 0 only; not 0: fragments are dropped */
	__u64 rank;		/* among rules of one priority (logic::flow::Key::rank); FLOW_RANK_BITS */
};

/*
 * One entry for each mask of a table that has rules in its buckets. Bits 0..11: row of flow_masks, 0: a hole. Bits from 12
 * on: rank and priority of the best of these rules, or a higher value. The entries are sorted as far as possible while
 * readers use them. Readers go from the first entry to the last. Entries move only towards the end, so readers miss
 * none. A mask that must move towards the front has two entries for a while.
 */
#define FLOW_ORDER_ROW	4095
#define FLOW_RANK_SHIFT	12
#define FLOW_RANK_BITS	36
#define FLOW_ORDER (FLOW_MASKS - 1 + 256)
struct flow_table {
	__u64 count;		/* entries to look at, holes among them */
	__u64 order[FLOW_ORDER];
};

/*
 * A slot: high 32 bits hash tag, low 32 bits rule id; 0: empty; all bits: its rule is gone. A rule is in bucket h of a
 * mask or, when that is full, in h ^ 1. While a rule of h is in h ^ 1, no slot of h is empty. Readers look into h ^ 1 only
 * if h has no empty slot. Rules never move between the two. h is the hash of the key's bits that this mask tests. The
 * rule's own mask may test more bits. Each mask has its own buckets, as many as the rules in them need. So the buckets of
 * masks with few rules stay in the CPU's cache, however many rules the others have.
 */
#define FLOW_WAYS 8
struct flow_bucket {
	__u64 slot[FLOW_WAYS];
};

/* What happens to a packet. */
enum flow_verdict {
	FLOW_DROP      = 0,
	FLOW_OUTPUT    = 1,	/* to one port, unless it came in there */
	FLOW_NORMAL    = 2,	/* routed as Linux would */
	FLOW_LOCAL     = 3,	/* to the kernel stack */
	FLOW_BROADCAST = 4,	/* to all ports of a set, except the ingress port */
	FLOW_IN_PORT   = 5,	/* back out of the ingress port */
	FLOW_SLOW      = 6,	/* to user space, which carries out the rules; decided before anything is rewritten */
	FLOW_STEPS     = 7,	/* in a rule only: as flow_steps says */
	FLOW_NO_ROOM   = 8,	/* in no rule: no room in front of the frame for what a rule puts there; dropped */
	FLOW_CORE      = 9,	/* the core that `port` names goes on; all rules of the core table have this, and no others */
	FLOW_CONTROLLER = 10,	/* in no rule: only the controllers get it */
	FLOW_CONTROLLER_LOST = 11,	/* in no rule: the same, but user space did not take it */
	FLOW_PATH      = 12,	/* to the worker of the path that `port` names; its rule has no other action */
};

#define FLOW_RANK_OUTPUT 0x100	/* a group or an output */

enum flow_rule_flags {
	FLOW_RULE_CLEAR = 1,	/* the action set begins again */
	FLOW_RULE_SENDS = 2,	/* its steps, not its part of the set, decide where the packet goes */
	FLOW_RULE_BROADCASTS = 4,	/* its steps or its part of the set send to a set of ports */
	FLOW_RULE_CORE_OF_SET = 8,	/* its part of the set names the core */
};
#define FLOW_RULE_CORE_SHIFT 4	/* bits of flags from here on: the core that it names + 1, or a number below, or 0 */
#define FLOW_CHOOSE_FIRST 4094	/* the switch chooses the core, for a priority flow (V7) */
#define FLOW_CHOOSE 4095	/* the same for any other flow (V3) */

/* Rules 1..FLOW_RULES are those of each table for packets that no other rule of it matches. 0 is no rule. */
struct flow_rule {		/* 64 bytes, one cache line */
	__u32 generation;	/* cached decisions of another generation are void; never reset, not even for a new owner */
	__u16 mask;		/* row of flow_masks */
	__u16 priority;
	__u8  kind;		/* enum flow_verdict; this word, to `steps`, changes in place and is stored whole */
	__u8  next_table;	/* goes on to this table; 0: ends here */
	__u16 port;		/* FLOW_OUTPUT: port id; FLOW_BROADCAST: row of flow_sets; FLOW_CORE: core + 1, or FLOW_CHOOSE */
	__u32 steps;		/* FLOW_STEPS: row of flow_steps */
	__u64 key[FLOW_FRONT];	/* masked */
	__u32 rest;		/* row of flow_rest with the other words; 0: the mask has none */
	__u32 patch;		/* row of flow_patches: how later tables see the packet; 0: unchanged */
	__u32 set_steps;	/* the rule's part of the action set (OpenFlow 1.3 section 5.10); 0: none */
	__u16 set_ranks;	/* which ranks of it: bit 0 is done first, FLOW_RANK_OUTPUT last */
	__u16 flags;		/* enum flow_rule_flags */
};

struct flow_rest {
	__u64 word[FLOW_REST];
	__u64 pad;
};

/* What a packet must have, so that a patch describes all effects of the actions. */
enum flow_needs {
	FLOW_NEEDS_TAG   = 1,
	FLOW_NEEDS_IPV4  = 2,
	FLOW_NEEDS_IPV6  = 4,
	FLOW_NEEDS_ARP   = 8,
	FLOW_NEEDS_TCP   = 16,	/* with ports that rules see */
	FLOW_NEEDS_UDP   = 32,
	FLOW_NEEDS_ROOM  = 64,	/* for one more tag, with the headers behind it still read */
};

/*
 * What a rule changes for later tables: metadata, tunnel id, and fields that it sets. User space decides about a packet
 * that lacks one of these fields.
 */
struct flow_patch {
	__u64 value[FLOW_WORDS];
	__u64 mask[FLOW_WORDS];
	__u64 needs;		/* enum flow_needs */
	__u64 pad;
};

/*
 * One action on a packet. A rule's steps follow each other in flow_steps up to STEP_END, and are constant once published.
 * A rule sends last: lists that send, rewrite and send again are FLOW_SLOW.
 */
enum flow_op {
	STEP_END = 0,
	STEP_VERDICT,		/* a: enum flow_verdict, b: port id or set. A later step may change the verdict */
	STEP_CONTROLLER,	/* sends a copy of the frame as it is now */
	STEP_SET_ETH_DST,	/* d: MAC in memory order */
	STEP_SET_ETH_SRC,
	STEP_PUSH_VLAN,		/* b: EtherType */
	STEP_POP_VLAN,
	STEP_SET_VLAN,		/* b: bits of the tag, network order, c: mask of them, a: 1 pushes a tag where there is none */
	STEP_SET_IPV4_SRC,	/* c: network order */
	STEP_SET_IPV4_DST,
	STEP_SET_IPV6,		/* a: half 0..3, d: its eight bytes in memory order */
	STEP_SET_TOS,		/* b: value, c: mask */
	STEP_SET_TP_SRC,	/* b: network order, a: IP protocol, 0 TCP or UDP */
	STEP_SET_TP_DST,
	STEP_SET_TTL,		/* b */
	STEP_DEC_TTL,		/* a packet whose TTL runs out goes to user space */
	STEP_METER,		/* c: row of flow_meters */
	STEP_GROUP,		/* c: row of flow_groups: goes on with the steps of one of its buckets */
	STEP_ENCAP_VXLAN,	/* d: IPv4 source and destination, c: VNI << 8, b: UDP port, network order. MAC addresses are set next */
	STEP_DECAP_VXLAN,	/* keeps the inner frame; drops a packet without one */
	STEP_SET_TUNNEL_ID,	/* d: network order. It is not in the frame; later tables get it from the patch */
};

struct flow_step {
	__u8  op;		/* enum flow_op */
	__u8  a;
	__u16 b;
	__u32 c;
	__u64 d;
};

#define FLOW_MAX_STEPS	32	/* of one rule, for one packet */

/* A group that selects one bucket: by the flow's hash, or the one that user space chose (indirect, fast failover). */
#define FLOW_GROUP_SLOTS 256
struct flow_group {
	__u32 steps[FLOW_GROUP_SLOTS];	/* by the top byte of the flow's hash: row of flow_steps; 0: drop. Change in place */
};

/*
 * A meter with drop bands (OpenFlow 1.3.5 section 5.7), each a virtual queue. All CPUs share it, and so does user space,
 * for the packets that it forwards. Counters are atomic and not per CPU, because every packet writes their line anyway.
 */
#define FLOW_BANDS	8
#define FLOW_TICKS	16	/* of a band's time per nanosecond */
#define FLOW_COST_SHIFT	16
#define FLOW_COST_BYTES	(1ULL << 63)

struct flow_band {
	__u64 cost;		/* ticks << FLOW_COST_SHIFT of a packet or, with FLOW_COST_BYTES, of a byte; 0: no such band */
	__u64 burst_ticks;
	__u64 empty_ticks;	/* when the queue will be empty, CLOCK_MONOTONIC; a past time: it is empty */
	__u64 dropped_packets;
	__u64 dropped_bytes;
};

struct flow_meter {
	__u64 packets;		/* that came to it */
	__u64 bytes;
	__u64 pad;
	struct flow_band band[FLOW_BANDS];	/* the highest rate first */
	__u64 pad2[5];
};

/* --- cores that are chosen --------------------------------------------------------------------------------------- */

/*
 * The cores of flows whose rule lets the switch choose. The slot is a hash of the rule, addresses, protocol and ports, and
 * flows with the same slot count as one. User space zeroes a slot that had no packets for a long time (V4).
 */
#define CHOICE_SLOTS 4096

/* Cores that new flows take in turn. Row 0 of core_rings; row 1 is for priority flows. */
#define CHOICE_RING 64
struct core_ring {
	__u64 count;		/* of cores; 0: flows stay where they come in */
	__u64 turn;
	__u16 core[CHOICE_RING];	/* core + 1 */
	__u64 pad[6];
};

/* --- cache -------------------------------------------------------------------------------------------------------- */

#define FLOW_CHAIN 4		/* a decision of more rules is not cached */
#define FLOW_CACHE_WAYS 2

/*
 * The front words of a packet under the union of all masks, and the rules that decided about it: generation << 32 | rule,
 * in order, 0 after the last. Rows of a CPU: flow_cache[cpu * entries + ...]. The packet's rest words are in the same row
 * of flow_cache_rest.
 */
struct flow_cached {		/* 64 bytes, one cache line */
	__u64 key[FLOW_FRONT];
	__u64 rule[FLOW_CHAIN];
};

/* Tags of flows that were seen once: the low bits of their hash, 0 for none. One cache line. */
#define FLOW_TAGS 32
struct flow_tags {
	__u16 tag[FLOW_TAGS];
};

struct flow_count {
	__u64 packets;
	__u64 bytes;
};

/* The headers of a packet, and where they are. An offset is 0 if the packet does not have the whole header. */
struct flow_layout {
	__u64 destination;	/* MAC addresses in memory order */
	__u64 source;
	__u64 addresses;	/* IPv4's and ARP's, network order, source in the low half */
	__u32 end;		/* of the IP packet; padding follows */
	__u32 ports;		/* as rules see them: network order, source in the low half */
	__u16 ip_offset;	/* of what follows the tags */
	__u16 l4_offset;	/* of a whole transport header */
	__u16 ether_type;	/* of what follows the tags, host byte order */
	__u8  network;		/* 4, 6: a whole IP header; 1: ARP */
	__u8  protocol;
	__u8  tos;
	__u8  tags;
	__u8  fragment;		/* 1: the first or a later one */
	__u8  routed;		/* 1: checksums cover another IPv6 destination (RFC 8200 section 8.1) */
	__u16 tci;		/* of the outermost tag, network order, with VLAN_TCI_PRESENT; 0: none */
	__u8  unseen;		/* 1: headers lie further in than the program reads */
	__u8  pad;
};

#define FLOW_FARTHEST	0x3ff	/* no header is read beyond this offset */
#define FLOW_OFFSET_MASK 0x7ff

/* Why a packet goes to user space. */
enum flow_notice_reason {
	NOTICE_ACTION = 1,	/* a rule sends it there */
	NOTICE_TTL    = 2,	/* the TTL ran out */
	NOTICE_SLOW   = 3,	/* user space carries out the rules */
};

/* Goes to user space in front of the packet's bytes. */
struct flow_notice {
	__u32 rule;		/* the rule whose steps ask for this; 0: NOTICE_SLOW */
	__u32 frame_bytes;	/* of the whole frame */
	__u32 bytes;		/* that follow; padding may come after them */
	__u16 port;		/* id of the ingress port */
	__u8  reason;		/* enum flow_notice_reason */
	__u8  pad;
	__u64 metadata;		/* network order; 0 with NOTICE_SLOW */
	__u64 tunnel_id;	/* the same */
};

/* A record's length has 16 bits, and includes the record's own header. */
#define FLOW_NOTICE_BYTES 65024

/* The program's working memory, one row per CPU. */
struct flow_scratch {
	struct flow_key key;
	struct flow_key masked;		/* under the union */
	__u64 hash;			/* of the masked key */
	__u64 rule[FLOW_RULES];		/* those that decide: generation << 32 | rule, 0 after the last */
	__u64 decision[FLOW_RULES];	/* their words from `kind` on, read once */
	__u64 best_precedence;		/* of the best rule so far: priority, rank of its mask; + 1, so that 0 is none */
	__u32 best;			/* the best rule so far */
	__u32 doing;			/* the rule whose steps are being done */
	struct flow_layout layout;
	__u16 verdict;			/* enum flow_verdict */
	__u16 port;			/* where it leaves: port id or set */
	__u16 in_port;			/* port id */
	__u8  multi_buffer;
	__u8  set_from;			/* the first rule whose part of the action set counts */
	__u8  passed;			/* the number of rules whose changes the packet has */
	__u8  pad[3];
	__u32 turn;			/* its lowest bit: the way of a full cache set that the next flow takes */
	__u64 tunnel_id;		/* network order */
	__u64 hits;
	__u64 misses;
	struct flow_notice notice;	/* being sent */
} __attribute__((aligned(64)));	/* no CPUs share a cache line */
