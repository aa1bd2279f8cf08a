#!/bin/bash
# The test of the package, inside the virtual machine of scripts/test-deb.sh. Each step prints one line. The first step that fails
# ends it.
#
#   client: eth0 ──veth── p1 :host: p2 ──veth── eth0 :server     10.1.0.0/24, 10.2.0.0/24; the host is .1
set -Eeuo pipefail
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
readonly CONFIG=/etc/millrace/millrace.toml

trap 'echo "FAILED in line $LINENO: $BASH_COMMAND"; journalctl --no-pager -u millrace -u "millrace@*" -n 40' ERR

ok() { echo "ok: $* ($(cut -d' ' -f1 /proc/uptime) s)"; }

until_true() {
	local end=$((SECONDS + 240))
	until "$@"; do
		((SECONDS < end)) || { echo "not within 240 s: $*"; return 1; }
		sleep 0.2
	done
}

not() { ! "$@"; }
is_ready() { millrace status --json "$@" 2>/dev/null | grep -q '"ready":true'; }
pid() { systemctl show -P MainPID "$1"; }
has_program() { ip -d link show dev "$1" | grep -q xdp; }
forwarded() { millrace status --json | sed -n 's/.*"packets":{"forwarded":\([0-9]*\),.*/\1/p'; }

# Prints the number of packets without an answer.
#   lost COUNT SECONDS_BETWEEN
lost() { ip netns exec client ping -q -n -i "$2" -c "$1" 10.2.0.2 | awk '/transmitted/ { print $1 - $4 }'; }

readonly OFFLOADS='tx off tso off gso off txvlan off tx-vlan-stag-hw-insert off gro on'

# Devices for another instance.
add_pair() {
	local device
	ip link add "$1" up type veth peer name "$2"
	ip link set "$2" up
	for device in "$@"; do
		# shellcheck disable=SC2086
		ethtool -K "$device" $OFFLOADS >/dev/null
	done
}

make_box() {
	local host name port net
	for host in client:p1:1 server:p2:2; do
		IFS=: read -r name port net <<<"$host"
		ip netns add "$name"
		ip link add "$port" type veth peer name eth0 netns "$name"
		ip -n "$name" link set eth0 up
		ip -n "$name" addr add "10.$net.0.2/24" dev eth0
		ip -n "$name" route add default via "10.$net.0.1"
		# shellcheck disable=SC2086
		ip netns exec "$name" ethtool -K eth0 $OFFLOADS >/dev/null
		ip link set "$port" up
		ip addr add "10.$net.0.1/24" dev "$port"
		ethtool -K "$port" gro on >/dev/null
	done
	add_pair q1 q2
	sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.p1.rp_filter=0 net.ipv4.conf.p2.rp_filter=0 \
		net.ipv4.conf.all.accept_redirects=0 net.ipv4.conf.all.send_redirects=0
}

echo "deb: $(sed -n 's/^PRETTY_NAME=//p' /etc/os-release), Linux $(uname -r), systemd $(systemctl --version | head -1)"
make_box
[[ $(lost 3 0.2) == 0 ]]
ok "plain Linux forwards"

dpkg -i /test/millrace.deb >/dev/null
[[ $(systemctl is-enabled millrace || true) == disabled ]]
[[ $(systemctl is-active millrace || true) == inactive ]]
ok "installed, and neither enabled nor started"

man -w 8 millrace >/dev/null; man -w millrace-run >/dev/null; man -w 5 millrace.toml >/dev/null
[[ -e /usr/share/bash-completion/completions/millrace && -d /var/lib/millrace ]]
not millrace check >/tmp/check
grep -q 'would not start: no port is given' /tmp/check
ok "man pages, completions, directories; \`check\` says that ports are missing"

sed -i 's|^#ports = .*|ports = ["p1", "p2"]|; s|^#heartbeat = .*|heartbeat = "30s"|; s|^#readers = .*|readers = "millrace"|' $CONFIG
millrace check >/tmp/check || { cat /tmp/check; false; }
not has_program p1
ok "\`check\` accepts the configuration and attaches nothing"

