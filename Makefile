# taskmesh. `make demo` shows it, `make test` proves it; neither needs more than make and Python 3.11+.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
SEEDS ?= 20000
FUZZ  ?= 100
TIMES ?= 30
PLATFORM := helm containers kube spark
BEYOND   := chaos conformance dashboard faults hosting integrations sockets

BIN    := .venv/bin
RUN    := .venv/ready-run
DEV    := .venv/ready-dev
HOSTS  := .venv/ready-hosts
REDIS  := .venv/ready-redis
PROM   := .venv/ready-promtool
BROWSER := .venv/ready-browser
UNITS  := .venv/ready-systemd
SPARK  := .venv/ready-spark
CHART  := .venv/ready-helm
BOX    := .venv/ready-box
KUBE   := .venv/ready-kube
OTHERS := .venv/ready-peers
DOCS   := .venv/ready-docs
PEERS  := .venv-peers
CPYTHON := $(PEERS)/cpython/test_concurrent_futures.py
DURABLE := raw,taskmesh-remote,taskmesh-file,taskmesh-redis,celery,celery-durable,dramatiq,huey,rq
PEER_RUN := $(patsubst benchmarks/peers/%.txt,$(PEERS)/%/ready,$(wildcard benchmarks/peers/*.txt))
PIP    := -m pip install -qq --disable-pip-version-check --no-input
PYTEST := $(BIN)/python -m pytest
LEVEL  := $(PYTEST) $(addprefix --ignore=tests/,$(PLATFORM))
TWO    := -n $(shell n=$$(nproc 2>/dev/null || echo 1); [ $$n -lt 2 ] || n=2; echo $$n)
NEVER  := not soak and not nightly and not bench

.DEFAULT_GOAL := help
.PHONY: help demo demo-spark demo-incident screenshots test test-all unit smoke integration faults nightly test-helm test-kube test-spark test-pyspark test-peers test-pythons first-hour chart-readme docs lint types check simulate fuzz soak chaos bench bench-peers bench-keys bench-journal bench-crowd bench-spark pin clean

help:            ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo:            ## Read part of the standard library with the mesh, kill a worker halfway, and report (examples/survey): a minute
	@echo "One decorated function reads 500 files of Python's standard library, a task a file, in a worker process"
	@echo "for each core. Halfway one of these processes is killed, as the kernel does when memory runs out. Then one"
	@echo "process does the same work alone, and both answers are compared. The program has 90 lines:"
	@echo "examples/survey/survey.py. What it needs is installed first, into .venv (half a minute, once)."
	@echo
	@$(MAKE) --no-print-directory $(RUN)
	@$(BIN)/python examples/survey/survey.py --limit 500

demo-spark: $(SPARK)  ## 336,776 flights through Spark and two pools, and wholly inside Spark; DEMO_ARGS="--kill-every 5" kills pools
	$(BIN)/python examples/spark_pipeline/demo.py $(DEMO_ARGS)

demo-incident: $(DEV)  ## Break a mesh in six ways: status, top and the dashboard say each in the same sentence; DEMO_ARGS=--keep for a look at the page
	$(BIN)/python examples/incident/demo.py $(DEMO_ARGS)

screenshots: $(DEV) $(BROWSER)  ## The picture of docs/how-to/dashboard.md: of the mesh of demo-incident while it is broken
	$(BIN)/python examples/incident/demo.py --pictures docs/images

test: unit smoke  ## What a change must pass first: needs no more than make and Python, takes eight minutes at most

unit: $(DEV)     ## The pure machines, 200 simulated mishaps, the wire, the client, the command line: starts no process
	$(LEVEL) $(addprefix --ignore=tests/,$(BEYOND)) -m "unit and $(NEVER)" $(TWO) --dist worksteal

smoke: $(DEV)    ## Each promise, command and page once, with real processes and sockets
	$(PYTEST) -m smoke $(TWO) --dist loadfile $$(grep -rl --include='test_*.py' 'mark\.smoke' tests)

test-all: integration faults test-helm test-spark  ## All the rest that .ci/run runs: Redis, faults, attacks, the chart, containers, Spark

integration: $(REDIS) $(PROM) $(BROWSER) $(UNITS) $(OTHERS)  ## Slots, hub and pools, the programs, the examples, attacks
	$(LEVEL) -m "integration and not smoke and $(NEVER)" $(TWO) --dist loadfile

faults: $(HOSTS) $(REDIS)  ## Processes that are killed and stopped, networks that are cut: by a proxy, and between hosts made of network namespaces
	$(LEVEL) -m "fault and not smoke and $(NEVER)" $(TWO) --dist loadfile

test-helm: $(CHART) $(BOX) $(REDIS)  ## The chart, rendered by Helm 3 and Helm 4, and hub and pools in real containers
	$(PYTEST) -m "$(NEVER)" $(TWO) --dist loadfile tests/helm tests/containers

test-spark: $(SPARK) $(REDIS)  ## The Spark bridge: real PySpark, a real hub and pools
	$(PYTEST) -m "$(NEVER)" $(TWO) --dist loadfile tests/spark

test-pyspark: $(SPARK)  ## PySpark's own tests, out of its wheel, with all functions on a mesh (hours); SUITE=test_udf for some files
	$(PYTEST) -m nightly -o faulthandler_timeout=0 -s tests/spark/test_pyspark_suite.py $(if $(SUITE),-k "$(SUITE)")

test-kube: $(CHART) $(BOX) $(KUBE)  ## The chart on a real apiserver, scheduler and kubelet, built once (some minutes more)
	$(PYTEST) -m "$(NEVER)" tests/kube
	.ci/cluster-inputs >tests/kube/passed

test-peers: $(OTHERS) $(CPYTHON)  ## Tests of dask and joblib, from their wheels, and of CPython's executors, on a mesh; tests/peers/refused.txt lists those that fail, with the reasons
	$(PYTEST) -c tests/peers/pytest.ini -q $(TWO) --pyargs dask.bag dask.array
	$(PYTEST) -c tests/peers/pytest.ini -q --pyargs joblib.test.test_parallel
	PYTHONPATH=$(CURDIR)/$(dir $(CPYTHON)) $(PYTEST) -c tests/peers/pytest.ini -q tests/peers/cpython_executors.py

first-hour: $(DEV)  ## Follow README, tutorial and Prefect's page to the letter in empty environments, with the seconds of each step (four minutes)
	$(BIN)/python -m tests.examples.first_hour

nightly: $(HOSTS) $(REDIS)  ## What takes hours: every guard taken out, 20,000 seeds, much fuzzing, random faults, the soak, the cluster, the first hour, PySpark's tests, dask's, joblib's, CPython's
	$(LEVEL) -m nightly $(TWO) --dist worksteal
	$(MAKE) simulate fuzz
	$(BIN)/python -m tests.chaos --seconds 1200
	$(LEVEL) -m soak
	$(MAKE) first-hour test-kube test-pyspark test-peers

test-pythons:    ## unit, integration and faults on Ubuntu 24.04 (Python 3.12), Debian 13 (3.13), Ubuntu 26.04 (3.14); needs root
	.ci/pythons $(SUITES)

chart-readme: $(CHART)  ## Write helm/taskmesh/README.md anew from values.yaml
	node .venv/helm/node_modules/.bin/readme-generator -v helm/taskmesh/values.yaml -r helm/taskmesh/README.md

docs: $(DOCS)    ## Build the site into .venv/site: each link leads somewhere, each word is spelt
	$(BIN)/codespell docs *.md benchmarks/README.md
	$(BIN)/python -m sphinx -q -W -n --keep-going -d .venv/site/doctrees docs .venv/site/html

lint: $(DEV) docs  ## Style, format, layers, the site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(DEV)    ## mypy on the package, mypy and basedpyright on what a user's code sees
	$(BIN)/mypy
	$(PYTEST) -q tests/typing

check: lint types test test-all  ## What .ci/run runs

simulate: $(DEV)  ## Simulated faults, SEEDS=20000 of them, others each time; START=N plays those from N on
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(START),--start $(START))

fuzz: $(DEV)     ## Forged and mutated messages, FUZZ=100 times as many as `make test-all` tries
	FUZZ_WIRE=$$((200000 * $(FUZZ))) FUZZ_MACHINES=$$((250 * $(FUZZ))) $(PYTEST) --timeout 0 -o faulthandler_timeout=0 tests/fuzz

soak: $(HOSTS) $(REDIS)  ## The fault tests on real processes, TIMES=30 times each (some three minutes a time)
	$(PYTEST) -m "fault or soak" --repeat $(TIMES) --ignore=tests/benchmarks $(if $(wildcard $(SPARK)),,--ignore=tests/spark)

chaos: $(DEV)    ## Random faults of a hub, pools and clients, from a new seed; CHAOS_ARGS="--seed 7 --episodes 20 --gentle"
	$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

bench: $(DEV)    ## Measure against raw pyzmq and ProcessPoolExecutor; writes JSON, a plot, the table of benchmarks/README.md
	$(BIN)/python -m benchmarks $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.tables

bench-peers: $(PEER_RUN) $(DEV) $(REDIS)  ## The same beside Dask, Ray, Celery and Parsl, each in an environment of its own
	$(BIN)/python -m benchmarks --peers $(BENCH_ARGS)
	$(BIN)/python -m benchmarks --rows noop,roundtrip --contenders $(DURABLE) --name durable $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.tables

bench-keys: $(DEV)  ## What keys cost: hub and pool with CURVE and signatures beside a pair without
	$(BIN)/python -m benchmarks.keys --out benchmarks/results/keys.json

bench-journal: $(DEV) $(REDIS)  ## What a journal costs: hubs with one in a file and in Redis beside a hub without
	$(BIN)/python -m benchmarks.journal --out benchmarks/results/journal.json
	$(BIN)/python -m benchmarks.tables

bench-crowd: $(DEV)  ## What thousands of idle peers and millions of queued tasks cost one hub (three minutes)
	$(BIN)/python -m benchmarks.crowd --out benchmarks/results/crowd.json

bench-spark: $(SPARK)  ## What a Spark step costs on a mesh, beside plain Spark
	$(BIN)/python -m benchmarks.spark --out benchmarks/results/spark.json
	$(BIN)/python -m benchmarks.tables

pin:             ## Write the constraints files anew from pyproject.toml; PIN_ARGS=--upgrade for newer versions
	$(PYTHON) -m venv .venv-pin
	.venv-pin/bin/python $(PIP) --require-hashes -r constraints-pin.txt
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

$(DEV): constraints-dev.txt constraints-redis.txt $(RUN)
	@echo "Installing what tests, lint, types and benchmarks need into .venv (a minute or so)"
	@$(BIN)/python $(PIP) --require-hashes -r constraints-dev.txt -r constraints-redis.txt
	@touch $@

# Without ip and nft, or without root, the tests that need hosts say so, and skip; in CI they fail.
$(HOSTS): $(DEV)
	@{ command -v ip && command -v nft; } >/dev/null || .ci/packages iproute2 nftables
	@touch $@

# Without redis-server the tests of a hub's store say so, and skip; in CI they fail. They start servers of their own: the
# service that comes with the package is not wanted.
$(REDIS): $(DEV)
	@if ! command -v redis-server >/dev/null; then .ci/packages redis-server && \
	  { systemctl disable --now redis-server || service redis-server stop || true; } >/dev/null 2>&1; fi
	@touch $@

# Without promtool the tests of metrics and rules say so, and skip; in CI they fail. It is in a package whose server is not wanted.
$(PROM): .ci/promtool $(DEV)
	@command -v promtool >/dev/null || .ci/promtool $(BIN)
	@touch $@

# Without Debian's Chromium the tests of the dashboard's pages say so, and skip; in CI they fail.
$(BROWSER): $(DEV)
	@{ command -v chromium && command -v chromedriver; } >/dev/null || .ci/packages chromium chromium-driver || true
	@touch $@

# Without systemd-analyze the test of deploy's units says so, and skips; in CI it fails.
$(UNITS): $(DEV)
	@command -v systemd-analyze >/dev/null || .ci/packages systemd
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
	@command -v java >/dev/null || .ci/packages default-jre-headless
	@touch $@

# Without them the tests of joblib's backend and of dask on a mesh say so, and skip.
$(OTHERS): constraints-peers.txt $(DEV)
	@echo "Installing dask, joblib and scikit-learn into .venv (some 400 MB)"
	@$(BIN)/python $(PIP) --require-hashes -r constraints-peers.txt
	@touch $@

$(DOCS): constraints-docs.txt $(DEV)
	@echo "Installing what builds the site into .venv"
	@$(BIN)/python $(PIP) --require-hashes -r constraints-docs.txt
	@touch $@

# .ci/run starts these two early, in the background: what needs them waits there, and starts no second one. A make that is
# ended while it waits must not delete what another has made meanwhile.
.PRECIOUS: $(BOX) $(KUBE)
$(BOX): .ci/box constraints.txt constraints-redis.txt constraints-spark.txt $(DEV)
	@.ci/once $@ $^ -- .ci/box .venv/box $(BIN)/python

$(KUBE): .ci/cluster constraints-kube.txt | $(DEV)
	@.ci/once $@ $^ -- .ci/cluster .venv/kube $(BIN)/python

# Debian has CPython's tests in a package of their own. They are of Python 3.11, as is the one of .venv.
$(CPYTHON): | $(DEV)
	@echo "Fetching CPython's tests of executors from Debian's libpython3.11-testsuite"
	@rm -rf $(@D) && mkdir -p $(@D)
	@cd $(@D) && apt-get download -qq libpython3.11-testsuite && dpkg-deb --fsys-tarfile *.deb | tar -x --strip-components=5 ./usr/lib/python3.11/test/$(@F)
	@touch $@

# A peer that cannot be installed is left out of the run, which says why; the next `make bench-peers` tries again.
$(PEERS)/%/ready: benchmarks/peers/%.txt | .venv/bin/python
	@echo "Installing $* into $(PEERS)/$*"
	@rm -rf $(PEERS)/$* && $(PYTHON) -m venv $(PEERS)/$*
	@if $(PEERS)/$*/bin/python $(PIP) --require-hashes -r $< 2>$(PEERS)/$*/error; then touch $@; \
	  else echo "$* is left out: $$(grep ^ERROR $(PEERS)/$*/error | tail -1)"; fi

.PHONY: diagrams
diagrams: $(DEV)  ## Draw what docs/explanation/architecture.md shows of the code anew: states, layers, constants
	$(BIN)/python -m tests.architecture.diagrams

.PHONY: conformance
conformance: $(DEV)  ## Run the socket clauses' tests and write docs/explanation/conformance.md from them
	$(BIN)/python -m tests.conformance.document
