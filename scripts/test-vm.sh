#!/bin/bash
# Boots Debian 12's own kernel (6.1, the oldest supported), or Debian 13's, in a virtual machine, and runs tests there that the
# kernel of the development machine cannot run: `make test-vm`. Needs root for the taps of its own network namespace. All its
# files are in target/vm.
#
#   scripts/test-vm.sh [NAME...]   run only checks whose name contains a NAME; the NAME of a suite (below) stands for all of it
#   MILLRACE_VM_ENV='MILLRACE_MEASURE_ROUNDS=5' scripts/test-vm.sh measure::windows   with variables for the checks
#   MILLRACE_VM_LIMIT_S=3600 scripts/test-vm.sh   with more time than 1800 s for the machine, if processors are busy
#   MILLRACE_VM_KERNEL=6.12 scripts/test-vm.sh   with Debian 13's kernel
#   scripts/test-vm.sh instructions   count the instructions of the kernel plane's programs, and compare them with those that
#                                     scripts/vm/instructions-KERNEL.txt has
#   MILLRACE_WRITE=1 scripts/test-vm.sh instructions   write them there
#
# Exit status 0: every check passed. The machine's console is kept in target/vm/console.log.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CACHE=$PWD/target/vm
readonly TRIPLE=x86_64-unknown-linux-gnu
readonly LIMIT_S=${MILLRACE_VM_LIMIT_S:-1800}
# The kernel there cannot load modules on demand, because there is no modprobe.
readonly MODULES=(virtio_pci virtio_net failover net_failover veth macvlan macvtap ipvlan 8021q vrf bonding dummy tun
	bridge ip_vs ip_vs_rr nf_tables nf_conntrack nf_conntrack_netlink nft_ct nft_nat nft_chain_nat nft_masq nft_redir nf_flow_table nf_flow_table_inet nft_flow_offload nft_compat iptable_filter iptable_mangle ip6table_filter xfrm_user
	sch_tbf sch_fq sch_ingress cls_u32 act_gact act_mirred)
# Programs that tests call, where busybox's own lack features. bash is /bin/sh, because busybox's shell would run its own applets
# instead of these. Tests set only policies of iptables, so its extensions are left out.
readonly TOOLS=(bash ip tc nft ping ethtool unshare nsenter sysctl timeout
	iptables-nft iptables-legacy ip6tables-nft ip6tables-legacy conntrack)
# The check that needs many queues.
readonly WIDE=an_indirection_table_follows_and_is_put_back
# Test binaries of crate millrace that are worth running on another kernel.
readonly SUITES=(plane_kernel xdp_table xdp_paths workers flow_rules netlink policy path_mtu differential ecmp hardening losses splits local nat af_xdp vm)

# Builds the static `millrace` and the test binaries, and puts them into image/millrace/. The build of the tests includes `millrace`.
build() {
	local suite executable
	local suites=("${SUITES[@]}")
	[[ $* == instructions ]] && suites=(xdp_table flow_rules)
	mkdir -p "$IMAGE/millrace"
	LIBBPF_SYS_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu RUSTFLAGS='-C target-feature=+crt-static' \
		CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0 CARGO_TARGET_DIR=$CACHE/build \
		cargo test --no-run --package millrace --target $TRIPLE --features static "${suites[@]/#/--test=}" \
		>"$CACHE/build.log" 2>&1 || { cat "$CACHE/build.log" >&2; return 1; }
	cp "$CACHE/build/$TRIPLE/debug/millrace" "$IMAGE/millrace/"
	# Tests that run it look for it here.
	mkdir -p "$IMAGE$CACHE/build/$TRIPLE/debug"
	ln -s /millrace/millrace "$IMAGE$CACHE/build/$TRIPLE/debug/"
	# The suite `differential` reads its cases from the path where it was built.
	mkdir -p "$IMAGE$PWD/router/tests/differential"
	cp -r router/tests/differential/cases "$IMAGE$PWD/router/tests/differential/"
	for suite in "${suites[@]}"; do
		executable=$(sed -n "s|.*Executable tests/$suite[./].* (\\(.*\\))$|\\1|p" "$CACHE/build.log")
		cp "$executable" "$IMAGE/millrace/$suite"
	done
}

