#!/bin/bash
# Installs, upgrades, removes and purges the Debian package under real systemd: `make test-deb`. Each release of Debian runs with
# its own kernel in a virtual machine. Needs root to make the file systems. All its files are in target/vm.
#
#   scripts/test-deb.sh [RELEASE...]   only these: bookworm (12), trixie (13)
#   MILLRACE_VM_LIMIT_S=3600 scripts/test-deb.sh   with more time than 1800 s for each machine, if processors are busy
#
# Exit status 0: every step passed. The consoles are kept in target/vm/deb/RELEASE.console.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CACHE=$PWD/target/vm/deb
readonly LIMIT_S=${MILLRACE_VM_LIMIT_S:-1800}
readonly PACKAGES=systemd-sysv,udev,dbus,linux-image-cloud-amd64,iproute2,ethtool,iputils-ping,procps,libelf1,zlib1g,man-db,ifupdown,network-manager,irqbalance,tuned

# A disk with Debian, beside its kernel and initramfs. It is made once for each release.
make_root() {
	local release=$1 root=$CACHE/$1
	[[ -e $root.ext4 ]] && return
	rm -rf "$root" && mkdir -p "$root"
	mmdebstrap --variant=minbase --mode=root --include=$PACKAGES "$release" "$root" http://deb.debian.org/debian
	cp "$root"/boot/vmlinuz-* "$root.kernel"
	cp "$root"/boot/initrd.img-* "$root.initrd"
	cat >"$root/etc/systemd/system/test.service" <<-'END'
		[Unit]
		After=multi-user.target
		[Service]
		Type=oneshot
		ExecStartPre=mkdir -p /test
		ExecStartPre=mount /dev/vdb /test
		ExecStart=bash /test/guest.sh
		ExecStopPost=systemctl poweroff --force --force
		StandardOutput=file:/dev/ttyS1
		StandardError=file:/dev/ttyS1
		[Install]
		WantedBy=multi-user.target
	END
	ln -s ../test.service "$root/etc/systemd/system/multi-user.target.wants/"
	# The test starts each of them when it comes to it.
	systemctl --root="$root" disable -q NetworkManager NetworkManager-dispatcher networking systemd-networkd irqbalance tuned
	mkfs.ext4 -q -d "$root" "$root.new" 2G
	rm -rf "$root"
	mv "$root.new" "$root.ext4"
}

# A disk with the package, the same package with a later version, and the test.
make_disk() {
	local deb=$1 disk=$CACHE/disk
	rm -rf "$disk" "$disk.ext4" && mkdir -p "$disk/next"
	cp scripts/deb/guest.sh "$disk/"
	cp "$deb" "$disk/millrace.deb"
	dpkg-deb --raw-extract "$deb" "$disk/next"
	sed -i 's/^Version: .*/&+next/' "$disk/next/DEBIAN/control"
	echo '# A new key.' >>"$disk/next/usr/share/millrace/millrace.toml"
	dpkg-deb --root-owner-group --build "$disk/next" "$disk/next.deb" >/dev/null
	rm -rf "$disk/next"
	mkfs.ext4 -q -d "$disk" "$disk.ext4" 512M
}

boot() {
	local root=$CACHE/$1
	timeout "$LIMIT_S" qemu-system-x86_64 -accel tcg -cpu max,-cx16 -smp 2 -m 2048 -display none -no-reboot -nodefaults -nic none \
		-kernel "$root.kernel" -initrd "$root.initrd" -append 'console=ttyS0 root=/dev/vda rw panic=-1 mitigations=off' \
		-snapshot -drive "file=$root.ext4,format=raw,if=virtio" -drive "file=$CACHE/disk.ext4,format=raw,if=virtio" \
		-serial "file:$root.console" -serial stdio </dev/null
}

# Prints each line of the guest's output at once. Fails unless all steps passed.
judge() {
	local line steps=0 done=0
	while IFS= read -r line || [[ $line ]]; do
		line=${line%$'\r'}
		printf '%s\n' "$line"
		case $line in
		'ok: '*) steps=$((steps + 1)) ;;
		'deb: done') done=1 ;;
		esac
	done
	echo "$steps steps passed"
	((done && steps))
}

main() {
	[[ $EUID == 0 ]] || { echo 'test-deb: needs root' >&2; exit 1; }
	local deb release failed=0
	deb=$(ls target/deb/millrace_*_amd64.deb)
	mkdir -p "$CACHE"
	make_disk "$deb"
	(($#)) || set -- bookworm trixie
	for release in "$@"; do
		echo "deb: $release"
		make_root "$release"
		boot "$release" | judge || failed=1
	done
	exit $failed
}

main "$@"
