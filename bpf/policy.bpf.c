// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Sees changes of policy inside the system call that makes them. Each program here marks a router in the map `policy`, and
 * the kernel plane leaves the packets of a marked router to Linux (route() in millrace.bpf.c). User space reads the
 * namespace again and applies the result. It removes the mark if no other change came in between
 * (router/src/daemon/policy.rs). A change is therefore in force when the command returns, whatever user space does
 * meanwhile.
 *
 * The namespace of a change must be exact. A tenant may change its own policy as often as it likes, but this must not send
 * the packets of others to the kernel. A program may also change a namespace through a socket that it opened there and kept
 * (FRR, agents of containers). The namespace of the running task is therefore not enough.
 *   message_sent     The kernel multicasts a message after it has made a change. Each router has sockets of its own, and each
 *                    socket has this filter. The sockets live in a viewer: an empty namespace in which only the namespace of
 *                    the router has an id. So only its messages arrive (NETLINK_LISTEN_ALL_NSID, do_one_broadcast() in
 *                    net/netlink/af_netlink.c). An id keeps no namespace alive. A process that forges multicasts in a
 *                    namespace can mark only the router there.
 *   option_read      Legacy iptables registers a table at the first query about it (xt_find_table_lock()), and the program
 *                    runs after that. The namespace is that of the socket. Any user may ask, but Linux refuses a caller
 *                    without CAP_NET_ADMIN before it looks at the tables, so such a caller marks nobody.
 *   setting_written  A file below /proc/sys/net is about to be written, so the change is yet to come. The program notes this
 *                    in `early_ns`, and user space reads late. The namespace is that of the task. A task that writes through
 *                    a file opened in another namespace marks the wrong router. Most relevant settings are also multicast.
 *   daemon_exits     No daemon reads changes any more, so every router is marked. Attached only with heartbeat = "0".
 *
 * In the host's namespace, chains and filters of a device see the packets of every router on it, so they mark all routers.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

/* Fixed at load, for message_sent. */
const volatile __u32 filter_slot = POLICY_HOST;
/* Fixed at load. Without it, every caller counts as one with CAP_NET_ADMIN (lockdown=confidentiality). */
const volatile bool reads_kernel = true;

#define NETLINK_HEADER_BYTES 16
/* The most messages of a transaction that the filter reads; more count as ALL. */
#define MOST_MESSAGES 64

/* linux/rtnetlink.h */
#define RTM_NEWQDISC	36
#define RTM_GETTFILTER	46
#define RTM_NEWCHAIN	100
#define RTM_GETCHAIN	102
/* linux/netfilter/nfnetlink.h, nf_tables.h */
#define NFNL_SUBSYS_NFTABLES 10
#define NFT_MSG_NEWRULE		6
#define NFT_MSG_NEWSET		9
#define NFT_MSG_NEWGEN		15
#define NFPROTO_INET		1
#define NFPROTO_NETDEV		5
/* linux/netfilter_ipv4/ip_tables.h, and the same for IPv6 */
#define SOL_IP			0
#define SOL_IPV6		41
#define IPT_SO_GET_INFO		64
#define IPT_SO_GET_ENTRIES	65
#define IPT_SO_SET_REPLACE	64
#define IPT_SO_SET_ADD_COUNTERS	65
/* The mark of the daemon's socket (router/src/linux/xtables.rs) */
#define OUR_MARK		0x4d696c6c
/* asm-generic/errno-base.h, errno.h */
#define EPERM			1
#define ENOPROTOOPT		92
#define EOPNOTSUPP		95

/* linux/capability.h, linux/user_namespace.h */
#define CAP_NET_ADMIN		12
#define MOST_LEVELS		33

#define ROW(map_, row_) ({ __u32 row__ = (row_); bpf_map_lookup_elem(&map_, &row__); })

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_ROUTERS);
	__type(key, __u32);
	__type(value, __u64);
} policy SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, POLICY_SLOTS);
	__type(key, __u32);
	__type(value, struct policy_slot);
} policy_slots SEC(".maps");

