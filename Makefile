# make, make setup, make demo, make test, make check: see `make help`.
# PYTHON picks the interpreter of the virtual environment (3.10 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TOOLS := $(VENV)/.tools-installed
# What an editable install depends on beside the C files, which make themselves known to setup.py.
SETUP_INPUTS := pyproject.toml compat/pyproject.toml setup.py MANIFEST.in native/build_ffi.py
C_INPUTS := $(wildcard mooncake_store/protocol/include/*.h mooncake_store/protocol/src/*.[ch] \
	$(foreach room,transfer_engine master store client conductor,$(room)/include/*.h $(room)/src/*.[ch] \
	$(room)/src/*/*.[ch]))
NATIVE := mooncake_store/_native.abi3.so
OUR_C = $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h' ':!third_party')

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help tools setup native demo test test-rdma check c-test hunt model chaos py-test test-engines format protos metrics-page bench-peer clean
.DEFAULT_GOAL := help
.NOTPARALLEL:

help: tools
	@echo "make demo        build everything in .venv and run the store on a real trace (< 3 minutes)"
	@echo "make test        build everything in .venv and run all checks and tests"
	@echo "make setup       build only: .venv with the package, the command and the tools"
	@echo "make check       lint, types, import rules, C format"
	@echo "make c-test      the C tests: plain, under ASan+UBSan, under TSan"
	@echo "make hunt        look for a stale read in a million (READS=...), twice"
	@echo "make model       search the models of the protocol (FLAGS=--full: all of their states)"
	@echo "make chaos       real processes under faults, checked; and 10 planted faults, found (root)"
	@echo "make py-test     the Python tests"
	@echo "make test-engines  real engines on the CPU with the store, in environments outside the tree"
	@echo "make test-rdma   RDMA in a guest with software NICs (root, Debian 12; builds a kernel once)"
	@echo "make format      lay out Python and C"
	@echo "make protos      generate the gRPC stubs again, after a change of a .proto"
	@echo "make bench-peer  measure against the peer, installed in an environment of its own"
	@echo "make clean       remove what was built, .venv too"

# Says what is missing before anything fails half-way with a stranger's message.
tools:
	@missing=""; \
	for tool in git:git gcc:gcc '$(PYTHON):python3 python3-dev python3-venv'; do \
	    command -v "$${tool%%:*}" >/dev/null 2>&1 || missing="$$missing $${tool##*:}"; \
	done; \
	if command -v $(PYTHON) >/dev/null 2>&1; then \
	    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	        { echo "$(PYTHON) is older than 3.10: make PYTHON=python3.11 (or newer)" >&2; exit 2; }; \
	    $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	    $(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' \
	        || missing="$$missing python3-dev"; \
	fi; \
	if command -v gcc >/dev/null 2>&1 && ! echo '#include <stdlib.h>' | gcc -E -o /dev/null - 2>/dev/null; then \
	    missing="$$missing libc6-dev"; \
	fi; \
	if [ -n "$$missing" ]; then \
	    echo "missing:$$missing" >&2; \
	    echo "  sudo apt-get update && sudo apt-get install -y$$missing" >&2; exit 2; \
	fi

setup: native $(TOOLS)

$(INSTALLED): $(SETUP_INPUTS) | tools
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing mooncake-store in $(VENV) ..."
	@$(BIN)/python -m pip install -qq --upgrade 'pip>=23' 'setuptools>=77' 'cffi>=1.17' wheel
	@$(BIN)/python -m pip install -qq --no-build-isolation --editable .
	@touch $@

# What checks and tests need; the store itself, and so the demo, does not.
$(TOOLS): $(INSTALLED)
	@echo "Installing the tools of make check and make test in $(VENV) ..."
	@$(BIN)/python -m pip install -qq --no-build-isolation --editable '.[dev]'
	@$(BIN)/python -m pip install -qq --no-build-isolation --no-deps --editable compat
	@touch $@

native: $(INSTALLED) $(NATIVE)

# The editable install has built it once; a changed C file is compiled again, alone.
$(NATIVE): $(INSTALLED) $(C_INPUTS)
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

demo: native
	@$(BIN)/python -m mooncake_store.cli.main demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy protocol-model/check.py protocol-model/protocol_model
	$(BIN)/mypy tests/chaos
	$(BIN)/mypy compat/mooncake
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	@$(if $(strip $(OUR_C)),echo "$(BIN)/clang-format --dry-run ($(words $(OUR_C)) files)" && $(BIN)/clang-format --dry-run -Werror -ferror-limit=1 $(OUR_C))

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@$(if $(strip $(OUR_C)),$(BIN)/clang-format -i $(OUR_C))

c-test: setup
	$(BIN)/python tests/c/run.py

# Certain reads: a million randomised reads of each hunt (about a minute each); SEED repeats a run.
READS ?= 1000000
hunt: setup
	$(BIN)/python tests/c/run.py --variant plain stale_read_hunt_test store_hunt_test
	build/c-test/plain/stale_read_hunt_test $(READS) $(SEED)
	build/c-test/plain/store_hunt_test $(READS) $(SEED)

# Python alone is enough. A part of it is in every py-test.
model: tools
	$(PYTHON) protocol-model/check.py $(FLAGS)

# docs/fault-suite.md; for a night: CHAOS="--seconds 600 --runs 40 --subset 3/7". Python tests have a short one.
CHAOS ?= --seconds 300 --runs 2
chaos: setup
	$(BIN)/python -m tests.chaos $(CHAOS)
	CHAOS_PLANTED=all $(BIN)/pytest tests/integration/test_chaos.py -k planted

protos: setup
	$(BIN)/python native/generate_protos.py

metrics-page: setup
	$(BIN)/python native/generate_metrics_page.py

# `pytest`, not `python -m pytest`: the folders at the top must not become importable.
py-test: setup
	$(BIN)/pytest

test: check c-test py-test

# Not part of `make test`: the first run installs gigabytes, outside of the tree. ENGINES=/somewhere keeps
# them elsewhere; FLAGS="-k vllm" runs a part, FLAGS="-m 'not extensive'" what continuous integration does.
ENGINES ?= $(if $(shell test -w /var/cache && echo yes),/var/cache,$(HOME)/.cache)/mooncake-store/engines
test-engines: setup
	@PYTHON=$(PYTHON) tests/engines/install $(ENGINES)
	MOONCAKE_STORE_ENGINES=$(ENGINES) $(BIN)/pytest -v --durations=20 tests/engines $(FLAGS)

# docs/rdma.md. RDMA_TEST_RESETS=10000 for the whole of one test.
test-rdma: setup
	tests/rdma/guest/run --prepare
	$(BIN)/python tests/rdma/build.py rdma_test rdma_lanes_test rdma_rails_test transfer_test rdma_bench
	tests/rdma/guest/run --seconds 900 tests/rdma/in-guest $(abspath $(BIN)/python)

# FLAGS="--quick" tries it, FLAGS="--json results/peer.json" keeps the figures.
bench-peer: setup
	@PYTHON=$(PYTHON) benchmarks/install-peer
	$(BIN)/python benchmarks/compare.py $(FLAGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .pytest_cache .mypy_cache .ruff_cache \
	    .import_linter_cache mooncake_store/_native*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
