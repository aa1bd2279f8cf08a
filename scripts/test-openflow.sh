#!/bin/bash
# Tests a running Millrace with real OpenFlow clients, in network namespaces of its own: `make test-openflow`. Needs root.
# All its files are in target/openflow; the logs of the last run are in target/openflow/TARGET.
#
#   scripts/test-openflow.sh [--target millrace|ovs|ovs-uncached] [ofctl] [paths] [learning] [suite] [suite13]
#                                                                                default: millrace, all parts
#
#   ofctl     ovs-ofctl: descriptions, rules, ports, packets, groups, meters
#   paths     ovs-ofctl: logical ports of paths of the user plane
#   learning  os-ken's learning switches for 1.0 and 1.3 as controllers, with three hosts
#   suite     os-ken's test suite of OpenFlow 1.0 switches, with an Open vSwitch as the tester switch
#   suite13   its suites of OpenFlow 1.3: suite13_action, suite13_match, suite13_group, suite13_meter, or all of them
#
# --target ovs tests an Open vSwitch (userspace datapath) instead, to see what a well-known switch passes. ovs-uncached tests one
# without a flow cache, to see what the tests themselves allow.
# The last line is `N passed, N failed`. Exit status 0: none failed.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CACHE=$PWD/target/openflow
readonly PYTHON=$CACHE/venv/bin/python
readonly APPLICATIONS=$CACHE/applications/os_ken/app
readonly MILLRACE=${MILLRACE:-$PWD/target/debug/millrace}
readonly SUITE_LIMIT_S=900
TARGET=millrace

# The command must succeed, and its output must match the extended regular expression $2.
check() {
	local name=$1 wanted=$2 output
	shift 2
	if output=$("$@" 2>&1) && grep -qE -- "$wanted" <<<"$output"; then
		pass "$name"
	else
		fail "$name" "wanted: /$wanted/ of: $*" "$(tail -n 8 <<<"$output")"
	fi
}

# As check, but the command must fail.
refused() {
	local name=$1 wanted=$2 output
	shift 2
	if ! output=$("$@" 2>&1) && grep -qE -- "$wanted" <<<"$output"; then
		pass "$name"
	else
		fail "$name" "wanted: failure with /$wanted/ of: $*" "$(tail -n 8 <<<"$output")"
	fi
}

. scripts/openflow/testbed.sh
. scripts/openflow/ofctl.sh
. scripts/openflow/learning.sh
. scripts/openflow/suite.sh

# Installs os-ken in a virtual environment, and its learning switches. Quick when they are there already.
install_osken() {
	local stamp
	stamp=$(cat scripts/openflow/{requirements,applications}.txt | sha256sum)
	if [ "$(cat "$CACHE/installed" 2>/dev/null)" = "$stamp" ]; then return; fi
	rm -rf "$CACHE/venv" "$CACHE/applications"
	mkdir -p "$CACHE/applications"
	/usr/bin/python3 -m venv "$CACHE/venv"
	local pip=("$PYTHON" -m pip --quiet --disable-pip-version-check)
	"${pip[@]}" install --no-deps --require-hashes --requirement scripts/openflow/requirements.txt
	"${pip[@]}" download --no-deps --require-hashes --requirement scripts/openflow/applications.txt \
		--dest "$CACHE/applications"
	"$PYTHON" -m zipfile -e "$CACHE"/applications/*.whl "$CACHE/applications"
	echo "$stamp" >"$CACHE/installed"
}

usage() {
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
	exit 2
}

parts=()
while [ $# -gt 0 ]; do
	case $1 in
	--target) TARGET=${2:-}; shift ;;
	ofctl | paths | learning | suite | suite13 | suite13_action | suite13_match | suite13_group | suite13_meter) parts+=("$1") ;;
	*) usage >&2 ;;
	esac
	shift
done
case $TARGET in millrace | ovs | ovs-uncached) ;; *) usage >&2 ;; esac
[ ${#parts[@]} -gt 0 ] || parts=(ofctl paths learning suite suite13)
if [ "$(id -u)" != 0 ]; then
	echo "Network namespaces need root. Run: sudo make test-openflow" >&2
	exit 1
fi

case "${parts[*]}" in *learning* | *suite*) install_osken ;; esac
readonly WORK=$CACHE/$TARGET
rm -rf "$WORK"
mkdir -p "$WORK"
# A second signal must not interrupt the cleanup.
trap 'trap "" INT TERM; stop_all' EXIT
trap 'exit 130' INT TERM
for part in "${parts[@]}"; do
	case $part in
	ofctl) ofctl_part ;;
	paths) paths_part ;;
	*) $part ;;
	esac
	stop_all
done
echo "$PASSED passed, $FAILED failed"
[ "$FAILED" = 0 ]
