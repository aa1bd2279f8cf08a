/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Forwarding by flow rules: finds the rules that decide (cache, else search), carries them out, returns the reason. */
#pragma once

/*
 * Finds the rules that decide, in the cache (Q3, Q10) or else in the tables, and puts them into s->rule. Returns false if
 * user space has to decide. Such decisions are not cached, not even while a rule is being rewritten.
 */
static __always_inline bool decide(const struct packet *p, struct flow_scratch *s)
{
	const struct flow_mask *all = ROW(flow_masks, 0);

	if (!all || s->layout.unseen)
		return false;
	bool rest = *(volatile const __u8 *)&all->rest_count;
	if (rest)
		read_rest(p->ctx, s);
	if (s->layout.unseen)
		return false;
	flow_reduce(s, all, rest);
	s->rule[FLOW_CHAIN] = 0;	/* a cached flow has no more rules */
	if ((flow_cached_in(p, s, all, rest, 0) || flow_cached_in(p, s, all, rest, 1)) && (!s->rule[1] || flow_patches_hold(s))) {
		s->hits += !p->handed;	/* the receiving core has counted it */
		return true;
	}
	s->misses += !p->handed;
	__u32 rules = flow_classify(s);
	/* A rule that uses rest words was added meanwhile. It was compared with those of an earlier packet. */
	if (!rules || (!rest && *(volatile const __u8 *)&all->rest_count))
		return false;
	if (rules <= FLOW_CHAIN && flow_seen_before(p, s->hash))
		flow_cache_insert(p, s, all);
	return true;
}

#define BAND_TRIES 4

/*
 * Is a packet over the rate of a band? Each packet that passes moves the time when the band's queue is empty. A packet
 * that would move it more than a burst ahead of now is over the rate. An empty queue takes any packet.
 * logic::flow::kernel::meters does the same.
 */
__noinline int over_band(struct flow_band *band, __u32 bytes, __u64 now)
{
	if (!band)
		return 0;
	__u64 cost = *(volatile const __u64 *)&band->cost, latest = now + *(volatile const __u64 *)&band->burst_ticks;
	__u64 units = cost & FLOW_COST_BYTES ? bytes : 1;
	__u64 takes = ((cost & ~FLOW_COST_BYTES) * units + (1 << (FLOW_COST_SHIFT - 1))) >> FLOW_COST_SHIFT;

	for (int i = 0; i < BAND_TRIES; i++) {
		__u64 empty = *(volatile const __u64 *)&band->empty_ticks, from = empty > now ? empty : now;

		if (empty > now && from + takes > latest)
			return 1;
		if (__sync_val_compare_and_swap(&band->empty_ticks, empty, from + takes) == empty)
			return 0;
	}
	/* Other CPUs were faster each time, so the queue is not empty. */
	if (__sync_fetch_and_add(&band->empty_ticks, takes) + takes <= latest)
		return 0;
	__sync_fetch_and_sub(&band->empty_ticks, takes);
	return 1;
}

/*
 * Goes through the bands from the highest rate down. The first band whose rate the packet exceeds drops it (OpenFlow
 * 1.3.5 section 5.7), and the bands below do not count it. So as many packets pass as the narrowest band allows.
 */
__noinline int within_meter(struct xdp_md *ctx, __u32 row)
{
	struct flow_meter *m = ROW(flow_meters, row);
	__u32 bytes = bpf_xdp_get_buff_len(ctx);

	if (!m)
		return 0;
	__u64 now = bpf_ktime_get_ns() * FLOW_TICKS;

	__sync_fetch_and_add(&m->packets, 1);
	__sync_fetch_and_add(&m->bytes, bytes);
	for (int i = 0; i < FLOW_BANDS && *(volatile const __u64 *)&m->band[i].cost; i++) {
		if (!over_band(&m->band[i], bytes, now))
			continue;
		__sync_fetch_and_add(&m->band[i].dropped_packets, 1);
		__sync_fetch_and_add(&m->band[i].dropped_bytes, bytes);
		return 0;
	}
	return 1;
}

