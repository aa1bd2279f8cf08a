#!/bin/bash
# Fuzzes the API of a running daemon by its OpenAPI document, with Schemathesis, in network namespaces of its own:
# `make fuzz-api`. Needs root. All its files are in target/fuzz-api.
#
#   scripts/fuzz-api.sh [SECONDS]        for each socket; default 60
#
# It fails if an answer differs from the document, if a status is 5xx and not 503, if the daemon ends, or if it forwards no
# packet afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CACHE=$PWD/target/fuzz-api
readonly MILLRACE=${MILLRACE:-$PWD/target/debug/millrace}
readonly CONFIG=$PWD/scripts/fuzz-api/schemathesis.toml
readonly LIMIT_S=${1:-60}
readonly NAME=fuzz$$
DAEMON=
RELAYS=()

install() {
	local wanted=scripts/fuzz-api/requirements.txt
	if cmp -s "$wanted" "$CACHE/installed"; then return; fi
	rm -rf "$CACHE/venv"
	mkdir -p "$CACHE"
	/usr/bin/python3 -m venv "$CACHE/venv"
	"$CACHE/venv/bin/pip" --quiet --disable-pip-version-check install --no-deps --require-hashes --requirement "$wanted"
	cp "$wanted" "$CACHE/installed"
}

in_ns() {
	local where=$1
	shift
	nsenter --net="/run/netns/$NAME-$where" "$@"
}

# Ends everything, whatever has happened.
finish() {
	local pid where
	for pid in "${RELAYS[@]}" $DAEMON; do kill "$pid" 2>/dev/null || true; done
	wait || true
	"$MILLRACE" stop --instance "$NAME" >/dev/null 2>&1 || true
	for where in box a b; do ip netns delete "$NAME-$where" 2>/dev/null || true; done
}

fail() {
	echo "FAILED: $*; see $CACHE" >&2
	exit 1
}

# A box between two hosts.
testbed() {
	local where
	for where in box a b; do
		ip netns add "$NAME-$where"
		in_ns $where ip link set lo up
	done
	in_ns box sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
	local net=1
	for where in a b; do
		ip link add p$net netns "$NAME-box" type veth peer name eth0 netns "$NAME-$where"
		in_ns $where ip link set eth0 up
		in_ns $where ethtool -K eth0 tx off tso off txvlan off tx-vlan-stag-hw-insert off gro on >/dev/null
		in_ns box ethtool -K p$net gro on >/dev/null
		in_ns box ip link set p$net up
		in_ns box ip address add 10.0.$net.1/24 dev p$net
		in_ns $where ip address add 10.0.$net.2/24 dev eth0
		in_ns $where ip route add default via 10.0.$net.1
		net=$((net + 1))
	done
}

start_daemon() {
	# A group by its number needs no entry in the machine's database.
	printf 'ports = ["p1", "p2"]\n[api]\nreaders = "54321"\n[openflow]\ncontrollers = ["ptcp:0:127.0.0.1"]\n' >"$CACHE/config.toml"
	nsenter --net="/run/netns/$NAME-box" "$MILLRACE" run --instance "$NAME" --config "$CACHE/config.toml" 2>"$CACHE/daemon.log" &
	DAEMON=$!
	local end=$((SECONDS + 60))
	until is_ready; do
		if [ $SECONDS -ge $end ]; then fail "the daemon is not ready"; fi
		sleep 0.2
	done
}

is_ready() {
	"$MILLRACE" status --instance "$NAME" --json 2>/dev/null | grep -q '"ready": true'
}

# Prints how many packets the fast path has forwarded.
forwarded() {
	"$MILLRACE" status --instance "$NAME" --json |
		python3 -c 'import json, sys; print(json.load(sys.stdin)["packets"]["forwarded"])'
}

# The fast path forwards, after Linux has resolved the neighbours.
assert_forwards() {
	local before end=$((SECONDS + 60))
	before=$(forwarded)
	until in_ns a ping -q -c 3 -i 0.1 -W 1 10.0.2.2 >/dev/null && [ "$(forwarded)" -gt "$before" ]; do
		if [ $SECONDS -ge $end ]; then fail "the fast path does not forward $1"; fi
	done
}

# Fuzzes one socket. The syntax of packets, flow rules and SAs is no part of the document, so the daemon may refuse what the
# document allows. Arguments: its name, its file, and a TCP port that leads to it.
fuzz() {
	local name=$1 socket=$2 port=$3
	nsenter --net="/run/netns/$NAME-box" python3 scripts/fuzz-api/relay.py "$port" "$socket" 2>"$CACHE/$name-relay.log" &
	RELAYS+=($!)
	echo "Fuzzing the $name socket for $LIMIT_S s"
	# It keeps its files where it runs.
	(cd "$CACHE" && in_ns box venv/bin/st --config-file "$CONFIG" run "http://127.0.0.1:$port/v1/openapi.json" \
		--url "http://127.0.0.1:$port" --wait-for-schema 30 --exclude-path /v1/stop --max-time "$LIMIT_S" --workers 2 --request-timeout 60 \
		--phases examples,coverage,fuzzing --exclude-checks positive_data_acceptance --continue-on-failure --warnings off --no-color \
		>"$CACHE/$name.log" 2>&1) || { tail -n 60 "$CACHE/$name.log" >&2; fail "the $name socket"; }
	tail -n 12 "$CACHE/$name.log"
	kill -0 "$DAEMON" || fail "the daemon has ended"
	# Without one of its threads, the daemon would only answer 503.
	if grep -q panicked "$CACHE/daemon.log"; then fail "a thread of the daemon has panicked: daemon.log"; fi
	if ! "$MILLRACE" flows list --instance "$NAME" >/dev/null || ! "$MILLRACE" sas --instance "$NAME" >/dev/null ||
		! "$MILLRACE" cores --instance "$NAME" >/dev/null || ! "$MILLRACE" status --instance "$NAME" >/dev/null; then
		fail "a thread of the daemon does not answer"
	fi
}

install
trap finish EXIT
testbed
start_daemon
assert_forwards "at the start"
fuzz control "/run/millrace-$NAME.sock" 8001
fuzz read-only "/run/millrace-$NAME.readonly.sock" 8002
# What the fuzzer set may send packets elsewhere.
"$MILLRACE" flows del --instance "$NAME" >/dev/null
assert_forwards "after the fuzzing"
echo "The daemon lives and forwards."
