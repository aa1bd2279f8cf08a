/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Shares the queues of a core that falls behind, without waiting for user space. User space has prepared rows of
 * split_queues: the core of each bucket of flows after each step (logic::cores::Help). polls.bpf.c calls share_queues
 * after backlog.help_after full polls.
 */
#pragma once

#include "kernel.h"

struct napi_struct {
	unsigned int napi_id;
} OF_THE_KERNEL;

/*
 * Takes the next step of a row, if it is due. polls: of watched instances; behind: as in struct backlog.
 * is_polled: a poll of the row's queue has just ended. The packets of that poll have been sent, so the queue's flows
 * may move at once. Otherwise the queue may just have come from another core, so its flows move one poll later.
 */
__noinline int take_step(__u32 row, __u64 polls, __u64 behind, __u32 is_polled)
{
	struct split_queue *s = ROW(split_queues, row);
	__u64 step = s ? s->step : 0;
	struct port *port;

	if (!s || step >= s->steps || step >= HELP_STEPS || !(port = ROW(port_index, (__u32)s->port)))
		return 0;
	if ((step ? polls - s->stepped : behind) < s->after)
		return 0;
	/* The port may be gone or in generic mode, or another port may have its row. */
	__u64 word = *(volatile const __u64 *)port;
	if (!(__u32)word || (__u16)(word >> 32) != s->port >> 32 || !(word >> 48 & PORT_HANDS_OVER))
		return 0;
	for (__u32 i = 0; i < SPLIT_BUCKETS; i++) {
		struct split_bucket *b = &s->bucket[i];

		if (!step && !is_polled)
			*(volatile __u64 *)&b->poll = POLL_UNKNOWN;
		*(volatile __u64 *)&b->to = s->to[step][i];
	}
	s->stepped = polls;
	*(volatile __u64 *)&s->step = step + 1;
	/* This comes last, so that packets see everything above. Using the result makes it a full barrier. */
	return __sync_fetch_and_or((__u64 *)port, (__u64)PORT_SPLITS << 48) != 0;
}

/* __napi_poll, net/core/dev.c: all packets that a poll redirected have left. */
SEC("tp_btf/napi_poll")
int BPF_PROG(share_queues, struct napi_struct *napi, int work, int budget)
{
	__u32 cpu = bpf_get_smp_processor_id(), polled = napi->napi_id;
	const struct backlog *own = ROW(backlogs, cpu);

	for (__u32 row = 0; own && row < SPLIT_QUEUES; row++) {
		const __u64 *helped = ROW(helped_napis, row);
		__u64 word = helped ? *(volatile const __u64 *)helped : 0;

		if (word >> 32 == cpu + 1)
			take_step(row, own->watched_polls, own->behind, (__u32)word == polled);
	}
	return 0;
}
