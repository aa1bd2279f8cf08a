# Sourced by test-openflow.sh: namespaces, the switch that is tested, Open vSwitch, controllers, counting.
#
#   target   the switch, its ports p1, p2, p3; 192.0.2.1 towards `peer`
#   peer     controllers and the tester switch; 192.0.2.2
#   h1 h2 h3 hosts 10.0.0.1 to 10.0.0.3 at the ports, where a part wants them instead of the tester switch

readonly PREFIX=of$$
readonly SWITCH=tcp:192.0.2.1:6654
PIDS=()
PASSED=0
FAILED=0

pass() { PASSED=$((PASSED + 1)); echo "ok      $PART: $1"; }
# Arguments: the check, and lines that describe what was found.
fail() { FAILED=$((FAILED + 1)); echo "FAILED  $PART: $1"; shift; printf '          %s\n' "$@"; }

# Runs a command in the network namespace $1. Unlike `ip netns exec`, this does not change /sys.
in_ns() {
	local where=$1
	shift
	nsenter --net="/run/netns/$PREFIX-$where" "$@"
}

# Starts a command in the namespace $1 with its output in file $2. stop_all ends it.
start() {
	local where=$1 log=$2
	shift 2
	# Not with in_ns: in the background this would be a shell, and the command its child.
	nsenter --net="/run/netns/$PREFIX-$where" "$@" >"$log" 2>&1 &
	PIDS+=($!)
}

# Waits at most $1 seconds until the command in the other arguments succeeds.
within() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		if [ $SECONDS -ge $end ]; then return 1; fi
		sleep 0.1
	done
}

namespace() {
	ip netns add "$PREFIX-$1"
	# Without IPv6, neighbour discovery and router solicitations do not mix with the test's packets.
	in_ns "$1" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
	in_ns "$1" ip link set lo up
}

# Makes a cable from device $2 of namespace $1 to device $4 of namespace $3.
cable() {
	ip link add "$2" netns "$PREFIX-$1" type veth peer name "$4" netns "$PREFIX-$3"
	local end
	for end in "$1 $2" "$3 $4"; do
		set -- $end
		in_ns "$1" ip link set "$2" up
		# Complete frames with complete checksums, as on a cable; veth needs GRO to take frames from XDP.
		in_ns "$1" ethtool -K "$2" tx off tso off txvlan off tx-vlan-stag-hw-insert off gro on >/dev/null
	done
}

# Makes namespaces and cables. $1: hosts, or tester.
testbed() {
	local i
	namespace target
	namespace peer
	cable target control peer control
	in_ns target ip address add 192.0.2.1/30 dev control
	in_ns peer ip address add 192.0.2.2/30 dev control
	for i in 1 2 3; do
		if [ "$1" = tester ]; then
			cable target p$i peer t$i
			continue
		fi
		namespace h$i
		cable target p$i h$i eth0
		in_ns h$i ip link set eth0 address 02:00:00:00:00:0$i
		in_ns h$i ip address add 10.0.0.$i/24 dev eth0
	done
}

# Starts an Open vSwitch in userspace in namespace $1. It does not affect another one on this machine.
start_ovs() {
	local where=$1 directory=$WORK/ovs-$1
	rm -rf "$directory"
	mkdir -p "$directory"
	ovsdb-tool create "$directory/conf.db" /usr/share/openvswitch/vswitch.ovsschema
	start "$where" "$directory/ovsdb.log" env OVS_RUNDIR="$directory" ovsdb-server "$directory/conf.db" \
		--remote=punix:"$directory/db.sock" --unixctl="$directory/ovsdb.ctl" --no-chdir
	within 5 test -S "$directory/db.sock"
	OVS_RUNDIR=$directory ovs-vsctl --no-wait init
	start "$where" "$directory/vswitchd.log" env OVS_RUNDIR="$directory" ovs-vswitchd "unix:$directory/db.sock" \
		--unixctl="$directory/vswitchd.ctl" --disable-system --no-chdir
}

