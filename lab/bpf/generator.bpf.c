/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The generator: BPF_PROG_TEST_RUN runs it with BPF_F_TEST_XDP_LIVE_FRAMES, once per packet. It decides which stream is
 * due, writes the headers of the stream's next flow, and redirects the packet to the flow's port. When the kernel recycles
 * a page, it restores only the length of the frame, not its contents. So each packet is written up to the last byte that
 * any packet of the run has in its headers.
 *
 *   streams[s] -- schedule --> targets[f] -- template --> templates[t]
 *
 * A template holds the headers that many flows share. User space builds it (lab::packet). Only addresses, lengths,
 * checksums and the stamp are written here, into the template itself: all packets of its kind are made in this one buffer.
 *
 * One instance runs on one core. Only it writes `generated`, `sent`, the sequence numbers in `targets` and the templates.
 * User space writes these, `run`, `streams` and `schedule` while the instance is idle, and `rate` and `epoch` of a stream
 * at any time.
 */
#include "lab.h"

#define MAX_TARGETS (1 << 20)
#define MAX_TEMPLATES 4096
#define MAX_SIZES 16
#define MAX_PORTS 16		/* as in lab::topology */
/* The place in a template where the IP header begins, and Ethernet and tags end. */
#define IP_AT 24
/* Ethernet, two tags, IPv6, TCP and the time: 14 + 8 + 40 + 20 + 4. */
#define MAX_HEADERS 86

struct template {
	__u8  headers[96];	/* zeros after the last one */
	__u32 ip_sum;		/* IPv4: Internet checksum of the constant part, not folded */
	__u32 transport_sum;	/* TCP, ICMP: the same, with the pseudo-header's constants */
	__u8  start;		/* where in `headers` the frame begins */
	__u8  protocol;		/* IPPROTO_... */
	__u8  ipv6;
	__u8  stamped;
	__u32 pad;
};

struct target {			/* one flow; a cache line holds two of them */
	__u8  router_mac[6];
	__u16 template;
	__u8  destination[16];	/* IPv4 in the first four bytes */
	__be16 source_port;	/* ICMP: identifier */
	__u16 port;		/* that its packets leave by */
	__u32 sequence;		/* of the next packet */
};

struct stream {
	__u32 first_target;
	__u32 target_count;
	__u32 first_scheduled;
	__u32 scheduled_count;	/* places in `schedule`, which repeat; 0: the targets take turns */
	__u64 rate;		/* packets per 2^30 ns; 0: not paced */
	__u32 epoch;		/* a new number makes pacing begin again */
	__u32 size_count;
	__u16 sizes[MAX_SIZES];	/* of frames without FCS; they take turns */
};

struct sent {
	__u64 packets;		/* handed to the port; its ring may still have been full */
	__u64 skipped;		/* due but never sent, because the generator was held up for longer than its backlog */
	__u64 start_ns;		/* when pacing began */
	__u64 paced;		/* packets since start_ns, skipped ones included */
	__u32 epoch;
	__u32 next;		/* target, or place in the schedule */
	__u32 next_size;
	__u32 pad;
};

struct run {
	__u64 limit;		/* stop sending after this many packets; 0: never */
	__u32 stream_count;
	__u32 frame_bytes;	/* of the frames that the kernel makes: the largest of all streams */
	__u32 written_bytes;	/* of each frame: the longest headers and stamp of all templates of the run */
	__u32 backlog;		/* the most packets of a stream that are sent at once after a delay */
	__u32 window;		/* the most packets between generator and sink, for one stream that is not paced; 0: no limit */
	__u32 sink_cpu;		/* where the sink runs */
	__u32 stamped;		/* all packets have a stamp */
	__u32 yields;		/* at once, to any thread that the scheduler wants to run on its core */
};

#define NOTES 32		/* enough for a window, and more */

struct generated {
	__u64 packets;		/* of all streams */
	__u64 held;		/* frames given back because no packet was due, or the window had no room, for some microseconds */
	__u64 failed;		/* due, but not written or not redirected; this should not happen */
	__u64 now_ns;		/* the last reading of the clock, which goes into stamps */
	__u64 arrived;		/* packets at the sink, at the last look */
	__u64 arrived_ns;	/* when that last changed */
	__u64 first;		/* packets that arrived before this run */
	__u64 given_up;		/* packets taken for lost */
	__u32 credit;		/* packets that may be sent without looking again */
	__u32 calls;		/* calls without credit */
	__u32 last;		/* the stream that sent last */
	__u32 noted;		/* the newest note */
	__u32 settled;		/* packets sent before this note have arrived, or are lost */
	__u32 pad;
	__u32 note_ns[NOTES];	/* packets written after the note have at least this time */
	__u32 note_packets[NOTES];	/* packets that had been sent before the note, low 32 bits */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_TEMPLATES);
	__type(key, __u32);
	__type(value, struct template);
} templates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u32);
	__type(value, struct target);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u32);
	__type(value, __u32);
} schedule SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_STREAMS);
	__type(key, __u32);
	__type(value, struct stream);
} streams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_STREAMS);
	__type(key, __u32);
	__type(value, struct sent);
} sent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct run);
} run SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct generated);
} generated SEC(".maps");

