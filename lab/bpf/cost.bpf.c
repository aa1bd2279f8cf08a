/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * BPF_PROG_TEST_RUN runs this with many repeats. Each run writes the headers of the next of `frames` into the packet and
 * gives it to the program under test, which rewrites it. Nothing is sent, so the time is that of the program, with all
 * table entries that the frames need.
 */
#include "lab.h"

/* The bytes that differ between frames or are rewritten: all up to the UDP source port. */
#define HEADER_BYTES 56

struct frame_head {
	__u64 word[HEADER_BYTES / 8];
};

const volatile __u32 frame_count = 1;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frame_head);
} frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} under_test SEC(".maps");

__u32 next;

SEC("xdp.frags")
int each(struct xdp_md *ctx)
{
	__u64 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame_head *frame;
	__u32 i = next;

	next = i + 1 < frame_count ? i + 1 : 0;
	frame = bpf_map_lookup_elem(&frames, &i);
	if (!frame || data + HEADER_BYTES / 8 > end)
		return XDP_ABORTED;
	for (int word = 0; word < HEADER_BYTES / 8; word++)
		data[word] = frame->word[word];
	bpf_tail_call(ctx, &under_test, 0);
	return XDP_ABORTED;
}

/* Measures the cost of `each` itself. */
SEC("xdp.frags")
int nothing(struct xdp_md *ctx)
{
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
