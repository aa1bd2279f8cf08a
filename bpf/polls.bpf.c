// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Counts the polls of each NAPI instance that is watched, and their packets. The tracepoint in __napi_poll, net/core/dev.c,
 * fires once for up to 64 packets, in threads and softirqs alike. An instance polls on one CPU at a time, so its row has
 * one writer. A poll wakes the thread that waits for it.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "backlog.h"

struct napi_struct {
	unsigned int napi_id;
} __attribute__((preserve_access_index));

/* A power of two. Ids count up as instances are added, so two of a machine seldom share a row. */
#define ROWS 4096

struct polled {
	__u64 napi_id;		/* 0: a free row */
	__u64 polls;
	__u64 packets;
	__u64 is_awaited;	/* a thread sleeps until it polls */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ROWS);
	__type(key, __u32);
	__type(value, struct polled);
} polled SEC(".maps");

/* Ids of instances that a thread waited for. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} began SEC(".maps");

/* By CPU. User space makes it; the kernel plane reads the same map. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct backlog);
} backlogs SEC(".maps");

static __always_inline void note_backlog(bool full)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct backlog *row = bpf_map_lookup_elem(&backlogs, &cpu);

	if (!row)
		return;
	row->full_polls = full ? row->full_polls + 1 : 0;
	row->jiffies = bpf_jiffies64();
}

SEC("tp_btf/napi_poll")
int BPF_PROG(count_polls, struct napi_struct *napi, int work, int budget)
{
	note_backlog(work >= budget);

	__u32 id = napi->napi_id, at = id & (ROWS - 1);
	struct polled *row = bpf_map_lookup_elem(&polled, &at);

	if (!row || row->napi_id != id || !id)
		return 0;
	row->polls++;
	if (work > 0)
		row->packets += work;
	if (row->is_awaited) {
		row->is_awaited = 0;
		/* A full ring does no harm: the records in it have woken the thread. */
		bpf_ringbuf_output(&began, &id, sizeof(id), BPF_RB_FORCE_WAKEUP);
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
