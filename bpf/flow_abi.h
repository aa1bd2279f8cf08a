/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Flow rules: the layout of their maps (part of abi.h). A rule leads from a key to a decision; a cache in front of the rules
 * leads from a packet to the rules that decided for the last one like it.
 *
 * Who writes what
 *   user space writes: flow_masks, flow_tables, flow_index, flow_rules, flow_rest, flow_steps; flow_groups, flow_meters; it
 *                      zeroes words of flow_cache
 *   the program writes: flow_cache, flow_cache_rest, flow_seen, flow_counters, flow_scratch, each only its CPU's rows; rule_seats;
 *                      with user space, by atomic operations: what is spent and counted in flow_meters; flow_choices, and of
 *                      core_queues who may leave
 *   flow_counters has one more lot of rows, behind those of the CPUs: what user space does with packets is counted there
 */
#pragma once

#define FLOW_TABLES	16
#define FLOW_CORE_TABLE	16	/* looked at first, while it has rules: which core goes on with a packet */
#define FLOW_RULES	17	/* of each table one may decide about a packet */
#define FLOW_TABLE_MASKS 80	/* distinct masks in one table */
#define FLOW_MASKS	(FLOW_RULES * FLOW_TABLE_MASKS + 1)	/* of a table's mask each; row 0 is the union of all */

/*
 * The fields of a packet that rules can look at, in network byte order: logic::flow::Field says which bits are whose. The
 * front words hold all that a rule about Ethernet, IPv4, TCP and UDP needs; the rest is read only if some rule does.
 */
#define FLOW_WORDS	19
#define FLOW_FRONT	4
#define FLOW_REST	(FLOW_WORDS - FLOW_FRONT)

struct flow_key {
	__u64 word[FLOW_WORDS];
};

struct flow_mask {		/* 192 bytes */
	__u64 word[FLOW_WORDS];
	__u8  rest_count;	/* how many of the rest words it uses, */
	__u8  rest[FLOW_REST];	/* and which: 0 is word FLOW_FRONT */
	__u64 index;		/* its rules: bits 0..31 first bucket in flow_index, 32..63 number of buckets - 1, a power of two */
	__u64 fragments;	/* of row 0: not 0: fragments are dropped */
	__u64 pad;
};

/*
 * The masks of a table. An entry: bits 0..10 row of flow_masks, 0: a hole; 11..47 rank of the mask among rules of one priority
 * (logic::flow::Key::rank); 48..63 the highest priority of its rules, which may be stated too high, never too low. Sorted, as
 * far as that can be while packets run: no entry ever moves down past a reader, one may stand twice for a while.
 */
#define FLOW_ORDER_ROW	0x7ff
#define FLOW_RANK_SHIFT	11
#define FLOW_RANK_BITS	37
#define FLOW_ORDER (FLOW_TABLE_MASKS + 32)
struct flow_table {
	__u64 count;		/* entries to look at, holes among them */
	__u64 order[FLOW_ORDER];
};

/*
 * A slot: high 32 bits hash tag, low 32 bits rule id; 0: empty. A key sits in bucket h of its mask's or, when that is full, in
 * h ^ 1. Each mask has buckets of its own, as many as its rules need: those of masks with few rules stay in the CPU's cache,
 * whatever the others have.
 */
#define FLOW_WAYS 8
struct flow_bucket {
	__u64 slot[FLOW_WAYS];
};

/* What becomes of a packet. */
enum flow_verdict {
	FLOW_DROP      = 0,
	FLOW_OUTPUT    = 1,	/* to one port, unless it came in there */
	FLOW_NORMAL    = 2,	/* as Linux would: the routers */
	FLOW_LOCAL     = 3,	/* to the kernel stack */
	FLOW_BROADCAST = 4,	/* to all ports of a set but the one it came in by */
	FLOW_IN_PORT   = 5,	/* back to where it came from */
	FLOW_SLOW      = 6,	/* to user space, which does what the rules say; decided before anything is rewritten */
	FLOW_STEPS     = 7,	/* in a rule only: flow_steps say */
	FLOW_NO_ROOM   = 8,	/* in no rule: what was to go in front of the frame finds no room; dropped */
	FLOW_CORE      = 9,	/* in the core table only, and nothing but: the core that `port` names goes on */
	FLOW_CONTROLLER = 10,	/* in no rule: nobody but the controllers gets it */
	FLOW_CONTROLLER_LOST = 11,	/* in no rule: the same, and user space did not take it */
	FLOW_PATH      = 12,	/* to the worker of the path that `port` names; the only thing that its rule says */
};

