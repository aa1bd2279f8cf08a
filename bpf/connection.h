/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Connections that conntrack tracks and that all rules accept (logic::connections). Their packets bypass the rules and
 * conntrack. The program translates them as nf_nat does. Packets that may change the state of a connection go to the
 * kernel, as do all that is_plain() refuses.
 *
 * Packets of routers without ROUTER_CONNECTIONS pay one test of a flag. The separate functions keep the registers that they
 * take out of the path of other packets, and the verifier checks each of them once.
 */
#pragma once

#define TCP_FLAGS	13	/* the byte of a TCP header that holds the flags */
#define TCP_STATE_FLAGS	0x07	/* FIN, SYN, RST: conntrack changes its state */
#define TCP_ACK		0x10
#define TCP_CHECKSUM	16
#define UDP_LENGTH	4
#define UDP_CHECKSUM	6

/* The packets of one direction. */
struct connection_key {
	__u64 source[2], destination[2];	/* as loaded; IPv4 in the low 4 bytes of the first word */
	__u32 ports;
	__u32 rest;	/* protocol, router, version and 0, as they lie in struct connection */
};

/* logic::hash::connection computes the same. */
static __always_inline __u64 connection_hash(const struct connection_key *key)
{
	__u64 h = connection_seed;

	if (key->rest >> 16) {
		h = mix(h ^ key->source[0]);
		h = mix(h ^ key->source[1]);
		h = mix(h ^ key->destination[0]);
		h = mix(h ^ key->destination[1]);
	} else {
		h = mix(h ^ (key->source[0] | key->destination[0] << 32));
	}
	return mix(h ^ (key->ports | (__u64)key->rest << 32));
}

/*
 * Reads the key of a plain packet of TCP or UDP. Returns its header of TCP or UDP, or NULL. `offset`: of the IP header, and
 * bit 31 for IPv6.
 */
static __always_inline const __u8 *
read_key(struct xdp_md *ctx, __u32 router, __u32 offset, struct connection_key *key)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 bytes, protocol;
	const __u8 *header;

	if (offset >> 31) {
		const struct ipv6 *ip = data + (offset & 0xff);

		if ((void *)(ip + 1) > end)
			return RARE(NULL);
		key->source[0] = ip->source[0];
		key->source[1] = ip->source[1];
		key->destination[0] = ip->destination[0];
		key->destination[1] = ip->destination[1];
		bytes = bpf_ntohs(ip->payload_length);
		protocol = ip->next_header;
		header = (void *)(ip + 1);
	} else {
		const struct ipv4 *ip = data + (offset & 0xff);

		if ((void *)(ip + 1) > end || ip->fragment & bpf_htons(IPV4_FRAGMENT))
			return RARE(NULL);
		key->source[0] = ip->source;
		key->destination[0] = ip->destination;
		key->source[1] = key->destination[1] = 0;
		bytes = bpf_ntohs(ip->total_length) - IPV4_BYTES;
		protocol = ip->protocol;
		header = (void *)(ip + 1);
	}
	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || !is_plain(header, end, bytes, protocol))
		return RARE(NULL);
	/* is_plain() has checked this room; the verifier forgets it. */
	if ((const void *)(header + UDP_BYTES) > end)
		return RARE(NULL);
	/*
	 * conntrack refuses shorter and longer lengths (udp_error). It computes the checksum over the whole IP packet, so that of
	 * a packet with bytes behind UDP is wrong for it (nf_ip_checksum).
	 */
	if (protocol == IPPROTO_UDP && bpf_ntohs(*(const __be16 *)(header + UDP_LENGTH)) != bytes)
		return RARE(NULL);
	key->ports = *(const __u32 *)header;
	key->rest = protocol | (router & 0xff) << 8 | offset >> 31 << 16;
	return header;
}

static __always_inline bool has_addresses(const struct connection *c, const struct connection_key *key)
{
	if (key->rest >> 16)
		return c->family.v6.source[0] == key->source[0] && c->family.v6.source[1] == key->source[1] &&
		       c->family.v6.destination[0] == key->destination[0] &&
		       c->family.v6.destination[1] == key->destination[1];
	return c->family.v4.source == (__u32)key->source[0] && c->family.v4.destination == (__u32)key->destination[0];
}

/* Searches a block for a key. Returns the row + 1, or 0. Sets *more if the key may be in the other block. */
static __always_inline __u32
search_connections(__u32 block, __u32 hash, const struct connection_key *key, bool *more)
{
	*more = false;
	for (int i = 0; i < CONNECTION_WAYS; i++) {
		__u32 row = block * CONNECTION_WAYS + ((hash + i) & (CONNECTION_WAYS - 1));
		const struct connection *c = ROW(connections, row);

		if (!c)
			return RARE(0);
		__u64 word = *(volatile const __u64 *)c;

		if (!word)
			return RARE(0);
		if ((word & ~((__u64)CONNECTION_TRANSLATED << 56)) == (key->ports | (__u64)key->rest << 32) &&
		    has_addresses(c, key))
			return row + 1;
	}
	*more = true;
	return 0;
}

