// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Passes frames of user space to the kernel's stack (BPF_PROG_TEST_RUN with live frames). It is attached nowhere, and
 * belongs to no generation of the kernel plane.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
