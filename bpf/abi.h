/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The layout of the maps that the kernel plane and user space share. flow_abi.h has those of flow rules, and path_abi.h
 * those of paths. Rust gets these types from BTF (libbpf-cargo skeleton). router/src/abi.rs asserts that logic's
 * encodings agree with them.
 *
 * Who writes what
 *   user space writes: port_index, tx_ports, rule_ports, interface_index, routers, firewalls, interface_groups, fib, fib_tails,
 *   nexthops, neighbour_index, queues, control, most of connections, share.admit and share.own_admit
 *   the program writes: the rest of a share, counters, charges, policers, flow_samples, candidates, nexthop.used;
 *   millrace_explain writes only trace
 * Words that user space changes while packets run are aligned and written whole (u32 or u64), so a reader sees the old
 * or the new value. An entry is published when its id is stored in a fib slot or an index. From then on everything else
 * in it is constant, until a grace period after the last reference to it is gone.
 */
#pragma once

#define PORT_INDEX_SIZE   4096	/* slots of port_index; a port sits at ifindex & (PORT_INDEX_SIZE - 1) */
#define MAX_PORTS         64
#define MAX_ROUTERS       256
#define MAX_REASONS       64
#define LOCAL_FILTER_BITS 2048
#define MAX_TRACE_STEPS   32

/* --- ports ------------------------------------------------------------------------------------------------------- */

enum port_flags {
	PORT_READY = 1,		/* trusted: packets from it may be accelerated */
	PORT_NO_RECV = 2,	/* flow rules drop packets from it (OFPPC_NO_RECV) */
	PORT_HANDS_OVER = 4,	/* packets from it may be handed to another core */
	PORT_SPLITS = 8,	/* it has a queue whose flows are shared among cores */
};

struct port {			/* one word, read and written whole */
	__u32 ifindex;		/* 0: empty slot */
	__u16 id;		/* 0..MAX_PORTS-1: slot of tx_ports, and its row in charges (MAX_ROUTERS + id) */
	__u16 flags;		/* enum port_flags */
};

/* --- VLAN key ---------------------------------------------------------------------------------------------------- */

/*
 * The tags of a frame as one word, 0 = untagged. Bits 0..11 outer VID, bit 12 outer is 802.1ad (else 802.1Q), bit 13
 * outer present; bits 16..27 inner VID, bit 28 inner is 802.1ad, bit 29 inner present. Priority and DEI are not part.
 */
#define VLAN_VID	0x0fff
#define VLAN_AD		0x1000
#define VLAN_PRESENT	0x2000
#define VLAN_INNER_SHIFT 16

/* --- interfaces: (port, VLAN, destination MAC) -> interface, router ----------------------------------------------- */

enum interface_flags {
	IF_IPV4        = 1,	/* IPv4 of this interface is accelerated */
	IF_IPV6        = 2,
	IF_RPF_LOOSE   = 4,	/* RFC 3704 loose: the source must be reachable by a unicast route */
	IF_RPF_STRICT  = 8,	/* strict: ... through this interface */
	IF_REDIRECTS   = 16,	/* Linux may send IPv4 redirects here */
	IF_ACCEPT_LOCAL = 32,	/* accept_local: the kernel decides on sources that are the router's own */
	IF_PRIORITY_TAGS = 64,	/* untagged, and takes frames with the tag of VLAN 0 */
	IF_LOOK_AT_SOURCES = 128,	/* the router has local prefixes: local4 does not know all of its own addresses */
};

/* Two words. The second, from `vlan` on, is 0 in an empty slot, and while the first one changes. */
struct interface_slot {
	__u8  mac[6];
	__u16 port;		/* port id */
	__u32 vlan;		/* VLAN key */
	__u16 interface;	/* 1..; 0: empty */
	__u8  router;
	__u8  flags;		/* enum interface_flags */
};

#define INTERFACE_WAYS 4