PORTS(out, MAX_PORTS);

/*
 * Is the stream's packet number `paced` due? Compares packets sent with rate * elapsed in units of 2^30 ns, which needs no
 * division.
 */
static __always_inline bool due(const struct run *r, const struct stream *s, struct sent *n, __u64 now_ns)
{
	__u64 target;

	/* Start over every 2^37 ns (137 s): at 16 Mpps rate * elapsed stays below 2^62. */
	if (!n->start_ns || n->epoch != s->epoch || now_ns - n->start_ns > 1ULL << 37) {
		n->start_ns = now_ns;
		n->epoch = s->epoch;
		n->paced = 0;
	}
	target = ((now_ns - n->start_ns) * s->rate) >> 30;
	if (n->paced >= target)
		return false;
	if (target - n->paced > r->backlog) {
		n->skipped += target - r->backlog - n->paced;
		n->paced = target - r->backlog;
	}
	n->paced++;
	return true;
}

/* Unpaced packets between two readings of the clock (25 ns). Stamps may be as old as it takes to write so many packets. */
#define CLOCK_EVERY 16
/* Calls without credit between two looks at the sink's counter. Each look costs the sink's core a cache miss. */
#define LOOK_EVERY 256
/* Packets count as lost if none arrives for this time. Other work takes a core away for less. */
#define LOST_NS 50000000

/* Reads the clock of an unpaced stream. */
static __always_inline void read_clock(struct generated *g)
{
	__u32 at = g->noted & (NOTES - 1);

	g->now_ns = bpf_ktime_get_ns();
	if (g->note_packets[at] != (__u32)g->packets) {
		at = ++g->noted & (NOTES - 1);
		g->note_packets[at] = g->packets;
		if (g->noted - g->settled >= NOTES)
			g->settled = g->noted - NOTES + 1;
	}
	g->note_ns[at] = g->now_ns;
}

/*
 * The most packets that may be between generator and sink. If packets have stamps, all that are older than the last that
 * arrived have arrived or are lost. If they have none, lost packets look as if they were still on the way.
 */
static __always_inline __s64 on_the_way(const struct run *r, struct generated *g, const struct arrived_in_all *a)
{
	__s64 on_way;

	if (r->stamped) {
		for (int i = 0; i < NOTES && g->settled != g->noted && g->arrived != g->first; i++) {
			if ((__s32)(a->newest_ns - g->note_ns[(g->settled + 1) & (NOTES - 1)]) < 0)
				break;
			g->settled++;
		}
		return (__u32)g->packets - g->note_packets[g->settled & (NOTES - 1)];
	}
	on_way = g->packets - g->given_up - (g->arrived - g->first);
	if (on_way < 0) {	/* some that were taken for lost have arrived */
		g->given_up += on_way;
		on_way = 0;
	}
	return on_way;
}

/* Does the window have room? After a wait, the clock was read recently. */
static __always_inline bool room(const struct run *r, struct generated *g)
{
	const struct arrived_in_all *arrived;
	__u32 zero = 0;
	__s64 on_way;

	if (g->credit) {
		g->credit--;
		return true;
	}
	if (g->calls++ % LOOK_EVERY)
		return false;
	arrived = bpf_map_lookup_percpu_elem(&arrived_in_all, &zero, r->sink_cpu);
	if (!arrived)
		return false;
	read_clock(g);
	if (!g->arrived_ns)
		g->first = arrived->packets;
	if (!g->arrived_ns || g->arrived != arrived->packets) {
		g->arrived = arrived->packets;
		g->arrived_ns = g->now_ns;
	} else if (g->now_ns - g->arrived_ns > LOST_NS) {
		g->given_up = g->packets - (g->arrived - g->first);
		g->settled = g->noted;
		g->arrived_ns = g->now_ns;
	}
	on_way = on_the_way(r, g, arrived);
	if (on_way < r->window)
		g->credit = r->window - on_way;
	return false;
}