static __always_inline bool is_valid(const struct connection *c, __u32 router, __u32 ingress)
{
	const struct firewall *f = ROW(firewalls, router);
	const struct control *control_row = ROW(control, 0);
	__u64 now = bpf_jiffies64();

	if (!f || !control_row)
		return false;
	__u64 generation = *(volatile const __u64 *)&f->generation;
	__u64 word = *(volatile const __u64 *)&c->generation;	/* with `until` above it */

	return generation && (__u32)word == generation && c->ingress == ingress &&
	       now >> CONNECTION_UNTIL_SHIFT < word >> 32 &&
	       now < *(volatile const __u64 *)&control_row->connections_deadline_jiffies &&
	       !*(volatile const __u32 *)&c->ended;
}

/*
 * Packets of both directions go to the kernel from now on. User space reads which of these flags the program has seen.
 * Two CPUs may see FIN and RST at the same time, so the flags are set atomically. The compiler has only 64-bit atomic
 * operations; `ended` is the lower half of a 64-bit word.
 */
static __always_inline void end_connection(__u32 row, __u8 flags)
{
	struct connection *one = ROW(connections, row);

	if (!one)
		return;
	__sync_fetch_and_or((__u64 *)&one->ended, flags);
	struct connection *other = ROW(connections, one->other);

	if (other)
		__sync_fetch_and_or((__u64 *)&other->ended, flags);
}

enum find_purpose {
	FIND_TO_FORWARD,
	FIND_TO_EXPLAIN,	/* the same, without ending a connection */
	FIND_ROW,		/* only the row + 1, even if it is void, and for any flags of the packet */
};

/*
 * Finds the packet's connection. Returns 0, or its row + 1 in the low 32 bits, its egress interface in bits 32..47, and
 * CONNECTION_TRANSLATED bits of its state above them. This saves lookups, each of which takes a place on the stack.
 * `place`: the router, and its ingress interface in bits 16..31. `offset`: as in read_key().
 *
 * For a packet that may change the connection's state, this returns 0 and ends the connection. It does so even if the
 * row is not valid for the packet, because conntrack looks only at what the key holds.
 */
__noinline __u64 find_connection(struct xdp_md *ctx, __u32 place, __u32 offset, enum find_purpose purpose)
{
	struct connection_key key;
	bool more;
	const __u8 *header = read_key(ctx, place, offset, &key);
	__u8 flags = TCP_ACK;

	if (!header)
		return RARE(0);
	if ((key.rest & 0xff) == IPPROTO_TCP) {
		if ((const void *)(header + TCP_BYTES) > (void *)(long)ctx->data_end)
			return RARE(0);
		flags = header[TCP_FLAGS];
	}
	__u64 hash = connection_hash(&key);
	__u32 block = hash >> 32 & connection_mask;
	__u32 row = search_connections(block, hash, &key, &more);

	if (more)
		row = search_connections((block ^ 1) & connection_mask, hash, &key, &more);
	if (!row || purpose == FIND_ROW)
		return row;
	if (flags & TCP_STATE_FLAGS) {
		if (purpose == FIND_TO_FORWARD)
			end_connection(row - 1, flags & TCP_STATE_FLAGS);
		return RARE(0);
	}
	const struct connection *c = ROW(connections, row - 1);

	if (!c || !(flags & TCP_ACK) || !is_valid(c, place & 0xff, place >> 16))
		return RARE(0);
	return row | (__u64)c->egress << 32 | (__u64)(c->state & CONNECTION_TRANSLATED) << 48;
}

static __always_inline bool has_new_destination(const struct packet *p)
{
	return p->connection >> 48 == CONNECTION_NEW_DESTINATION;
}

/* A half of the packet's new destination. `row`: + 1. A lookup in the programs themselves would cost them stack. */
__noinline __u64 new_destination(__u32 row, __u32 half)
{
	const struct connection *c = ROW(connections, row - 1);

	if (!c)
		return 0;
	if (!c->version)
		return c->family.v4.new_destination;
	const struct connection6_rest *rest = (void *)ROW(connections, c->rest);

	return rest ? rest->new_destination[half & 1] : 0;
}