/* The metadata that the rules have written so far. */
static __always_inline __u64 metadata(const struct flow_scratch *s)
{
	__u64 word = 0;

	for (__u32 i = 0; i < FLOW_RULES && i < s->passed && s->rule[i]; i++) {
		const struct flow_rule *rule = ROW(flow_rules, (__u32)s->rule[i]);
		const struct flow_patch *patch = rule && rule->patch ? ROW(flow_patches, rule->patch) : NULL;

		if (patch)
			word = (word & ~patch->mask[WORD_METADATA]) | patch->value[WORD_METADATA];
	}
	return word;
}

/* Sends a packet to user space, because of the steps of `rule`. Returns 0 if user space gets it. */
__noinline int notify(struct xdp_md *ctx, struct flow_scratch *s, __u32 rule, __u8 reason)
{
	if (!s)
		return 0;
	__u32 whole = bpf_xdp_get_buff_len(ctx), bytes = whole;

	if (bytes > FLOW_NOTICE_BYTES)
		bytes = FLOW_NOTICE_BYTES;
	s->notice = (struct flow_notice){
		.rule = rule, .frame_bytes = whole, .bytes = bytes, .port = s->in_port, .reason = reason,
		.metadata = reason == NOTICE_SLOW ? 0 : metadata(s),
		.tunnel_id = reason == NOTICE_SLOW ? 0 : s->tunnel_id,
	};
	return bpf_perf_event_output(ctx, &flow_notices, BPF_F_CURRENT_CPU | (__u64)bytes << 32, &s->notice,
				     sizeof(s->notice));
}

/* Spreads flows over a group's buckets by their present fields (flow_spread), whichever fields the rules match. */
static __always_inline __u32 spread(struct xdp_md *ctx, struct flow_layout *l)
{
	read_layout(ctx, l);
	return flow_spread(ctx, l);
}

/* Does one step. Returns 0 to go on with the next one, a row of flow_steps to go on there, or -1: s->verdict is final. */
static __always_inline int flow_step(struct xdp_md *ctx, struct flow_scratch *s, const struct flow_step *step)
{
	struct flow_layout *l = &s->layout;
	const struct flow_group *group;
	__u32 steps;
	int lost;

	switch (step->op) {
	case STEP_VERDICT:
		s->verdict = step->a;
		s->port = step->b;
		return 0;
	case STEP_CONTROLLER:
		lost = notify(ctx, s, s->doing, NOTICE_ACTION);
		if (s->verdict == FLOW_DROP)
			s->verdict = lost ? FLOW_CONTROLLER_LOST : FLOW_CONTROLLER;
		return 0;
	case STEP_SET_ETH_DST:
		return set_mac(ctx, step->d, 0);
	case STEP_SET_ETH_SRC:
		return set_mac(ctx, step->d, 6);
	case STEP_PUSH_VLAN:
		if (push_tag(ctx, l, step->b, 0))
			goto no_room;
		return 0;
	case STEP_POP_VLAN:
		return pop_tag(ctx, l);
	case STEP_SET_VLAN:
		if (l->tags)
			set_tci(ctx, l, step->b, step->c);
		else if (step->a && push_tag(ctx, l, ETH_P_8021Q, step->b))
			goto no_room;
		return 0;
	case STEP_SET_IPV4_SRC:
		return set_ipv4_address(ctx, l, step->c, false);
	case STEP_SET_IPV4_DST:
		return set_ipv4_address(ctx, l, step->c, true);
	case STEP_SET_IPV6:
		return set_ipv6_half(ctx, l, step->d, step->a);
	case STEP_SET_TOS:
		return set_tos(ctx, l, step->b, step->c);
	case STEP_SET_TP_SRC:
		return set_transport_port(ctx, l, step->b, false, step->a);
	case STEP_SET_TP_DST:
		return set_transport_port(ctx, l, step->b, true, step->a);
	case STEP_SET_TTL:
		return set_ttl(ctx, l, step->b);
	case STEP_DEC_TTL:
		if (!decrement_ttl(ctx, l))
			return 0;
		notify(ctx, s, s->doing, NOTICE_TTL);
		break;
	case STEP_METER:
		if (within_meter(ctx, step->c))
			return 0;
		break;
	case STEP_GROUP:
		group = ROW(flow_groups, step->c);
		steps = group ? *(volatile const __u32 *)&group->steps[spread(ctx, l) >> 24] : 0;
		if (steps)
			return steps;
		break;
	case STEP_SET_TUNNEL_ID:
		s->tunnel_id = step->d;
		return 0;
	case STEP_ENCAP_VXLAN:
		if (encap_vxlan(ctx, l, step->d, step->c, step->b))
			goto no_room;
		return 0;
	case STEP_DECAP_VXLAN:
		if (!decap_vxlan(ctx, l))
			return 0;
		break;
	}
	s->verdict = FLOW_DROP;
	return -1;
no_room:
	s->verdict = FLOW_NO_ROOM;
	return -1;
}