#define FLOW_RANK_OUTPUT 0x100	/* a group or an output */

enum flow_rule_flags {
	FLOW_RULE_CLEAR = 1,	/* the action set begins anew */
	FLOW_RULE_SENDS = 2,	/* its steps, not its part of the set, decide where the packet goes */
	FLOW_RULE_BROADCASTS = 4,	/* its steps or its part of the set send to a set of ports */
	FLOW_RULE_CORE_OF_SET = 8,	/* its part of the set names the core */
};
#define FLOW_RULE_CORE_SHIFT 4	/* flags, from here on: the core that it names + 1, or the numbers below, or 0 */
#define FLOW_CHOOSE_FIRST 4094	/* the switch chooses, for a priority flow (V7), */
#define FLOW_CHOOSE 4095	/* and for another (V3) */

/* Rule ids 1..FLOW_RULES are what a table does with a packet that no rule of it matches; 0 is no rule. */
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
	__u32 patch;		/* row of flow_patches: how later tables see the packet; 0: as this one */
	__u32 set_steps;	/* the rule's part of the action set (OpenFlow 1.3 section 5.10); 0: none */
	__u16 set_ranks;	/* which ranks of it: bit 0 is done first, FLOW_RANK_OUTPUT last */
	__u16 flags;		/* enum flow_rule_flags */
};

struct flow_rest {
	__u64 word[FLOW_REST];
	__u64 pad;
};

/* What a packet must have for a patch to be what its actions make of it. */
enum flow_needs {
	FLOW_NEEDS_TAG   = 1,
	FLOW_NEEDS_IPV4  = 2,
	FLOW_NEEDS_IPV6  = 4,
	FLOW_NEEDS_ARP   = 8,
	FLOW_NEEDS_TCP   = 16,	/* with ports that rules see */
	FLOW_NEEDS_UDP   = 32,
	FLOW_NEEDS_ROOM  = 64,	/* for one more tag that is looked behind */
};

/* What a rule changes for later tables: metadata, tunnel id, and fields that it sets. Of a packet that lacks one, user space decides. */
struct flow_patch {
	__u64 value[FLOW_WORDS];
	__u64 mask[FLOW_WORDS];
	__u64 needs;		/* enum flow_needs */
	__u64 pad;
};

/*
 * One thing done to a packet; a rule's steps follow each other in flow_steps up to STEP_END. Constant once published. What a
 * rule sends, it sends last: lists that send, rewrite and send again are FLOW_SLOW.
 */
enum flow_op {
	STEP_END = 0,
	STEP_VERDICT,		/* a: enum flow_verdict, b: port id or set. The packet's fate, unless a later step changes it */
	STEP_CONTROLLER,	/* a copy as it is now */
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
	STEP_DEC_TTL,		/* one that may not go on is user space's */
	STEP_METER,		/* c: row of flow_meters */
	STEP_GROUP,		/* c: row of flow_groups: goes on with the steps of one of its buckets */
	STEP_ENCAP_VXLAN,	/* d: IPv4 source and destination, c: VNI << 8, b: UDP port, network order. MAC addresses are set next */
	STEP_DECAP_VXLAN,	/* keeps the inner frame; another packet is dropped */
	STEP_SET_TUNNEL_ID,	/* d: network order; of no byte of the frame: later tables know it by the patch */
};

struct flow_step {
	__u8  op;		/* enum flow_op */
	__u8  a;
	__u16 b;
	__u32 c;
	__u64 d;
};

#define FLOW_MAX_STEPS	32	/* done for one packet under one rule */

/* A group that gives a packet one bucket: by the flow's hash, or the one that user space chose (indirect, fast failover). */
#define FLOW_GROUP_SLOTS 256
struct flow_group {
	__u32 steps[FLOW_GROUP_SLOTS];	/* by the top byte of the flow's hash: row of flow_steps; 0: drop. Change in place */
};

/*
 * A meter with drop bands (OpenFlow 1.3.5 section 5.7), each a virtual queue. All CPUs share it, and user space does the same
 * with the packets that it forwards. Counters are atomic, not of each CPU: their line is written by every packet anyway.
 */
