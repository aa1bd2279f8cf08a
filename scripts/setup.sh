#!/bin/sh
# Installs missing Debian packages, and mounts the BPF file system. Quick when nothing is missing.
#   setup.sh build   for compiling
#   setup.sh fuzz    as build, and for compiling with `make fuzz`
#   setup.sh demo    as build, and for the testbed of `make demo` and `make shell`
#   setup.sh test    as demo, and for tests and bench (default)
#   setup.sh vm      as test, and for the virtual machine of `make test-vm`
#   setup.sh deb     as build, and for the package of `make deb`
#   setup.sh image   as deb, and for the OCI image of `make image`
#   setup.sh web     as demo, and for the browser of `make test-web`
#   setup.sh test-deb  as deb, and for the virtual machines of `make test-deb`
set -eu

what=${1:-test}
build="clang-16 llvm-16 libelf-dev zlib1g-dev pkg-config make gcc"
demo="conntrack iproute2 procps ethtool nftables"
run="iptables iputils-ping tcpdump netsniff-ng tcpreplay iperf3 traceroute frr
stress-ng sysbench nginx wrk openvswitch-switch openvswitch-common python3-venv
python3-scapy python3-cryptography keepalived strongswan-charon strongswan-swanctl libcharon-extra-plugins
libstrongswan-standard-plugins nfdump nfdump-sflow"
# This library exists only for x86-64. Elsewhere ESP is encrypted without it.
if [ "$(uname -m)" = x86_64 ]; then run="$run libipsec-mb1"; fi
vm="qemu-system-x86 busybox-static cpio zstd xz-utils"
web="chromium-headless-shell fonts-dejavu-core fonts-noto-core pngquant python3"
deb="build-essential debhelper lintian"
vm_kernel="linux-image-cloud-amd64"
vm_directory=target/vm

case $what in
build) wanted=$build ;;
fuzz) wanted="$build g++" ;;
demo) wanted="$build $demo" ;;
test) wanted="$build $demo $run" ;;
vm) wanted="$build $demo $run $vm" ;;
deb) wanted="$build $deb" ;;
web) wanted="$build $demo $web" ;;
image) wanted="$build $demo $deb mmdebstrap umoci python3" ;;
test-deb) wanted="$build $deb mmdebstrap e2fsprogs qemu-system-x86" ;;
*) echo "usage: $0 [build|fuzz|demo|test|vm|deb|image|web|test-deb]" >&2; exit 2 ;;
esac

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		echo "This needs root, and there is no sudo. Run as root: $*" >&2
		exit 1
	fi
}

installed() {
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

all_installed() {
	dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p' | sort -u
}

enabled_units() {
	systemctl --root=/ list-unit-files --state=enabled --no-legend --plain 2>/dev/null | cut -d' ' -f1
}

# Lines of the second list that the first one lacks.
new_in() {
	printf '%s\n' "$2" | grep -vxF -e "$1" || true
}

# Units of packages that systemd would start at the next boot.
#   enabled_units_of PACKAGE...
enabled_units_of() {
	for package in "$@"; do
		dpkg-query -L "$package"
	done | sed -En 's,^(/usr)?/lib/systemd/system/([^/]+\.(service|socket|timer|path))$,\2,p
		s,^/etc/init\.d/([^/]+)$,\1.service,p' | sort -u | while read -r unit; do
		[ "$(systemctl is-enabled "$unit" 2>/dev/null)" != enabled ] || echo "$unit"
	done
}

# Disables what the new packages have enabled, those that came as dependencies, too. A unit that was enabled before stays.
disable_new_units() {
	command -v systemctl >/dev/null || return 0
	# shellcheck disable=SC2046
	units=$(enabled_units_of $(new_in "$packages_before" "$(all_installed)"))
	units=$(new_in "$units_before" "$units")
	# shellcheck disable=SC2086
	[ -z "$units" ] || as_root systemctl disable -q $units
}

# Services of these packages (FRR, Open vSwitch, strongSwan) run in our namespaces. They must not start on the machine itself,
# neither now nor after the next boot, even if the installation fails.
install_without_services() {
	policy=/usr/sbin/policy-rc.d
	# A signal alone would not run the trap of EXIT.
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	packages_before=$(all_installed)
	units_before=$(enabled_units)
	if [ ! -e $policy ]; then
		trap 'as_root rm -f /usr/sbin/policy-rc.d; disable_new_units' EXIT
		printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
		as_root chmod +x $policy
	else
		trap disable_new_units EXIT
	fi
	as_root apt-get update -q
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

if ! command -v cargo >/dev/null; then
	echo "There is no cargo. Install Rust 1.88 or newer (https://rustup.rs)." >&2
	exit 1
fi

missing=
for package in $wanted; do
	installed "$package" || missing="$missing $package"
done
if [ -n "$missing" ]; then
	if ! command -v apt-get >/dev/null; then
		echo "This is not Debian. Install the contents of these packages:$missing" >&2
		exit 1
	fi
	# shellcheck disable=SC2086
	install_without_services $missing
fi

case $what in
demo | test | vm | image | web) needs_bpffs=true ;;
*) needs_bpffs=false ;;
esac
if $needs_bpffs && ! grep -q ' /sys/fs/bpf bpf ' /proc/mounts; then
	as_root mount -t bpf -o nosuid,nodev,noexec,mode=0700 bpf /sys/fs/bpf
fi

# Kernels of the virtual machine are only unpacked, never installed. 6.12 comes from Debian's backports; their lists are kept
# apart from the machine's own.
fetch_kernel() {
	version=$1
	shift
	ls $vm_directory/kernel/boot/vmlinuz-"$version".* >/dev/null 2>&1 && return
	mkdir -p $vm_directory/kernel
	package=$(apt-cache "$@" depends $vm_kernel | sed -n "s/.*Depends: \(linux-image-$version\..*\)/\1/p" | head -1)
	[ -n "$package" ] || { echo "setup: Debian offers no kernel $version here" >&2; exit 1; }
	(cd $vm_directory && apt-get "$@" download -q "$package" && dpkg-deb -x "$package"_*.deb kernel)
}

fetch_backport() {
	version=$1
	ls $vm_directory/kernel/boot/vmlinuz-"$version".* >/dev/null 2>&1 && return
	lists=$PWD/$vm_directory/backports
	mkdir -p "$lists/lists/partial" "$lists/parts"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm-backports main" \
		>"$lists/sources.list"
	set -- -o "Dir::Etc::SourceList=$lists/sources.list" -o "Dir::Etc::SourceParts=$lists/parts" \
		-o "Dir::State::Lists=$lists/lists"
	apt-get "$@" update -q
	fetch_kernel "$version" "$@"
}

if [ "$what" = vm ]; then
	case ${MILLRACE_VM_KERNEL:-6.1} in
	6.1) fetch_kernel 6.1 ;;
	6.12) fetch_backport 6.12 ;;
	*) echo "setup: MILLRACE_VM_KERNEL must be 6.1 or 6.12" >&2; exit 2 ;;
	esac
fi
