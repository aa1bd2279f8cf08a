/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Splits a queue that is too much for one core: several cores share its flows, by the hash of addresses, protocol and
 * ports. The receiving core does its own share. It hands over packets of the rest that are to be forwarded, and the other
 * core does all of forward() for them. User space decides on which core each bucket of flows should be. The bucket moves
 * there when none of its packets can still wait in the old core's queue.
 */
#pragma once

enum split_fate {
	SPLIT_DROPPED = -1,	/* values from 1 on: the core to which the packet is handed, + 1 */
	SPLIT_STAYS,
};

/*
 * Is this the first packet of a bucket in a poll of the receiving core, where the bucket stays? Then the packets before it
 * have left: none waits in a bulk for a TX queue any more.
 */
static __always_inline bool begins_poll(struct split_bucket *b, __u32 cpu)
{
	const struct backlog *own = ROW(backlogs, cpu);
	__u64 before = *(volatile __u64 *)&b->poll;
	__u64 polls = own ? *(volatile const __u64 *)&own->polls : before;

	*(volatile __u64 *)&b->poll = polls;
	return before != polls && before != POLL_UNKNOWN;
}

/* Do so many packets wait for a core that its queue is likely to be full? */
static __always_inline bool is_crowded(const struct core_queue *q)
{
	volatile const struct core_queue *now = q;

	return (__s64)(now->handed - now->done - now->dropped) > CORE_QUEUE_PACKETS / 4 * 3;
}

/*
 * For the first packet in a tick of a bucket that is on another core, or was received by one. The bucket leaves that core
 * when none of its packets can wait there any more. If the queue there does not run empty, this would never happen. Then the
 * bucket's packets are dropped until it can leave, for some milliseconds. rows: the first row of core_queues of the CPU map.
 */
static __always_inline int move_bucket(struct split_bucket *b, __u64 word, __u32 cpu, __u32 rows, __u32 now)
{
	__u64 wanted = *(volatile __u64 *)&b->to;
	__u32 core = word & PLACE_CORE, to = wanted ? : cpu + 1, handed_at = word >> PLACE_JIFFIES_SHIFT;
	struct core_queue *q = ROW(core_queues, rows + core - 1);
	bool waits = word & PLACE_HANDED;

	if (!waits || (q && queue_is_past(q, handed_at))) {
		core = to;
		waits = core - 1 != cpu;
	} else if (core != to && (word & PLACE_LEAVES || (q && is_crowded(q)))) {
		if (!(word & PLACE_LEAVES))
			put_place(&b->place, word, core, true, PLACE_LEAVES, handed_at);
		return SPLIT_DROPPED;
	}
	return handed_to(put_place(&b->place, word, core, waits, 0, now), cpu);
}

/* The core to which a packet must be handed, + 1, or an enum split_fate. queue: port id * MAX_QUEUES + index. */
__noinline int split_core(__u32 queue, __u32 hash, __u32 cpu, __u32 rows)
{
	const __u64 *row = ROW(split_index, queue);
	struct split_queue *s = row && *row ? ROW(split_queues, (__u32)*row - 1) : NULL;
	struct split_bucket *b = s ? &s->bucket[hash & (SPLIT_BUCKETS - 1)] : NULL;
	__u32 now = bpf_jiffies64();

	if (!b)
		return SPLIT_STAYS;
	__u64 word = *(volatile __u64 *)&b->place, to = *(volatile __u64 *)&b->to;
	__u32 core = word & PLACE_CORE ? : cpu + 1;
	int fate = handed_to(word, cpu);

	if (core - 1 == cpu && !(word & PLACE_HANDED)) {
		bool may_leave = begins_poll(b, cpu);

		fate = !to || to == core || !may_leave ? SPLIT_STAYS :
		       handed_to(put_place(&b->place, word, to, true, 0, now), cpu);
	} else if (place_is_due(word, now, cpu)) {
		fate = move_bucket(b, word, cpu, rows, now);
		if (fate == SPLIT_STAYS)
			begins_poll(b, cpu);
	}
	return fate;
}

