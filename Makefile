# taskmesh. `make demo` shows it, `make test` proves it; neither needs more than make and Python 3.11+.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
SEEDS ?= 20000
FUZZ  ?= 100
PEERS ?= .venv-peers
HELM  := helm containers
NET   := net sockets conformance faults examples benchmarks workers

BIN    := .venv/bin
RUN    := .venv/ready-run
DEV    := .venv/ready-dev
SPARK  := .venv/ready-spark
CHART  := .venv/ready-helm
BOX    := .venv/ready-box
KUBE   := .venv/ready-kube
PEER_RUN := $(PEERS)/ready
PIP    := -m pip install -qq --disable-pip-version-check --no-input
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-core test-net test-helm test-kube test-spark chart-readme lint types check simulate fuzz soak bench bench-peers pin clean

help:            ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: $(RUN)     ## Read the standard library with the mesh and report on it (examples/01)
	$(BIN)/python examples/01_*.py

test: test-core test-net test-helm test-kube test-spark  ## All tests; each part stays below nine minutes on two cores

test-core: $(DEV)  ## The machines and their simulation, the slots, the client, the command line
	$(PYTEST) -m "not soak and not bench" $(addprefix --ignore=tests/,$(NET) $(HELM) kube spark)

test-net: $(DEV)  ## What runs over sockets, and the faults of real processes
	$(PYTEST) -m "not soak and not bench" $(addprefix tests/,$(NET))

test-helm: $(CHART) $(BOX)  ## The chart, rendered by Helm 3 and Helm 4, and hub and pools in real containers
	$(PYTEST) -m "not soak and not bench" $(addprefix tests/,$(HELM))

test-kube: $(CHART) $(BOX) $(KUBE)  ## The chart on a real apiserver, scheduler and kubelet, built once (some minutes more)
	$(PYTEST) -m "not soak and not bench" tests/kube

test-spark: $(SPARK)  ## The Spark bridge: real PySpark, a real hub and pools
	$(PYTEST) -m "not soak and not bench" tests/spark

chart-readme: $(CHART)  ## Write helm/taskmesh/README.md anew from values.yaml
	node .venv/helm/node_modules/.bin/readme-generator -v helm/taskmesh/values.yaml -r helm/taskmesh/README.md

lint: $(DEV)     ## Style, format, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(DEV)    ## mypy on the package, mypy and basedpyright on what a user's code sees
	$(BIN)/mypy
	$(PYTEST) -q tests/typing

check: lint types test  ## What .ci/run runs

simulate: $(DEV)  ## Simulated faults, SEEDS=20000 of them
	$(BIN)/python -m taskmesh.testing --seeds $(SEEDS)

fuzz: $(DEV)     ## Forged and mutated messages, FUZZ=100 times as many as `make test` tries
	FUZZ_WIRE=$$((200000 * $(FUZZ))) FUZZ_MACHINES=$$((250 * $(FUZZ))) $(PYTEST) --timeout 0 -o faulthandler_timeout=0 tests/fuzz

soak: $(DEV)     ## The fault tests on real processes, thirty times each
	$(PYTEST) -m "fault or soak" --repeat 30

bench: $(DEV)    ## Measure against raw pyzmq and ProcessPoolExecutor; writes JSON and a plot
	$(BIN)/python -m benchmarks

bench-peers: $(PEER_RUN)  ## The same against Dask, Ray, Celery and Parsl, installed into an environment of their own
	$(PEERS)/bin/python -m benchmarks --peers

pin:             ## Write the constraints files anew from pyproject.toml; PIN_ARGS=--upgrade for newer versions
	$(PYTHON) -m venv .venv-pin
	.venv-pin/bin/python $(PIP) pip-tools
	.venv-pin/bin/python .ci/pin $(PIN_ARGS)

clean:           ## Remove all that was made here, the environment too
	rm -rf .venv .venv-pin $(PEERS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- environments: made once, and again when what they are made from changes ---

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "taskmesh needs Python 3.11 or newer: apt install python3 (or make PYTHON=/path/to/python3)"; exit 1; }
	@$(PYTHON) -m venv .venv >.venv-error 2>&1 && rm -f .venv-error || { cat .venv-error; rm -rf .venv .venv-error; \
	  echo "No virtual environment could be made. On Debian and Ubuntu this is the cure: apt install python3-venv"; exit 1; }

$(RUN): constraints.txt pyproject.toml | .venv/bin/python
	@echo "Installing taskmesh and what it needs into .venv"
	@$(BIN)/python $(PIP) --require-hashes -r constraints.txt
	@$(BIN)/python $(PIP) --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q taskmesh workers  # as pip does for all but an editable install: every start is quicker
	@touch $@

$(DEV): constraints-dev.txt $(RUN)
	@echo "Installing what tests, lint, types and benchmarks need into .venv (a minute or so)"
	@$(BIN)/python $(PIP) --require-hashes -r constraints-dev.txt
	@touch $@

# Without npm the tests that need its programs say so, and skip; in CI they fail.
$(CHART): constraints-helm.txt $(wildcard tests/helm/tools/*) $(DEV)
	@echo "Installing what the chart's tests need into .venv"
	@$(BIN)/python $(PIP) --require-hashes -r constraints-helm.txt
	@mkdir -p .venv/helm && cp tests/helm/tools/* .venv/helm/
	@if command -v npm >/dev/null; then cd .venv/helm && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error; fi
	@touch $@

# Without Java the tests say so, and skip; in CI they fail.
$(SPARK): constraints-spark.txt $(DEV)
	@echo "Installing PySpark and what goes with it into .venv (some 500 MB)"
	@$(BIN)/python $(PIP) --require-hashes -r constraints-spark.txt
	@if ! command -v java >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends openjdk-17-jre-headless; fi
	@touch $@

$(BOX): .ci/box constraints.txt constraints-spark.txt $(DEV)
	@.ci/box .venv/box $(BIN)/python
	@touch $@

$(KUBE): .ci/cluster constraints-kube.txt | $(DEV)
	@.ci/cluster .venv/kube $(BIN)/python
	@touch $@

$(PEER_RUN): constraints-peers.txt pyproject.toml
	@echo "Installing Dask, Ray, Celery and Parsl into $(PEERS)"
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python $(PIP) --require-hashes -r constraints-peers.txt
	@$(PEERS)/bin/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: conformance
conformance: $(DEV)  ## Run the socket clauses' tests and write docs/conformance.md from them
	$(BIN)/python -m tests.conformance.document
