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
	int weight;
} __attribute__((preserve_access_index));

/* A power of two. Ids count up as instances are added, so two of a machine seldom share a row. */
#define ROWS 4096

struct polled {
	__u64 napi_id;		/* 0: a free row */
	__u64 polls;
	__u64 packets;
	__u64 is_awaited;	/* a thread sleeps until it polls */
	__u64 full_polls;	/* in a row on `cpu`, up to its last poll */
	__u64 cpu;
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

/* The program that shares the queues of a CPU that falls behind: share_queues of the generation in charge (spill.h). */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} helpers SEC(".maps");

/* An older count of full polls says nothing about the present. The kernel polls again at once after a full poll. */
#define RECENT_JIFFIES 25

static __always_inline struct backlog *note_backlog(__u32 cpu, bool full)
{
	struct backlog *row = bpf_map_lookup_elem(&backlogs, &cpu);

	if (!row)
		return NULL;
	row->full_polls = full ? row->full_polls + 1 : 0;
	row->jiffies = bpf_jiffies64();
	row->polls++;
	return row;
}

/*
 * Returns whether other cores should help this one now, after a poll of a watched instance. The CPU keeps up if a full
 * poll of an instance is followed by one that is not full. An instance without full polls says nothing about the others.
 * After RECENT_JIFFIES without a full poll, the count begins again.
 */
static __always_inline bool falls_behind(struct backlog *row, struct polled *own, __u32 cpu, bool full)
{
	bool recent = row->behind_jiffies + RECENT_JIFFIES >= row->jiffies;
	__u64 before = recent && own->cpu == cpu ? own->full_polls : 0;

	row->watched_polls++;
	own->cpu = cpu;
	own->full_polls = full ? before + 1 : 0;
	if (!recent || (!full && before))
		row->behind = 0;
	if (!full)
		return false;
	row->behind_jiffies = row->jiffies;
	/* Another instance that keeps up does not end the backlog of this one. */
	row->behind = (row->behind > before ? row->behind : before) + 1;
	__u64 after = *(volatile const __u64 *)&row->help_after;
	return after && row->behind >= after;
}

static __always_inline void count_poll(struct polled *row, __u32 id, int work)
{
	row->polls++;
	if (work > 0)
		row->packets += work;
	if (row->is_awaited) {
		row->is_awaited = 0;
		/* A full ring does no harm: the records in it have woken the thread. */
		bpf_ringbuf_output(&began, &id, sizeof(id), BPF_RB_FORCE_WAKEUP);
	}
}

SEC("tp_btf/napi_poll")
int BPF_PROG(count_polls, struct napi_struct *napi, int work, int budget)
{
	__u32 id = napi->napi_id, at = id & (ROWS - 1), cpu = bpf_get_smp_processor_id();
	struct polled *row = bpf_map_lookup_elem(&polled, &at);
	/* Netpoll sends only, with a budget of 0, and may do so in the middle of a poll. */
	struct backlog *backlog = budget ? note_backlog(cpu, work >= budget) : NULL;

	if (!row || !id || row->napi_id != id)
		return 0;
	count_poll(row, id, work);
	/* Busy polling has a smaller budget, which is full sooner. */
	if (backlog && falls_behind(backlog, row, cpu, work >= budget && budget >= napi->weight))
		bpf_tail_call(ctx, &helpers, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
