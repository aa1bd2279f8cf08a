/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Heavy processing of tunnelled packets (V, section V): each frame that leaves a tunnel is decrypted with AES-256, by the
 * kernel's own cipher, on the core that received it. The result is thrown away and the frame goes on unchanged, because
 * only the time matters. Needs Linux 6.10 (kfuncs of kernel/bpf/crypto.c).
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include "../../bpf/kernel.h"

/* The next program continues, if there is one: enum tcx_action_base of linux/bpf.h since Linux 6.6. */
#define TCX_NEXT (-1)
#define BLOCK_BYTES 16
#define MOST_BYTES 4096
#define MOST_MACHINES 8

struct bpf_crypto_ctx {
	void *tfm;
} OF_THE_KERNEL;

/* include/linux/bpf_crypto.h */
struct bpf_crypto_params {
	char type[14];
	__u8 reserved[2];
	char algo[128];
	__u8 key[256];
	__u32 key_len;
	__u32 authsize;
};

extern struct bpf_crypto_ctx *bpf_crypto_ctx_create(const struct bpf_crypto_params *params, __u32 params__sz,
						    int *err) __ksym;
extern void bpf_crypto_ctx_release(struct bpf_crypto_ctx *ctx) __ksym;
extern int bpf_crypto_decrypt(struct bpf_crypto_ctx *ctx, const struct bpf_dynptr *src,
			      const struct bpf_dynptr *dst, const struct bpf_dynptr *siv__nullable) __ksym;
extern int bpf_dynptr_adjust(const struct bpf_dynptr *ptr, __u32 start, __u32 end) __ksym;
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym;

struct cipher {
	struct bpf_crypto_ctx __kptr *ctx;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cipher);
} ciphers SEC(".maps");

struct plain {
	__u8 bytes[MOST_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plain);
} plains SEC(".maps");

/* Frames decrypted on each core, by the last byte of their destination. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MOST_MACHINES);
	__type(key, __u32);
	__type(value, __u64);
} decrypted SEC(".maps");

/* Runs once, before `decrypt` is attached; returns 0 or an error. */
SEC("syscall")
int set_up(void *unused)
{
	struct bpf_crypto_params params = {
		.type = "skcipher",
		.algo = "ecb(aes)",
		.key_len = 32,
	};
	struct bpf_crypto_ctx *ctx;
	struct cipher *cipher;
	__u32 zero = 0;
	int error = 0;

	for (int i = 0; i < 32; i++)
		params.key[i] = i;
	cipher = bpf_map_lookup_elem(&ciphers, &zero);
	if (!cipher)
		return -1;
	ctx = bpf_crypto_ctx_create(&params, sizeof(params), &error);
	if (!ctx)
		return error;
	ctx = bpf_kptr_xchg(&cipher->ctx, ctx);
	if (ctx)
		bpf_crypto_ctx_release(ctx);
	return 0;
}

SEC("tcx/ingress")
int decrypt(struct __sk_buff *skb)
{
	__u32 bytes = skb->len & ~(BLOCK_BYTES - 1), zero = 0, machine;
	struct bpf_dynptr src, dst;
	struct bpf_crypto_ctx *ctx;
	struct cipher *cipher;
	struct plain *plain;
	__u64 *count;
	__u8 last;

	cipher = bpf_map_lookup_elem(&ciphers, &zero);
	plain = bpf_map_lookup_elem(&plains, &zero);
	if (!cipher || !plain || bytes > MOST_BYTES || bpf_skb_load_bytes(skb, ETH_ALEN - 1, &last, 1) < 0 ||
	    bpf_skb_pull_data(skb, bytes) < 0)
		return TCX_NEXT;
	ctx = cipher->ctx;
	if (!ctx || bpf_dynptr_from_skb(skb, 0, &src) < 0 || bpf_dynptr_adjust(&src, 0, bytes) < 0)
		return TCX_NEXT;
	bpf_dynptr_from_mem(plain->bytes, sizeof(plain->bytes), 0, &dst);
	if (bpf_crypto_decrypt(ctx, &src, &dst, NULL) < 0)
		return TCX_NEXT;
	machine = last;
	count = bpf_map_lookup_elem(&decrypted, &machine);
	if (count)
		(*count)++;
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual MIT/GPL";
