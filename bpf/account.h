/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Counting, sampling and policing. Each CPU has rows of its own, and XDP runs with bottom halves off: no atomics here. */
#pragma once

/* A global function: the verifier checks it once, not at every call. */
__noinline int record_step(__u32 step, __u64 a, __u64 b)
{
	struct trace *t = ROW(trace, 0);

	if (!t || t->count >= MAX_TRACE_STEPS)
		return 0;
	__u32 i = t->count++ & (MAX_TRACE_STEPS - 1);
	t->entry[i].step = step;
	t->entry[i].a = a;
	t->entry[i].b = b;
	return 0;
}

/* Only millrace_explain records steps. */
static __always_inline void trace_step(const struct packet *p, enum trace_step step, __u64 a, __u64 b)
{
	if (p->explain)
		record_step(step, a, b);
}

static __always_inline struct interface_counters *interface_row(const struct packet *p, __u32 interface)
{
	return ROW(counters, p->cpu * interface_rows + interface);
}

/* The time for one packet in sample_mask + 1, else 0. The other core has counted a handed packet; it is not timed. */
static __always_inline __u64 sample_start(const struct packet *p)
{
	if (p->explain || p->handed)
		return 0;
	struct interface_counters *all = interface_row(p, 0);
	if (!all || (++all->other_packets & sample_mask))
		return 0;
	return bpf_ktime_get_ns();
}

static __always_inline void count_forwarded(const struct packet *p, __u64 start_ns)
{
	struct interface_counters *in, *out;

	if (p->explain || !p->out)
		return;
	in = interface_row(p, p->interface);
	out = interface_row(p, p->out->interface);
	if (!in || !out)
		return;
	in->forwarded_packets++;
	in->forwarded_bytes += p->frame_bytes;
	out->tx_packets++;
	out->tx_bytes += p->ip_offset + p->ip_bytes;	/* as it leaves: new tags, no padding */
	if (start_ns) {
		in->samples++;
		in->sample_ns += bpf_ktime_get_ns() - start_ns;
	}
}

static __always_inline bool spend(struct bucket *bucket, __u64 cost_ns, __u64 burst_ns)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 credit = bucket->credit_ns + (now - bucket->last_ns);

	bucket->last_ns = now;
	if (credit > burst_ns)
		credit = burst_ns;
	bool enough = credit >= cost_ns;
	bucket->credit_ns = enough ? credit - cost_ns : credit;
	return enough;
}

#include "capture.h"

/* From CLASS_drop on the program drops the packet. */
enum reason_class { CLASS_pass, CLASS_slow, CLASS_exception, CLASS_control, CLASS_lost, CLASS_drop, CLASS_taken };

static const __u8 class_of[MAX_REASONS] = {
#define REASON(name, class, text) [REASON_##name] = CLASS_##class,
#include "reasons.h"
#undef REASON
};

/* After so many full polls in a row a ring is behind: 256 packets, the smallest ring that drivers have. */
#define BACKLOG_POLLS 4
/* An older record says nothing about the present. */
#define RECENT_JIFFIES 4

/*
 * Linux would forward this packet, but at a higher cost than others. Do other packets suffer from that? They do not while
 * this CPU keeps up with its queues, nor if no others come in on it. If this is not known, the answer is yes.
 */
static __always_inline bool harms_others(const struct packet *p, struct policer *policer)
{
	const struct interface_counters *all = interface_row(p, 0);
	const struct backlog *b = ROW(backlogs, p->cpu);
	__u64 now = bpf_jiffies64();

	if (!all || !b)
		return true;
	if (all->other_packets - policer->all_packets > 1)
		policer->others_jiffies = now;
	policer->all_packets = all->other_packets;
	if (b->jiffies + RECENT_JIFFIES < now)
		return true;
	return b->full_polls >= BACKLOG_POLLS && policer->others_jiffies + RECENT_JIFFIES >= now;
}

static __always_inline enum reason police(const struct packet *p, enum reason reason, __u32 row)
{
	__u8 class = class_of[reason & (MAX_REASONS - 1)];
	struct policer *policer;

	if (class == CLASS_slow && exception_cost_ns && (policer = ROW(policers, row))) {
		bool harmful = harms_others(p, policer);

		if (!spend(&policer->exception, exception_cost_ns, police_burst_ns) && harmful)
			return REASON_POLICED;
	}
	if (class == CLASS_exception && exception_cost_ns && (policer = ROW(policers, row)) &&
	    !spend(&policer->exception, exception_cost_ns, police_burst_ns))
		return REASON_POLICED;
	if (class == CLASS_control && control_cost_ns && (policer = ROW(policers, row)) &&
	    !spend(&policer->control, control_cost_ns, police_burst_ns))
		return REASON_CONTROL_POLICED;
	return reason;
}

/* The one place that passes up and drops. It charges the payer, and returns the action. */
static __always_inline int pass_up(const struct packet *p, enum reason reason)
{
	__u32 row = p->cpu * CHARGE_ROWS + p->payer;
	struct charges *paid;
	struct interface_counters *in;

	if (!p->explain) {
		reason = police(p, reason, row);
		paid = ROW(charges, row);
		if (paid)
			paid->packets[reason & (MAX_REASONS - 1)]++;
		if (p->interface && (in = interface_row(p, p->interface))) {
			in->other_packets++;
			in->other_bytes += p->frame_bytes;
		}
	}
	int action = class_of[reason & (MAX_REASONS - 1)] >= CLASS_drop ? XDP_DROP : XDP_PASS;
	if (reason == REASON_PATH_GIVEN)
		action = XDP_REDIRECT;
	trace_step(p, TRACE_VERDICT, reason, action);
	if (p->capture)
		capture_end(p, reason);
	return action;
}
