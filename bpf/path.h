/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Gives packets to paths of the user plane (P2, P4): finds the path of a packet, and puts it into the RX ring of its port,
 * queue and path. This comes before flow rules, splits and other cores, because another core does not know the number of
 * the queue. Only packets that come in by a port are asked about.
 */
#pragma once

#define TCP_SYN	0x02
#define TCP_ACK	0x10

/* If the first buffer has so many bytes, it holds all fields of classes, except those behind extension headers. */
#define PATH_FIRST_BUFFER 128

/*
 * The place of a word's only bit (Leiserson, Prokop, Randall: Using de Bruijn Sequences to Index a 1 in a Computer Word,
 * 1998).
 */
static const __u8 bit_of[64] = {
	0, 1, 2, 53, 3, 7, 54, 27, 4, 38, 41, 8, 34, 55, 48, 28, 62, 5, 39, 46, 44, 42, 22, 9, 24, 35, 59, 56, 49, 18, 29, 11,
	63, 52, 6, 26, 37, 40, 33, 47, 61, 45, 43, 21, 23, 58, 17, 10, 51, 25, 36, 32, 60, 20, 57, 16, 50, 31, 19, 15, 30, 14, 13, 12,
};

static __always_inline __u32 lowest_bit(__u64 word)
{
	return bit_of[(word & -word) * 0x022fdd63cc95386dULL >> 58];
}

static __always_inline void read_path_addresses(struct xdp_md *ctx, struct path_scratch *s)
{
	const struct flow_layout *l = &s->layout;
	const struct ipv6 *ip = l->network == 6 ? flow_header(ctx, l->ip_offset, sizeof(*ip)) : NULL;
	__u64 v4 = l->network == 4 ? l->addresses : 0;

	s->key[PATH_WORD_SOURCE] = ip ? ip->source[0] : (__u32)v4;
	s->key[PATH_WORD_SOURCE + 1] = ip ? ip->source[1] : 0;
	s->key[PATH_WORD_DESTINATION] = ip ? ip->destination[0] : v4 >> 32;
	s->key[PATH_WORD_DESTINATION + 1] = ip ? ip->destination[1] : 0;
}

/* s->port, s->router and s->layout must be set. */
static __always_inline void read_path_key(struct xdp_md *ctx, struct path_scratch *s)
{
	struct flow_layout *l = &s->layout;
	__u64 flags = l->network == 4 ? PATH_IPV4 | PATH_IP : l->network == 6 ? PATH_IPV6 | PATH_IP : 0;
	bool tcp = l->protocol == IPPROTO_TCP;

	s->key[PATH_WORD_PORTS] = 0;
	if (l->l4_offset && !l->fragment && (tcp || l->protocol == IPPROTO_UDP || l->protocol == IPPROTO_SCTP)) {
		const __u8 *header = tcp ? flow_header(ctx, l->l4_offset, 20) : NULL;

		flags |= PATH_PORTS;
		if (header && (header[13] & (TCP_SYN | TCP_ACK)) == TCP_SYN)
			flags |= PATH_SYN;
		s->key[PATH_WORD_PORTS] = l->ports;
	}
	s->key[PATH_WORD_INGRESS] = s->port | (__u64)s->router << 16 | (__u64)l->ether_type << 32 |
				    (__u64)l->protocol << 48 | flags << 56;
	s->key[PATH_WORD_MAC] = l->destination;
	read_path_addresses(ctx, s);
}

/* Reads two bytes of the frame, as loaded. Returns false if it does not have them. */
static __always_inline bool path_bytes(struct xdp_md *ctx, __u8 offset, __u16 *bytes)
{
	const __u8 *data = (void *)(long)ctx->data;
	__u64 at = offset;

	barrier_var(at);
	data += at & (PATH_DEPTH - 1);
	if (data + 2 > (const __u8 *)(long)ctx->data_end)
		return false;
	*bytes = *(const __u16 *)data;
	return true;
}

/* The rows that may fit a packet, as bits. */
static __always_inline __u64 path_candidates(struct xdp_md *ctx, const struct path_scratch *s, const struct path_classes *c)
{
	__u64 left = c->rows;

	for (int i = 0; i < PATH_TABLES; i++) {
		__u64 place = c->place[i];
		__u8 byte;

		if (place == PATH_NOWHERE)
			break;
		barrier_var(place);
		if (place < PATH_KEY_BYTES) {
			byte = ((const __u8 *)s->key)[place];
		} else {
			const __u8 *data = (void *)(long)ctx->data;
			__u64 at = place - PATH_KEY_BYTES;

			barrier_var(at);
			data += at & (PATH_DEPTH - 1);
			if (data + 1 > (const __u8 *)(long)ctx->data_end)
				continue;
			byte = *data;
		}
		left &= c->may[i][byte];
	}
	return left;
}