/* One cache line. A key sits in bucket h or, when h is full, in bucket h ^ 1. */
struct interface_bucket {
	struct interface_slot slot[INTERFACE_WAYS];
};

/* --- routers ----------------------------------------------------------------------------------------------------- */

enum router_flags {
	ROUTER_MULTIPATH_L4_IPV4 = 1,	/* fib_multipath_hash_policy 1: the 5-tuple; else addresses only */
	ROUTER_MULTIPATH_L4_IPV6 = 2,
	ROUTER_RULES_IPV4 = 4,		/* rules of its firewall may affect some packets: see `firewalls` */
	ROUTER_RULES_IPV6 = 8,
	ROUTER_CONNECTIONS = 16,	/* it may have rows in `connections` */
};

/*
 * fib4, fib6: root of the router's table: bits 0..31 first block, bits 32..39 root shift; 0: no table. A lookup starts
 * at block first + (address >> shift) with the next 8 address bits as its slot. With W = 32 or 128 address bits the
 * root spans 2^(W - shift) blocks: shift W is an 8-bit root of one block, W - 8 a 16-bit root of 256 blocks, and for
 * IPv4 W - 16 a 24-bit root of 65,536 blocks (DIR-24-8: Gupta, Lin, McKeown, INFOCOM 1998).
 */
struct router {
	__u64 fib4;
	__u64 fib6;
	__u32 flags;		/* enum router_flags */
	__u32 pad;
	__u64 multipath_key[2];	/* of multipath.h */
	__u64 pad2[3];
	/* Bloom filter (one hash) of the router's own IPv4 addresses. Such a source is checked (fib_validate_source). */
	__u64 local4[LOCAL_FILTER_BITS / 64];
};

/* --- rules of firewalls ------------------------------------------------------------------------------------------- */

#define FIREWALL_GROUPS	    16	/* of interfaces: interface_groups[interface]; the rules of a router treat a group alike */
#define FIREWALL_EXCEPTIONS 16

/* What holds for packets from one group to another. */
enum pair {
	PAIR_LINUX = 0,		/* Linux decides */
	PAIR_FREE = 1,		/* no rule affects them */
	PAIR_FREE_EXCEPT = 2,	/* the same, except to packets with a source or destination in `range` */
};

/* host byte order; IPv4 in the low half */
struct firewall_range {
	__u64 low_hi, low_lo;
	__u64 high_hi, high_lo;
};

/*
 * firewalls[router]; logic::firewall proves the contents. A reader discards what it has read if `changes` is odd, or if it
 * changed during the read.
 */
struct firewall {
	__u64 pairs[2][FIREWALL_GROUPS];	/* IPv4, IPv6: a word per ingress group, with 4 bits (enum pair) per egress group */
	struct firewall_range range[2][FIREWALL_EXCEPTIONS];
	__u64 ranges_used[2];	/* a bit for each range that is in use */
	__u64 changes;		/* incremented before and after each change of the other words */
	__u64 generation;	/* of the rules: rows of `connections` with another one are void; 0: all are */
	__u64 pad[4];
};

/* --- connections ------------------------------------------------------------------------------------------------- */

/*
 * One direction of a connection that conntrack tracks and that all rules accept; NAT included.
 *
 * The rows are a hash table in blocks of 8. The hash of a key names a block h and a row of it. A search begins at this
 * row, goes around the block, and then does the same in block h ^ 1. It ends at an empty row, whose first word is 0.
 * A row belongs to a key if it has the key's words, and CONNECTION_GONE is not set.
 *
 * While packets may use a row, only these change: CONNECTION_GONE, the word of `generation` and `until`, `ended`, and
 * the counts.
 *
 * A direction of IPv4 takes one row, which is one cache line. A direction of IPv6 takes a second row, in one of the two
 * blocks: struct connection6_rest.
 */
struct connection4 {
	__u32 source, destination, new_source, new_destination;		/* as loaded */
	__u64 packets, bytes;	/* forwarded; bytes of IP packets. Written by the program */
};

