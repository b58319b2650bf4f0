# Tenure: everything a contributor runs. `make` alone explains itself.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test quick newest test-programs test-browser screenshots check proof bench fuzz-http docs-generated format clean

# The first interpreter that is new enough; empty when there is none. Override: make PYTHON=...
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

# Tests start hundreds of processes: where nobody may keep what was compiled, each compiles all of
# it again, a third of a second.
export PYTHONDONTWRITEBYTECODE =

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WORKERS ?= 4
EXAMPLES ?= 25
SEED ?= $(shell date +%s)

# Modules that print a generated document, as module=path. Extend it where a document is generated.
GENERATED_DOCS := \
	tools.transition_diagram=docs/spec/transitions.md \
	tools.transitions_json=src/tenure/contract/transitions.json \
	tools.vectors.generate=src/tenure/contract/responses.json \
	tools.http_reference=docs/reference/http.md \
	tools.metrics_reference=docs/reference/metrics.md \
	tools.cli_reference=docs/reference/cli.md \
	tools.python_reference=docs/reference/python.md

help: ## show this help
	@echo "Tenure: a durable job queue and orchestrator whose history you can check."
	@echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' \
		| while IFS="$$(printf '\t')" read -r name text; do printf '  make %-16s %s\n' "$$name" "$$text"; done

demo: .venv/.ready ## see a job survive a killed worker
	@$(BIN)/tenure demo

# What the workers in other languages need, and no package index of Python brings.
TEST_PROGRAMS := bash curl jq node

test-programs:
	@for program in $(TEST_PROGRAMS); do command -v $$program >/dev/null || \
		{ echo "make test needs $$program: install it (Debian, Ubuntu: apt install bash curl jq nodejs; Node has to be 20 or newer)" >&2; exit 1; }; done
	@node -e 'process.exit(Number(process.versions.node.split(".")[0] < 20))' || \
		{ echo "make test needs Node 20 or newer as node: $$(node --version) is older" >&2; exit 1; }

test: test-programs check ## run the checks, then every test, then ask whether the spec has evidence
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --spec-evidence

# What needs neither processes nor a PostgreSQL server nor long; see tests/support/needs.py.
FAST := -m "not proof and not browser and not process and not postgres and not slow" --hypothesis-profile quick

# Most of these tests compute, some wait: one worker more than there are cores. On two cores three
# workers took 52 s, two 65 s. Every worker collects all tests, 5 s of a core.
quick newest: WORKERS = $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')

quick: check ## the checks and the fast tests, in under a minute
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(FAST)

NEWEST = $(shell .ci/newest-python)

newest: ## the fast tests on the newest Python that is found
	@if test -n "$(NEWEST)"; then $(MAKE) .venv-newest/.ready && \
		.venv-newest/bin/python -m pytest -q -n $(WORKERS) --dist worksteal $(FAST); \
		else echo "there is no Python newer than 3.11 here: only $(PYTHON) was tested"; fi

check: .venv/.ready ## lint, formatting, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-logo

test-browser: .venv/.ready ## test the dashboard in Chromium or Chrome
	BROWSER_PATH="$$(.ci/browser)" && export BROWSER_PATH && $(BIN)/python -m pytest -q -m browser tests/browser

screenshots: .venv/.ready ## write the screenshots of docs/images again
	BROWSER_PATH="$$(.ci/browser)" && export BROWSER_PATH && $(BIN)/python -m tests.browser.screenshots

proof: .venv/.ready ## the long evidence: chaos, crashes, many seeds
	$(BIN)/python -m pytest -n $(WORKERS) -m proof --timeout 5400 -o hang_limit=6000

bench: .venv/.ready ## measure Tenure beside other queues on this machine (QUICK=1: in five minutes)
	$(BIN)/python -m bench $(if $(filter 1,$(QUICK)),--quick)

fuzz-http: .venv/.ready .venv-fuzz/.ready ## fuzz a real server by its own description
	$(BIN)/python -m tests.server.fuzz .venv-fuzz/bin/schemathesis $(EXAMPLES) $(SEED)

docs-generated: .venv/.ready ## write the generated documents again
	@for pair in $(GENERATED_DOCS); do \
		echo "$${pair#*=}"; $(BIN)/python -m "$${pair%%=*}" > "$${pair#*=}.new" && \
		mv "$${pair#*=}.new" "$${pair#*=}" || exit 1; done

format: .venv/.ready ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove everything that make and the tools made
	rm -rf .venv .venv-bench .venv-fuzz .venv-newest build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Build isolation is off so that the build backend, too, is the pinned one.
.venv/.ready: pyproject.toml packages/tenure-conformance/pyproject.toml requirements-dev.txt
	@test -n "$(PYTHON)" && command -v $(PYTHON) >/dev/null || \
		{ echo "tenure needs Python 3.11 or newer as python3: install it (Debian, Ubuntu: apt install python3 python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tenure needs Python 3.11 or newer: $(PYTHON) is older, install a newer one or run make PYTHON=python3.x" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "tenure needs Python's venv module: install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) install --require-hashes -r requirements-dev.txt
	$(PIP) install --no-deps --no-build-isolation -e . -e packages/tenure-conformance
	@touch $@

.venv-newest/.ready: pyproject.toml packages/tenure-conformance/pyproject.toml requirements-dev.txt
	$(NEWEST) -m venv .venv-newest
	.venv-newest/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements-dev.txt
	.venv-newest/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation -e . -e packages/tenure-conformance
	@touch $@

# The fuzzer has many dependencies and none of them is ours: an environment of its own.
.venv-fuzz/.ready: requirements-fuzz.txt
	$(PYTHON) -m venv .venv-fuzz
	.venv-fuzz/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements-fuzz.txt
	@touch $@
