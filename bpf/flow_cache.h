/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The flow cache (Q3, Q10): one look-up under the union of all masks, however many rules and masks there are. */
#pragma once

const volatile __u32 flow_cache_mask = 0;	/* sets of a CPU's cache - 1 */
const volatile __u32 flow_seen_mask = 0;	/* rows of a CPU's flow_seen - 1 */

static __always_inline struct flow_cached *flow_cache_row(const struct packet *p, __u64 hash, __u32 way)
{
	__u32 set = hash >> 32 & flow_cache_mask;

	return ROW(flow_cache, (p->cpu * (flow_cache_mask + 1) + set) * FLOW_CACHE_WAYS + way);
}

static __always_inline bool flow_same_front(const struct flow_cached *c, const struct flow_key *k)
{
	return c->key[0] == k->word[0] && c->key[1] == k->word[1] && c->key[2] == k->word[2] && c->key[3] == k->word[3];
}

/* Is every rule that decided still the one that did? */
static __always_inline bool flow_current(const struct flow_cached *c)
{
	if (!c->rule[0])
		return false;
	for (int i = 0; i < FLOW_CHAIN; i++) {
		const struct flow_rule *rule;

		if (!c->rule[i])
			break;
		rule = ROW(flow_rules, (__u32)c->rule[i]);
		if (!rule || *(volatile const __u32 *)&rule->generation != c->rule[i] >> 32)
			return false;
	}
	return true;
}

static __always_inline struct flow_rest *flow_cache_rest_of(const struct packet *p, __u64 hash, __u32 way)
{
	__u32 set = hash >> 32 & flow_cache_mask;

	return ROW(flow_cache_rest, (p->cpu * (flow_cache_mask + 1) + set) * FLOW_CACHE_WAYS + way);
}

/* The packet under the union of all masks, and its hash, which goes into the scratch row. */
static __always_inline void flow_reduce(struct flow_scratch *s, const struct flow_mask *all)
{
	for (int i = 0; i < FLOW_FRONT; i++)
		s->masked.word[i] = s->key.word[i] & all->word[i];
	__u64 h = flow_hash(s->masked.word[0], s->masked.word[1], s->masked.word[2], s->masked.word[3]);
	if (all->rest_count)
		h = flow_rest_hash(h, all, &s->key);
	s->hash = flow_mix(h);
}

static __always_inline const struct flow_cached *
flow_cache_find(const struct packet *p, const struct flow_scratch *s, const struct flow_mask *all)
{
	for (int way = 0; way < FLOW_CACHE_WAYS; way++) {
		struct flow_cached *c = flow_cache_row(p, s->hash, way);
		const struct flow_rest *rest;

		if (!c || !flow_same_front(c, &s->masked))
			continue;
		if (all->rest_count && (!(rest = flow_cache_rest_of(p, s->hash, way)) || !flow_rest_equal(rest, all, &s->key)))
			continue;
		if (flow_current(c))
			return c;
	}
	return NULL;
}

/*
 * A flow is cached when it misses the second time, so that a scan, whose flows come once, throws nothing out: the first
 * time only a tag of it is noted.
 */
static __always_inline bool flow_seen_before(const struct packet *p, __u64 hash)
{
	__u16 *seen = ROW(flow_seen, p->cpu * (flow_seen_mask + 1) + ((hash >> 20) & flow_seen_mask));
	__u16 tag = hash | 1;

	if (!seen)
		return false;
	if (*seen == tag)
		return true;
	*seen = tag;
	return false;
}

/* In place of what is void or the same, else of either in turn. */
static __always_inline void flow_cache_insert(const struct packet *p, struct flow_scratch *s, const struct flow_mask *all)
{
	struct flow_cached *c = flow_cache_row(p, s->hash, 0);
	struct flow_rest *rest;
	__u32 way = 0;

	if (!c)
		return;
	if (c->rule[0] && !flow_same_front(c, &s->masked) && (s->turn++ & 1)) {
		way = 1;
		if (!(c = flow_cache_row(p, s->hash, 1)))
			return;
	}
	c->rule[0] = 0;		/* user space, which may zero it meanwhile, never sees half a flow as one */
	for (int i = 0; i < FLOW_FRONT; i++)
		c->key[i] = s->masked.word[i];
	if (all->rest_count && (rest = flow_cache_rest_of(p, s->hash, way)))
		flow_rest_store(rest, all, &s->key);
	for (int i = FLOW_CHAIN - 1; i >= 0; i--)
		c->rule[i] = s->rule[i];
}