struct connection6 {
	__u64 source[2], destination[2];	/* as loaded */
};

union connection_family {
	struct connection4 v4;
	struct connection6 v6;
};

struct connection {
	/* The first word. */
	__u32 ports;		/* as loaded: source, destination */
	__u8  protocol;		/* TCP or UDP; CONNECTION_REST: this is a struct connection6_rest */
	__u8  router;
	__u8  version;		/* 0: IPv4, 1: IPv6 */
	__u8  state;		/* enum connection_state */
	/* The second word. */
	__u16 ingress, egress;	/* interfaces; packets that take another way go to the kernel */
	__u32 other;		/* the row of the other direction */
	/* The third word, which is written whole. */
	__u32 generation;	/* firewalls[router].generation of the proof */
	__u32 until;		/* jiffies >> CONNECTION_UNTIL_SHIFT: before this, the kernel does not forget the connection */
	__u32 ended;		/* the flags SYN, FIN and RST that the program has seen. It writes them, for both directions */
	__u32 rest;		/* IPv4: the new ports; IPv6: the row of struct connection6_rest */
	union connection_family family;
};

enum connection_state {
	CONNECTION_NEW_SOURCE = 1,	/* NAT changes only the source */
	CONNECTION_NEW_DESTINATION = 2,	/* NAT changes the destination, and maybe the source */
	CONNECTION_TRANSLATED = 3,	/* the bits of both */
	CONNECTION_GONE = 128,		/* removed; packets that found the row earlier may still use it */
};

struct connection6_rest {
	__u32 zero;
	__u8  protocol;		/* CONNECTION_REST */
	__u8  zeros[3];
	__u32 new_ports, pad;
	__u64 new_source[2], new_destination[2];
	__u64 packets, bytes;	/* as in struct connection4, and at the same offset */
};

#define CONNECTION_WAYS 8	/* rows of a block */
#define CONNECTION_REST 255
#define CONNECTION_UNTIL_SHIFT 6

/*
 * A connection whose packets go to the kernel because of rules. It may become fast, so user space asks the kernel about it.
 * connection_counts[router] is the number of notes since user space last looked; row MAX_ROUTERS + router counts those with
 * egress 0. Read byte by byte in logic/src/connections/note.rs.
 */
struct connection_note {
	__u64 source[2], destination[2];	/* as in struct connection */
	__u32 ports;
	__u8  protocol;
	__u8  router;
	__u8  version;
	__u8  pad;
	__u16 ingress, egress;		/* egress 0: not known; the destination is an address of the router */
	__u32 pad2;
};

#define CONNECTION_NOTES 256	/* the most notes of a router between two looks */
#define LOCAL_NOTES 16		/* the same for notes with egress 0 */
#define CONNECTION_RING_BYTES (1 << 20)
#define LOCAL_CANDIDATES 2048	/* rows of `candidates` for each CPU, for packets to addresses of the router */
/* A row: high 32 bits of a connection's hash, the time of its last packet in units of 2^30 ns, and its packets. */
#define CANDIDATE_COUNT_BITS 20
#define CANDIDATE_COUNT ((1U << CANDIDATE_COUNT_BITS) - 1)
#define CANDIDATE_TIME ((1U << (32 - CANDIDATE_COUNT_BITS)) - 1)

/* --- forwarding table: a multibit trie of 8-bit strides, leaf-pushed ----------------------------------------------- */

/* A slot: two bits of kind, thirty of index. Slot 0 (kind FIB_NEXTHOP, index 0) is "no route". */
enum fib_kind {
	FIB_NEXTHOP = 0,	/* index into nexthops */
	FIB_GROUP   = 1,	/* a fib block: bounds of hashes in order, then as many slots, each FIB_NEXTHOP */
	FIB_CHILD   = 2,	/* a fib block for the next 8 address bits */
	FIB_TAIL    = 3,	/* index into fib_tails: all longer prefixes below this slot begin alike */
};
#define FIB_KIND_SHIFT 30
#define FIB_INDEX_MASK ((1U << FIB_KIND_SHIFT) - 1)
#define FIB_SLOTS 256
#define GROUP_MEMBERS (FIB_SLOTS / 2)	/* the most members that a group can have */

