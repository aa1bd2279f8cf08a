#!/bin/bash
# Makes an OCI image of the Debian package, without a container daemon: `make image`. Needs root, because files of the image
# belong to root. The result is an archive of the OCI layout, target/image/millrace.tar.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly DIRECTORY=$PWD/target/image
readonly LAYOUT=$DIRECTORY/layout

main() {
	[[ $EUID == 0 ]] || { echo 'image: needs root' >&2; exit 1; }
	local deb root=$DIRECTORY/root version
	deb=$(ls target/deb/millrace_*_amd64.deb)
	version=$(dpkg-deb --field "$deb" Version)
	rm -rf "$DIRECTORY" && mkdir -p "$root"
	mmdebstrap --quiet --variant=essential --mode=root --include=libelf1,passwd,zlib1g \
		--customize-hook="copy-in $deb /tmp" \
		--customize-hook="chroot \"\$1\" sh -c 'dpkg --install /tmp/*.deb && rm /tmp/*.deb'" \
		--customize-hook="rm -rf \"\$1\"/usr/share/man/* \"\$1\"/var/lib/apt/lists/*" \
		--customize-hook="find \"\$1\"/usr/share/doc -type f ! -name copyright -delete" \
		bookworm "$root" http://deb.debian.org/debian
	umoci init --layout "$LAYOUT"
	umoci new --image "$LAYOUT:$version"
	umoci insert --image "$LAYOUT:$version" "$root" /
	umoci config --image "$LAYOUT:$version" --architecture amd64 --os linux \
		--config.entrypoint /usr/sbin/millrace --config.cmd run --config.cmd --config \
		--config.cmd /etc/millrace/millrace.toml
	rm -rf "$root"
	tar --create --file "$DIRECTORY/millrace.tar" --directory "$LAYOUT" .
	ls -l "$DIRECTORY/millrace.tar"
}

main
