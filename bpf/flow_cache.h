/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The flow cache (Q3, Q10): one look-up under the union of all masks, however many rules and masks there are. */
#pragma once

const volatile __u32 flow_cache_mask = 0;	/* sets of a CPU's cache - 1 */
const volatile __u32 flow_seen_mask = 0;	/* rows of a CPU's flow_seen - 1 */

/*
 * The place of a flow in a way. Each way selects the set by other bits of the hash, so flows that collide in one way seldom
 * do in the other. With half as many flows as places nearly all stay. If both ways used the same set, a quarter of the
 * flows would evict each other for ever.
 */
static __always_inline __u32 flow_cache_place(const struct packet *p, __u64 hash, __u32 way)
{
	__u32 set = (way ? hash : hash >> 32) & flow_cache_mask;

	return (p->cpu * (flow_cache_mask + 1) + set) * FLOW_CACHE_WAYS + way;
}

static __always_inline struct flow_cached *flow_cache_row(const struct packet *p, __u64 hash, __u32 way)
{
	return ROW(flow_cache, flow_cache_place(p, hash, way));
}

static __always_inline bool flow_same_front(const struct flow_cached *c, const struct flow_key *k)
{
	return c->key[0] == k->word[0] && c->key[1] == k->word[1] && c->key[2] == k->word[2] && c->key[3] == k->word[3];
}

/* Copies the rules of a cached flow to s->rule. Returns false if there are none, or if one of them is out of date. */
static __always_inline bool flow_current(struct flow_scratch *s, const struct flow_cached *c)
{
	/* User space may zero the first of them at any time, so the copy is checked. */
	for (int i = 0; i < FLOW_CHAIN; i++)
		s->rule[i] = *(volatile const __u64 *)&c->rule[i];
	if (!s->rule[0])
		return false;
	for (int i = 0; i < FLOW_CHAIN; i++) {
		const struct flow_rule *rule;

		if (!s->rule[i])
			break;
		rule = ROW(flow_rules, (__u32)s->rule[i]);
		if (!rule || *(volatile const __u32 *)&rule->generation != s->rule[i] >> 32)
			return false;
	}
	return true;
}

static __always_inline struct flow_rest *flow_cache_rest_of(const struct packet *p, __u64 hash, __u32 way)
{
	return ROW(flow_cache_rest, flow_cache_place(p, hash, way));
}

/*
 * Puts the packet under the union of all masks, and its hash, into the scratch row. `rest`: the rest words have been read.
 * If not, rules that use rest words and were added since are ignored, here and in the cache.
 */
static __always_inline void flow_reduce(struct flow_scratch *s, const struct flow_mask *all, bool rest)
{
	for (int i = 0; i < FLOW_FRONT; i++)
		s->masked.word[i] = s->key.word[i] & all->word[i];
	__u64 h = flow_hash(s->masked.word[0], s->masked.word[1], s->masked.word[2], s->masked.word[3]);
	if (rest) {
		h = flow_rest_hash(h, all, &s->key);
		FOR_EACH_REST_WORD(all, at)
			s->masked.word[FLOW_FRONT + at] = s->key.word[FLOW_FRONT + at] & all->word[FLOW_FRONT + at];
	}
	s->hash = flow_mix(h);
}

/* Is this flow cached in this way? If so, puts its rules into s->rule. */
static __always_inline bool
flow_cached_in(const struct packet *p, struct flow_scratch *s, const struct flow_mask *all, bool rest, __u32 way)
{
	struct flow_cached *c = flow_cache_row(p, s->hash, way);
	const struct flow_rest *words;

	if (!c || !flow_same_front(c, &s->masked))
		return false;
	if (rest && (!(words = flow_cache_rest_of(p, s->hash, way)) || !flow_rest_equal(words, all, &s->masked)))
		return false;
	return flow_current(s, c);
}

/*
 * Has this flow missed before? A flow is cached only when it misses the second time; the first time only a tag of it is
 * noted. So a scan, whose flows come once, evicts nothing.
 */
static __always_inline bool flow_seen_before(const struct packet *p, __u64 hash)
{
	struct flow_tags *tags = ROW(flow_seen, p->cpu * (flow_seen_mask + 1) + ((hash >> 21) & flow_seen_mask));
	__u16 tag = hash | 1;

	if (!tags)
		return false;
	__u16 *seen = &tags->tag[hash >> 16 & (FLOW_TAGS - 1)];
	if (*seen == tag)
		return true;
	*seen = tag;
	return false;
}

/*
 * Takes an empty place, or else replaces the flow of one way, in turn. This moves flows until each has a place. Only a place
 * that user space zeroed counts as empty. Other outdated flows are replaced when it is their turn.
 */
static __always_inline void flow_cache_insert(const struct packet *p, struct flow_scratch *s, const struct flow_mask *all)
{
	struct flow_cached *first = flow_cache_row(p, s->hash, 0), *second = flow_cache_row(p, s->hash, 1), *c;
	struct flow_rest *rest;
	__u32 way;

	if (!first || !second)
		return;
	way = !first->rule[0] ? 0 : !second->rule[0] ? 1 : s->turn++ & 1;
	c = way ? second : first;
	c->rule[0] = 0;		/* half a flow is never valid, even if user space zeroes it meanwhile */
	for (int i = 0; i < FLOW_FRONT; i++)
		c->key[i] = s->masked.word[i];
	if (all->rest_count && (rest = flow_cache_rest_of(p, s->hash, way)))
		flow_rest_store(rest, all, &s->masked);
	for (int i = FLOW_CHAIN - 1; i >= 0; i--)
		c->rule[i] = s->rule[i];
}
