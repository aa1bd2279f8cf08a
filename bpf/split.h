/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * A queue that alone is too much for a core: its flows are shared among several, by the hash of addresses, protocol and ports. The
 * core that receives it does its own share, and hands on what of the rest is to be forwarded; there all of forward() is done. User space says where each
 * bucket of flows shall be, and it goes there when none of its packets can still wait in the old core's queue.
 */
#pragma once

/*
 * Where a bucket goes on. What goes on on the receiving core passes through that core's own queue before it leaves: a packet before
 * it may still be in the bulk for its TX queue, and the core's thread runs after this poll. rows: the first row of core_queues
 * of the map by which packets are handed over.
 */
static __always_inline __u64 move_bucket(struct split_bucket *b, __u64 word, __u32 cpu, __u32 rows, __u32 now)
{
	__u64 wanted = *(volatile __u64 *)&b->to;
	__u32 core = word & PLACE_CORE ? : cpu + 1, to = wanted ? : cpu + 1;
	struct core_queue *q = ROW(core_queues, rows + core - 1);
	bool waits = word & PLACE_HANDED;
	bool past = !waits || (q && queue_is_past(q, word >> PLACE_JIFFIES_SHIFT));

	if (core == to) {
		waits = core - 1 != cpu || !past;
	} else if (core - 1 == cpu && !waits) {
		waits = true;
	} else if (past) {
		core = to;
		waits = core - 1 != cpu;
	} else {
		waits = true;
	}
	return put_place(&b->place, word, core, waits, 0, now);
}

/* The core that a packet is to be handed to, + 1; 0: it goes on here. queue: port id * MAX_QUEUES + index. */
__noinline int split_core(__u32 queue, __u32 hash, __u32 cpu, __u32 rows)
{
	const __u64 *row = ROW(split_index, queue);
	struct split_queue *s = row && *row ? ROW(split_queues, (__u32)*row - 1) : NULL;
	struct split_bucket *b = s ? &s->bucket[hash & (SPLIT_BUCKETS - 1)] : NULL;
	__u32 now = bpf_jiffies64();

	if (!b)
		return 0;
	__u64 word = *(volatile __u64 *)&b->place;
	if (place_is_due(word, now, cpu))
		word = move_bucket(b, word, cpu, rows, now);
	return handed_to(word, cpu);
}

/* Has this packet's queue shares, and is this not the core for it? Then it is handed over, as it came. */
#define SPLIT(p_, hash_, map_, rows_) ({							\
	__u32 queue__ = (p_)->ctx->rx_queue_index;						\
	int core__ = queue__ < MAX_QUEUES ?							\
		split_core((p_)->port * MAX_QUEUES + queue__, hash_, (p_)->cpu, rows_) : 0;	\
	bool handed__ = core__ > 0 && bpf_redirect_map(&map_, core__ - 1, 0) == XDP_REDIRECT;	\
												\
	if (handed__)										\
		count_handed((rows_) + core__ - 1);						\
	handed__;										\
})

/* The flow's hash as ECMP takes it, without regard to what the router says; false: not IP, or not all of its header. */
static __always_inline bool split_hash(const struct packet *p, __u32 *hash)
{
	const void *header = packet_data(p) + p->ip_offset, *end = packet_end(p);
	const struct ipv4 *v4 = header;
	const struct ipv6 *v6 = header;

	if (p->ether_type == ETH_P_IP && (const void *)(v4 + 1) <= end)
		*hash = flow_hash4(v4, end, true);
	else if (p->ether_type == ETH_P_IPV6 && (const void *)(v6 + 1) <= end)
		*hash = flow_hash6(v6, end, true);
	else
		return false;
	return true;
}

/*
 * Is it to be forwarded? What is for the router itself or for all on the link, routing protocols and neighbour discovery among
 * it, stays on the core that receives it: there it is passed up, charged and policed as of any queue, and no full queue of
 * another core loses it. A function of its own: packets of other queues would pay for the registers that it takes.
 */
__noinline int is_transit(struct xdp_md *ctx, __u32 row, __u32 ether_type, __u32 offset)
{
	const struct router *router = ROW(routers, row & (MAX_ROUTERS - 1));

	return router && kind_of(ctx, router, ether_type, offset) == SHARE_TRANSIT;
}

/* Without rules; what its router is, is known. */
static __always_inline bool hand_over_part(const struct packet *p)
{
	__u32 hash;

	return splits_queues && p->port_splits && is_transit(p->ctx, p->router, p->ether_type, p->ip_offset) &&
	       split_hash(p, &hash) && SPLIT(p, hash, split_cores, core_rows);
}