/* Does all steps of one rule. Returns -1 if s->verdict is final. */
__noinline int flow_steps_of(struct xdp_md *ctx, struct flow_scratch *s, __u32 rule, __u32 row)
{
	if (!s)
		return -1;
	s->doing = rule;
	for (int i = 0; i < FLOW_MAX_STEPS; i++) {
		const struct flow_step *step = ROW(flow_steps, row);

		if (!step || step->op == STEP_END)
			return 0;
		int next = flow_step(ctx, s, step);
		if (next < 0)
			return -1;
		row = next ? next : row + 1;
	}
	s->verdict = FLOW_DROP;
	return -1;
}

/*
 * Checks whether the rules that decided can be carried out here. They can if they send the packet only once, and if their
 * parts of the action set follow the order in which the whole set is done.
 */
struct flow_plan {
	__u32 ranks;		/* of the action set so far */
	__u32 from;		/* the first rule whose part of the set counts */
	__u32 core, set_core;	/* the core that a list names, and the one that the set names; + 1 */
	bool sent;
	bool to_path;		/* a path takes packets only on the receiving core, so no core is named */
};

static __always_inline bool
goes_together(struct flow_plan *plan, const struct flow_scratch *s, const struct flow_rule *rule, __u64 decision, __u32 i)
{
	__u32 ranks = rule->set_ranks, core = rule->flags >> FLOW_RULE_CORE_SHIFT;

	if ((__u8)decision == FLOW_SLOW)
		return false;
	/* A broadcast loses multi-buffer frames (dev_map_enqueue_multi). */
	if (s->multi_buffer && ((__u8)decision == FLOW_BROADCAST || rule->flags & FLOW_RULE_BROADCASTS))
		return false;
	if (rule->flags & FLOW_RULE_CLEAR) {
		plan->ranks = 0;
		plan->from = i;
		plan->set_core = 0;
	}
	if (ranks && plan->ranks >= (ranks & -ranks))
		return false;
	plan->ranks |= ranks;
	plan->sent |= rule->flags & FLOW_RULE_SENDS;
	plan->to_path |= (__u8)decision == FLOW_PATH;
	if (rule->flags & FLOW_RULE_CORE_OF_SET)
		plan->set_core = core;
	else if (core)
		plan->core = core;
	/* The set is done later, and must not rewrite a packet that was sent. */
	return !(plan->sent && plan->ranks);
}

/*
 * Reads the decisions of all rules that decided, each only once, because it may change. Returns the core that is named
 * last, + 1, or 0. Returns -1 if user space has to carry out all of them; the packet is unchanged then.
 */
__noinline int plan_rules(struct flow_scratch *s)
{
	struct flow_plan plan = {};

	if (!s)
		return -1;
	for (__u32 i = 0; i < FLOW_RULES && s->rule[i]; i++) {
		const struct flow_rule *rule = ROW(flow_rules, (__u32)s->rule[i]);

		__u64 decision = rule ? *(volatile const __u64 *)&rule->kind : FLOW_SLOW;
		if ((__u8)decision == FLOW_CORE) {
			plan.core = (__u16)(decision >> 16);
			s->decision[i] = FLOW_DROP;
			continue;
		}
		s->decision[i] = decision;
		if (!rule || !goes_together(&plan, s, rule, decision, i))
			return -1;
	}
	s->set_from = plan.from;
	if (plan.to_path)
		return 0;
	return plan.set_core ? plan.set_core : plan.core;
}

