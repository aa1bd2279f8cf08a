/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The sink: it counts test packets and drops them. Everything else (ARP, neighbour discovery, ICMP) goes to the stack.
 * It runs in the router's thread, because the peer of the router's egress veth is not threaded. Its cost is therefore part
 * of each measurement, and equal for all subjects. So is the cost of what user space asks it to watch. Rows of a CPU have
 * one writer each. Rows that any core may write are locked.
 */
#include "lab.h"

#define CAPTURE_BYTES 2048
#define MAX_NEXTHOPS 256
#define MAX_FLOWS (1 << 18)
/* 256 ns each: 4.2 ms */
#define LATENCY_BUCKETS 16384
#define LATENCY_BUCKET_SHIFT 8
/* How far below a flow's highest number the numbers that came are remembered. */
#define WINDOW 64

enum {
	WATCH_NEXT_HOPS = 1,
	WATCH_STREAMS = 2,
	WATCH_ORDER = 4,
	WATCH_LATENCY = 8,
	WATCH_INTERRUPTION = 16,
	WATCH_CAPTURE = 32,
};

/* Rows of each CPU in `latency`. Each router has its own, as far as they suffice; the others share the last row. */
const volatile __u32 latency_rows = 1;

struct arrived {
	__u64 packets;
	__u64 bytes;		/* without FCS */
};

struct watched {
	__u64 packets;
	__u64 first_ns;		/* CLOCK_MONOTONIC */
	__u64 last_ns;
	struct bpf_spin_lock lock;
	__u32 pad;
};

struct interruption {
	__u64 last_ns;		/* when a packet last came, CLOCK_MONOTONIC; 0: none came */
	__u64 longest_ns;	/* the longest time between two packets */
	struct bpf_spin_lock lock;
	__u32 pad;
};

struct flow {
	__u64 seen;		/* bit n: number `next` - 1 - n has come */
	__u32 next;		/* the number after the highest that has come */
	__u32 received;		/* duplicates included */
	__u32 reordered;	/* came after a higher number (RFC 4737, 3.3), without duplicates */
	__u32 duplicates;	/* had come before */
	struct bpf_spin_lock lock;
	__u32 pad;
};

struct latency {
	__u64 packets;
	__u64 sum_ns;
	__u64 max_ns;
	__u32 buckets[LATENCY_BUCKETS];	/* longer latencies are only in the other fields */
};

struct captured {
	__u32 frame_bytes;	/* length of the frame, also if it was cut at CAPTURE_BYTES */
	__u8  frame[CAPTURE_BYTES];
};

struct settings {
	__u32 watch;			/* WATCH_... */
	__u32 flow_count;		/* of all streams */
	__u32 mark;			/* not 0: the time of the first packet since it changed is noted, if anything is watched */
	__u32 first_flow[MAX_STREAMS];	/* row of each stream's first flow in `flows` */
};

/* By router: the last two bytes of the source MAC. Packets of no router, or one out of range, count in the last row. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_ROUTERS);
	__type(key, __u32);
	__type(value, struct arrived);
} arrived SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_STREAMS);
	__type(key, __u32);
	__type(value, struct arrived);
} arrived_by_stream SEC(".maps");

struct first_seen {
	__u32 mark;		/* settings.mark then */
	__u32 pad;
	__u64 ns;		/* CLOCK_MONOTONIC */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct first_seen);
} first_seen SEC(".maps");