/* Slots of namespaces, by cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, POLICY_SLOTS);
	__type(key, __u64);
	__type(value, __u32);
} policy_cookies SEC(".maps");

/* Of ICMP errors; filled by the kernel plane (maps.h). */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, LEARNED_RING_BYTES);
} learned SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_ROUTERS);
	__type(key, __u32);
	__type(value, __u64);
} learned_counts SEC(".maps");

/* Wakes user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} policy_wakes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} policy_daemon SEC(".maps");

static __always_inline void mark(__u32 router)
{
	__u64 *changes = ROW(policy, router);

	if (changes)
		__sync_fetch_and_add(changes, 1);
}

static __always_inline void mark_all(void)
{
	for (__u32 router = 0; router < MAX_ROUTERS; router++)
		mark(router);
}

/*
 * `pending` and `all` rise before the mark. If user space sees a mark and nothing pending, it has already taken note of the change.
 * Only the first change wakes user space, which sets `pending` to 0 before it reads.
 */
static __always_inline void changed(__u32 slot, bool all, bool early)
{
	struct policy_slot *s = ROW(policy_slots, slot);
	__u64 was;

	if (!s)
		return;
	if (early)
		*(volatile __u64 *)&s->early_ns = bpf_ktime_get_ns();
	if (all)
		__sync_fetch_and_add(&s->all, 1);
	was = __sync_fetch_and_add(&s->pending, 1);
	if (all)
		mark_all();
	else if (s->router)
		mark(s->router - 1);
	if (!was)
		bpf_ringbuf_output(&policy_wakes, &was, sizeof(was), 0);
}

struct netlink_header {
	__u32 length;
	__u16 type;
	__u16 flags;
	__u32 sequence;
	__u32 port;
	__u8 family;		/* of struct nfgenmsg */
};

/* CHAIN: concerns all routers, and may add the host's first chain that is bound to a device. */
enum weight { NOTHING, OWN, ALL, CHAIN };

/* Is a chain of the host bound to a device? Such a chain sees the packets of all routers. */
static __always_inline bool has_device_chains(void)
{
	const struct policy_slot *host = ROW(policy_slots, POLICY_HOST);

	return !host || !*(volatile const __u64 *)&host->no_device_chains;
}

/*
 * Clears the flag until user space has looked for chains that are bound to a device. Call this after counting the change.
 */
static __always_inline void chain_changed(void)
{
	struct policy_slot *host = ROW(policy_slots, POLICY_HOST);

	if (host)
		*(volatile __u64 *)&host->no_device_chains = 0;
}

/*
 * Every transaction of nf_tables ends with a NEWGEN. It counts as a change, too: it is the only message about a rule that is
 * too long for one.
 * Messages other than those of nf_tables have types of their own. An unknown type counts as a change.
 */
static __always_inline enum weight weigh(const struct netlink_header *m)
{
	bool host = filter_slot == POLICY_HOST;

	if (m->type >> 8 == NFNL_SUBSYS_NFTABLES) {
		__u8 kind = m->type;
		bool of_devices = host && (m->family == NFPROTO_NETDEV || m->family == NFPROTO_INET);

		if (kind == NFT_MSG_NEWGEN)
			return host && has_device_chains() ? ALL : OWN;
		if (kind >= NFT_MSG_NEWSET && kind < NFT_MSG_NEWGEN)
			return OWN;
		if (kind >= NFT_MSG_NEWRULE && kind < NFT_MSG_NEWSET)
			return of_devices && has_device_chains() ? ALL : OWN;
		return of_devices ? CHAIN : OWN;
	}
	if ((m->type >= RTM_NEWQDISC && m->type <= RTM_GETTFILTER) || (m->type >= RTM_NEWCHAIN && m->type <= RTM_GETCHAIN))
		return host ? ALL : OWN;
	return OWN;
}