#define NONE MAX_STREAMS

/* The stream that may send now. */
static __always_inline __u32 pick(const struct run *r, struct generated *g, bool paced)
{
	__u32 index = g->last;

	if (!paced) {
		if (r->window && !room(r, g))
			return NONE;
		if (g->packets % CLOCK_EVERY == 0)
			read_clock(g);
		return 0;
	}
	g->now_ns = bpf_ktime_get_ns();
	for (int i = 0; i < MAX_STREAMS && i < r->stream_count; i++) {
		const struct stream *s;
		struct sent *n;

		if (++index >= r->stream_count)
			index = 0;
		s = bpf_map_lookup_elem(&streams, &index);
		n = bpf_map_lookup_elem(&sent, &index);
		if (s && n && due(r, s, n, g->now_ns)) {
			g->last = index;
			return index;
		}
	}
	return NONE;
}

static __always_inline __u32 pick_any(const struct run *r, struct generated *g)
{
	__u32 zero = 0;
	const struct stream *first = bpf_map_lookup_elem(&streams, &zero);

	return first ? pick(r, g, first->rate) : NONE;
}

extern int LINUX_KERNEL_VERSION __kconfig;

struct thread_info {
	unsigned long flags;
} __attribute__((preserve_access_index));

struct task_struct {
	struct thread_info thread_info;
} __attribute__((preserve_access_index));

/*
 * Does the scheduler want another thread on this core? TIF_NEED_RESCHED and TIF_NEED_RESCHED_LAZY of x86. Otherwise,
 * kernel threads of this core would wait for a whole batch, some 100 us, and the scheduler books that time as theirs.
 */
static __always_inline bool is_wanted(const struct run *r)
{
	unsigned long resched = LINUX_KERNEL_VERSION >= (6 << 16 | 18 << 8) ? 1 << 4 | 1 << 5 : 1 << 3 | 1 << 4;

	return r->yields && ((struct task_struct *)bpf_get_current_task_btf())->thread_info.flags & resched;
}

struct waited {
	__u64 stream;
};

static long look(__u32 i, struct waited *waited)
{
	__u32 zero = 0;
	struct run *r = bpf_map_lookup_elem(&run, &zero);
	struct generated *g = bpf_map_lookup_elem(&generated, &zero);

	waited->stream = r && g ? pick_any(r, g) : NONE;
	return waited->stream != NONE || (r && is_wanted(r));
}

/*
 * Waits here for some microseconds. To drop the frame instead would return it to its pool under a lock, and the core that
 * frees sent packets would have to wait for that lock.
 */
static __always_inline __u32 wait_for_stream(void)
{
	struct waited waited = { .stream = NONE };

	bpf_loop(512, look, &waited, 0);
	return waited.stream;
}

/* The stream's next flow: its place among the stream's targets. */
static __always_inline __u32 next_flow(const struct stream *s, struct sent *n)
{
	__u32 at = n->next, place, *scheduled;

	if (!s->scheduled_count) {
		n->next = at + 1 < s->target_count ? at + 1 : 0;
		return at;
	}
	n->next = at + 1 < s->scheduled_count ? at + 1 : 0;
	place = s->first_scheduled + at;
	scheduled = bpf_map_lookup_elem(&schedule, &place);
	return scheduled ? *scheduled : 0;
}

static __always_inline __u32 next_size(const struct stream *s, struct sent *n)
{
	__u32 at = n->next_size;

	n->next_size = at + 1 < s->size_count ? at + 1 : 0;
	return s->sizes[at % MAX_SIZES];
}

/* The Internet checksum (RFC 1071) of a sum of 16- and 32-bit words. */
static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Fills in the transport header. `sum` is the part of the pseudo-header's sum that comes from the destination. */
static __always_inline void fill_transport(struct template *p, const struct target *t, void *at, __u16 bytes, __u64 sum,
					   const struct stamp *stamp)
{
	__be32 *words = at;
	struct udphdr *udp = at;
	struct tcphdr *tcp = at;
	struct echo_header *echo = at;

	if (p->protocol == IPPROTO_ICMP)	/* no pseudo-header */
		sum = 0;
	else
		sum += bpf_htons(bytes);
	sum += (__u64)p->transport_sum + t->source_port + stamp->flow + stamp->sequence + stamp->time_ns;
	switch (p->protocol) {
	case IPPROTO_UDP:
		udp->source = t->source_port;
		udp->len = bpf_htons(bytes);
		break;
	case IPPROTO_TCP:
		tcp->source = t->source_port;
		tcp->seq = stamp->sequence;
		tcp->ack_seq = stamp->flow;
		words[5] = stamp->time_ns;
		tcp->check = folded(sum);
		return;
	default:
		echo->identifier = t->source_port;
		echo->checksum = folded(sum);
	}
	if (p->stamped) {
		words[2] = stamp->flow;
		words[3] = stamp->sequence;
		words[4] = stamp->time_ns;
	}
}

