/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Records if a CPU keeps up with its queues. polls.bpf.c writes the row of a CPU at the end of each NAPI poll there.
 * account.h reads it before it drops a packet that Linux would forward.
 */
#pragma once

struct backlog {
	__u64 full_polls;	/* in a row, up to the last poll; each took as many packets as its budget allows */
	__u64 jiffies;		/* at the end of the last poll; 0: no program counts polls */
};