dependencies() {
	tr '\0' '\n' <"$1" | sed -n 's/^depends=//p' | tr ',-' ' _'
}

# Copies a module after the modules that it needs, and notes the order.
add_module() {
	local name=$1 file dependency
	grep -qsx "$name.ko" "$IMAGE/modules/order" && return
	file=$(find "$CACHE/kernel/lib/modules/${KERNEL##*/vmlinuz-}" \
		-name "$name.ko" -o -name "${name//_/-}.ko" -o -name "$name.ko.xz" -o -name "${name//_/-}.ko.xz" | head -1)
	# The module is built in or missing. Tests report what is missing.
	[[ $file ]] || { echo "test-vm: the kernel package has no module $name" >&2; return 0; }
	if [[ $file == *.xz ]]; then
		xz -dkf "$file"
		file=${file%.xz}
	fi
	for dependency in $(dependencies "$file"); do add_module "$dependency"; done
	cp "$file" "$IMAGE/modules/$name.ko"
	echo "$name.ko" >>"$IMAGE/modules/order"
}

add_tool() {
	local path library
	path=$(command -v "$1")
	cp "$path" "$IMAGE/bin/"
	for library in $(ldd "$path" | grep -o '/[^ ]*\.so[^ ]*'); do
		install -D "$library" "$IMAGE$library"
	done
}

make_image() {
	local name
	rm -rf "$IMAGE" && mkdir -p "$IMAGE"/{bin,dev,etc,modules,proc,root,run,sbin,sys,tmp,var}
	build "$@"
	cp /bin/busybox "$IMAGE/bin/"
	for name in "${TOOLS[@]}"; do add_tool "$name"; done
	ln -s bash "$IMAGE/bin/sh"
	for name in "${MODULES[@]}"; do add_module "$name"; done
	cp scripts/vm/* "$IMAGE/millrace/"
	printf '%s\n' "$@" >"$IMAGE/millrace/only"
	printf '%s\n' "${MILLRACE_VM_ENV-}" >"$IMAGE/millrace/env"
	ln -s millrace/init "$IMAGE/init"
	(cd "$IMAGE" && find . | cpio --quiet -o -H newc | gzip -1) >"$CACHE/initramfs.gz"
}

# Runs in a network namespace of its own. Four multi-queue taps are bridged in pairs, so that each NIC gets what the other one
# sends: nic0 <-> nic1, nic2 <-> nic3. nic1 has an indirection table.
#   boot PROCESSORS [only=NAME]   run only the checks of this name
#   boot 1 only=measure_instructions   with a clock that counts instructions
boot() {
	local devices=() clock=() i queues options
	[[ ${2-} == only=measure_instructions ]] && clock=(-icount shift=0)
	for i in 0 1 2 3; do
		ip tuntap add "nic$i" mode tap multi_queue vnet_hdr
		sysctl -qw "net.ipv6.conf.nic$i.disable_ipv6=1"
		((i % 2)) || ip link add "wire$i" up type bridge stp_state 0 mcast_snooping 0
		ip link set "nic$i" mtu 9000 master "wire$((i & ~1))" up
		((i == 1)) && queues=16 options=,rss=on,hash=on || queues=4 options=
		devices+=(-netdev "tap,id=n$i,ifname=nic$i,queues=$queues,script=no,downscript=no"
			-device "virtio-net-pci,netdev=n$i,mac=02:00:00:00:ff:0$i,mq=on,vectors=$((2 * queues + 2))$options")
	done
	exec timeout "$LIMIT_S" qemu-system-x86_64 -accel tcg "${clock[@]}" -cpu max,-cx16 -smp "$1" -m 1024 -display none -no-reboot -nodefaults \
		-kernel "$KERNEL" -initrd "$CACHE/initramfs.gz" \
		-append "console=ttyS0 panic=-1 quiet mitigations=off ${clock:+clocksource=tsc tsc=reliable} ${2-}" -serial "file:$CACHE/console.log" -serial stdio "${devices[@]}" </dev/null
}

# Compares the instructions that a run has printed with the recorded ones. Places in hash tables are random, so two of a hundred
# more or fewer are the same.
compare() {
	local recorded=scripts/vm/instructions-${MILLRACE_VM_KERNEL:-6.1}.txt
	sed -n 's/.*instructions: \(.*\): \([0-9]*\)\r*$/\1: \2/p' "$1" >"$CACHE/instructions.txt"
	if [[ ${MILLRACE_WRITE-} ]]; then
		{ echo "Instructions of Linux ${KERNEL##*/vmlinuz-}, by scripts/test-vm.sh instructions"; cat "$CACHE/instructions.txt"; } >"$recorded"
		echo "test-vm: $recorded is written"
		return 0
	fi
	[[ $(head -1 "$recorded") == "Instructions of Linux ${KERNEL##*/vmlinuz-}, "* ]] ||
		{ echo "test-vm: not compared: $recorded is of another kernel than ${KERNEL##*/vmlinuz-}"; return 0; }
	awk -F': ' 'NR == FNR { if (FNR > 1) then_[$1] = $2; next } { now[$1] = $2 }
		END {
			for (name in then_) if (!(name in now)) { print "FAILED: " name " was not counted"; failed = 1 }
			for (name in now) if (now[name] * 100 > then_[name] * 102 || now[name] * 102 < then_[name] * 100) {
				print "FAILED: " name ": " now[name] " instructions, recorded: " then_[name] + 0; failed = 1
			}
			if (failed) print "If this is worth it, record it: MILLRACE_WRITE=1 scripts/test-vm.sh instructions"
			exit failed
		}' "$recorded" "$CACHE/instructions.txt"
}

