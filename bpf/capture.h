/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Captures and samples: copies packets into rings, with the verdict and its reason. Only programs with `capture` have this
 * code. They are attached while packets are captured or sampled.
 *
 * Forwarding changes only the head of a packet. So the head is kept when a packet comes in, and one record at the end shows how it
 * came in and how it left. A packet that a rule or a split queue hands to another core is not seen again.
 */
#pragma once

/* The record of such a packet has its head as it came in. */
#define CAPTURE_AS_IT_CAME (CAPTURE_MATCHED | CAPTURE_SAMPLED)
/* The filter matched such a packet as it came in. */
#define CAPTURE_FOUND (CAPTURE_MATCHED | CAPTURE_OVER_RATE)
/* It did not, but may match the packet as it leaves. */
#define CAPTURE_LATER (CAPTURE_UNSURE | CAPTURE_IF_CHANGED)

/*
 * The filter of the capture. User space puts its instructions into this room when it loads the program
 * (router/src/plane/capture.rs). Until then, all packets match. The kernel knows that the jump over the unused room is always taken, so
 * it removes the room as one block. To remove the instructions one by one would block its core for tens of milliseconds.
 */
__noinline int capture_filter(struct xdp_md *ctx, struct capture_cells *cells)
{
	register struct xdp_md *packet asm("r1") = ctx;
	register struct capture_cells *memory asm("r2") = cells;
	register int result asm("r0");

	asm volatile("w0 = %[mark]\n"
		     "w3 = 0\n"
		     "if w3 == 0 goto 1f\n"
		     ".rept %[room]\n"
		     "goto +0\n"
		     ".endr\n"
		     "1:\n"
		     : "=r"(result)
		     : "r"(packet), "r"(memory), [mark] "i"(CAPTURE_FILTER_MARK), [room] "i"(CAPTURE_FILTER_ROOM)
		     : "r3", "r4", "r5", "r6", "r7", "r8", "r9", "memory");
	return result;
}

/* Is this packet one of sample_every? The distances vary, so that no pattern of the traffic is missed (sFlow v5). */
static __always_inline bool is_sampled(struct capture_row *row, __u64 every)
{
	if (!every)
		return false;
	/* After a change of the rate, the old distance may be too long. */
	if (row->skip > 2 * every - 1)
		row->skip = row->interval = 1 + bpf_get_prandom_u32() % (2 * every - 1);
	if (row->skip > 1) {
		row->skip--;
		return false;
	}
	row->record.ahead = row->interval;
	/* The mean of 1 to 2 * every - 1 is `every`. */
	row->skip = row->interval = 1 + bpf_get_prandom_u32() % (2 * every - 1);
	return row->record.ahead;	/* the very first packet is not sampled */
}

/* Loads the first bytes of a frame that has `bytes`, at most `most`, a constant. Returns how many. */
static __always_inline __u32 load_most(struct xdp_md *ctx, void *to, __u64 bytes, __u64 most)
{
	if (bytes > most)
		bytes = most;
	barrier_var(bytes);
	if (!bytes || bytes > most || bpf_xdp_load_bytes(ctx, 0, to, bytes))
		return 0;
	return bytes;
}

/* A packet comes in. Returns why it is wanted so far, as bits of enum capture_why. */
__noinline int capture_begin(struct xdp_md *ctx, __u32 cpu)
{
	const struct capture_control *c = ROW(capture_control, 0);
	struct capture_row *row = ROW(capture_rows, cpu);
	int wanted = 0;

	if (!c || !row)
		return 0;
	if (is_sampled(row, c->sample_every))
		wanted = CAPTURE_SAMPLED;
	if (c->capturing && capture_filter(ctx, &row->cells))
		/* Beyond the rate, the head is not copied, except for a sample. */
		wanted |= row->used_up_tick == bpf_jiffies64() ? CAPTURE_OVER_RATE : CAPTURE_MATCHED;
	else if (c->capturing)
		wanted |= c->filter_once ? CAPTURE_IF_CHANGED : CAPTURE_UNSURE;
	if (!(wanted & CAPTURE_AS_IT_CAME))
		return wanted;
	row->record.in_data = (long)ctx->data;
	row->record.in_bytes = bpf_xdp_get_buff_len(ctx);
	row->record.head_bytes = load_most(ctx, row->record.head, row->record.in_bytes, CAPTURE_HEAD_BYTES);
	return wanted;
}

/* A packet is handed to a core; `core` is the core + 1, or at most 0. */
static __always_inline void capture_handed(struct packet *p, int core)
{
	if (p->capture && core > 0)
		p->core = core;
}

/* A flow rule sends a packet by this port. */
static __always_inline void capture_egress(struct packet *p, __u16 port)
{
	if (p->capture)
		p->egress = port;
}

static __always_inline bool has_bit(const __u64 *bits, __u32 at)
{
	return bits[at >> 6 & 1] >> (at & 63) & 1;
}