/* Returns 0, so the message is not queued, and nobody has to read it. */
SEC("socket")
int message_sent(struct __sk_buff *skb)
{
	enum weight found = NOTHING;
	__u32 at = 0;
	int i;

	for (i = 0; i < MOST_MESSAGES && at < skb->len; i++) {
		struct netlink_header m = {};
		enum weight one;

		if (bpf_skb_load_bytes(skb, at, &m, sizeof(m)) || m.length < NETLINK_HEADER_BYTES) {
			found = CHAIN;
			break;
		}
		one = weigh(&m);
		if (one > found)
			found = one;
		at += (m.length + 3) & ~3U;
	}
	if (i == MOST_MESSAGES)
		found = CHAIN;
	if (found != NOTHING)
		changed(filter_slot, found >= ALL && filter_slot == POLICY_HOST, false);
	if (found == CHAIN)
		chain_changed();
	return 0;
}

static __always_inline void changed_in(__u64 cookie, bool early)
{
	__u32 *slot = bpf_map_lookup_elem(&policy_cookies, &cookie);

	if (slot)
		changed(*slot, false, early);
}

struct user_namespace {
	struct user_namespace *parent;
	int level;
	struct {
		__u32 val;
	} owner;
} __attribute__((preserve_access_index));

struct cred {
	struct {
		__u32 val;
	} euid;
	struct {
		__u64 val;
	} cap_effective;
	struct user_namespace *user_ns;
} __attribute__((preserve_access_index));

/* Before Linux 6.3. */
struct cred___words {
	struct {
		__u32 cap[2];
	} cap_effective;
} __attribute__((preserve_access_index));

struct net {
	__u64 net_cookie;
	struct user_namespace *user_ns;
} __attribute__((preserve_access_index));

struct sock {
	struct {
		struct {
			struct net *net;
		} skc_net;
	} __sk_common;
} __attribute__((preserve_access_index));

struct bpf_sockopt_kern {
	struct sock *sk;
} __attribute__((preserve_access_index));

struct nsproxy {
	struct net *net_ns;
} __attribute__((preserve_access_index));

struct signal_struct {
	struct {
		int counter;
	} live;
} __attribute__((preserve_access_index));

struct task_struct {
	const struct cred *cred;
	struct nsproxy *nsproxy;
	struct signal_struct *signal;
} __attribute__((preserve_access_index));

static __always_inline bool has_net_admin(const struct cred *cred)
{
	if (bpf_core_field_exists(cred->cap_effective.val))
		return BPF_CORE_READ(cred, cap_effective.val) & (1ULL << CAP_NET_ADMIN);
	return BPF_CORE_READ((const struct cred___words *)cred, cap_effective.cap[0]) & (1U << CAP_NET_ADMIN);
}

/*
 * Has the running task CAP_NET_ADMIN in a user namespace? As cap_capable() in security/commoncap.c, which decides by the same
 * credentials in the same system call.
 */
static __always_inline bool may_administer(const struct user_namespace *ns)
{
	const struct task_struct *task = (void *)bpf_get_current_task();
	const struct cred *cred = BPF_CORE_READ(task, cred);
	const struct user_namespace *own = BPF_CORE_READ(cred, user_ns);
	int level = BPF_CORE_READ(own, level);

	if (!ns || !own)
		return true;
	for (int i = 0; i < MOST_LEVELS; i++) {
		const struct user_namespace *parent;

		if (ns == own)
			return has_net_admin(cred);
		if (BPF_CORE_READ(ns, level) <= level)
			return false;
		parent = BPF_CORE_READ(ns, parent);
		if (parent == own && BPF_CORE_READ(ns, owner.val) == BPF_CORE_READ(cred, euid.val))
			return true;
		ns = parent;
	}
	return true;
}

/*
 * The kernel has checked that the task may write this file, but the file may be of another namespace: the task may administer a
 * namespace that it made, and be in the host's. Only root's processes and those with CAP_NET_ADMIN can write the host's own
 * files (net_ctl_permissions(), test_perm()). In other namespaces every writer counts.
 */