struct fib_block {
	__u32 slot[FIB_SLOTS];
};

/*
 * Path compression: does the address match this prefix? IPv4 prefixes sit in the top 32 bits of hi. Where several longer
 * prefixes begin with the same octets, `match` is a FIB_CHILD block for the 8 address bits after `length`, which is then
 * a multiple of 8.
 */
struct fib_tail {
	__u64 hi, lo;		/* prefix, host byte order, bits beyond length zero */
	/* slots: FIB_NEXTHOP or FIB_GROUP; match also FIB_CHILD. Change in place: user space stores both as one u64 */
	__u32 match, miss;
	__u32 length;		/* prefix length, 1..128 */
	__u32 pad;
};

/* --- next hops --------------------------------------------------------------------------------------------------- */

enum nexthop_kind {
	NEXTHOP_PASS   = 0,	/* to the kernel, with `reason` */
	NEXTHOP_ONLINK = 1,	/* destination is a neighbour on `interface`: look (interface, destination) up */
	NEXTHOP_VIA    = 2,	/* send to `link` */
};

enum nexthop_flags {
	NEXTHOP_UNICAST = 1,	/* a unicast route: sources may be behind it (reverse path filter) */
	NEXTHOP_FRAGS   = 2,	/* the egress port transmits multi-buffer frames */
	NEXTHOP_LOCAL   = 4,	/* an address or prefix of the router itself, or a broadcast address: a source to check */
};

/*
 * Two words of a published next hop change in place, each stored whole (u64): `link`, and word 3 from `interface` to
 * `family`. Only `reason` and `flags` of word 3 change. A reader may see one word new and the other old.
 */
struct nexthop {		/* 64 bytes, one cache line */
	__u64 link;		/* bytes 0..5 destination MAC, in memory order; 0: unresolved */
	__u64 source_port;	/* bytes 0..5 source MAC, in memory order; bytes 6..7 egress port id */
	__u32 vlan;		/* egress tags, VLAN key */
	__u32 mtu;		/* longest IP packet, bytes */
	__u16 interface;	/* word 3 begins: egress interface id; 0: none */
	__u8  kind;		/* enum nexthop_kind */
	__u8  reason;		/* for NEXTHOP_PASS, and for NEXTHOP_VIA with link 0 */
	__u8  flags;		/* enum nexthop_flags */
	__u8  family;		/* 4 or 6: what `address` holds */
	__u16 pad;
	__u8  address[16];	/* neighbour's address, network byte order, IPv4 in the first 4 bytes, rest 0 */
	__u32 used;		/* set to 1 by the program when it forwards through it; cleared by user space */
	__u32 pad2[3];
};

/* --- neighbours on connected prefixes: (interface, address) -> next hop --------------------------------------------- */

#define NEIGHBOUR_WAYS 8

/* A slot: high 32 bits hash tag, low 32 bits next hop id; 0: empty. A key sits in bucket h or, when full, in h ^ 1. */
struct neighbour_bucket {
	__u64 slot[NEIGHBOUR_WAYS];
};

/* --- queues: (port, RX queue, destination) -> next hop --------------------------------------------------------------- */

#define MAX_QUEUES 64		/* the first so many RX queues of a port have rows */
#define QUEUE_WAYS 8		/* rows of a queue: four IPv4 destinations, then four of IPv6, by their last byte */
#define QUEUE_FAMILY_WAYS 4

/*
 * The tables' result for one destination, for flows that the NIC's classifier steers to a queue of their next hop
 * (Q3, Q4): queues[(port id * MAX_QUEUES + queue) * QUEUE_WAYS + way]. The queue selects the row, and the packet is
 * compared with it, so a stray packet never takes it. Every change of the tables' result rewrites the row. `version` is
 * 0 while the other fields change, and has no value twice. So fields that are read between two equal versions belong
 * together.
 */