/* Fills in everything that depends on the flow, the frame's size and the time. */
static __always_inline void fill(struct template *p, const struct target *t, __u32 frame_bytes, const struct stamp *stamp)
{
	void *at = p->headers + IP_AT;
	__u32 start = p->start & 15;
	__u16 bytes = frame_bytes - (IP_AT - start);

	__builtin_memcpy(p->headers + start, t->router_mac, ETH_ALEN);
	if (p->ipv6) {
		struct ipv6hdr *ip = at;
		const __be32 *d = (void *)t->destination;

		bytes -= sizeof(*ip);
		ip->payload_len = bpf_htons(bytes);
		__builtin_memcpy(&ip->daddr, t->destination, sizeof(ip->daddr));
		fill_transport(p, t, ip + 1, bytes, (__u64)d[0] + d[1] + d[2] + d[3], stamp);
	} else {
		struct iphdr *ip = at;

		ip->tot_len = bpf_htons(bytes);
		__builtin_memcpy(&ip->daddr, t->destination, sizeof(ip->daddr));
		ip->check = folded((__u64)p->ip_sum + ip->tot_len + ip->daddr);
		fill_transport(p, t, ip + 1, bytes - sizeof(*ip), ip->daddr, stamp);
	}
}

/* Writes the packet of a stream's next flow, in the stream's next size. Its number is in the target that is returned. */
static __always_inline struct target *write_packet(struct xdp_md *ctx, const struct run *r, const struct stream *s,
						   struct sent *n, __u32 stream, __u64 now_ns)
{
	__u32 flow = next_flow(s, n), frame_bytes = next_size(s, n), key = s->first_target + flow;
	struct target *t = bpf_map_lookup_elem(&targets, &key);
	__u64 written = r->written_bytes;
	struct stamp stamp;
	struct template *p;

	if (!t)
		return NULL;
	key = t->template;
	p = bpf_map_lookup_elem(&templates, &key);
	if (!p)
		return NULL;
	stamp.flow = bpf_htonl(stream << FLOW_BITS | flow);
	stamp.sequence = bpf_htonl(t->sequence);
	stamp.time_ns = bpf_htonl((__u32)now_ns);
	fill(p, t, frame_bytes, &stamp);
	if (frame_bytes != r->frame_bytes && bpf_xdp_adjust_tail(ctx, (int)(frame_bytes - r->frame_bytes)))
		return NULL;
	if (written > frame_bytes)
		written = frame_bytes;
	barrier_var(written);	/* the verifier must see the very register that is compared */
	if (written < 1 || written > MAX_HEADERS || bpf_xdp_store_bytes(ctx, 0, p->headers + (p->start & 15), written))
		return NULL;
	return t;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	struct generated *g;
	struct target *t;
	struct stream *s;
	struct sent *n;
	struct run *r;
	__u32 stream, zero = 0;
	long verdict;

	r = bpf_map_lookup_elem(&run, &zero);
	g = bpf_map_lookup_elem(&generated, &zero);
	if (!r || !g)
		return XDP_ABORTED;
	if (r->limit && g->packets >= r->limit)
		return XDP_DROP;
	stream = is_wanted(r) ? NONE : pick_any(r, g);
	if (stream == NONE && !is_wanted(r))
		stream = wait_for_stream();
	if (stream == NONE) {
		g->held++;
		return XDP_DROP;
	}
	s = bpf_map_lookup_elem(&streams, &stream);
	n = bpf_map_lookup_elem(&sent, &stream);
	if (!s || !n)
		return XDP_ABORTED;
	t = write_packet(ctx, r, s, n, stream, g->now_ns);
	if (!t) {
		g->failed++;
		return XDP_ABORTED;
	}
	verdict = bpf_redirect_map(&out, t->port, XDP_DROP);
	if (verdict == XDP_REDIRECT) {
		t->sequence++;
		n->packets++;
		g->packets++;
	} else {
		g->failed++;
	}
	return verdict;
}

char _license[] SEC("license") = "Dual MIT/GPL";
