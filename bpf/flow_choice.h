/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * SET_CORE "choose" (V3, V7, V8): a flow's first packet takes the next core of the ring that user space keeps, and the
 * flow stays there. When user space wants flows off a core, some go to others. A flow moves only when none of its packets
 * can still wait in the old core's queue, so their order is kept. logic::cores::choice decides about rings, and about how
 * many flows leave.
 */
#pragma once

/* A hash of addresses, protocol and ports as the layout has them. For packets that are not IP, also of MAC addresses. */
static __always_inline __u32 flow_spread(struct xdp_md *ctx, const struct flow_layout *l)
{
	__u64 h = flow_fold(l->addresses) * K1 + flow_fold(l->ports | (__u64)l->protocol << 32) * K2;

	if (l->network == 6) {
		const struct ipv6 *ip = flow_header(ctx, l->ip_offset, sizeof(*ip));

		if (ip)
			h += flow_fold(ip->source[0]) * K1 + flow_fold(ip->source[1]) * K2 + flow_fold(ip->destination[0]) * K3 +
			     flow_fold(ip->destination[1]) * K4;
	}
	if (l->ether_type != ETH_P_IP && l->ether_type != ETH_P_IPV6)
		h += flow_fold(l->destination) * K3 + flow_fold(l->source) * K4;
	return flow_mix(h) >> 32;
}

/* The priority bit of the flow control field (V6): the lowest of DSCP, the highest of PCP. */
static __always_inline bool asks_to_be_first(const struct flow_layout *l)
{
	return l->tos & 4 || l->tci & bpf_htons(0x8000);
}

/* Takes the next core of a ring. Returns it, + 1, or 0 if no core has room. */
static __always_inline __u32 take_core(bool first)
{
	struct core_ring *ring = ROW(core_rings, first);
	__u64 count = ring ? *(volatile __u64 *)&ring->count : 0;
	struct core_queue *q;

	if (!count)
		return 0;
	__u64 turn = __sync_fetch_and_add(&ring->turn, 1) % count;
	__u32 core = *(volatile __u16 *)&ring->core[turn & (CHOICE_RING - 1)];
	q = ROW(core_queues, core - 1);
	if (q)
		__sync_fetch_and_add(first ? &q->given_first : &q->given, 1);
	return core;
}

static __always_inline __u64 *leave_of(struct core_queue *q, bool first)
{
	return first ? &q->leave_first : &q->leave;
}

/*
 * The core, + 1, for a flow whose first packet in a tick has come. `core`: its present core, + 1, or 0 for a new flow.
 * *waits: whether the packet must go through the core's queue. A flow that goes on here, and may leave, first goes through
 * this core's own queue: an earlier packet may still be in the bulk for its TX queue, and the core's thread runs after this
 * poll. (A flow that is here because no core had room leaves at once.)
 */
static __always_inline __u32 next_core(__u32 core, __u64 word, __u32 cpu, bool first, bool *waits)
{
	struct core_queue *q = core ? ROW(core_queues, core - 1) : NULL;
	__u64 *leave = q ? leave_of(q, word & PLACE_FIRST) : NULL;
	bool may_leave = leave && (__s64)*(volatile __u64 *)leave > 0;
	bool past = !*waits || (q && queue_is_past(q, word >> PLACE_JIFFIES_SHIFT));
	__u32 next = 0;

	if (!core || (may_leave && *waits && past))
		next = take_core(first);
	if (next && leave)
		__sync_fetch_and_add(leave, -1);
	if (next)
		core = next;
	/* The RX queue may have moved to this core. Packets that it handed over before go first. */
	*waits = core - 1 != cpu || (!next && (may_leave || !past));
	return core;
}

/* Chooses the core to which a packet must be handed. Returns it, + 1, or 0 if the packet goes on here. */
__noinline int choose_core(struct xdp_md *ctx, struct flow_scratch *s, __u32 rule, __u32 cpu, __u32 first)
{
	if (!s)
		return 0;
	first = first || asks_to_be_first(&s->layout);
	__u32 hash = flow_mix(flow_spread(ctx, &s->layout) + (__u64)rule * K3);
	__u64 *place = ROW(flow_choices, hash & (CHOICE_SLOTS - 1));
	__u32 now = bpf_jiffies64();

	if (!place)
		return 0;
	__u64 word = *(volatile __u64 *)place;
	bool waits = word & PLACE_HANDED;

	if (place_is_due(word, now, cpu)) {
		__u32 core = next_core(word & PLACE_CORE, word, cpu, first, &waits);

		if (!core)
			return 0;
		word = put_place(place, word, core, waits, first ? PLACE_FIRST : 0, now);
	}
	return handed_to(word, cpu);
}

/*
 * Must a packet whose rule names `core`, + 1, go through that core's queue? Yes, if it is another core. If it is this one,
 * only after the RX queue has moved here, and while packets that were handed over before may still wait: these go first.
 * If so many wait that packets would soon be lost, the order is given up. A seat has one writer at a time, as one core
 * polls a queue. Threads that write to the same tap have no order among them.
 */
static __always_inline bool goes_by_queue(const struct packet *p, __u32 core)
{
	__u32 queue = p->ctx->rx_queue_index, here = p->cpu + 1;
	__u64 *seat = queue < MAX_QUEUES ? ROW(rule_seats, p->port * MAX_QUEUES + queue) : NULL;
	__u64 word = seat ? *seat : here;
	bool has_come = (word & PLACE_CORE) != here;

	if (core != here || !word || (!has_come && !(word & PLACE_HANDED))) {
		if (has_come && seat)
			*seat = here;
		return core != here;
	}
	const struct core_queue *q = ROW(core_queues, p->cpu);
	__u32 now = bpf_jiffies64();
	bool waits = q && !queue_is_past(q, has_come ? now : word >> PLACE_JIFFIES_SHIFT) && !is_crowded(q);

	if (seat)
		*seat = here | (waits ? PLACE_HANDED : 0) | (__u64)now << PLACE_JIFFIES_SHIFT;
	return waits;
}

/*
 * Hands the packet over, unchanged, to the core that `rule` names. That core makes the same decision, and carries it out.
 * Returns false if the packet goes on here. `core`: as plan_rules() returns it.
 */
static __always_inline bool hand_over(struct packet *p, struct flow_scratch *s, int core, __u32 rule)
{
	if (core <= 0 || !p->port_hands_over)
		return false;
	if (core >= FLOW_CHOOSE_FIRST)
		core = choose_core(p->ctx, s, rule, p->cpu, core == FLOW_CHOOSE_FIRST);
	else if (!goes_by_queue(p, core))
		return false;
	if (core <= 0 || bpf_redirect_map(&rule_cores, core - 1, 0) != XDP_REDIRECT)
		return false;
	capture_handed(p, core);
	count_handed(core - 1);
	return true;
}
