/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The flow cache (Q3, Q10): one look-up under the union of all masks, however many rules and masks there are. */
#pragma once

const volatile __u32 flow_cache_mask = 0;	/* sets of a CPU's cache - 1 */
const volatile __u32 flow_seen_mask = 0;	/* rows of a CPU's flow_seen - 1 */

/*
 * Where a flow may be. Each way has a set of its own bits of the hash, so flows that meet in one way part in the other: with half
 * as many flows as places nearly all stay. With one set for both ways a quarter would have thrown each other out for ever.
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

/* Copies the rules of a flow. False: one of them is no longer the one that decided, or there is none. */
static __always_inline bool flow_current(struct flow_scratch *s, const struct flow_cached *c)
{
	/* User space may zero the first of them at any time: what is checked is the copy. */
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
 * The packet under the union of all masks, and its hash, which goes into the scratch row. `rest`: its rest words have been
 * read; what rules look at them that came since, it does not know of, here and in the cache.
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

/* Is this flow cached in this way? Then its rules are in s->rule. */
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
 * A flow is cached when it misses the second time, so that a scan, whose flows come once, throws nothing out: the first
 * time only a tag of it is noted.
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

/* In place of what is void, else of either in turn, which moves flows until each has a place. Void is here what user space zeroed; other dead flows go when it is their turn. */
static __always_inline void flow_cache_insert(const struct packet *p, struct flow_scratch *s, const struct flow_mask *all)
{
	struct flow_cached *first = flow_cache_row(p, s->hash, 0), *second = flow_cache_row(p, s->hash, 1), *c;
	struct flow_rest *rest;
	__u32 way;

	if (!first || !second)
		return;
	way = !first->rule[0] ? 0 : !second->rule[0] ? 1 : s->turn++ & 1;
	c = way ? second : first;
	c->rule[0] = 0;		/* user space, which may zero it meanwhile, never sees half a flow as one */
	for (int i = 0; i < FLOW_FRONT; i++)
		c->key[i] = s->masked.word[i];
	if (all->rest_count && (rest = flow_cache_rest_of(p, s->hash, way)))
		flow_rest_store(rest, all, &s->masked);
	for (int i = FLOW_CHAIN - 1; i >= 0; i--)
		c->rule[i] = s->rule[i];
}
