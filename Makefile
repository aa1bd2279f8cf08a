# `make help` lists what there is. Every target sets up what it needs first (scripts/setup.sh, quick when nothing is missing).

.DEFAULT_GOAL := help
.PHONY: help setup build release test test-root test-vm lint fmt demo bench shell clean

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
LAB := $(SUDO) target/release/millrace-lab
# Where `make bench` puts raw results.
OUT ?= target/bench
# More arguments for millrace-lab: make bench ARGS='--only capacity'
ARGS ?=

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install missing Debian packages, mount the BPF file system
	@scripts/setup.sh test

build: ## compile everything, for debugging
	@scripts/setup.sh build
	cargo build --workspace

release: ## compile everything, optimised
	@scripts/setup.sh build
	cargo build --workspace --release

test: setup ## all tests; those that need root too when run as root
	cargo build --workspace
	cargo test --workspace
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory test-root; \
	else echo "Not root: the tests in network namespaces were left out (sudo make test-root)."; fi

test-root: setup ## the tests that need root, in network namespaces of their own
	cargo build --workspace
	cargo test --workspace --no-fail-fast --tests --lib --bins -- --ignored --skip measure --test-threads=1

test-vm: ## boot Debian's 6.1 kernel in a virtual machine and test there
	@scripts/setup.sh vm
	scripts/test-vm.sh

lint: ## formatting and clippy, warnings are errors
	@scripts/setup.sh build
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

fmt: ## format
	cargo fmt --all

demo: setup release ## Linux and Millrace side by side, under a minute after the build
	@$(LAB) demo $(ARGS)

bench: setup release ## the measurements; raw results in OUT (target/bench), ARGS for millrace-lab bench
	@$(LAB) bench --out $(OUT) $(ARGS)

shell: setup release ## a shell inside a testbed, with millrace on the PATH
	@$(LAB) shell $(ARGS)

clean: ## remove everything that was built
	cargo clean