# ovs-vsctl of the Open vSwitch in namespace $1.
vsctl() {
	local directory=$WORK/ovs-$1
	shift
	ovs-vsctl --timeout=10 --db="unix:$directory/db.sock" "$@"
}

# Makes the Open vSwitch in namespace $1 look up each packet in its tables, and not in its cache. The cache follows changes only
# some time after the barrier reply.
uncached() { vsctl "$1" set open_vswitch . other_config:flow-limit=0; }

# Makes a bridge in namespace $1 with ports $2*, 1 to 3, OpenFlow versions $3, and datapath id $4. Other arguments are
# controllers.
bridge() {
	local where=$1 port=$2 versions=$3 id=$4 i
	shift 4
	start_ovs "$where"
	vsctl "$where" add-br br -- set bridge br datapath_type=netdev protocols="$versions" fail_mode=secure \
		other_config:datapath-id="$id" other_config:disable-in-band=true
	for i in 1 2 3; do
		vsctl "$where" add-port br "$port$i" -- set interface "$port$i" ofport_request=$i
	done
	vsctl "$where" set-controller br "$@"
}

# More lines of Millrace's configuration, and the action for packets that no rule matches.
MORE=
MISS=controller

# Starts the switch that is tested, which listens for ovs-ofctl. $1: 10, 13, or 10,13. Other arguments are controllers.
start_target() {
	local version=$1 controller options
	shift
	if [ "$TARGET" != millrace ]; then
		bridge target p "$(sed 's/\(1.\)/OpenFlow\1/g' <<<"$version")" 0000000000000001 ptcp:6654 "$@"
		[ "$TARGET" = ovs ] || uncached target
	else
		cat >"$WORK/millrace.toml" <<-END
			ports = ["p1", "p2", "p3"]
			[openflow]
			datapath_id = "0000000000000001"
			packet_in_pps = 10000
			fail = "secure"
			[flows]
			miss = "$MISS"
			$MORE
		END
		options=()
		if [ "$version" != 10,13 ]; then options+=(--openflow-version "1.${version#1}"); fi
		for controller in ptcp:6654 "$@"; do options+=(--controller "$controller"); done
		start target "$WORK/millrace.log" "$MILLRACE" --instance "$PREFIX" run --config "$WORK/millrace.toml" \
			"${options[@]}"
	fi
	if ! within 20 ofctl "${version##*,}" probe "$SWITCH"; then
		fail "the switch answers on $SWITCH" "$(tail -n 3 "$WORK"/millrace.log "$WORK"/ovs-target/*.log 2>/dev/null)"
		return 1
	fi
}

# Runs ovs-ofctl with OpenFlow version $1, from outside the switch.
ofctl() {
	local version=$1
	shift
	in_ns peer timeout 20 ovs-ofctl -O "OpenFlow$version" --timeout=15 "$@"
}

# Starts os-ken's applications as controllers at 192.0.2.2:6653, with their output in file $1.
start_controller() {
	local log=$1
	shift
	# The test suite needs timeouts, which only this hub of os-ken has.
	start peer "$log" env OSKEN_HUB_TYPE=eventlet "$PYTHON" -W ignore scripts/openflow/osken.py --ofp-tcp-listen-port 6653 "$@"
	if ! within 15 in_ns peer bash -c ': </dev/tcp/127.0.0.1/6653'; then
		fail "os-ken listens" "$(tail -n 3 "$log")"
		return 1
	fi
}

# Ends all processes that were started, and removes the namespaces.
stop_all() {
	local pid name
	if [ "$TARGET" = millrace ] && [ -e "/run/netns/$PREFIX-target" ]; then
		in_ns target timeout 30 "$MILLRACE" --instance "$PREFIX" stop >/dev/null 2>&1 || true
	fi
	for pid in "${PIDS[@]}"; do kill "$pid" 2>/dev/null || true; done
	for pid in "${PIDS[@]}"; do
		within 5 not_running "$pid" || kill -9 "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	PIDS=()
	for name in target peer h1 h2 h3; do
		if [ -e "/run/netns/$PREFIX-$name" ]; then ip netns del "$PREFIX-$name"; fi
	done
}

not_running() { ! kill -0 "$1"; }