systemctl enable --now -q millrace
[[ $(systemctl is-active millrace) == active ]]
until_true is_ready || { millrace status; false; }
before=$(forwarded)
[[ $(lost 20 0.1) == 0 ]]
(($(forwarded) - before >= 30)) || { millrace status; false; }
conditions=$(millrace status | sed -n '/^problems:$/,$p; /^notes:$/,$p')
echo "$conditions"
not grep -q '^problems:$' <<<"$conditions"
ok "the service is active and forwards on the fast path"

[[ $(stat -c '%a %U %G' /run/millrace.readonly.sock) == "660 root millrace" ]]
useradd --system -G millrace watcher
useradd --system stranger
runuser -u watcher -- millrace status >/tmp/status || { cat /tmp/status; false; }
not runuser -u watcher -- millrace reload 2>/dev/null
not runuser -u stranger -- millrace status 2>/dev/null
ok "a member of the group \`millrace\` reads, and changes nothing"

exposure=$(systemd-analyze security --no-pager millrace | sed -n 's/.*exposure level for .*: \([0-9.]*\).*/\1/p')
awk -v exposure="$exposure" 'BEGIN { exit !(exposure > 0 && exposure <= 4.5) }'
ok "systemd-analyze security: $exposure"

# What the unit forbids must not be what the daemon needs.
journalctl --no-pager -u millrace | grep -iE 'not permitted|denied|read-only|ERROR|WARN' >/tmp/refused || true
cat /tmp/refused
[[ ! -s /tmp/refused ]]
ok "the log has no warning"

sed -i 's|^#high = .*|high = 80|' $CONFIG
systemctl reload millrace
echo 'nonsense = 1' >>$CONFIG
not systemctl reload millrace 2>/dev/null
[[ $(systemctl is-active millrace) == active ]]
is_ready
sed -i '/^nonsense/d' $CONFIG
ok "reload applies a change; a wrong file changes nothing"

# The next version has another template of the configuration, about which dpkg asks nothing.
old=$(pid millrace)
cp $CONFIG /tmp/config
lost 3000 0.02 >/tmp/lost &
sleep 5
dpkg -i /test/next.deb </dev/null >/tmp/dpkg 2>&1 || { cat /tmp/dpkg; false; }
until_true is_ready || { cat /tmp/dpkg; systemctl list-jobs; false; }
[[ $(pid millrace) != "$old" ]]
cmp $CONFIG /tmp/config
systemctl restart millrace
until_true is_ready
wait %1
[[ $(cat /tmp/lost) == 0 ]] || { cat /tmp/lost; false; }
ok "upgrade and restart under load: $(cat /tmp/lost) of 3000 packets lost"

fast() {
	local before
	before=$(forwarded)
	[[ $(lost 20 0.05) == 0 ]]
	(($(forwarded) - before >= 30))
}
recovers() { has_program p1 && has_program p2 && fast; }

# A program is started again while packets run.
#   restarts UNIT
restarts() {
	lost 500 0.02 >/tmp/lost &
	sleep 2
	systemctl restart "$1"
	wait %1
	recovers
}

for port in p1:10.1.0.1 p2:10.2.0.1; do
	printf '[Match]\nName=%s\n[Network]\nAddress=%s/24\nIPv6AcceptRA=no\n' "${port%:*}" "${port#*:}" >"/etc/systemd/network/50-${port%:*}.network"
done
systemctl start systemd-networkd
networkctl reconfigure p1 p2
until_true recovers
restarts systemd-networkd
networkd=$(cat /tmp/lost)
systemctl stop systemd-networkd.socket systemd-networkd
ok "beside systemd-networkd: reconfigured, and started again under load ($networkd of 500 packets lost)"

for port in p1:10.1.0.1 p2:10.2.0.1; do
	printf 'iface %s inet static\n  address %s/24\n' "${port%:*}" "${port#*:}"
done >/etc/network/interfaces
for port in p1 p2; do
	ip addr flush dev $port
	ifup $port
done
until_true recovers
ifdown p1
ifup p1
until_true recovers
ok "beside ifupdown: a port down and up again"

