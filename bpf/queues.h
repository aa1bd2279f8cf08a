/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The quick path of paper Q (Q3, Q4): a NIC's classifier steers heavy flows to queues of their next hops, and a row of the
 * queue holds the tables' result. The program has none of this code if no port has a classifier.
 */
#pragma once

/* The addresses and the transport header of an IP packet whose own header is all here. */
struct addresses {
	struct address source, destination;
	const void *transport;
	__u8 protocol;
	bool fragment;
};

static __always_inline bool read_addresses(const struct packet *p, struct addresses *a)
{
	const void *header = packet_data(p) + p->ip_offset;
	const struct ipv4 *v4 = header;
	const struct ipv6 *v6 = header;

	if (p->ether_type == ETH_P_IP) {
		if ((const void *)(v4 + 1) > packet_end(p))
			return false;
		*a = (struct addresses){
			.source.lo = v4->source,
			.destination.lo = v4->destination,
			.transport = v4 + 1,
			.protocol = v4->protocol,
			.fragment = v4->fragment & bpf_htons(IPV4_FRAGMENT),
		};
		return true;
	}
	if (p->ether_type != ETH_P_IPV6 || (const void *)(v6 + 1) > packet_end(p))
		return false;
	*a = (struct addresses){
		.source = { .lo = v6->source[0], .hi = v6->source[1] },
		.destination = { .lo = v6->destination[0], .hi = v6->destination[1] },
		.transport = v6 + 1,
		.protocol = v6->next_header,
	};
	return true;
}

/* The row of a queue that may have this destination, by its last byte. A hash would cost half of what a row saves. */
static __always_inline __u32 queue_way(const struct address *destination, bool ipv6)
{
	return ipv6 ? (destination->hi >> 56 & (QUEUE_FAMILY_WAYS - 1)) | QUEUE_FAMILY_WAYS
		    : destination->lo >> 24 & (QUEUE_FAMILY_WAYS - 1);
}

/*
 * If a row of the packet's queue fits its interface and destination, notes the next hop and returns the second word of the
 * interface's slot. The index of the queue may be wrong (generic mode, cpumap). Then no row fits, or one with the same
 * result.
 */
static __always_inline __u64 find_queue_row(struct packet *p, __u64 mac)
{
	struct addresses a;

	if (!queue_rows || p->explain)
		return 0;
	__u32 queue = p->ctx->rx_queue_index;
	if (queue >= MAX_QUEUES || !read_addresses(p, &a))
		return 0;
	__u32 way = queue_way(&a.destination, p->ether_type == ETH_P_IPV6);
	volatile const struct queue_row *row = ROW(queues, (p->port * MAX_QUEUES + queue) * QUEUE_WAYS + way);
	__u64 version = row ? row->version : 0;
	if (!version)
		return 0;
	__u64 slot = row->slot;
	if (row->lo != a.destination.lo || row->hi != a.destination.hi || row->mac_port != (mac | (__u64)p->port << 48) ||
	    (__u32)slot != p->vlan)
		return 0;
	__u64 next = *(volatile const __u64 *)&row->nexthop;
	if (row->version != version)
		return 0;
	p->queue_nexthop = next;
	p->queue_mtu = next >> 32;
	return slot;
}

/* Called for a packet that leaves, so it has its new Ethernet header already. */
static __always_inline void sample_flow(const struct packet *p)
{
	struct flow_samples *ring = ROW(flow_samples, p->cpu);
	struct addresses a;

	if (!ring || !read_addresses(p, &a))
		return;
	struct flow_sample *s = &ring->sample[ring->count & (FLOW_SAMPLES - 1)];
	bool has_ports = (a.protocol == IPPROTO_TCP || a.protocol == IPPROTO_UDP) && !a.fragment;
	s->source[0] = a.source.lo;
	s->source[1] = a.source.hi;
	s->destination[0] = a.destination.lo;
	s->destination[1] = a.destination.hi;
	s->ports = has_ports && a.transport + 4 <= packet_end(p) ? *(const __u32 *)a.transport : 0;
	s->frame_bytes = p->frame_bytes;
	s->interface = p->interface;
	s->port = p->port;
	s->protocol = a.protocol;
	s->family = p->ether_type == ETH_P_IP ? 4 : 6;
	/* `count` comes last: the reader takes only complete entries. */
	barrier();
	ring->count++;
}