#define FLOW_BANDS	8
#define FLOW_TICKS	16	/* of a band's time in a nanosecond */
#define FLOW_COST_SHIFT	16
#define FLOW_COST_BYTES	(1ULL << 63)

struct flow_band {
	__u64 cost;		/* ticks << FLOW_COST_SHIFT of a packet or, with FLOW_COST_BYTES, of a byte; 0: no such band */
	__u64 burst_ticks;
	__u64 empty_ticks;	/* when the queue is empty, CLOCK_MONOTONIC; the past: it is empty */
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
 * Flows whose rule lets the switch choose: which core each is on. By a hash of the rule, addresses, protocol and ports; flows of
 * one slot are one flow. Zeroed by user space when none of them came for long (V4).
 */
#define CHOICE_SLOTS 4096

/* Cores for flows that are new, to be taken in turn. Row 0 of core_rings, and row 1 for priority flows. */
#define CHOICE_RING 64
struct core_ring {
	__u64 count;		/* of cores; 0: flows stay where they come in */
	__u64 turn;
	__u16 core[CHOICE_RING];	/* core + 1 */
	__u64 pad[6];
};

/* --- cache -------------------------------------------------------------------------------------------------------- */

#define FLOW_CHAIN 4		/* a decision of more rules is looked up each time */
#define FLOW_CACHE_WAYS 2

/*
 * The front words of a packet under the union of all masks, and the rules that decided for it: generation << 32 | rule, in
 * order, 0 after the last. Rows of a CPU: flow_cache[cpu * entries + ...]. Its rest words are in the same row of
 * flow_cache_rest.
 */
struct flow_cached {		/* 64 bytes, one cache line */
	__u64 key[FLOW_FRONT];
	__u64 rule[FLOW_CHAIN];
};

/* Flows seen once, by bits of their hash: the low bits of it, 0 for none. One cache line of them. */
#define FLOW_TAGS 32
struct flow_tags {
	__u16 tag[FLOW_TAGS];
};

struct flow_count {
	__u64 packets;
	__u64 bytes;
};

/* What is in a packet and where; offsets are 0 where it has no such header, or not all of it. */
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
	__u8  unseen;		/* 1: headers lie further in than the program looks */
	__u8  pad;
};

#define FLOW_FARTHEST	0x3ff	/* no header is looked for beyond */
#define FLOW_OFFSET_MASK 0x7ff

/* What goes to user space with a packet: this, and as many of its bytes. */
enum flow_notice_reason {
	NOTICE_ACTION = 1,	/* a rule says so */
	NOTICE_TTL    = 2,	/* the TTL ran out */
	NOTICE_SLOW   = 3,	/* user space does what the rules say */
};

struct flow_notice {
	__u32 rule;		/* whose steps say so; 0: NOTICE_SLOW */
	__u32 frame_bytes;	/* of the whole frame */
	__u32 bytes;		/* that follow; behind them the record is padded */
	__u16 port;		/* port id it came in by */
	__u8  reason;		/* enum flow_notice_reason */
	__u8  pad;
	__u64 metadata;		/* network order; not of NOTICE_SLOW */
	__u64 tunnel_id;	/* the same */
};

/* A record's length is a word of 16 bits, and its own header takes some. */
#define FLOW_NOTICE_BYTES 65024

/* What the program works on, one row per CPU. */
struct flow_scratch {
	struct flow_key key;
	struct flow_key masked;		/* under the union */
	__u64 hash;			/* of the masked key */
	__u64 rule[FLOW_RULES];		/* those that decide: generation << 32 | rule, 0 after the last */
	__u64 decision[FLOW_RULES];	/* their words from `kind` on, read once */
	__u64 best_precedence;		/* of the rule found so far: priority, rank of its mask; + 1, so that 0 is none */
	__u32 best;
	__u32 doing;			/* the rule whose steps are being done, */
	struct flow_layout layout;
	__u16 verdict;			/* enum flow_verdict */
	__u16 port;			/* where it leaves: port id or set */
	__u16 in_port;			/* port id */
	__u8  multi_buffer;
	__u8  set_from;			/* the first rule whose part of the action set counts */
	__u8  passed;			/* and how many rules have changed the packet's fields for it */
	__u8  pad[3];
	__u32 turn;			/* which way of a full set the next flow takes */
	__u64 tunnel_id;		/* network order */
	__u64 hits;
	__u64 misses;
	struct flow_notice notice;	/* being sent */
} __attribute__((aligned(64)));	/* no line is another CPU's too */