# It leaves alone what ifupdown manages.
rm /etc/network/interfaces
systemctl start NetworkManager
for port in p1:10.1.0.1 p2:10.2.0.1; do
	nmcli device set "${port%:*}" managed yes
	nmcli connection add type ethernet con-name "${port%:*}" ifname "${port%:*}" ipv4.method manual ipv4.addresses "${port#*:}/24" \
		ipv6.method disabled >/dev/null
	nmcli connection up "${port%:*}" >/tmp/nm 2>&1 || { cat /tmp/nm; nmcli device; false; }
done
until_true recovers
restarts NetworkManager
manager=$(cat /tmp/lost)
systemctl stop NetworkManager
until_true recovers
ok "beside NetworkManager: its connections, and started again under load ($manager of 500 packets lost)"

systemctl start irqbalance tuned
tuned-adm profile network-throughput
until_true recovers
restarts tuned
[[ $(cat /tmp/lost) == 0 ]] || { cat /tmp/lost; false; }
restarts irqbalance
[[ $(cat /tmp/lost) == 0 ]] || { cat /tmp/lost; false; }
systemctl stop irqbalance tuned
ok "beside irqbalance and tuned: started again under load without a lost packet"

# The namespace of the second instance is created after its start.
sed 's|^ports = .*|ports = ["q1", "q2"]|; s|^#routers = .*|routers = ["late"]|' $CONFIG >/etc/millrace/second.toml
systemctl start millrace@second || true
sleep 10
ip netns add late
until_true is_ready --instance second
systemctl reload millrace@second
ok "a second instance from the template"

mkdir -p /etc/systemd/system/millrace@second.service.d
printf '[Service]\nWatchdogSec=10\n' >/etc/systemd/system/millrace@second.service.d/test.conf
systemctl daemon-reload
systemctl restart millrace@second
old=$(pid millrace@second)
sleep 15
[[ $(pid millrace@second) == "$old" ]]
kill -STOP "$old"
restarted() { [[ $(pid millrace@second) != "$old" ]] && is_ready --instance second; }
until_true restarted
ok "the watchdog leaves a working daemon alone, and replaces one that hangs"

# One daemon hangs, and systemd is about to start another one again.
mkdir -p /etc/systemd/system/millrace@.service.d
printf '[Service]\nWatchdogSec=0\nTimeoutStopSec=10\nRestartSec=60\n' >/etc/systemd/system/millrace@.service.d/test.conf
add_pair q3 q4
sed 's|^ports = .*|ports = ["q3", "q4"]|' $CONFIG >/etc/millrace/third.toml
rm -r /etc/systemd/system/millrace@second.service.d
systemctl daemon-reload
systemctl restart millrace@second millrace@third
until_true is_ready --instance third
kill -STOP "$(pid millrace@second)"
kill -KILL "$(pid millrace@third)"
lost 2000 0.02 >/tmp/lost &
dpkg -r millrace >/tmp/dpkg 2>&1 || { cat /tmp/dpkg; false; }
wait %1
for port in p1 p2 q1 q2 q3 q4; do not has_program $port; done
not pidof millrace
left=$(find /sys/fs/bpf /run -maxdepth 1 -name 'millrace*')
[[ -z $left ]] || { echo "$left"; cat /tmp/dpkg; false; }
[[ -e $CONFIG && $(cat /tmp/lost) == 0 ]] || { cat /tmp/lost; false; }
ok "removed: plain Linux forwards, no packet was lost, the configuration is kept"

rm -r /etc/millrace/{second,third}.toml /etc/systemd/system/millrace@.service.d
# A key without its sequence file would encrypt two packets with the same nonce.
touch /etc/millrace/sa.key /var/lib/millrace/sa.sequence /var/lib/millrace/calibration.json /var/log/millrace/a.pcap
dpkg -P millrace >/dev/null
[[ $(ls /etc/millrace /var/lib/millrace) == $'/etc/millrace:\nsa.key\n\n/var/lib/millrace:\nsa.sequence' && ! -e /var/log/millrace ]]
[[ -z $(find /etc/systemd /usr/share /usr/lib/systemd -name '*millrace*') ]]
ok "purged: nothing is left but keys and sequence files"
echo 'deb: done'