/* What is known of a packet at its end. */
struct capture_end {
	__u16 in_port, out_port;
	__u8 reason, router, has_router, wanted;
};

/* Does a packet belong to the capture, now that its verdict is known? */
static __always_inline bool is_captured(struct xdp_md *ctx, struct capture_row *row, const struct capture_control *c, const struct capture_end *e)
{
	__u64 ports = 1ULL << (e->in_port & (MAX_PORTS - 1));

	if (e->out_port != CAPTURE_NO_PORT)
		ports |= 1ULL << (e->out_port & (MAX_PORTS - 1));
	if (!c->capturing || !(ports & c->ports))
		return false;
	if (c->router && (!e->has_router || c->router != (__u64)e->router + 1))
		return false;
	if (!has_bit(c->reasons, e->reason == REASON_NONE ? MAX_REASONS : e->reason))
		return false;
	return e->wanted & CAPTURE_FOUND || (e->wanted & CAPTURE_LATER && capture_filter(ctx, &row->cells));
}

/* Puts a sample into its ring. */
static __always_inline void sample_put(struct capture_row *row)
{
	struct capture_record *r = &row->record;

	r->frame_bytes = 0;
	if (bpf_ringbuf_output(&sample_ring, r, offsetof(struct capture_record, frame), BPF_RB_NO_WAKEUP))
		row->samples_lost++;
}

/* Puts a packet into the ring of captures. */
static __always_inline void capture_put(struct xdp_md *ctx, struct capture_row *row, __u64 most, __u8 wanted)
{
	struct capture_record *r = &row->record;
	__u64 bytes = r->out_bytes < most ? r->out_bytes : most;

	if (!(wanted & CAPTURE_MATCHED))
		r->head_bytes = 0;	/* it is a sample, too, and matched only as it left */
	bytes = r->frame_bytes = load_most(ctx, r->frame, bytes, CAPTURE_FRAME_BYTES);
	if (bytes > CAPTURE_FRAME_BYTES)
		return;	/* cannot happen */
	if (bpf_ringbuf_output(&capture_ring, r, offsetof(struct capture_record, frame) + bytes, BPF_RB_NO_WAKEUP))
		row->no_room++;
}

/* `word`: a struct capture_end. */
__noinline int capture_verdict(struct xdp_md *ctx, __u32 cpu, __u64 word, __u32 core)
{
	const struct capture_control *c = ROW(capture_control, 0);
	struct capture_row *row = ROW(capture_rows, cpu);
	struct capture_end e;

	if (!c || !row)
		return 0;
	__builtin_memcpy(&e, &word, sizeof(e));
	__u8 why = e.wanted & CAPTURE_SAMPLED;

	if (is_captured(ctx, row, c, &e)) {
		if (e.wanted & CAPTURE_OVER_RATE || row->used_up_tick == bpf_jiffies64()) {
			row->over_rate++;
		} else if (spend(&row->bucket, c->cost_ns, c->burst_ns)) {
			why |= CAPTURE_MATCHED;
		} else {
			row->over_rate++;
			row->used_up_tick = bpf_jiffies64();
		}
	}
	if (!why)
		return 0;
	struct capture_record *r = &row->record;

	r->time_ns = bpf_ktime_get_ns();
	r->out_data = (long)ctx->data;
	r->out_bytes = bpf_xdp_get_buff_len(ctx);
	r->in_port = e.in_port;
	r->out_port = e.out_port;
	r->reason = e.reason;
	r->core = core;
	r->router = e.router;
	r->has_router = e.has_router;
	r->cpu = cpu;
	if (why & CAPTURE_SAMPLED)
		sample_put(row);
	if (why & CAPTURE_MATCHED)
		capture_put(ctx, row, c->most_bytes, e.wanted);
	return 0;
}

/* The filter did not match the packet as it came in. Can it match as it leaves? Tags, NAT and flow rules change much of it. */
static __always_inline bool may_match_now(const struct packet *p, enum reason reason)
{
	if (reason != REASON_NONE || p->core)
		return false;
	return p->wanted & CAPTURE_UNSURE || p->by_rules || p->connection || p->tags || (p->out && p->out->vlan);
}

/* The verdict about a packet is known, and nothing will change it any more. */
static __always_inline void capture_end(const struct packet *p, enum reason reason)
{
	struct capture_end e = {
		.in_port = p->port,
		.out_port = reason != REASON_NONE ? CAPTURE_NO_PORT : p->out ? p->out->source_port >> 48 : p->egress,
		.reason = reason,
		.router = p->router,
		.has_router = !!p->interface,
		.wanted = may_match_now(p, reason) ? p->wanted : p->wanted & ~CAPTURE_LATER,
	};
	__u64 word;

	__builtin_memcpy(&word, &e, sizeof(word));
	if (e.wanted && reason != REASON_NOT_A_PORT)
		capture_verdict(p->ctx, p->cpu, word, p->core);
}
