// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Reads the key with which Linux hashes packets of multipath routes. No file has it. User space runs this once
 * (router/src/linux/multipath.rs), in a network namespace where nobody has set fib_multipath_hash_seed.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define KERNEL_TYPE __attribute__((preserve_access_index))

struct sysctl_fib_multipath_hash_seed {
	__u32 user_seed, mp_seed;
} KERNEL_TYPE;

struct netns_ipv4 {
	struct sysctl_fib_multipath_hash_seed sysctl_fib_multipath_hash_seed;
} KERNEL_TYPE;

struct net {
	struct netns_ipv4 ipv4;
} KERNEL_TYPE;

struct nsproxy {
	struct net *net_ns;
} KERNEL_TYPE;

struct task_struct {
	struct nsproxy *nsproxy;
} KERNEL_TYPE;

/* net/core/flow_dissector.c, before Linux 6.11. */
extern const void hashrnd __ksym __weak;

struct answer {
	__u64 has_seed;		/* Linux 6.11 and later */
	__u64 user_seed;	/* 0: nobody has set one */
	__u64 seed;
	__u64 key[2];		/* before Linux 6.11; all 0: it could not be read */
};

SEC("syscall")
int read_key(struct answer *answer)
{
	struct task_struct *task = (void *)bpf_get_current_task_btf();

	if (bpf_core_field_exists(struct netns_ipv4, sysctl_fib_multipath_hash_seed)) {
		struct nsproxy *nsproxy = task->nsproxy;

		if (!nsproxy)
			return 0;
		struct net *net = nsproxy->net_ns;
		answer->user_seed = net->ipv4.sysctl_fib_multipath_hash_seed.user_seed;
		answer->seed = net->ipv4.sysctl_fib_multipath_hash_seed.mp_seed;
		answer->has_seed = 1;
	} else if (&hashrnd) {
		__u64 key[2] = {};

		bpf_probe_read_kernel(key, sizeof(key), &hashrnd);
		answer->key[0] = key[0];
		answer->key[1] = key[1];
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