/* Carries out the decisions that plan_rules() has read. */
__noinline int run_rules(struct xdp_md *ctx, struct flow_scratch *s)
{
	if (!s)
		return 0;
	s->verdict = FLOW_DROP;
	s->tunnel_id = 0;
	for (int i = 0; i < FLOW_RULES && s->rule[i]; i++) {
		__u64 decision = s->decision[i];

		s->passed = i;
		if ((__u8)decision == FLOW_STEPS) {
			if (flow_steps_of(ctx, s, s->rule[i], decision >> 32) < 0) {
				if (i + 1 < FLOW_RULES)
					s->rule[i + 1] = 0;	/* it does not reach later tables */
				return 0;
			}
		} else if ((__u8)decision != FLOW_DROP) {
			s->verdict = (__u8)decision;
			s->port = decision >> 16;
		}
	}
	s->passed = FLOW_RULES;
	for (__u32 i = 0; i < FLOW_RULES && s->rule[i]; i++) {
		const struct flow_rule *rule = ROW(flow_rules, (__u32)s->rule[i]);

		if (rule && rule->set_steps && i >= s->set_from && flow_steps_of(ctx, s, s->rule[i], rule->set_steps) < 0)
			return 0;
	}
	return 0;
}

static __always_inline void count_rules(const struct packet *p, const struct flow_scratch *s)
{
	for (int i = 0; i < FLOW_RULES && s->rule[i]; i++) {
		struct flow_count *count = ROW(flow_counters, p->cpu * flow_rows + (__u32)s->rule[i]);

		if (!count)
			return;
		count->packets++;
		count->bytes += p->frame_bytes;
	}
}

/* If a rule's output fails, the kernel does not get the packet: a rule has decided about it and may have rewritten it. */
static __always_inline enum reason redirected(long action)
{
	return action == XDP_REDIRECT ? REASON_NONE : REASON_RULE_NO_PORT;
}

/* `paths` is a constant: whether the program knows paths. */
static __always_inline enum reason carry_out(struct packet *p, struct flow_scratch *s, bool paths)
{
	enum reason reason;
	void *set;

	if (s->verdict == FLOW_PATH) {
		if (!paths)
			return RARE(REASON_PATH_NO_WORKER);
		if (given_by_rule(p, &s->layout, s->port, &reason))
			return reason;
		s->verdict = FLOW_NORMAL;
	}
	switch (s->verdict) {
	case FLOW_OUTPUT:
		if (s->port == p->port)
			return RARE(REASON_RULE_DROP);	/* only IN_PORT sends it back (OpenFlow 1.0 section 5.2.1) */
		capture_egress(p, s->port);
		return redirected(bpf_redirect_map(&rule_ports, s->port, 0));
	case FLOW_IN_PORT:
		capture_egress(p, p->port);
		return redirected(bpf_redirect_map(&rule_ports, p->port, 0));
	case FLOW_BROADCAST:
		set = ROW(flow_sets, s->port);
		if (!set)
			return RARE(REASON_RULE_NO_PORT);
		return redirected(bpf_redirect_map(set, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS));
	case FLOW_NORMAL:
		return forward_normal(p, false);
	case FLOW_LOCAL:
		return RARE(REASON_RULE_LOCAL);
	case FLOW_SLOW:
		return notify(p->ctx, s, 0, NOTICE_SLOW) ? REASON_RULE_SLOW_LOST : REASON_RULE_SLOW;
	case FLOW_NO_ROOM:
		return RARE(REASON_RULE_NO_ROOM);
	case FLOW_CONTROLLER:
		return RARE(REASON_RULE_CONTROLLER);
	case FLOW_CONTROLLER_LOST:
		return RARE(REASON_RULE_CONTROLLER_LOST);
	default:
		return RARE(REASON_RULE_DROP);
	}
}

/*
 * Hands over a packet of a queue whose flows are shared among cores. A rule that names a core takes precedence. Only
 * packets that rules send to ports are handed over: if one goes NORMAL, it is not known here whether it is for the router
 * itself. The hash is not that of split.h, so a flow's packets may be reordered when the first rule comes or the last
 * one goes.
 */
