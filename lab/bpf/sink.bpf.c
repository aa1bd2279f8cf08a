/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The sink: counts test packets and drops them; everything else (ARP, neighbour discovery, ICMP) goes to the stack.
 * It runs in the router's thread (the peer of the router's egress veth is not threaded), so its cost, equal for all
 * subjects, is part of what is measured. Per-CPU rows have one writer each.
 */
#include "lab.h"

#define CAPTURE_BYTES 128
#define MAX_NEXTHOPS 256

struct arrived {
	__u64 packets;
	__u64 bytes;		/* without FCS */
};

struct watched {
	__u64 packets;
	__u64 first_ns;		/* CLOCK_MONOTONIC */
	__u64 last_ns;
};

struct captured {
	__u32 frame_bytes;	/* length of the frame; what is beyond CAPTURE_BYTES is cut */
	__u8  frame[CAPTURE_BYTES];
};

/* By router: last two bytes of the source MAC. A row out of range counts in the last one. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_ROUTERS);
	__type(key, __u32);
	__type(value, struct arrived);
} arrived SEC(".maps");

/* By next hop: last byte of the destination MAC. Only while `watch` is set: reading the clock costs 25 ns. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_NEXTHOPS);
	__type(key, __u32);
	__type(value, struct watched);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} captured SEC(".maps");

struct settings {
	__u32 watch;
	__u32 capture;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

static __always_inline void watch(const struct ethhdr *eth)
{
	__u32 nexthop = eth->h_dest[5];
	struct watched *w = bpf_map_lookup_elem(&watched, &nexthop);

	if (!w)
		return;
	w->last_ns = bpf_ktime_get_ns();
	if (!w->packets)
		w->first_ns = w->last_ns;
	w->packets++;
}

static __always_inline void capture(struct xdp_md *ctx)
{
	__u32 length = ctx->data_end - ctx->data;
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

SEC("xdp")
int sink(struct xdp_md *ctx)
{
	struct settings *s;
	struct headers h;
	struct arrived *a;
	__u32 router, zero = 0;
	__u64 *all;

	if (!parse_test_packet(ctx, &h))
		return XDP_PASS;
	router = (__u32)h.eth->h_source[4] << 8 | h.eth->h_source[5];
	if (router >= MAX_ROUTERS)
		router = MAX_ROUTERS - 1;
	a = bpf_map_lookup_elem(&arrived, &router);
	if (a) {
		a->packets++;
		a->bytes += ctx->data_end - ctx->data;
	}
	all = bpf_map_lookup_elem(&arrived_in_all, &zero);
	if (all)
		(*all)++;
	s = bpf_map_lookup_elem(&settings, &zero);
	if (s && s->watch)
		watch(h.eth);
	if (s && s->capture)
		capture(ctx);
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