# Prints each line of the guest's output at once, and the count at the end.
judge() {
	local line passed=0 failed=0 begun=0 ended=0
	while IFS= read -r line || [[ $line ]]; do
		line=${line%$'\r'}
		printf '%s\n' "$line"
		# A measurement prints between its name and its result.
		case $line in
		'test '*' ... ok' | ok) passed=$((passed + 1)) ;;
		'test '*' ... FAILED' | FAILED) failed=$((failed + 1)) ;;
		'vm: Linux '*) begun=$((begun + 1)) ;;
		'vm: done') ended=$((ended + 1)) ;;
		esac
	done
	local whole=$((begun && begun == ended))
	((whole)) || echo 'test-vm: the machine stopped or the time limit passed; see target/vm/console.log'
	echo "$passed passed, $failed failed"
	((whole && passed && !failed))
}

main() {
	[[ $EUID == 0 ]] || { echo 'test-vm: needs root' >&2; exit 1; }
	scripts/setup.sh vm
	readonly IMAGE=$CACHE/image
	# There are several once Debian has shipped a newer one.
	KERNEL=$(printf '%s\n' "$CACHE/kernel/boot/vmlinuz-${MILLRACE_VM_KERNEL:-6.1}".* | sort -V | tail -1)
	readonly KERNEL
	make_image "$@"
	export CACHE KERNEL LIMIT_S
	export -f boot
	rm -f "$CACHE/counted"
	{
		[[ $* == instructions ]] || unshare --net bash -c 'set -euo pipefail; boot 2'
		# A NIC has as many queues as there are processors.
		(($#)) || unshare --net bash -c "set -euo pipefail; boot 8 only=$WIDE"
		if (($# == 0)) || [[ $* == instructions ]]; then
			unshare --net bash -c 'set -euo pipefail; boot 1 only=measure_instructions' | tee "$CACHE/counted"
		fi
	} | judge
	[[ ! -e $CACHE/counted ]] || compare "$CACHE/counted"
}

main "$@"
