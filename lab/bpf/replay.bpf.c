/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The sink of a replay, instead of that of sink.bpf.c, because replayed packets are not test packets. It gives every frame
 * that arrives to user space, whole or only its mark, and drops it. The stack therefore cannot merge, answer or change
 * anything. The sink runs in the router's thread.
 */
#include "lab.h"

/* Begins the mark, which is in the last bytes of a marked frame (lab/src/mark.rs). */
#define MARK_MAGIC 0x6d6c7265

struct mark {			/* in network order */
	__u32 magic;
	__u32 sequence;
	__u32 time_ns;
};

struct arrival {
	__u64 time_ns;		/* CLOCK_MONOTONIC */
	__u32 frame_bytes;	/* 0: could not be read */
	__u32 pad;
};

struct marked {
	struct arrival arrival;
	struct mark mark;
	__u32 pad;
};

struct counted {
	__u64 packets;
	__u64 bytes;
	__u64 missed;		/* user space had no room for them */
};

/* Set by user space between passes. */
volatile __u32 whole_frames = 1;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counted);
} counted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 26);
} arrivals SEC(".maps");

/* Submits a record with `room` bytes, which must be constant for the verifier; false: there is no space for it. */
#define HAND_OVER(ctx, length, now, room)									\
	({													\
		struct {											\
			struct arrival arrival;									\
			__u8 frame[room];									\
		} *record = bpf_ringbuf_reserve(&arrivals, sizeof(*record), 0);					\
		__u64 bytes = length;										\
														\
		barrier_var(bytes);	/* the verifier must see the very register that is compared */		\
		if (record) {											\
			record->arrival = (struct arrival){ .time_ns = now, .frame_bytes = length };		\
			if (bytes < 1 || bytes > room || bpf_xdp_load_bytes(ctx, 0, record->frame, bytes))	\
				record->arrival.frame_bytes = 0;						\
			bpf_ringbuf_submit(record, 0);								\
		}												\
		record != NULL;											\
	})

static __always_inline bool hand_over_frame(struct xdp_md *ctx, __u32 length, __u64 now)
{
	if (length <= 128)
		return HAND_OVER(ctx, length, now, 128);
	if (length <= 1536)
		return HAND_OVER(ctx, length, now, 1536);
	return HAND_OVER(ctx, length, now, 9216);
}

static __always_inline bool hand_over_mark(struct xdp_md *ctx, __u32 length, __u64 now)
{
	struct marked *record;
	struct mark mark;

	if (length < sizeof(mark) || bpf_xdp_load_bytes(ctx, length - sizeof(mark), &mark, sizeof(mark)) ||
	    mark.magic != bpf_htonl(MARK_MAGIC))
		return true;
	record = bpf_ringbuf_reserve(&arrivals, sizeof(*record), 0);
	if (!record)
		return false;
	record->arrival = (struct arrival){ .time_ns = now, .frame_bytes = length };
	record->mark = mark;
	record->pad = 0;
	bpf_ringbuf_submit(record, 0);
	return true;
}

/* A name that begins with "millrace": see sink.bpf.c. */
SEC("xdp.frags")
int millrace_replay(struct xdp_md *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 length = bpf_xdp_get_buff_len(ctx), zero = 0;
	struct counted *c = bpf_map_lookup_elem(&counted, &zero);
	bool noted;

	if (!c)
		return XDP_DROP;
	c->packets++;
	c->bytes += length;
	noted = whole_frames ? hand_over_frame(ctx, length, now) : hand_over_mark(ctx, length, now);
	if (!noted)
		c->missed++;
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
