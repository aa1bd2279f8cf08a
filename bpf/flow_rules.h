/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Finds the rule of a key: tuple space search, one hash per mask that holds rules. Masks with the best rules come first. */
#pragma once

#define K3 0xbf58476d1ce4e5b9ULL
#define K4 0x94d049bb133111ebULL

const volatile __u64 flow_seed[FLOW_FRONT + 1] = { K1, K2, K3, K4, K1 };	/* odd; random at load */

/* The last bytes of addresses and ports are a word's highest bits. A multiplication alone would not bring them down. */
static __always_inline __u64 flow_fold(__u64 word)
{
	return word ^ word >> 32;
}

static __always_inline __u64 flow_mix(__u64 h)
{
	return flow_fold(flow_fold(h) * K1);
}

static __always_inline __u64 flow_hash(__u64 a, __u64 b, __u64 c, __u64 d)
{
	return flow_fold(a) * flow_seed[0] + flow_fold(b) * flow_seed[1] + flow_fold(c) * flow_seed[2] + flow_fold(d) * flow_seed[3];
}

/* The i-th rest word a mask uses, 0..FLOW_REST - 1; FLOW_REST after the last. */
static __always_inline __u64 rest_word(const struct flow_mask *m, int i)
{
	__u64 at = i < m->rest_count ? m->rest[i] : FLOW_REST;

	barrier_var(at);	/* so that the verifier sees the check of the register that is used */
	return at < FLOW_REST ? at : FLOW_REST;
}

#define FOR_EACH_REST_WORD(m_, at_)							\
	for (__u64 i_ = 0, at_; i_ < FLOW_REST && (at_ = rest_word(m_, i_)) < FLOW_REST; i_++)

static __always_inline __u64 flow_rest_hash(__u64 h, const struct flow_mask *m, const struct flow_key *key)
{
	FOR_EACH_REST_WORD(m, at)
		h = (h ^ flow_fold(key->word[FLOW_FRONT + at] & m->word[FLOW_FRONT + at])) * flow_seed[4] ^ h >> 29;
	return h;
}

static __always_inline bool flow_rest_equal(const struct flow_rest *rest, const struct flow_mask *m, const struct flow_key *key)
{
	FOR_EACH_REST_WORD(m, at)
		if ((key->word[FLOW_FRONT + at] & m->word[FLOW_FRONT + at]) != rest->word[at])
			return false;
	return true;
}

static __always_inline void flow_rest_store(struct flow_rest *rest, const struct flow_mask *m, const struct flow_key *key)
{
	FOR_EACH_REST_WORD(m, at)
		rest->word[at] = key->word[FLOW_FRONT + at] & m->word[FLOW_FRONT + at];
}

/*
 * Records a rule as the best if it matches the key and precedes the best so far. A global function, because few packets
 * need it twice.
 */
__noinline int flow_consider(struct flow_scratch *s, __u32 id)
{
	const struct flow_rule *rule = ROW(flow_rules, id);
	const struct flow_mask *m = rule ? ROW(flow_masks, rule->mask) : NULL;
	const struct flow_rest *rest;

	if (!s || !m)
		return 0;
	__u64 precedence = ((__u64)rule->priority << FLOW_RANK_BITS | m->rank) + 1;
	if (precedence <= s->best_precedence)
		return 0;
	for (int i = 0; i < FLOW_FRONT; i++)
		if (rule->key[i] != (s->key.word[i] & m->word[i]))
			return 0;
	if (m->rest_count && (!(rest = ROW(flow_rest, rule->rest)) || !flow_rest_equal(rest, m, &s->key)))
		return 0;
	s->best = id;
	s->best_precedence = precedence;
	return 0;
}

/* Compares the rules in a bucket. Returns true if the bucket is full. The key may then be in the other bucket. */
static __always_inline bool flow_search(struct flow_scratch *s, __u32 bucket, __u32 tag)
{
	const struct flow_bucket *b = ROW(flow_index, bucket);
	bool full = true;

	if (!b)
		return false;
	for (int i = 0; i < FLOW_WAYS; i++) {
		__u64 slot = *(volatile const __u64 *)&b->slot[i];

		if (!slot)
			full = false;
		else if (slot >> 32 == tag)
			flow_consider(s, slot);
	}
	return full;
}

/* Looks into the buckets of a mask. A global function: the verifier checks it once. */
__noinline int flow_probe(struct flow_scratch *s, __u32 mask)
{
	const struct flow_mask *m = ROW(flow_masks, mask);

	if (!s || !m)
		return 0;
	__u64 h = flow_hash(s->key.word[0] & m->word[0], s->key.word[1] & m->word[1], s->key.word[2] & m->word[2],
			    s->key.word[3] & m->word[3]);
	if (m->rest_count)
		h = flow_rest_hash(h, m, &s->key);
	h = flow_mix(h);
	__u64 index = *(volatile const __u64 *)&m->index;
	__u32 first = index, buckets = index >> 32, bucket = h >> 32 & buckets;

	if (!flow_search(s, first + bucket, h))
		return 0;
	if (buckets)
		flow_search(s, first + (bucket ^ 1), h);
	return 0;
}

struct flow_walk {
	struct flow_scratch *scratch;
	const struct flow_table *table;
};

