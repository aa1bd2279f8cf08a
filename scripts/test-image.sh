#!/bin/bash
# Unpacks the image of `make image` and runs its program: `make test-image`. Everything happens in namespaces of its own. Needs root.
#
#   client: eth0 ──veth── p1 :box: p2 ──veth── eth0 :server     10.1.0.0/24, 10.2.0.0/24; the box is .1
set -Eeuo pipefail
cd "$(dirname "$0")/.."

readonly DIRECTORY=$PWD/target/image
readonly NAME=mi$$
readonly INSTANCE=image-$$

trap 'echo "FAILED in line $LINENO: $BASH_COMMAND"; cat "$DIRECTORY/log" 2>/dev/null' ERR
trap clean EXIT

clean() {
	millrace stop --instance $INSTANCE >/dev/null 2>&1 || true
	for name in client box server; do ip netns delete $NAME-$name 2>/dev/null || true; done
	rm -rf "$DIRECTORY/bundle"
}

# Runs a program of the image in the network namespace of the box. As in a container, it sees the image's files, and the machine's
# /run and BPF file system.
inside() {
	nsenter --net=/run/netns/$NAME-box unshare --mount --propagation slave sh -ec '
		root=$1; shift
		mount -t proc proc "$root/proc"
		mount -t sysfs sysfs "$root/sys"
		for directory in /sys/fs/bpf /run /dev; do mount --rbind $directory "$root$directory"; done
		exec chroot "$root" "$@"' sh "$DIRECTORY/bundle/rootfs" "$@"
}

# Runs the image's millrace, as `inside` does.
millrace() { inside /usr/sbin/millrace "$@"; }

make_box() {
	local host name port net
	ip netns add $NAME-box
	for host in client:p1:1 server:p2:2; do
		IFS=: read -r name port net <<<"$host"
		ip netns add "$NAME-$name"
		ip -n $NAME-box link add "$port" type veth peer name eth0 netns "$NAME-$name"
		ip -n "$NAME-$name" link set eth0 up
		ip -n "$NAME-$name" addr add "10.$net.0.2/24" dev eth0
		ip -n "$NAME-$name" route add default via "10.$net.0.1"
		ip netns exec "$NAME-$name" ethtool -K eth0 tx off tso off gso off txvlan off tx-vlan-stag-hw-insert off gro on >/dev/null
		ip -n $NAME-box link set "$port" up
		ip -n $NAME-box addr add "10.$net.0.1/24" dev "$port"
		ip netns exec $NAME-box ethtool -K "$port" gro on >/dev/null
	done
	ip netns exec $NAME-box sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.accept_redirects=0
}

main() {
	[[ $EUID == 0 ]] || { echo 'test-image: needs root' >&2; exit 1; }
	local tag command before after end
	rm -rf "$DIRECTORY/layout" "$DIRECTORY/bundle" && mkdir -p "$DIRECTORY/layout"
	tar --extract --file "$DIRECTORY/millrace.tar" --directory "$DIRECTORY/layout"
	tag=$(umoci list --layout "$DIRECTORY/layout")
	umoci unpack --image "$DIRECTORY/layout:$tag" "$DIRECTORY/bundle"
	command=$(python3 -c 'import json, sys; print(*json.load(open(sys.argv[1]))["process"]["args"])' "$DIRECTORY/bundle/config.json")
	[[ $command == '/usr/sbin/millrace run --config /etc/millrace/millrace.toml' ]]
	echo "ok: unpacked $tag, which runs: $command"
	[[ -s $DIRECTORY/bundle/rootfs/usr/share/doc/millrace/copyright ]]
	make_box
	sed -i 's|^#ports = .*|ports = ["p1", "p2"]|' "$DIRECTORY/bundle/rootfs/etc/millrace/millrace.toml"
	# shellcheck disable=SC2086
	(trap - ERR; inside $command --instance $INSTANCE 2>"$DIRECTORY/log") &
	end=$((SECONDS + 90))
	until millrace status --instance $INSTANCE --json 2>/dev/null | grep -q '"ready":true'; do
		((SECONDS < end))
		sleep 0.2
	done
	forwarded() { millrace status --instance $INSTANCE --json | sed -n 's/.*"packets":{"forwarded":\([0-9]*\),.*/\1/p'; }
	before=$(forwarded)
	ip netns exec $NAME-client ping -q -c 20 -i 0.05 10.2.0.2 | grep -q ' 0% packet loss'
	after=$(forwarded)
	((after - before >= 30))
	echo "ok: forwarded $((after - before)) packets"
	# What a container with the machine's BPF file system leaves when it dies.
	kill -KILL "$(millrace status --instance $INSTANCE --json | sed -n 's/.*"pid":\([0-9]*\),.*/\1/p')"
	wait %1 || true
	ip -n $NAME-box -d link show p1 | grep -q xdp
	ls /sys/fs/bpf/millrace-$INSTANCE >/dev/null
	echo 'ok: after a kill, the program stays'
	millrace stop --instance $INSTANCE >/dev/null
	[[ $(ip -n $NAME-box -d link show p1) != *xdp* ]]
	echo 'image: done'
}

main