static __always_inline bool may_write_settings(const struct net *net)
{
	const struct task_struct *task = (void *)bpf_get_current_task();
	const struct user_namespace *ns;

	if (!reads_kernel)
		return true;
	ns = BPF_CORE_READ(net, user_ns);
	return BPF_CORE_READ(ns, level) || !BPF_CORE_READ(task, cred, euid.val) || may_administer(ns);
}

SEC("cgroup/sysctl")
int setting_written(struct bpf_sysctl *ctx)
{
	static const char below[] = "net/ip";
	char name[sizeof(below)] = {};
	struct nsproxy *spaces;

	if (!ctx->write)
		return 1;
	/* A longer name is cut short. */
	bpf_sysctl_get_name(ctx, name, sizeof(name), 0);
	for (int i = 0; i < (int)sizeof(below) - 1; i++)
		if (name[i] != below[i])
			return 1;
	spaces = bpf_get_current_task_btf()->nsproxy;
	if (spaces && may_write_settings(spaces->net_ns))
		changed_in(spaces->net_ns->net_cookie, true);
	return 1;
}

/*
 * The query never reached the tables: the task may not ask, or nobody answers on this socket. Other errors can follow the
 * registration of a table (EAGAIN, EFAULT).
 */
static __always_inline bool refused(int result)
{
	return result == -EPERM || result == -ENOPROTOOPT || result == -EOPNOTSUPP;
}

/* As the first lines of do_ipt_get_ctl() and do_ip6t_get_ctl() ask. */
static __always_inline bool may_read_tables(struct bpf_sockopt *ctx)
{
	const struct bpf_sockopt_kern *kernel = (void *)ctx;

	return !reads_kernel || may_administer(BPF_CORE_READ(kernel, sk, __sk_common.skc_net.net, user_ns));
}

/* The daemon reads tables, too. Its query creates no table, because it names only tables that exist. */
static __always_inline bool is_ours(const struct bpf_sockopt *ctx)
{
	return ctx->sk && ctx->sk->mark == OUR_MARK;
}

SEC("cgroup/getsockopt")
int option_read(struct bpf_sockopt *ctx)
{
	if (!refused(ctx->retval) && !is_ours(ctx) &&
	    (ctx->level == SOL_IP || ctx->level == SOL_IPV6) &&
	    (ctx->optname == IPT_SO_GET_INFO || ctx->optname == IPT_SO_GET_ENTRIES) &&
	    may_read_tables(ctx))
		changed_in(bpf_get_netns_cookie(ctx), false);
	/* The kernel's answer stays unchanged. */
	ctx->optlen = 0;
	return 1;
}

/*
 * This runs before the kernel replaces a table. The tools add the counters of the old table afterwards, so the last call
 * comes when the new table is in force.
 */
SEC("cgroup/setsockopt")
int option_written(struct bpf_sockopt *ctx)
{
	if ((ctx->level == SOL_IP || ctx->level == SOL_IPV6) &&
	    (ctx->optname == IPT_SO_SET_REPLACE || ctx->optname == IPT_SO_SET_ADD_COUNTERS) &&
	    may_read_tables(ctx))
		changed_in(bpf_get_netns_cookie(ctx), true);
	/* With optlen 0, the kernel uses the caller's buffer, which may be longer than a page. */
	ctx->optlen = 0;
	return 1;
}

/* The daemon runs this to register itself. */
SEC("syscall")
int daemon_is_here(void *ctx)
{
	__u64 *daemon = ROW(policy_daemon, 0);

	if (daemon)
		*daemon = bpf_get_current_pid_tgid() >> 32;
	return 0;
}

/* Several threads that end together may all find none alive. Only the first one clears the daemon's number, and marks routers. */
SEC("raw_tp/sched_process_exit")
int daemon_exits(struct bpf_raw_tracepoint_args *ctx)
{
	const struct task_struct *task = (void *)ctx->args[0];
	__u64 *daemon = ROW(policy_daemon, 0), process = bpf_get_current_pid_tgid() >> 32;

	if (daemon && *daemon == process && !BPF_CORE_READ(task, signal, live.counter) &&
	    __sync_val_compare_and_swap(daemon, process, 0) == process)
		mark_all();
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