struct queue_row {		/* one cache line */
	__u64 version;		/* 0: empty */
	__u64 mac_port;		/* this and `slot`: the two words of struct interface_slot of the ingress interface */
	__u64 slot;
	__u64 lo, hi;		/* destination, network byte order as loaded; IPv4 in the low 4 bytes of lo */
	__u32 nexthop;		/* a NEXTHOP_VIA */
	__u32 mtu;		/* longest IP packet of a connected route, bytes; of other routes, that of the next hop */
	__u64 pad[2];
};

/* One of sample_mask + 1 forwarded packets. User space decides by these samples which flows to steer. */
struct flow_sample {
	__u64 source[2], destination[2];	/* lo, hi as above */
	__u32 ports;		/* of TCP and UDP, as loaded: source, destination; 0 in a fragment */
	__u32 frame_bytes;
	__u16 interface;	/* ingress interface */
	__u8  port;		/* id of the ingress port */
	__u8  protocol;
	__u8  family;		/* 4 or 6 */
	__u8  pad[3];
};

#define FLOW_SAMPLES 1024

/* A ring of the latest samples; one row per CPU. */
struct flow_samples {
	__u64 count;		/* samples ever taken; the next goes to entry count & (FLOW_SAMPLES - 1) */
	__u64 pad[7];
	struct flow_sample sample[FLOW_SAMPLES];
};

/* --- packets on other cores --------------------------------------------------------------------------------------- */

/* The place of a flow that is handed to another core, or may be. It changes only by compare and exchange. */
#define PLACE_CORE   0xffff	/* these bits: its core + 1; 0: a new flow */
#define PLACE_FIRST  0x10000	/* a priority flow */
#define PLACE_HANDED 0x20000	/* its last packet went through that core's queue */
#define PLACE_LEAVES 0x40000	/* its packets are dropped until those in that queue are done; split queues only */
#define PLACE_JIFFIES_SHIFT 32	/* bits from here on: about the tick of its last packet */

/*
 * A queue whose flows are shared among cores. The hash of a flow selects a bucket, and each bucket is on one core.
 * split_index[port id * MAX_QUEUES + queue] is the queue's row of split_queues + 1, or 0.
 */
#define SPLIT_BUCKETS 64
#define SPLIT_QUEUES 64
struct split_bucket {
	__u64 place;
	__u64 to;		/* the core that it should be on, + 1; 0: the core that receives it */
	__u64 poll;		/* `polls` of the receiving core, at the last packet that stayed there, or POLL_UNKNOWN */
	__u64 pad;
};
/* The last packet that stayed is not known. Packets of the bucket may still be on their way. */
#define POLL_UNKNOWN (~0ULL)

/*
 * Packets look for rows only while their port has PORT_SPLITS. A row may be prepared for a whole queue. Its buckets then
 * stay until the queue's core falls behind: spill.h sets the cores of the next step, and PORT_SPLITS. helped_napis[row]
 * is 0 if nobody helps. Otherwise it is the queue's NAPI instance, and from bit 32 on the core that polls it, + 1.
 */
#define HELP_STEPS 3
struct split_queue {
	struct split_bucket bucket[SPLIT_BUCKETS];
	__u64 port;		/* the port's row of port_index, and its id << 32 */
	__u64 steps;		/* how many steps are prepared, at most HELP_STEPS */
	__u64 step;		/* how many of them were taken; spill.h counts up */
	__u64 after;		/* at least: full polls before the first step; polls of the core between two steps */
	__u64 stepped;		/* `watched_polls` of the core at the last step */
	__u16 to[HELP_STEPS][SPLIT_BUCKETS];	/* the core of each bucket after each step, + 1 */
};

/* The most packets that can wait for a core in one CPU map. */
#define CORE_QUEUE_PACKETS 2048

