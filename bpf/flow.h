/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Flow rules in the path of a packet: which rules decide (cache, else search), what they do, what becomes of it. */
#pragma once

/*
 * The rules that decide: by the cache (Q3, Q10), else by the tables. Fills s->rule; false: user space has to say. Nothing is
 * cached that user space decides, not even while a rule is being rewritten.
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
	s->rule[FLOW_CHAIN] = 0;	/* a cached flow has no more */
	if ((flow_cached_in(p, s, all, rest, 0) || flow_cached_in(p, s, all, rest, 1)) && (!s->rule[1] || flow_patches_hold(s))) {
		s->hits += !p->handed;	/* counted where it came in */
		return true;
	}
	s->misses += !p->handed;
	__u32 rules = flow_classify(s);
	/* A rule that looks further came meanwhile: what it was compared with are the last packet's words. */
	if (!rules || (!rest && *(volatile const __u8 *)&all->rest_count))
		return false;
	if (rules <= FLOW_CHAIN && flow_seen_before(p, s->hash))
		flow_cache_insert(p, s, all);
	return true;
}

#define BAND_TRIES 4

/*
 * Each packet that passes moves the time when a band's queue is empty; one that would move it more than a burst ahead of now is
 * over the rate. An empty queue takes any packet. logic::flow::kernel::meters does the same.
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
 * From the highest rate down: the first band that the packet is over drops it (section 5.7), and it takes nothing from those
 * below. So what passes all is as much as the narrowest lets pass.
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

/* What the rules that a packet has passed wrote into its metadata. */
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

/* 0: user space has it, or will. `rule`: whose steps say so. */
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

/* Spreads flows over a group's buckets by what they are now (flow_spread), whatever the rules looked at. */
static __always_inline __u32 spread(struct xdp_md *ctx, struct flow_layout *l)
{
	read_layout(ctx, l);
	return flow_spread(ctx, l);
}

/* One step. 0: go on with the next; a row of flow_steps: go on there; -1: the packet's fate is sealed. */
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

/* All steps of one rule; -1: the packet's fate is sealed. */
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
 * Rules that follow each other send the packet once only, and their parts of the action set, one after another, come in the
 * order in which the whole set is done? Then they can be done here.
 */
struct flow_plan {
	__u32 ranks;		/* of the action set so far */
	__u32 from;		/* the first rule whose part of it counts */
	__u32 core, set_core;	/* named in a list, named in the set; + 1 */
	bool sent;
	bool to_path;		/* only where it came in a path can have it, so no core is named */
};

static __always_inline bool
goes_together(struct flow_plan *plan, const struct flow_scratch *s, const struct flow_rule *rule, __u64 decision, __u32 i)
{
	__u32 ranks = rule->set_ranks, core = rule->flags >> FLOW_RULE_CORE_SHIFT;

	if ((__u8)decision == FLOW_SLOW)
		return false;
	/* A broadcast loses frames of several buffers (dev_map_enqueue_multi). */
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
	/* What was sent must not be rewritten by a set that is done later. */
	return !(plan->sent && plan->ranks);
}

/*
 * What all the rules that decided say, each read once: it may say something else the next time. Returns the core that is named
 * last, + 1, or 0. -1: user space has to do it, from the packet's first byte on: nothing is done to it.
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

/* Does what was planned. */
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
					s->rule[i + 1] = 0;	/* later tables have not seen it */
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

/* A rule's output that cannot be is no packet for the kernel: the rule says where it goes, and it may be rewritten. */
static __always_inline enum reason redirected(long action)
{
	return action == XDP_REDIRECT ? REASON_NONE : REASON_RULE_NO_PORT;
}

/* paths, a constant: the program knows them. */
static __always_inline enum reason carry_out(struct packet *p, struct flow_scratch *s, bool paths)
{
	enum reason reason;
	void *set;

	if (s->verdict == FLOW_PATH) {
		if (!paths)
			return REASON_PATH_NO_WORKER;
		if (given_by_rule(p, &s->layout, s->port, &reason))
			return reason;
		s->verdict = FLOW_NORMAL;
	}
	switch (s->verdict) {
	case FLOW_OUTPUT:
		if (s->port == p->port)
			return REASON_RULE_DROP;	/* only IN_PORT sends it back (OpenFlow 1.0 section 5.2.1) */
		return redirected(bpf_redirect_map(&rule_ports, s->port, 0));
	case FLOW_IN_PORT:
		return redirected(bpf_redirect_map(&rule_ports, p->port, 0));
	case FLOW_BROADCAST:
		set = ROW(flow_sets, s->port);
		if (!set)
			return REASON_RULE_NO_PORT;
		return redirected(bpf_redirect_map(set, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS));
	case FLOW_NORMAL:
		return forward_normal(p, false);
	case FLOW_LOCAL:
		return REASON_RULE_LOCAL;
	case FLOW_SLOW:
		return notify(p->ctx, s, 0, NOTICE_SLOW) ? REASON_RULE_SLOW_LOST : REASON_RULE_SLOW;
	case FLOW_NO_ROOM:
		return REASON_RULE_NO_ROOM;
	case FLOW_CONTROLLER:
		return REASON_RULE_CONTROLLER;
	case FLOW_CONTROLLER_LOST:
		return REASON_RULE_CONTROLLER_LOST;
	default:
		return REASON_RULE_DROP;
	}
}

/*
 * Of a queue whose flows are shared among cores; not if a rule names a core, which has the last word, and only what rules send to
 * ports: what is for the router itself is not known here of what goes NORMAL. The hash is not that of split.h: while rules come
 * and go, flows may be overtaken.
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

/* Do all rules that decided drop, without a step that might send? */
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
 * By flow rules, from the first byte to the packet's fate. Past their deadline (`expired`) all is the kernel's except what they drop:
 * a packet that user space would have to look at is not known to be.
 */
static __always_inline enum reason forward_by_rules(struct packet *p, bool may_hand_over, bool paths)
{
	struct flow_scratch *s = ROW(flow_scratch, p->cpu);
	const struct flow_rule *only;
	bool expired = rules_expired();

	if (expired && !rules_keep_drops())
		return REASON_FALLBACK;
	if (p->port_no_recv)
		return REASON_RULE_DROP;
	if (!p->port_ready)
		return REASON_PORT_NOT_READY;	/* tags may be hidden, packets merged, checksums unfinished */
	p->multi_buffer = has_frags(p);
	p->frame_bytes = p->multi_buffer ? bpf_xdp_get_buff_len(p->ctx) : packet_end(p) - packet_data(p);
	if (!s || !read_front(p, s))
		return REASON_MALFORMED;
	if (s->layout.fragment && drops_fragments())
		return REASON_RULE_FRAGMENT;
	if (!decide(p, s)) {
		if (expired)
			return REASON_FALLBACK;
		s->verdict = FLOW_SLOW;
		return carry_out(p, s, paths);
	}
	if (expired) {
		if (!all_drop(s))
			return REASON_FALLBACK;
		count_rules(p, s);
		return REASON_RULE_DROP;
	}
	int fate = may_hand_over && p->port_splits ? hand_over_flow(p, s) : SPLIT_STAYS;
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
	/* What user space does, it counts. */
	if (s->verdict != FLOW_SLOW)
		count_rules(p, s);
	return carry_out(p, s, paths);
}
