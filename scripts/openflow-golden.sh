#!/bin/sh
# Puts the OpenFlow messages of os-ken's own tests into target/openflow/golden/of10 and of13, for the test `golden` of logic.
# Quick when they are there already.
set -eu

version=4.2.2
sha256=d61b016b5e753a64f3652014e080ce9e216540a620666fc22835f880dbf63d3b

cd "$(dirname "$0")/.."
directory=target/openflow
golden=$directory/golden
if [ -e "$golden/$version" ]; then
	exit 0
fi

work=$directory/os-ken-$version
rm -rf "$work" "$golden"
mkdir -p "$work" "$golden"
echo "os-ken==$version --hash=sha256:$sha256" >"$work/requirements"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
	--dest "$work" --requirement "$work/requirements"
python3 -m zipfile -e "$work"/*.whl "$work/unpacked"
for messages in of10 of13; do
	mv "$work/unpacked/os_ken/tests/packet_data/$messages" "$golden/"
done
rm -rf "$work"
touch "$golden/$version"
