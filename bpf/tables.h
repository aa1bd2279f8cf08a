/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Lookups in the tables that user space builds. logic/src/hash.rs has the same hashes, and logic::fib the trie. */
#pragma once

#define K1 0x9e3779b97f4a7c15ULL
#define K2 0xff51afd7ed558ccdULL

static __always_inline __u64 mix(__u64 word)
{
	__u64 h = word * K2;

	return (h ^ h >> 32) * K2;
}

/* The port with this ifindex as one word, as user space writes it; 0 if there is none. */
static __always_inline __u64 find_port(__u32 ifindex)
{
	const struct port *port = ROW(port_index, ifindex & (PORT_INDEX_SIZE - 1));
	__u64 word = port ? *(volatile const __u64 *)port : 0;

	return (__u32)word == ifindex ? word : 0;
}

/*
 * The second word of the slot in this bucket that holds the key, or 0. Sets *full if the key may be in the other bucket.
 * Slots are reused at once. The writer keeps the second word 0 while it changes the first. So if two reads of the second
 * word are equal, it belongs to the first word that was read between them. (x86-64 does loads in order, and the daemon
 * does not compile elsewhere: router/src/plane/memory.rs.)
 */
static __always_inline __u64 search_interfaces(__u32 bucket, __u64 mac_port, __u32 vlan, bool *full)
{
	const struct interface_bucket *b = ROW(interface_index, bucket);

	if (!b)
		return 0;
	*full = true;
	for (int i = 0; i < INTERFACE_WAYS; i++) {
		volatile const __u64 *word = (volatile const __u64 *)&b->slot[i];
		__u64 second = word[1];

		if (!second)
			*full = false;
		else if (word[0] == mac_port && (__u32)second == vlan && word[1] == second)
			return second;
	}
	return 0;
}

static __always_inline __u64 find_interface(__u64 mac, __u16 port, __u32 vlan)
{
	__u64 mac_port = mac | (__u64)port << 48;
	__u32 bucket = mix(mac_port ^ vlan * K1) >> 32 & interface_mask;
	bool full = false;
	__u64 slot = search_interfaces(bucket, mac_port, vlan, &full);

	if (!slot && full)
		slot = search_interfaces((bucket ^ 1) & interface_mask, mac_port, vlan, &full);
	return slot;
}

/* The untagged interface, if it takes frames of VLAN 0. These are rare. A global function: the verifier checks it once. */
__noinline __u64 find_priority_tagged(__u64 mac, __u32 port)
{
	__u64 slot = find_interface(mac, port, 0);

	return slot >> 56 & IF_PRIORITY_TAGS ? slot : 0;
}

/* Two halves of an address: IPv6 in network byte order as loaded, IPv4 in the low 4 bytes of lo. */
struct address {
	__u64 lo, hi;
};

static __always_inline const struct nexthop *
search_neighbours(const struct packet *p, __u32 bucket, __u32 tag, __u16 interface, const struct address *a, bool *full)
{
	const struct neighbour_bucket *b = ROW(neighbour_index, bucket);

	if (!b)
		return NULL;
	*full = true;
	for (int i = 0; i < NEIGHBOUR_WAYS; i++) {
		__u64 slot = *(volatile const __u64 *)&b->slot[i];
		const struct nexthop *n;

		if (!slot) {
			*full = false;
			continue;
		}
		if (slot >> 32 != tag || !(n = ROW(nexthops, (__u32)slot)))
			continue;
		if (n->interface == interface && *(const __u64 *)n->address == a->lo &&
		    *(const __u64 *)(n->address + 8) == a->hi) {
			trace_step(p, TRACE_NEIGHBOUR, (__u32)slot, interface);
			return n;
		}
	}
	return NULL;
}

static __always_inline const struct nexthop *find_neighbour(const struct packet *p, __u16 interface, const struct address *a)
{
	__u64 h = mix(mix(a->lo + interface * K1) ^ a->hi);
	__u32 bucket = h >> 32 & neighbour_mask;
	bool full = false;

	const struct nexthop *n = search_neighbours(p, bucket, (__u32)h, interface, a, &full);

	if (!n && full)
		n = search_neighbours(p, (bucket ^ 1) & neighbour_mask, (__u32)h, interface, a, &full);
	if (!n)
		trace_step(p, TRACE_NEIGHBOUR, 0, interface);
	return n;
}

/* --- the trie: slots in, slots out --------------------------------------------------------------------------------- */