/* Finds the packet's connection. Does it give the packet a new destination? `version`: 0 for IPv4, 1 for IPv6. */
static __always_inline bool look_for_connection(struct packet *p, const struct router *router, __u32 version)
{
	if (!(*(volatile const __u32 *)&router->flags & ROUTER_CONNECTIONS))
		return false;
	p->connection = find_connection(p->ctx, p->router | (__u32)p->interface << 16, p->ip_offset | version << 31,
					p->explain ? FIND_TO_EXPLAIN : FIND_TO_FORWARD);
	trace_step(p, TRACE_CONNECTION, (__u32)p->connection, 0);
	if (!has_new_destination(p))
		return false;
	p->queue_nexthop = 0;	/* found by the old destination */
	return true;
}

static __always_inline bool is_due(__u32 count)
{
	return (count <= 64 && !(count & 7)) || !(count & 4095);
}

/* May the router send another note? Takes it. The arguments: as below. */
static __always_inline bool may_note(__u32 place, __u32 egress_cpu)
{
	barrier_var(egress_cpu);	/* else the compiler keeps its lower half on the stack */
	__u64 *noted = ROW(connection_counts, (place & 0xff) + ((__u16)egress_cpu ? 0 : MAX_ROUTERS));
	__u64 most = (__u16)egress_cpu ? CONNECTION_NOTES : LOCAL_NOTES;

	return noted && *(volatile __u64 *)noted < most && __sync_fetch_and_add(noted, 1) < most;
}

/* `egress_cpu`: as below. */
static __always_inline __u32 candidate_row(__u32 hash, __u32 egress_cpu)
{
	__u32 first = (egress_cpu >> 16) * (candidate_mask + 1 + LOCAL_CANDIDATES);
	bool leaves = (__u16)egress_cpu;

	return first + (leaves ? hash & candidate_mask : candidate_mask + 1 + (hash & (LOCAL_CANDIDATES - 1)));
}

/*
 * Counts a packet that goes to the kernel because of rules, and notes its connection after some packets. `place`: as above.
 * `egress_cpu`: the egress interface, and the CPU in the upper half. Connections count from 1 again under new rules, and
 * when they leave by another interface.
 *
 * Egress 0: the packet is for an address of the router, which NAT may translate. Anybody can send such packets. So they
 * have rows and notes of their own, and cannot keep others from being noted.
 *
 * Connections that share a row of `candidates` take turns: one keeps the row until it is noted, or has been silent for a
 * second or two. Otherwise none of them could count to 8 while their packets alternate. A connection that finds no room
 * for its note tries again with its next packet.
 */
__noinline int note_connection(struct xdp_md *ctx, __u32 place, __u32 egress_cpu, __u32 offset)
{
	struct connection_key key;
	const struct firewall *f = ROW(firewalls, place & 0xff);
	const __u8 *header = read_key(ctx, place, offset, &key);

	if (!header || !f)
		return 0;
	if ((key.rest & 0xff) == IPPROTO_TCP && ((const void *)(header + TCP_BYTES) > (void *)(long)ctx->data_end ||
						 (header[TCP_FLAGS] & (TCP_STATE_FLAGS | TCP_ACK)) != TCP_ACK))
		return 0;
	__u64 hash = mix(connection_hash(&key) ^ *(volatile const __u64 *)&f->generation ^ (__u64)(__u16)egress_cpu << 32);
	__u64 *candidate = ROW(candidates, candidate_row(hash, egress_cpu));

	if (!candidate)
		return 0;
	__u64 before = *candidate;
	__u32 now = bpf_ktime_get_coarse_ns() >> 30 & CANDIDATE_TIME;
	__u32 age = (now - (before >> CANDIDATE_COUNT_BITS)) & CANDIDATE_TIME;
	__u32 count = before & CANDIDATE_COUNT;
	bool due;

	if (before >> 32 == hash >> 32)
		count = (count + 1) & CANDIDATE_COUNT;
	else if (count & 7 && age < 2)
		return 0;
	else
		count = 1;
	due = count && is_due(count);
	if (due && !may_note(place, egress_cpu)) {
		due = false;
		count--;
	}
	*candidate = hash >> 32 << 32 | now << CANDIDATE_COUNT_BITS | count;
	if (!due)
		return 0;
	struct connection_note *note = bpf_ringbuf_reserve(&connection_notes, sizeof(*note), 0);
	if (!note)
		return 0;
	*note = (struct connection_note){
		.source = { key.source[0], key.source[1] },
		.destination = { key.destination[0], key.destination[1] },
		.ports = key.ports,
		.protocol = key.rest,
		.router = key.rest >> 8,
		.version = key.rest >> 16,
		.ingress = place >> 16,
		.egress = egress_cpu,
	};
	bpf_ringbuf_submit(note, 0);
	return 0;
}