/*
 * The queue of a core in one CPU map: counts of its packets, and the flows that are given to it. Each writer has a cache
 * line. core_queues[core] belongs to rule_cores, core_queues[cores + core] to split_cores.
 */
struct core_queue {
	/* Written by all cores that hand over, atomically. */
	__u64 handed;		/* packets handed to this core */
	__u64 dropped;		/* those of them that its queue did not take */
	__u64 given;		/* flows given to this core, except priority flows */
	__u64 given_first;	/* priority flows given to it */
	__u64 pad[4];
	/* Written by its thread. */
	__u64 done;		/* packets that left the queue and were sent, passed or dropped */
	__u64 drained_jiffies;	/* all packets that were handed over before this tick are done */
	__u64 before_jiffies;	/* the next value of drained_jiffies, valid once `done` reaches `mark` */
	__u64 mark_jiffies;	/* when `mark` was set */
	__u64 mark;		/* `handed` - `dropped` at that time */
	__u64 pad2[3];
	/* Written by user space; the program counts both down. */
	__u64 leave;		/* flows that may go to other cores, except priority flows */
	__u64 leave_first;	/* priority flows that may */
	__u64 pad3[6];
};

/* --- policy ------------------------------------------------------------------------------------------------------- */

/*
 * policy[router]: the number of policy changes that user space has not read yet. While it is not 0, packets of that
 * router go to the kernel. policy.bpf.c adds to it, and user space sets it to 0 by compare and exchange. policy_slots
 * shows what to read. It has a row for the namespace of each router, by the router's number, and one for the host's.
 */
#define POLICY_HOST  MAX_ROUTERS
#define POLICY_SLOTS (MAX_ROUTERS + 1)

struct policy_slot {
	__u64 pending;		/* changes since user space last began to read; it sets this to 0 */
	__u64 early_ns;		/* CLOCK_MONOTONIC, of the last change that was seen before it was made */
	__u64 router;		/* the router of this namespace, + 1; 0: none. Written by user space */
	__u64 all;		/* all changes so far that concern all routers; in the host's row only */
	__u64 no_device_chains;	/* 1: no chain of the host is bound to a device. A new chain sets it to 0; in the host's row only */
};

/*
 * ICMP errors (learned.h). learned_counts holds the number of errors of each router since user space last looked. Only
 * the first LEARNED_NOTES of them are noted, so a flood to one router hides no error to another. The ring has room for
 * twice as many notes as all routers can have.
 */
#define LEARNED_NOTES	   16
#define LEARNED_RING_BYTES (2 * MAX_ROUTERS * LEARNED_NOTES * (8 + sizeof(struct learned_note)))

/* The destination that an ICMP error to a router is about. Read byte by byte in router/src/plane/icmp_errors.rs. */
struct learned_note {
	__u32 router;
	__u32 family;		/* 4 or 6 */
	__u8  address[16];	/* network byte order, IPv4 in the first 4 bytes, rest 0 */
};

/* --- control, counters, charges ----------------------------------------------------------------------------------- */

/*
 * The heartbeat. The program compares jiffies, because reading them is one load, and reading a clock is a call
 * (measured: 13 ns of 70 for the coarse clock). User space gets the time in jiffies from millrace_clock.
 */
struct control {
	__u64 deadline_ns;	/* CLOCK_MONOTONIC; for people and other daemons */
	__u64 deadline_jiffies;	/* the same moment; past it, every packet goes to the kernel */
	__u64 jiffies;		/* written by millrace_clock when it is run */
	__u64 counts_losses;	/* 1: this generation is in charge of losses.h */
	__u64 rules_deadline_jiffies;	/* past it, flow rules only drop (rules_keep_drops); the rest goes to the kernel */
	__u64 core_map;		/* kernel's id of this generation's rule_cores; 0: none */
	__u64 shares_deadline_jiffies;	/* shares are in force until then; 0: they are not */
	__u64 split_map;	/* the same for split_cores */
	__u64 rules_keep_drops;	/* 1: flow rules drop packets even past their deadline */
	__u64 connections_deadline_jiffies;	/* from then on, no row of `connections` is valid */
};