static __always_inline int hand_over_flow(const struct packet *p, struct flow_scratch *s)
{
	for (__u32 i = 0; i < FLOW_RULES && s->rule[i]; i++) {
		const struct flow_rule *rule = ROW(flow_rules, (__u32)s->rule[i]);

		if (!rule || rule->kind == FLOW_CORE || rule->kind == FLOW_NORMAL || rule->kind == FLOW_LOCAL ||
		    rule->kind == FLOW_SLOW || rule->kind == FLOW_PATH || rule->flags >> FLOW_RULE_CORE_SHIFT)
			return SPLIT_STAYS;
	}
	return SPLIT(p, flow_spread(p->ctx, &s->layout), rule_cores, 0);
}

/* OFPC_FRAG_DROP (OpenFlow 1.3.5 section 7.3.2). */
static __always_inline bool drops_fragments(void)
{
	const struct flow_mask *all = ROW(flow_masks, 0);

	return all && *(volatile const __u64 *)&all->fragments;
}

/* Do all rules that decided drop the packet, without a step that might send it? */
__noinline int all_drop(struct flow_scratch *s)
{
	if (!s)
		return 0;
	for (__u32 i = 0; i < FLOW_RULES && s->rule[i]; i++) {
		const struct flow_rule *rule = ROW(flow_rules, (__u32)s->rule[i]);

		if (!rule || (__u8)*(volatile const __u64 *)&rule->kind != FLOW_DROP || rule->set_steps)
			return 0;
	}
	return 1;
}

/*
 * Forwards a packet by flow rules. Past their deadline (`expired`) every packet goes to the kernel, except those that
 * rules drop. If user space would have to decide, it is not known whether rules drop the packet, so it goes up.
 */
static __always_inline enum reason forward_by_rules(struct packet *p, bool may_hand_over, bool paths)
{
	struct flow_scratch *s = ROW(flow_scratch, p->cpu);
	const struct flow_rule *only;
	bool expired = rules_expired();

	if (expired && !rules_keep_drops())
		return RARE(REASON_FALLBACK);
	if (p->port_no_recv)
		return RARE(REASON_RULE_DROP);
	if (!p->port_ready)
		return RARE(REASON_PORT_NOT_READY);	/* tags may be hidden, packets merged, checksums unfinished */
	p->multi_buffer = has_frags(p);
	p->frame_bytes = p->multi_buffer ? bpf_xdp_get_buff_len(p->ctx) : packet_end(p) - packet_data(p);
	if (!s || !read_front(p, s))
		return RARE(REASON_MALFORMED);
	if (s->layout.fragment && drops_fragments())
		return RARE(REASON_RULE_FRAGMENT);
	if (!decide(p, s)) {
		if (expired)
			return RARE(REASON_FALLBACK);
		s->verdict = FLOW_SLOW;
		return carry_out(p, s, paths);
	}
	if (expired) {
		if (!all_drop(s))
			return RARE(REASON_FALLBACK);
		count_rules(p, s);
		return RARE(REASON_RULE_DROP);
	}
	int fate = may_hand_over && p->port_splits ? hand_over_flow(p, s) : SPLIT_STAYS;
	capture_handed(p, fate);
	if (fate != SPLIT_STAYS)
		return fate == SPLIT_DROPPED ? REASON_SPLIT_LEAVES : REASON_NONE;
	only = s->rule[1] || p->multi_buffer ? NULL : ROW(flow_rules, (__u32)s->rule[0]);
	__u64 decision = only ? *(volatile const __u64 *)&only->kind : FLOW_STEPS;
	if (only && ((__u8)decision < FLOW_STEPS || (__u8)decision == FLOW_PATH) && !only->set_steps) {
		if ((__u8)decision != FLOW_SLOW && may_hand_over && hand_over(p, s, only->flags >> FLOW_RULE_CORE_SHIFT, s->rule[0]))
			return REASON_NONE;
		s->verdict = (__u8)decision;
		s->port = decision >> 16;
	} else {
		int core = plan_rules(s);

		if (may_hand_over && hand_over(p, s, core, s->rule[0]))
			return REASON_NONE;
		if (core < 0)
			s->verdict = FLOW_SLOW;
		else
			run_rules(p->ctx, s);
	}
	/* User space counts the packets that it forwards itself. */
	if (s->verdict != FLOW_SLOW)
		count_rules(p, s);
	return carry_out(p, s, paths);
}
