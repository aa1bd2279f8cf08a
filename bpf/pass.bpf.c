// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * What a frame of user space is given to that is for the kernel's stack (BPF_PROG_TEST_RUN with live frames): attached nowhere, and of no
 * generation of the kernel plane.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