/*
 * A router's share of a full core: shares[cpu * MAX_ROUTERS + router]. logic::share decides it. `admit` of 2^32 packets
 * are carried out, evenly: each packet adds `admit` to `credit`, and is carried out if that overflows.
 */
struct share {			/* half a cache line */
	__u32 admit;		/* of packets to be forwarded; 0: all */
	__u32 credit;
	__u32 own_admit;	/* of packets for the router itself; 0: all */
	__u32 own_credit;
	__u64 packets;		/* all that came while shares were in force */
	__u64 own_cut;		/* packets for the router itself that were cut */
};

/*
 * One row per (CPU, interface): counters[cpu * interface_rows + interface]. Row 0 of a CPU is not an interface's: it
 * counts all packets of that CPU.
 */
struct interface_counters {
	__u64 other_packets;	/* classified to this interface and not forwarded (row 0: all packets) */
	__u64 other_bytes;
	__u64 tx_packets;	/* redirected out through this interface */
	__u64 tx_bytes;
	__u64 samples;		/* received and forwarded packets that were timed */
	__u64 sample_ns;	/* the time that these took, entry to verdict (transmit excluded) */
	__u64 forwarded_packets;	/* received here and redirected */
	__u64 forwarded_bytes;
};

/*
 * One row per (CPU, payer): charges[cpu * CHARGE_ROWS + payer]. The payer is the router that the packet was classified
 * to, else its port (MAX_ROUTERS + port id). The last row is for devices that are not ports.
 */
#define CHARGE_ROWS (MAX_ROUTERS + MAX_PORTS + 1)

struct charges {
	__u64 packets[MAX_REASONS];	/* by enum reason */
};

/* A token bucket: credit in nanoseconds, a packet costs 1/rate. */
struct bucket {
	__u64 last_ns;		/* CLOCK_MONOTONIC, when credit was last added */
	__u64 credit_ns;
};

/* Limits what one (CPU, payer) passes up; same rows as charges. */
struct policer {
	struct bucket exception;
	struct bucket control;
	__u64 all_packets;	/* all packets of the CPU up to the last one of class slow */
	__u64 others_jiffies;	/* the last time that other packets came between two of class slow */
	__u64 pad[2];
};

enum reason {
#define REASON(name, class, text) REASON_##name,
#include "reasons.h"
#undef REASON
	REASON_COUNT,
	REASON_NONE = 255,	/* forwarded */
};

/* --- explain ------------------------------------------------------------------------------------------------------ */

/* The steps that the program took. Only millrace_explain writes them. */
enum trace_step {
	TRACE_PORT = 1,		/* a: port id, b: ready */
	TRACE_PARSED,		/* a: VLAN key, b: EtherType */
	TRACE_INTERFACE,	/* a: interface, b: router */
	TRACE_IPV4,		/* a: source, b: destination (host byte order) */
	TRACE_IPV6_SOURCE,	/* a: high, b: low */
	TRACE_IPV6_DESTINATION,	/* a: high, b: low */
	TRACE_SOURCE_CHECK,	/* a: slot found for the source, b: 1 if accepted */
	TRACE_FIB_BLOCK,	/* a: block, b: slot value */
	TRACE_FIB_TAIL,		/* a: length of its prefix, b: slot value chosen */
	TRACE_GROUP,		/* a: multipath hash, b: slot value chosen */
	TRACE_NEXTHOP,		/* a: next hop id, b: kind */
	TRACE_NEIGHBOUR,	/* a: next hop id, 0 if none; b: interface */
	TRACE_TRANSMIT,		/* a: port id, b: VLAN key */
	TRACE_VERDICT,		/* a: enum reason, b: XDP action */
	TRACE_PATH,		/* a: path, b: why no worker gets the packet, or REASON_NONE */
	TRACE_RULES,		/* a: the groups where it comes in (bits 0..7) and leaves (8..15); b: enum pair */
	TRACE_CONNECTION,	/* a: row of its connection + 1; 0: none */
};

