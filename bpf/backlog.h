/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Records whether a CPU keeps up with its queues. polls.bpf.c writes the row of a CPU at the end of each NAPI poll there.
 * account.h reads it before it drops a packet that Linux would forward. split.h reads it before a flow moves to another
 * core.
 */
#pragma once

struct backlog {			/* a cache line, because each CPU writes its own */
	__u64 full_polls;	/* in a row, up to the last poll; each took as many packets as its budget allows */
	__u64 jiffies;		/* at the end of the last poll; 0: no program counts polls */
	__u64 polls;		/* ended polls of all NAPI instances on this CPU */
	__u64 behind;		/* full polls of watched instances since the CPU last kept up with them */
	__u64 behind_jiffies;	/* at the end of the last one */
	__u64 help_after;	/* the value of `behind` at which other cores help; 0: never. Written by user space */
	__u64 watched_polls;	/* as `polls`, of watched instances */
	__u64 pad;
};
