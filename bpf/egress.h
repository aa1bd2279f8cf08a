/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* From a table slot to the wire: next hop, the last checks, rewrite, redirect. Shared by IPv4 and IPv6. */
#pragma once

#define IPV4_FLAGS		6	/* the byte of an IPv4 header that holds the flags */
#define IPV4_FLAG_DF		0x40

/* Linux fragments the packet if it may, and otherwise answers with an ICMP error (ip_forward, ip6_forward). */
static __always_inline enum reason over_mtu(const struct packet *p)
{
	const __u8 *flags = packet_data(p) + p->ip_offset + IPV4_FLAGS;

	if (p->ether_type == ETH_P_IP && (const void *)(flags + 1) <= packet_end(p) && !(*flags & IPV4_FLAG_DF))
		return RARE(REASON_FRAGMENTED);
	return RARE(REASON_OVER_MTU);
}

/*
 * The next hop a slot leads to, or NULL with *reason set. The slot is not a group. A connected route leads to an
 * on-link next hop first, then to the destination's own entry among the neighbours.
 */
static __always_inline const struct nexthop *
resolve(struct packet *p, __u32 slot, const struct address *destination, enum reason *reason)
{
	const struct nexthop *n = ROW(nexthops, slot & FIB_INDEX_MASK);

	if (!n) {
		*reason = RARE(REASON_NO_ROUTE);
		return NULL;
	}
	trace_step(p, TRACE_NEXTHOP, slot & FIB_INDEX_MASK, n->kind);
	if (queue_rows && p->queue_nexthop && p->ip_bytes > p->queue_mtu) {
		*reason = over_mtu(p);
		return NULL;
	}
	if (n->kind == NEXTHOP_ONLINK) {
		if (p->ip_bytes > n->mtu) {
			*reason = over_mtu(p);
			return NULL;
		}
		n = find_neighbour(p, n->interface, destination);
		if (!n) {
			*reason = RARE(REASON_UNRESOLVED);
			return NULL;
		}
	}
	p->out_mac = *(volatile const __u64 *)&n->link;
	if (n->kind != NEXTHOP_VIA || !p->out_mac) {
		*reason = RARE(n->reason);
		return NULL;
	}
	*reason = REASON_NONE;
	return n;
}

static __always_inline __u8 tags_of(__u32 vlan)
{
	return !!(vlan & VLAN_PRESENT) + !!(vlan >> VLAN_INNER_SHIFT & VLAN_PRESENT);
}

static __always_inline __be16 tag_type(__u32 word)
{
	return bpf_htons(word & VLAN_AD ? ETH_P_8021AD : ETH_P_8021Q);
}

/*
 * Gives the frame its final length: room for the tags of `out`, and no Ethernet padding, which Linux cuts off, too
 * (pskb_trim_rcsum in ip_rcv_core and ip6_rcv_core). Returns false if it cannot; the frame is then unchanged.
 */
static __always_inline bool resize(struct packet *p)
{
	int padding = p->frame_bytes - p->ip_offset - p->ip_bytes;
	__u8 tags = tags_of(p->out->vlan);

	if (padding > 0 && p->multi_buffer)
		return false;
	if (tags != p->tags && bpf_xdp_adjust_head(p->ctx, ((int)p->tags - tags) * TAG_BYTES))
		return false;
	if (padding > 0)
		bpf_xdp_adjust_tail(p->ctx, -padding);	/* cannot fail: an IP header is left */
	p->ip_offset = ETHERNET_BYTES + tags * TAG_BYTES;
	return true;
}

/*
 * Writes the Ethernet header and tags for `out` in front of the IP header. Priority and DEI are 0, as a Linux VLAN
 * device without an egress map sends them.
 */
static __always_inline bool write_ethernet(const struct packet *p)
{
	const struct nexthop *out = p->out;
	__u32 vlan = out->vlan;
	void *data = packet_data(p);
	struct ethernet *ethernet = data;
	if ((void *)(ethernet + 1) + 2 * sizeof(struct vlan_tag) > packet_end(p))
		return false;	/* cannot happen: an IP header follows */
	/* Not through `ethernet`: its alignment would make four stores of the first. */
	*(__u64 *)data = p->out_mac | out->source_port << 48;
	*(__u32 *)(data + 8) = out->source_port >> 16;

	__be16 type = bpf_htons(p->ether_type);
	struct vlan_tag *tag = (void *)(ethernet + 1);
	if (!vlan) {
		ethernet->type = type;
		return true;
	}
	ethernet->type = tag_type(vlan);
	tag[0].tci = bpf_htons(vlan & VLAN_VID);
	if (tags_of(vlan) == 1) {
		tag[0].type = type;
		return true;
	}
	vlan >>= VLAN_INNER_SHIFT;
	tag[0].type = tag_type(vlan);
	tag[1].tci = bpf_htons(vlan & VLAN_VID);
	tag[1].type = type;
	return true;
}

/*
 * Makes all checks that can still send the packet up, and only then changes the packet. bpf_redirect_map only notes the
 * target: it succeeds exactly when the transmit slot is filled.
 */
static __always_inline enum reason transmit(struct packet *p)
{
	const struct nexthop *out = p->out;

	if (p->ip_bytes > out->mtu)
		return over_mtu(p);
	if (p->multi_buffer && !(out->flags & NEXTHOP_FRAGS))
		return RARE(REASON_MULTI_BUFFER);
	if (bpf_redirect_map(&tx_ports, out->source_port >> 48, 0) != XDP_REDIRECT)
		return RARE(REASON_TX_NOT_READY);
	if (!resize(p) || !write_ethernet(p))
		return RARE(REASON_NO_HEADROOM);
	trace_step(p, TRACE_TRANSMIT, out->source_port >> 48, out->vlan);
	/* This keeps the neighbour alive: user space clears the word and asks the kernel to confirm the entry. */
	if (!p->explain && !out->used)
		((struct nexthop *)out)->used = 1;
	return REASON_NONE;
}