/* Must Linux apply its rules to the packet? Not if its connection is fast and it leaves by the proof's interface. */
static __always_inline bool rules_decide(const struct packet *p, const struct router *router, __u32 version)
{
	if (p->connection ? (__u16)(p->connection >> 32) == p->out->interface : !rules_may_affect(p, router, version))
		return false;
	if (!p->explain && *(volatile const __u32 *)&router->flags & ROUTER_CONNECTIONS)
		note_connection(p->ctx, p->router | (__u32)p->interface << 16, p->out->interface | p->cpu << 16,
				p->ip_offset | version << 31);
	return true;
}

/* A packet goes up for this reason. If it is for an address of the router, NAT may translate that, so it is noted. */
static __always_inline void
note_local(const struct packet *p, const struct router *router, enum reason reason, __u32 version)
{
	if ((reason == REASON_LOCAL || reason == REASON_LOCAL_PREFIX) && !p->explain &&
	    *(volatile const __u32 *)&router->flags & ROUTER_CONNECTIONS)
		note_connection(p->ctx, p->router | (__u32)p->interface << 16, p->cpu << 16, p->ip_offset | version << 31);
}

/*
 * Adds `change` to a checksum: the sum of ~old and new words of 16 or 32 bits (RFC 1624). A result of zero is always 0,
 * never 0xffff, as in csum_replace4 and inet_proto_csum_replace4.
 */
static __always_inline __u16 replaced(__u16 checksum, __u64 change)
{
	__u64 sum = 0xffff + (__u16)~checksum + change;

	/* It has less than 38 bits: `change` is a sum of at most nine values of change_of(). */
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return ~sum;
}

static __always_inline __u64 change_of(__u32 old, __u32 new)
{
	return (__u64)(__u32)~old + new;
}

/* Replaces the two words of an address. Returns their part of `change` for replaced(). */
static __always_inline __u64 replace_address6(__u64 *words, const __u64 *new)
{
	__u64 change = 0;

	for (int i = 0; i < 2; i++) {
		change += change_of(words[i], new[i]) + change_of(words[i] >> 32, new[i] >> 32);
		words[i] = new[i];
	}
	return change;
}

/* As tcp_manip_pkt and udp_manip_pkt of nf_nat. A UDP packet without a checksum gets none. `change`: of addresses. */
static __always_inline void
translate_header(__u8 *header, const void *end, __u8 protocol, __u32 new_ports, __u64 change)
{
	__u16 *checksum;

	if ((const void *)(header + UDP_BYTES) > end)
		return;
	change += change_of(*(__u32 *)header, new_ports);
	if (protocol == IPPROTO_UDP) {
		checksum = (__u16 *)(header + UDP_CHECKSUM);
		if (*checksum) {
			__u16 new = replaced(*checksum, change);

			*checksum = new ? new : 0xffff;	/* CSUM_MANGLED_0 */
		}
	} else {
		checksum = (__u16 *)(header + TCP_CHECKSUM);
		if ((const void *)(header + TCP_BYTES) > end)
			return;
		*checksum = replaced(*checksum, change);
	}
	*(__u32 *)header = new_ports;
}

/*
 * Counts a packet that leaves, and translates it. find_connection() has checked that its headers are there. `row`: + 1.
 * `offset`: as in read_key(), of the packet as it leaves. `bytes`: of the IP packet; 0: it is not counted. One direction of
 * a connection is on one core, except for the moments in which it moves, so the counts need no atomics.
 */
__noinline int translate(struct xdp_md *ctx, __u32 row, __u32 offset, __u32 bytes)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct connection *c = ROW(connections, row - 1);

	if (!c)
		return 0;
	if (offset >> 31) {
		struct ipv6 *ip = data + (offset & 0xff);
		struct connection6_rest *rest = (void *)ROW(connections, c->rest);

		if (!rest)
			return 0;
		if (bytes) {
			rest->packets++;
			rest->bytes += bytes;
		}
		if (!(c->state & CONNECTION_TRANSLATED) || (void *)(ip + 1) > end)
			return 0;
		__u64 change = replace_address6(ip->source, rest->new_source) +
			       replace_address6(ip->destination, rest->new_destination);

		translate_header((void *)(ip + 1), end, c->protocol, rest->new_ports, change);
	} else {
		struct ipv4 *ip = data + (offset & 0xff);
		struct connection4 *v4 = &c->family.v4;

		if (bytes) {
			v4->packets++;
			v4->bytes += bytes;
		}
		if (!(c->state & CONNECTION_TRANSLATED) || (void *)(ip + 1) > end)
			return 0;
		__u64 change = change_of(ip->source, v4->new_source) + change_of(ip->destination, v4->new_destination);

		ip->source = v4->new_source;
		ip->destination = v4->new_destination;
		ip->checksum = replaced(ip->checksum, change);
		translate_header((void *)(ip + 1), end, c->protocol, c->rest, change);
	}
	return 0;
}
