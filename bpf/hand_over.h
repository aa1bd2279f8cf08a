/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Packets that go on on another core, by a CPU map, and flows that change their core with their packets in order: a place says
 * where a flow is, a row of core_queues what waits there.
 */
#pragma once

/* Has all that was handed to a core before this moment been done there? */
static __always_inline bool queue_is_past(const struct core_queue *q, __u32 jiffies)
{
	volatile const struct core_queue *now = q;

	/* In this order: what is done was handed over before. */
	__u64 done = now->done + now->dropped, drained = now->drained_jiffies;

	return done == now->handed || (drained && (__s32)((__u32)drained - jiffies) > 0);
}

/* May a place be changed now? Once in a tick; or its receive queue has gone elsewhere, and what was done here is handed over now. */
static __always_inline bool place_is_due(__u64 word, __u32 now, __u32 cpu)
{
	__u32 core = word & PLACE_CORE;

	return !core || word >> PLACE_JIFFIES_SHIFT != now || (!(word & PLACE_HANDED) && core - 1 != cpu);
}

/* The core that a packet of this flow is to be handed to, + 1; 0: it goes on here. */
static __always_inline int handed_to(__u64 word, __u32 cpu)
{
	__u32 core = word & PLACE_CORE;

	return core - 1 == cpu && !(word & PLACE_HANDED) ? 0 : core;
}

/*
 * Writes that a flow goes on on a core, + 1. What it says then: another CPU with a packet for the same place comes before, or
 * sees the new core, as a flow leaves its core only with its first packet in a tick.
 */
static __always_inline __u64 put_place(__u64 *place, __u64 word, __u32 core, bool waits, __u64 flags, __u32 now)
{
	__u64 new = core | flags | (waits ? PLACE_HANDED : 0) | (__u64)now << PLACE_JIFFIES_SHIFT;
	__u64 was = __sync_val_compare_and_swap(place, word, new);

	return was == word ? new : was;
}

/* The packet is on its way to a core: a CPU map took it. */
static __always_inline void count_handed(__u32 row)
{
	struct core_queue *q = ROW(core_queues, row);

	if (q)
		__sync_fetch_and_add(&q->handed, 1);
}