static __always_inline __u64 differs(const struct path_scratch *s, const struct path_row *row, int word)
{
	return (s->key[word] ^ row->value[word]) & row->mask[word];
}

/* May a packet whose headers are not all seen be of this class? */
static __always_inline bool path_row_may(const struct path_scratch *s, const struct path_row *row)
{
	return !((__u32)differs(s, row, PATH_WORD_INGRESS) | differs(s, row, PATH_WORD_MAC));
}

static __always_inline bool path_row_has(struct xdp_md *ctx, const struct path_scratch *s, const struct path_row *row)
{
	__u16 bytes;

	if (differs(s, row, PATH_WORD_INGRESS) || differs(s, row, PATH_WORD_PORTS))
		return false;
	if (differs(s, row, PATH_WORD_MAC) | differs(s, row, PATH_WORD_SOURCE) | differs(s, row, PATH_WORD_SOURCE + 1) |
	    differs(s, row, PATH_WORD_DESTINATION) | differs(s, row, PATH_WORD_DESTINATION + 1))
		return false;
	if (row->bytes_offset == PATH_NOWHERE)
		return true;
	return path_bytes(ctx, row->bytes_offset, &bytes) && (bytes & row->bytes_mask) == row->bytes_value;
}

/*
 * Returns the row that fits a packet, + 1, or 0. If not all headers of the packet are seen, its path is not known. Then this
 * finds only paths with PATH_DROP that the packet may belong to. A global function: the verifier checks its loops once.
 */
__noinline int find_path(struct xdp_md *ctx, struct path_scratch *s, __u32 half)
{
	const struct path_classes *c = ROW(path_classes, half & 1);

	if (!s || !c || !read_frame(ctx, &s->layout, 0))
		return 0;
	read_path_key(ctx, s);
	bool unseen = s->layout.unseen;
	__u64 left = unseen ? c->drops : path_candidates(ctx, s, c);

	for (int i = 0; i < MAX_PATHS && left; i++, left &= left - 1) {
		__u32 row = lowest_bit(left);

		if (unseen ? path_row_may(s, &c->row[row & (MAX_PATHS - 1)]) : path_row_has(ctx, s, &c->row[row & (MAX_PATHS - 1)]))
			return row + 1;
	}
	return 0;
}

/* The second word of the slot of a packet's interface; 0: no interface has this MAC, port and VLAN. */
__noinline __u64 path_interface(struct xdp_md *ctx, __u32 port)
{
	struct packet p = { .ctx = ctx };
	void *data = packet_data(&p);

	if (parse_ethernet(&p) != REASON_NONE || data + ETHERNET_BYTES > packet_end(&p))
		return 0;
	return find_interface(*(__u64 *)data & 0xffffffffffffULL, port, p.vlan);
}

/* Puts a packet into its worker's ring. Returns REASON_NONE, or why no worker gets it. */
static __always_inline enum reason give_to_worker(struct packet *p, bool unseen, __u32 path, const struct path_control *paths)
{
	__u32 queue = p->ctx->rx_queue_index;

	if (mirror_expired() || !p->port_ready || *(volatile const __u64 *)&paths->held)
		return REASON_PATH_UNSURE;
	if (p->multi_buffer || p->frame_bytes > paths->most_bytes)
		return REASON_PATH_FRAME_TOO_LONG;
	if (unseen)
		return REASON_PATH_UNSEEN;
	if (queue >= MAX_QUEUES ||
	    bpf_redirect_map(&path_sockets, (p->port * MAX_QUEUES + queue) * MAX_PATHS + path, 0) != XDP_REDIRECT)
		return REASON_PATH_NO_WORKER;
	return REASON_NONE;
}

static __always_inline void count_path(const struct packet *p, __u32 path, enum reason why, bool drops)
{
	struct path_count *count = ROW(path_counts, p->cpu * MAX_PATHS + path);
	__u32 row = (why - REASON_PATH_UNSURE) & (PATH_REASONS - 1);

	if (p->explain || !count)
		return;
	if (why == REASON_NONE) {
		count->packets++;
		count->bytes += p->frame_bytes;
	} else if (drops) {
		count->dropped[row]++;
	} else {
		count->up[row]++;
	}
}