struct trace {
	__u32 count;
	__u32 pad;
	struct {
		__u32 step;	/* enum trace_step */
		__u32 pad;
		__u64 a, b;
	} entry[MAX_TRACE_STEPS];
};

/* --- captures (capture.h) ----------------------------------------------------------------------------------------- */

#define CAPTURE_HEAD_BYTES	128	/* forwarding changes nothing after these */
#define CAPTURE_FRAME_BYTES	9216
#define CAPTURE_RING_BYTES	8388608
#define SAMPLE_RING_BYTES	1048576
#define CAPTURE_FILTER_ROOM	2048	/* instructions of a filter */
#define CAPTURE_FILTER_MARK	1836213104
#define CAPTURE_NO_PORT		0xffff

enum capture_why {
	CAPTURE_MATCHED = 1,	/* it belongs to the capture */
	CAPTURE_SAMPLED = 2,	/* it is one of sample_every packets */
	CAPTURE_UNSURE = 4,	/* it may belong to it as it leaves */
	CAPTURE_IF_CHANGED = 8,	/* the same, if more than routing changes it */
	CAPTURE_OVER_RATE = 16,	/* the filter matched, but the rate is used up in this tick */
};

/* User space writes it before a program with `capture` is attached. */
struct capture_control {
	__u64 capturing;	/* there is a capture */
	__u64 ports;		/* bits: ports where its packets come in or leave */
	__u64 reasons[2];	/* bits: enum reason; bit MAX_REASONS: forwarded */
	__u64 router;		/* + 1; 0: any or none */
	__u64 most_bytes;	/* of a frame */
	__u64 cost_ns;		/* time for each packet, per CPU */
	__u64 burst_ns;		/* the most time that is saved up */
	__u64 sample_every;	/* packets; 0: none is sampled */
	__u64 filter_once;	/* routing alone cannot make a packet match: the filter does not run again */
};

/* A packet. A record of the ring ends after the used part of `frame`. */
struct capture_record {
	__u64 time_ns;		/* CLOCK_MONOTONIC */
	__u64 in_data;		/* where the frame began as it came in, and as it left: only their distance has a meaning */
	__u64 out_data;
	__u32 in_bytes;		/* of the whole frame, as it came in */
	__u32 out_bytes;	/* as it left, or where the program stopped */
	__u32 frame_bytes;	/* of `frame`; 0 for samples */
	__u32 ahead;		/* for samples: packets that came since the last one, including this one */
	__u16 in_port;		/* port ids, or CAPTURE_NO_PORT */
	__u16 out_port;
	__u16 head_bytes;	/* of `head` */
	__u8 _unused;
	__u8 reason;		/* enum reason */
	__u16 core;		/* to which it was handed, + 1 */
	__u8 router;
	__u8 has_router;
	__u32 cpu;
	__u8 head[CAPTURE_HEAD_BYTES];	/* its first bytes as it came in; none if it matched only as it left */
	__u8 frame[CAPTURE_FRAME_BYTES];	/* as it left, or where the program stopped */
};

/* The memory of a filter: 16 words of classic BPF, and the frame's length. The programs have no room for it on the stack. */
struct capture_cells {
	__u32 word[17];
	__u32 pad;
};

/* Each CPU has one. */
struct capture_row {
	struct bucket bucket;
	__u64 skip;		/* packets until the next sample */
	__u64 interval;		/* between the last sample and the next one */
	__u64 over_rate;	/* packets that were not captured, because of cost_ns */
	__u64 used_up_tick;	/* the tick (jiffies) in which the rate was used up: no more packets are captured in it */
	__u64 no_room;		/* the ring was full */
	__u64 samples_lost;	/* the ring of samples was full */
	struct capture_cells cells;
	struct capture_record record;
};