static long flow_try(__u32 i, struct flow_walk *walk)
{
	__u64 entry;

	/* Entries may move towards the end during the loop, so the count is read again each time. */
	if (i >= FLOW_ORDER || i >= *(volatile const __u64 *)&walk->table->count)
		return 1;
	entry = *(volatile const __u64 *)&walk->table->order[i];
	if (entry & FLOW_ORDER_ROW && walk->scratch->best_precedence <= entry >> FLOW_RANK_SHIFT)
		flow_probe(walk->scratch, entry & FLOW_ORDER_ROW);
	return 0;
}

/*
 * The rule of a table: the matching one with the highest priority, among equals the one under the mask of the highest rank
 * (logic::flow::table). If none matches, the table's own rule.
 */
__noinline __u32 flow_lookup(struct flow_scratch *s, __u32 table)
{
	struct flow_walk walk = { .scratch = s, .table = ROW(flow_tables, table) };

	if (!s || !walk.table)
		return 0;
	s->best = 1 + table;
	s->best_precedence = 0;
	bpf_loop(FLOW_ORDER, flow_try, &walk, 0);
	return s->best;
}

/* The enum flow_needs that this packet has. */
static __always_inline __u64 flow_has(const struct flow_layout *l)
{
	__u64 has = l->tags ? FLOW_NEEDS_TAG : 0;

	if (l->tags < 2)
		has |= FLOW_NEEDS_ROOM;
	if (l->network == 4)
		has |= FLOW_NEEDS_IPV4;
	else if (l->network == 6)
		has |= FLOW_NEEDS_IPV6;
	else if (l->network == 1)
		has |= FLOW_NEEDS_ARP;
	if (l->l4_offset && !l->fragment)
		has |= l->protocol == IPPROTO_TCP ? FLOW_NEEDS_TCP : l->protocol == IPPROTO_UDP ? FLOW_NEEDS_UDP : 0;
	return has;
}

/* Does a patch describe all that later tables see changed? `word`: the packet's word with the UDP destination port. */
static __always_inline bool flow_patch_holds(const struct flow_layout *l, const struct flow_patch *patch, __u64 word)
{
	__u16 old_port = word >> 48, new_port = ((word & ~patch->mask[2]) | patch->value[2]) >> 48, vxlan = bpf_htons(vxlan_port);

	if (patch->needs & ~flow_has(l))
		return false;
	/* A change from or to the port of VXLAN changes whether there is an inner frame. */
	return old_port == new_port || l->protocol != IPPROTO_UDP || (old_port != vxlan && new_port != vxlan);
}

/* Changes the key to what later tables see. Returns 0 if that depends on more than the patch says. */
__noinline int flow_apply_patch(struct flow_scratch *s, __u32 row)
{
	const struct flow_patch *patch = ROW(flow_patches, row);

	if (!s || !patch || !flow_patch_holds(&s->layout, patch, s->key.word[2]))
		return 0;
	for (int i = 0; i < FLOW_WORDS; i++)
		s->key.word[i] = (s->key.word[i] & ~patch->mask[i]) | patch->value[i];
	return 1;
}

/* Do the patches of a cached flow's rules hold for this packet, too? They may need fields that no rule matches. */
__noinline int flow_patches_hold(struct flow_scratch *s)
{
	if (!s)
		return 0;
	__u64 word = s->key.word[2];

	for (int i = 0; i < FLOW_CHAIN && s->rule[i]; i++) {
		const struct flow_rule *rule = ROW(flow_rules, (__u32)s->rule[i]);
		const struct flow_patch *patch;

		if (!rule || !rule->patch)
			continue;
		patch = ROW(flow_patches, rule->patch);
		if (!patch || !flow_patch_holds(&s->layout, patch, word))
			return 0;
		word = (word & ~patch->mask[2]) | patch->value[2];
	}
	return 1;
}

/*
 * Goes through the tables, and fills s->rule. Returns the number of rules that decided, or 0 if user space has to decide.
 * User space also decides if a rule's decision is being rewritten: it is FLOW_SLOW then.
 */
__noinline __u32 flow_classify(struct flow_scratch *s)
{
	const struct flow_table *cores = ROW(flow_tables, FLOW_CORE_TABLE);

	if (!s || !cores)
		return 0;
	__u32 table = *(volatile const __u64 *)&cores->count ? FLOW_CORE_TABLE : 0;
	for (__u32 i = 0; i < FLOW_RULES; i++) {
		__u32 id = flow_lookup(s, table);
		const struct flow_rule *rule = ROW(flow_rules, id);

		if (!rule)
			return 0;
		s->rule[i] = (__u64)*(volatile const __u32 *)&rule->generation << 32 | id;
		if (table == FLOW_CORE_TABLE) {
			table = 0;
			continue;
		}
		__u64 decision = *(volatile const __u64 *)&rule->kind;
		table = decision >> 8 & 0xff;
		if ((__u8)decision == FLOW_SLOW)
			return 0;
		if (!table) {
			if (i + 1 < FLOW_RULES)
				s->rule[i + 1] = 0;
			return i + 1;
		}
		if (rule->patch && !flow_apply_patch(s, rule->patch))
			return 0;
	}
	return 0;
}