/* Returns what happens to a packet of a split queue. Hands it over, unchanged, if it belongs on another core. */
#define SPLIT(p_, hash_, map_, rows_) ({							\
	__u32 queue__ = (p_)->ctx->rx_queue_index;						\
	int fate__ = queue__ < MAX_QUEUES ?							\
		split_core((p_)->port * MAX_QUEUES + queue__, hash_, (p_)->cpu, rows_) : SPLIT_STAYS; \
												\
	if (fate__ > 0 && bpf_redirect_map(&map_, fate__ - 1, 0) == XDP_REDIRECT)		\
		count_handed((rows_) + fate__ - 1);						\
	else if (fate__ > 0)									\
		fate__ = SPLIT_STAYS;								\
	fate__;											\
})

/* The ports of TCP and UDP; 0 if there are none, or if the program cannot see them. */
static __always_inline __u32 split_ports(const void *header, const void *end, __u8 protocol)
{
	const __u32 *ports = header;

	return (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP) && (const void *)(ports + 1) <= end ? *ports : 0;
}

static __always_inline __u32 split_hash4(const struct ipv4 *ip, const void *end)
{
	bool whole = !(ip->fragment & bpf_htons(IPV4_FRAGMENT));
	__u64 ports = whole ? split_ports(ip + 1, end, ip->protocol) : 0;

	return mix(((__u64)ip->source << 32 | ip->destination) ^ (ports << 8 | ip->protocol) * K1) >> 32;
}

static __always_inline __u32 split_hash6(const struct ipv6 *ip, const void *end)
{
	__u64 rest = ip->next_header | (__u64)split_ports(ip + 1, end, ip->next_header) << 8;
	__u64 folded = (ip->source[0] ^ ip->source[1] * K1) * K2 ^ (ip->destination[0] ^ ip->destination[1] * K2) * K1;

	return mix(folded ^ rest * K1) >> 32;
}

/* The flow's hash. Returns false if the packet is not IP, or its header is not whole. */
static __always_inline bool split_hash(const struct packet *p, __u32 *hash)
{
	const void *header = packet_data(p) + p->ip_offset, *end = packet_end(p);
	const struct ipv4 *v4 = header;
	const struct ipv6 *v6 = header;

	if (p->ether_type == ETH_P_IP && (const void *)(v4 + 1) <= end)
		*hash = split_hash4(v4, end);
	else if (p->ether_type == ETH_P_IPV6 && (const void *)(v6 + 1) <= end)
		*hash = split_hash6(v6, end);
	else
		return false;
	return true;
}

/* The packet's kind. This is a separate function, so that packets of other queues do not pay for its registers. */
__noinline int split_kind(struct xdp_md *ctx, __u32 row, __u32 ether_type, __u32 offset)
{
	const struct router *router = ROW(routers, row & (MAX_ROUTERS - 1));

	return router ? kind_of(ctx, router, ether_type, offset) : SHARE_NEVER_CUT;
}

/*
 * Is a packet to be forwarded? Packets for the router itself or for all on the link, such as routing protocols and neighbour
 * discovery, stay on the receiving core. There they are passed up, charged and policed as on any queue, and the full queue
 * of another core cannot lose them.
 */
static __always_inline bool is_transit(const struct packet *p)
{
	int kind = split_kind(p->ctx, p->router, p->ether_type, p->ip_offset);

	return kind == SHARE_TRANSIT || (kind == SHARE_MAYBE_NAT && is_translated(p));
}

/* As SPLIT, without flow rules. The packet's router must be known. */
static __always_inline int hand_over_part(const struct packet *p)
{
	__u32 hash;

	if (!splits_queues || !p->port_splits || !is_transit(p) || !split_hash(p, &hash))
		return SPLIT_STAYS;
	return SPLIT(p, hash, split_cores, core_rows);
}