/*
 * Gives a packet to its path. If it returns true, the packet is done, and *reason is REASON_PATH_GIVEN or why the packet is
 * dropped. Otherwise the packet goes on as if there were no path. `slot`: from path_interface(), or 0.
 */
static __always_inline bool
done_by_path(struct packet *p, bool unseen, __u32 path, bool drops, const struct path_control *paths, __u64 slot, enum reason *reason)
{
	enum reason why = give_to_worker(p, unseen, path, paths);

	trace_step(p, TRACE_PATH, path, why);
	count_path(p, path, why, drops);
	if (why != REASON_NONE && !drops)
		return false;
	*reason = why == REASON_NONE ? REASON_PATH_GIVEN : why;
	slot = slot ? : path_interface(p->ctx, p->port);
	if (slot) {
		p->interface = slot >> 32;
		p->payer = p->router = slot >> 48;
	}
	return true;
}

/* A worker may pass an ICMP error up, so learned.h looks at it here. It needs the EtherType and the IP header's offset. */
static __always_inline void find_error(struct packet *p, const struct flow_layout *l)
{
	if (l->protocol != (l->network == 6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return;
	p->ether_type = l->network == 6 ? ETH_P_IPV6 : ETH_P_IP;
	p->ip_offset = l->ip_offset;
}

/* As done_by_path(), for a packet that a flow rule gives to a path. Rules of earlier tables may have made it longer. */
static __always_inline bool given_by_rule(struct packet *p, const struct flow_layout *l, __u32 path, enum reason *reason)
{
	const struct path_control *paths = ROW(path_control, 0);

	if (!paths)
		return false;
	path &= MAX_PATHS - 1;
	find_error(p, l);
	p->frame_bytes = p->multi_buffer ? bpf_xdp_get_buff_len(p->ctx) : packet_end(p) - packet_data(p);
	return done_by_path(p, false, path, *(volatile const __u64 *)&paths->drops >> path & 1, paths, 0, reason);
}

/* As done_by_path(), for a packet that a class gives to a path. Returns false if no class fits. */
static __always_inline bool taken_by_path(struct packet *p, enum reason *reason)
{
	const struct path_control *paths = ROW(path_control, 0);
	struct path_scratch *s = ROW(path_scratch, p->cpu);
	__u64 slot = 0;

	if (!paths || !s)
		return false;
	__u32 half = *(volatile const __u64 *)&paths->half & 1;
	const struct path_classes *c = ROW(path_classes, half);
	if (!c || !c->rows)
		return false;
	p->multi_buffer = has_frags(p);
	p->frame_bytes = p->multi_buffer ? bpf_xdp_get_buff_len(p->ctx) : packet_end(p) - packet_data(p);
	s->layout = (struct flow_layout){
		.end = p->frame_bytes,
		.unseen = p->multi_buffer && packet_data(p) + PATH_FIRST_BUFFER > packet_end(p),
	};
	s->port = p->port;
	s->router = 0;
	if (c->asks_router) {
		slot = path_interface(p->ctx, p->port);
		s->router = slot ? (__u8)(slot >> 48) + 1 : c->own_router[p->port & (MAX_PORTS - 1)];
	}
	int found = find_path(p->ctx, s, half);
	if (found <= 0)
		return false;
	const struct path_row *row = &c->row[(found - 1) & (MAX_PATHS - 1)];

	find_error(p, &s->layout);
	return done_by_path(p, s->layout.unseen, row->path & (MAX_PATHS - 1), row->otherwise == PATH_DROP, paths, slot, reason);
}

/* Counts a packet by path that its worker's socket did not take (losses.h counts it by port). */
SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(lost_to_path, const struct net_device *from, const void *program, const void *to, int err,
	     enum bpf_map_type type, __u32 map, __u32 slot)
{
	const struct path_control *paths = ROW(path_control, 0);
	struct path_count *count;

	if (type != BPF_MAP_TYPE_XSKMAP || !paths || paths->sockets != map)
		return 0;
	count = ROW(path_counts, bpf_get_smp_processor_id() * MAX_PATHS + (slot & (MAX_PATHS - 1)));
	if (!count)
		return 0;
	if (err == -ENOBUFS)
		count->ring_full++;
	else
		count->refused++;
	return 0;
}
