# Every job has a target here. Needs Rust and Python 3.11 or later; the targets fetch all else into .tools/ and .demo/.
.PHONY: help demo stack book test soak gpu gpu-bundle packages dist verify fix prose errors-md invariants-md metrics-md protocol-md config-md cli-md dashboards dashboard-pictures proto-baseline

# In the order of their dependencies.
PACKAGES = vramd-types vramd-proto vramd-words broker-core broker-platform broker-replay vramd-client vramctl

# A test waits for other processes most of the time.
TEST_THREADS ?= $(shell echo $$((2 * $$(nproc))))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## run the whole path with a real model; FILE=/path/to/any/file uses that file instead
	python3 tests/demo/demo.py $(if $(FILE),--file '$(FILE)')

stack: ## start a daemon under load, Prometheus and Grafana, until Ctrl-C; ARGS="--driver auto" uses a GPU
	command -v prometheus >/dev/null || tests/dev/install-tools
	@deploy/stack/run $(ARGS)

book: ## build the book of the documentation into target/book, and check it
	tests/dev/install-tools book
	tests/dev/book/run

test: ## run all tests, with their set-up
	tests/dev/install-tools
	cargo build -p vramd -p vramctl -p vramd-tests --bins
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test --workspace --exclude simulator --exclude vramd-python --no-fail-fast
	cargo --config tests/simulator/whole.toml test -p simulator
	sdk-python/tests/run

soak: ## run at length what CI takes a share of, before a release and before an issue is resolved
	tests/soak

gpu: gpu-bundle ## run the GPU suite on this machine into target/gpu-results; QUICK=1 for fewer rounds
	target/gpu-bundle/run $(if $(QUICK),--quick) target/gpu-results

gpu-bundle: ## pack that suite for a machine without a toolchain, into target/gpu-bundle
	tests/dev/install-tools
	tests/gpu/bundle.py

packages: ## pack the crates that users need, and build each from its package
	# Cargo keeps the unpacked source of a package of the same version, and would build against an older one.
	rm -rf $${CARGO_HOME:-$$HOME/.cargo}/registry/src/-*/vramd-* $${CARGO_HOME:-$$HOME/.cargo}/registry/src/-*/broker-*
	cargo package --quiet --allow-dirty $(addprefix -p ,$(PACKAGES))

dist: ## build tarball, wheel, Debian package and chart of one version, into target/dist
	tests/dev/install-tools chart
	deploy/dist

verify: ## run all checks of CI
	.ci/run

fix: ## format, and apply the fixes that clippy knows
	cargo fmt --all
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged

prose: ## check the wording of comments, pages, messages, names and commits
	tests/dev/prose/run
	tests/dev/prose/test

errors-md: ## write docs/reference/errors.md from the registry of reasons
	cargo run --quiet -p vramd-tests --bin errors-md

invariants-md: ## write docs/reference/invariants.md from the registry of invariants
	cargo run --quiet -p simulator --bin invariants-md

metrics-md: ## write docs/reference/metrics.md from the registry of metrics
	cargo run --quiet -p vramd-tests --bin metrics-md

protocol-md: ## write docs/reference/protocol.md from the protocol and its comments
	cargo run --quiet -p vramd-tests --bin protocol-md

config-md: ## write docs/reference/configuration.md from the example configuration
	cargo run --quiet -p vramd-tests --bin config-md

cli-md: ## write docs/reference/cli.md from the command lines
	cargo run --quiet -p vramd-tests --bin cli-md

dashboards: ## write the Grafana dashboards, the rules of Prometheus and docs/operations/dashboards.md from their registry
	cargo run --quiet -p vramd-tests --bin dashboards

dashboard-pictures: ## draw the pictures of the dashboards from a node under load, as root; SECONDS=120
	tests/dev/install-tools pictures
	cargo build --quiet -p vramd -p vramd-tests --bins
	target/debug/dashboards record target/dashboards.json $(or $(SECONDS),120)
	.tools/pictures-venv/bin/python tests/dev/dashboards/pictures target/dashboards.json docs/operations/pictures

proto-baseline: ## make the present protocol the one that later changes must not break
	tests/dev/install-tools
	BUF_CACHE_DIR=.tools/buf-cache .tools/venv/bin/buf build proto --exclude-source-info -o proto/baseline.binpb