/* By next hop: the last byte of the destination MAC. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_NEXTHOPS);
	__type(key, __u32);
	__type(value, struct watched);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct interruption);
} interruption SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_FLOWS);
	__type(key, __u32);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct latency);
} latency SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} captured SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

static __always_inline void count(void *map, __u32 row, __u64 bytes)
{
	struct arrived *a = bpf_map_lookup_elem(map, &row);

	if (!a)
		return;
	a->packets++;
	a->bytes += bytes;
}

static __always_inline void note_first(__u32 mark)
{
	__u32 zero = 0;
	struct first_seen *first = bpf_map_lookup_elem(&first_seen, &zero);

	if (!first || first->mark == mark)
		return;
	first->ns = bpf_ktime_get_ns();
	first->mark = mark;
}

static __always_inline void watch_next_hop(const struct ethhdr *eth)
{
	__u32 nexthop = eth->h_dest[5];
	struct watched *w = bpf_map_lookup_elem(&watched, &nexthop);
	__u64 now = bpf_ktime_get_ns();

	if (!w)
		return;
	bpf_spin_lock(&w->lock);
	w->last_ns = now;
	if (!w->packets)
		w->first_ns = now;
	w->packets++;
	bpf_spin_unlock(&w->lock);
}

static __always_inline void watch_interruption(void)
{
	__u32 zero = 0;
	struct interruption *i = bpf_map_lookup_elem(&interruption, &zero);
	__u64 now = bpf_ktime_get_ns();

	if (!i)
		return;
	bpf_spin_lock(&i->lock);
	if (i->last_ns && (__s64)(now - i->last_ns) > (__s64)i->longest_ns)
		i->longest_ns = now - i->last_ns;
	i->last_ns = now;
	bpf_spin_unlock(&i->lock);
}

static __always_inline void watch_order(const struct settings *s, const struct stamp *stamp)
{
	__u32 stream = stamp->flow >> FLOW_BITS, row;
	struct flow *f;
	__s32 ahead;

	if (stream >= MAX_STREAMS)
		return;
	row = s->first_flow[stream] + (stamp->flow & FLOW_MASK);
	f = row < s->flow_count ? bpf_map_lookup_elem(&flows, &row) : NULL;
	if (!f)
		return;
	bpf_spin_lock(&f->lock);
	f->received++;
	ahead = stamp->sequence - f->next;
	if (ahead >= 0) {
		f->seen = ahead + 1 < WINDOW ? f->seen << (ahead + 1) : 0;
		f->seen |= 1;
		f->next = stamp->sequence + 1;
	} else {
		__u32 back = -ahead - 1;
		__u64 bit = back < WINDOW ? 1ULL << back : 0;

		if (f->seen & bit)
			f->duplicates++;
		else
			f->reordered++;
		f->seen |= bit;
	}
	bpf_spin_unlock(&f->lock);
}

static __always_inline void watch_latency(__u32 router, const struct stamp *stamp)
{
	__s32 ns = (__u32)bpf_ktime_get_ns() - stamp->time_ns;
	__u32 row = router < latency_rows ? router : latency_rows - 1, bucket;
	struct latency *l;

	row += bpf_get_smp_processor_id() * latency_rows;
	l = bpf_map_lookup_elem(&latency, &row);
	if (!l)
		return;
	if (ns < 0)	/* the clocks of two cores may differ by some nanoseconds */
		ns = 0;
	l->packets++;
	l->sum_ns += ns;
	if (ns > l->max_ns)
		l->max_ns = ns;
	bucket = (__u32)ns >> LATENCY_BUCKET_SHIFT;
	barrier_var(bucket);	/* the verifier must see the very register that is compared */
	if (bucket < LATENCY_BUCKETS)
		l->buckets[bucket]++;
}

static __always_inline void capture(struct xdp_md *ctx, __u64 length)
{
	struct captured *c = bpf_ringbuf_reserve(&captured, sizeof(*c), 0);

	if (!c)
		return;
	c->frame_bytes = length;
	if (length > CAPTURE_BYTES)
		length = CAPTURE_BYTES;
	if (length < 1 || bpf_xdp_load_bytes(ctx, 0, c->frame, length))
		c->frame_bytes = 0;
	bpf_ringbuf_submit(c, 0);
}

static __always_inline void watch(struct xdp_md *ctx, const struct settings *s, const struct test_packet *p, __u32 router,
				  __u64 length)
{
	struct stamp stamp;

	if (s->mark)
		note_first(s->mark);
	if (s->watch & WATCH_NEXT_HOPS)
		watch_next_hop(p->eth);
	if (s->watch & WATCH_INTERRUPTION)
		watch_interruption();
	if (parse_stamp(ctx, p, &stamp)) {
		if (s->watch & WATCH_LATENCY)
			watch_latency(router, &stamp);
		if (s->watch & WATCH_ORDER)
			watch_order(s, &stamp);
		if (s->watch & WATCH_STREAMS)
			count(&arrived_by_stream, stamp.flow >> FLOW_BITS, length);
	}
	if (s->watch & WATCH_CAPTURE)
		capture(ctx, length);
}

/* A name that begins with "millrace": daemons that run beside do not take it for a program of somebody else. */
SEC("xdp.frags")
int millrace_sink(struct xdp_md *ctx)
{
	struct settings *s;
	struct test_packet p;
	__u32 router, zero = 0;
	struct arrived_in_all *all;
	struct stamp stamp;
	__u64 length;

	if (!parse_test_packet(ctx, &p))
		return XDP_PASS;
	length = bpf_xdp_get_buff_len(ctx);
	router = (__u32)p.eth->h_source[4] << 8 | p.eth->h_source[5];
	if (p.eth->h_source[1] != ROUTER_MAC_BYTE || router >= MAX_ROUTERS)
		router = MAX_ROUTERS - 1;
	count(&arrived, router, length);
	all = bpf_map_lookup_elem(&arrived_in_all, &zero);
	if (all) {
		all->packets++;
		if (parse_stamp(ctx, &p, &stamp))
			all->newest_ns = stamp.time_ns;
	}
	s = bpf_map_lookup_elem(&settings, &zero);
	if (s && s->watch)
		watch(ctx, s, &p, router, length);
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