static __always_inline __u32 fib_slot(const struct packet *p, __u32 block, __u8 octet)
{
	const struct fib_block *b = ROW(fib, block);
	__u32 slot = b ? *(volatile const __u32 *)&b->slot[octet] : 0;

	trace_step(p, TRACE_FIB_BLOCK, block, slot);
	return slot;
}

/*
 * hi, lo: the address in host byte order, IPv4 in the top 32 bits of hi. Returns the slot, and in the upper half the
 * prefix length, which is the depth of a child. A global function: the verifier checks it once, not in each round of the
 * loops below.
 */
__noinline __u64 fib_tail(__u32 index, __u64 hi, __u64 lo)
{
	const struct fib_tail *tail = ROW(fib_tails, index);

	if (!tail)
		return 0;
	__u32 length = tail->length;
	__u64 hi_mask = length >= 64 ? ~0ULL : ~(~0ULL >> (length & 63));
	__u64 lo_mask = length >= 128 ? ~0ULL : length <= 64 ? 0 : ~(~0ULL >> (length & 63));
	bool match = !(((hi ^ tail->hi) & hi_mask) | ((lo ^ tail->lo) & lo_mask));
	__u32 slot = match ? *(volatile const __u32 *)&tail->match : *(volatile const __u32 *)&tail->miss;

	return (__u64)length << 32 | slot;
}

static __always_inline __u32 fib4_lookup(const struct packet *p, __u64 root, __u32 address)
{
	__u32 shift = root >> 32 & 0xff;
	__u32 block = (__u32)root + (__u32)((__u64)address >> (shift & 63));
	__u32 rest = address << ((32 - shift) & 31);

	for (int i = 0; root && i < 4; i++) {
		__u32 slot = fib_slot(p, block, rest >> 24);

		rest <<= 8;
		if (slot >> FIB_KIND_SHIFT == FIB_TAIL) {
			__u64 both = fib_tail(slot & FIB_INDEX_MASK, (__u64)address << 32, 0);

			slot = both;
			trace_step(p, TRACE_FIB_TAIL, both >> 32, slot);
			rest = address << (both >> 32 & 31);
		}
		if (slot >> FIB_KIND_SHIFT != FIB_CHILD)
			return slot;
		block = slot & FIB_INDEX_MASK;
	}
	return 0;
}

static __always_inline __u32 fib6_lookup(const struct packet *p, __u64 root, __u64 hi, __u64 lo)
{
	__u32 shift = root >> 32 & 0xff;
	__u32 block = (__u32)root;
	__u32 depth = 0;	/* bits before the octet that chooses the slot */

	if (shift == 120) {
		block += hi >> 56;
		depth = 8;
	}
	for (int i = 0; root && i < 16; i++) {
		/* No branch on depth: the verifier would follow each of its values through the rest of the loop. */
		__u64 second = 0 - (__u64)(depth >> 6 & 1);

		barrier_var(second);
		__u64 half = (lo & second) | (hi & ~second);
		__u32 slot = fib_slot(p, block, half >> (56 - (depth & 56)));

		depth += 8;
		if (slot >> FIB_KIND_SHIFT == FIB_TAIL) {
			__u64 both = fib_tail(slot & FIB_INDEX_MASK, hi, lo);

			slot = both;
			trace_step(p, TRACE_FIB_TAIL, both >> 32, slot);
			depth = both >> 32;
		}
		if (slot >> FIB_KIND_SHIFT != FIB_CHILD)
			return slot;
		block = slot & FIB_INDEX_MASK;
	}
	return 0;
}

/* The first member of a group whose bound is not below the hash, which has 31 bits. The last bound is the highest hash. */
static __always_inline __u32 group_member(const struct packet *p, __u32 slot, __u32 hash)
{
	const struct fib_block *b = ROW(fib, slot & FIB_INDEX_MASK);
	__u32 at = 0;

	if (!b)
		return 0;
#pragma unroll
	for (__u32 step = GROUP_MEMBERS / 2; step; step >>= 1)
		if (*(volatile const __u32 *)&b->slot[(at + step - 1) & (GROUP_MEMBERS - 1)] < hash)
			at += step;
	slot = *(volatile const __u32 *)&b->slot[GROUP_MEMBERS + (at & (GROUP_MEMBERS - 1))];
	trace_step(p, TRACE_GROUP, hash, slot);
	return slot;
}
