/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Hands packets over to other cores by CPU maps, and moves flows between cores with their packets in order. A place says
 * which core a flow is on. A row of core_queues says how many packets wait there.
 */
#pragma once

/* Has a core done all packets that were handed to it before this tick? */
static __always_inline bool queue_is_past(const struct core_queue *q, __u32 jiffies)
{
	volatile const struct core_queue *now = q;

	/* Read in this order: packets that are done were handed over before. */
	__u64 done = now->done + now->dropped, drained = now->drained_jiffies;

	return done == now->handed || (drained && (__s32)((__u32)drained - jiffies) > 0);
}

/*
 * May a place change now? It may once in a tick. It also may if the RX queue has moved to another core: packets that stayed
 * on the old core are now handed to it.
 */
static __always_inline bool place_is_due(__u64 word, __u32 now, __u32 cpu)
{
	__u32 core = word & PLACE_CORE;

	return !core || word >> PLACE_JIFFIES_SHIFT != now || (!(word & PLACE_HANDED) && core - 1 != cpu);
}

/* The core to which a packet of this flow must be handed, + 1; 0: it goes on here. */
static __always_inline int handed_to(__u64 word, __u32 cpu)
{
	__u32 core = word & PLACE_CORE;

	return core - 1 == cpu && !(word & PLACE_HANDED) ? 0 : core;
}

/*
 * Writes that a flow goes on on `core`, + 1. Returns the place as it is then: another CPU with a packet for the same place
 * may have been first. Otherwise that CPU sees the new core, as a flow leaves its core only with its first packet in a tick.
 */
static __always_inline __u64 put_place(__u64 *place, __u64 word, __u32 core, bool waits, __u64 flags, __u32 now)
{
	__u64 new = core | flags | (waits ? PLACE_HANDED : 0) | (__u64)now << PLACE_JIFFIES_SHIFT;
	__u64 was = __sync_val_compare_and_swap(place, word, new);

	return was == word ? new : was;
}

/* Counts a packet that a CPU map took for a core. */
static __always_inline void count_handed(__u32 row)
{
	struct core_queue *q = ROW(core_queues, row);

	if (q)
		__sync_fetch_and_add(&q->handed, 1);
}
