# `make help` lists the targets. Every target first installs what it needs (scripts/setup.sh, quick when nothing is missing).

.DEFAULT_GOAL := help
# For `make soak`: seconds of random routes, and rounds of random topologies and rulesets.
SECONDS ?= 3600
ROUNDS ?= 2000
# Times as many cases of the other random tests as in `make test`.
CASES ?= 20

.PHONY: help setup build release deb image check test test-root soak test-vm test-deb test-image test-openflow test-web lint docs fmt fuzz fuzz-api demo bench bench-goals results shell clean

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
LAB := $(SUDO) target/release/millrace-lab
# Directory for the raw results of `make bench`.
OUT ?= target/bench
# For `make fuzz`: targets (router/src/fuzz.rs), and seconds for each.
TARGET ?= $(notdir $(wildcard fuzz/seeds/*))
TIME ?= 60
# The flags of `cargo fuzz`, without a sanitizer, which would need nightly.
COVERAGE := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares
# More arguments for millrace-lab or test-openflow.sh: make bench ARGS='--only capacity'
ARGS ?=

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install missing Debian packages, mount the BPF file system
	@scripts/setup.sh test

build: ## compile everything, for debugging
	@scripts/setup.sh build
	cargo build --workspace

release: ## compile everything, optimised
	@scripts/setup.sh build
	cargo build --workspace --release

deb: ## the Debian package and its debug symbols, in target/deb, checked by lintian
	@scripts/setup.sh deb
	rm -rf target/deb && mkdir -p target/deb
	OUT=$(CURDIR)/target/deb dpkg-buildpackage --build=binary --no-sign --buildinfo-option=-u$(CURDIR)/target/deb \
	  --buildinfo-file=target/deb/millrace.buildinfo --changes-option=-u$(CURDIR)/target/deb \
	  --changes-file=target/deb/millrace.changes
	lintian --fail-on error,warning --tag-display-limit 0 target/deb/millrace.changes

image: deb ## an OCI image of the package, target/image/millrace.tar; root
	@scripts/setup.sh image
	scripts/image.sh

check: ## formatting, prose, and the tests that need no root
	@scripts/setup.sh build
	cargo fmt --all --check
	scripts/prose.py
	cargo test --workspace

# `cargo test` builds the programs that tests run, too.
test: setup ## all tests; those that need root run only as root
	cargo test --workspace
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory test-root; \
	else echo "Not root: the tests in network namespaces were left out (sudo make test-root)."; fi

test-root: setup ## the tests that need root, in network namespaces of their own, several at a time (ARGS='--jobs 1 policy')
	scripts/test-root.py $(ARGS)

soak: setup release ## more cases of all random tests, random routes, topologies and firewall rules beside Linux, random API requests, and losses under observation, for hours: SECONDS=3600 ROUNDS=2000 CASES=20; root
	cargo build --workspace
	MILLRACE_CASES=$(CASES) PROPTEST_CASES=$$((256 * $(CASES))) cargo test --workspace
	MILLRACE_CASES=$(CASES) cargo test -p millrace-lab --test cores -- --ignored moves_that_wait
	MILLRACE_SOAK_SECONDS=$(SECONDS) cargo test -p millrace --test netlink -- --ignored --nocapture agree
	MILLRACE_ROUNDS=$(ROUNDS) cargo test -p millrace --test firewall -- --ignored --nocapture
	MILLRACE_ROUNDS=$(ROUNDS) cargo test -p millrace --test differential -- --ignored --nocapture
	MILLRACE_ROUNDS=$(ROUNDS) cargo test -p millrace --test nat -- --ignored --nocapture random
	scripts/fuzz-api.sh $(SECONDS)
	@mkdir -p $(OUT)
	$(LAB) watched --seconds $(SECONDS) --json $(OUT)/watched.json

test-vm: ## boot Debian's 6.1 kernel in a virtual machine and test there (MILLRACE_VM_KERNEL=6.12: Debian 13's)
	@scripts/setup.sh vm
	scripts/test-vm.sh

test-deb: deb ## install, upgrade, remove and purge the package on Debian 12 and 13 with systemd, in virtual machines (ARGS='bookworm')
	@scripts/setup.sh test-deb
	scripts/test-deb.sh $(ARGS)

test-image: image ## unpack the image and forward packets with it; root
	scripts/test-image.sh

test-openflow: setup ## ovs-ofctl, os-ken's controllers and its switch test suite against Millrace (ARGS='ofctl'); root
	cargo build --package millrace
	$(SUDO) scripts/test-openflow.sh $(ARGS)

test-web: ## the web page in a headless Chromium, in network namespaces; pictures go to target/web (ARGS='--docs' writes those of the docs); root
	@scripts/setup.sh web
	cargo build --package millrace
	$(SUDO) scripts/test-web.py $(ARGS)

lint: ## formatting, clippy and prose; warnings are errors
	@scripts/setup.sh build
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/prose.py

# The version of mdbook is fixed here, because Debian has no package.
docs: ## the book in target/book, as HTML
	scripts/prose.py
	@[ -x target/tools/bin/mdbook ] || cargo install --locked --root target/tools mdbook@0.5.4
	target/tools/bin/mdbook build docs

fmt: ## format the code
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml

# With --target, build scripts and procedural macros are compiled without instrumentation.
fuzz: ## fuzz the parsers, the OpenFlow agent and flow rules, guided by coverage: TARGET=netlink (all in turn) TIME=60 (seconds each); fails on a crash
	@scripts/setup.sh fuzz
	@host=$$(rustc --print host-tuple) && \
	RUSTFLAGS="$(COVERAGE)" cargo build --manifest-path fuzz/Cargo.toml --target $$host --target-dir target/fuzz && \
	for target in $(TARGET); do \
	  echo "Fuzzing $$target for $(TIME) s"; \
	  mkdir -p target/fuzz/corpus/$$target && \
	  FUZZ_TARGET=$$target target/fuzz/$$host/debug/millrace-fuzz -max_total_time=$(TIME) -timeout=10 \
	    -print_final_stats=1 -artifact_prefix=target/fuzz/$$target- target/fuzz/corpus/$$target fuzz/seeds/$$target \
	    || exit 1; \
	done

fuzz-api: setup ## fuzz the API of a daemon by its OpenAPI document: TIME=60 (seconds for each socket); root
	cargo build --package millrace
	$(SUDO) scripts/fuzz-api.sh $(TIME)

demo: release ## Linux and Millrace side by side; takes less than a minute after the build (ARGS=--web: then keeps traffic running, and names the address of the web page)
	@scripts/setup.sh demo
	@$(LAB) demo $(ARGS)

bench: setup release ## make the measurements; raw results go to OUT (target/bench), ARGS to millrace-lab bench
	@$(LAB) bench --out $(OUT) $(ARGS)

bench-goals: setup release ## judge goals on a quiet machine: the papers' figures, how soon cores come and go, flows on cores; root
	cargo test --release --no-fail-fast -p millrace-lab --test figures --test cores --test steering -- --ignored --test-threads=1 measure::
	cargo test --release -p millrace-lab --lib -- --ignored measure_all_results

results: ## write docs/measured.md again, from lab/results.toml and the raw files in lab/runs
	@scripts/setup.sh build
	cargo run --quiet --package millrace-lab --bin millrace-lab -- report lab/runs --page lab/results.toml --out docs/measured.md

shell: release ## a shell inside a testbed, with millrace on the PATH
	@scripts/setup.sh demo
	@$(LAB) shell $(ARGS)

clean: ## remove everything that was built
	cargo clean
