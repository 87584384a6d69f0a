# Needs Python 3.11 or newer, make and git. Everything else goes into .venv, from requirements-dev.lock.
SHELL := /bin/sh
.DEFAULT_GOAL := help

AT_LEAST_311 := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c '$(AT_LEAST_311)' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready
HELM_READY := .tools/.helm-$(shell cksum < tools/get_helm.py | cut -d ' ' -f 1)
LINT_READY := .tools/.lint-$(shell cksum < tools/requirements-lint.lock | cut -d ' ' -f 1)
ARGS ?=

.PHONY: help setup demo test e2e mutants live bench accuracy alert-quality learning lint type format docs check-docs rules dashboards screenshots lock chart-files chart-golden helm-tools package clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with everything that is needed; the other targets do it themselves
	@:

demo: $(READY) ## Watch a simulated engine slow down, and why (about two minutes, no GPU)
	$(BIN)/stepscope demo $(ARGS)

test: $(READY) ## Run the tests; ARGS="-k name" picks some
	$(BIN)/python -m pytest -m "not live and not e2e" $(ARGS)

e2e: $(READY) ## Play four incidents through a real Prometheus and Alertmanager (under five minutes)
	$(BIN)/python -m pytest -m e2e $(ARGS) tests/e2e

mutants: $(READY) ## Break every rule on purpose; each mutant must be caught (about a minute)
	PYTHONPATH=tests $(BIN)/python tests/rules/mutation.py $(ARGS)

live: $(READY) ## Run the tests against a real vLLM engine
	$(BIN)/python -m pytest -m live $(ARGS) tests/live

bench: $(READY) ## Measure what the sidecar costs
	$(BIN)/python benchmarks/bench.py $(ARGS)

accuracy: $(READY) ## Judge the predictions on public measurements; writes docs/accuracy.md (a minute or two)
	$(BIN)/python benchmarks/accuracy.py $(ARGS)

alert-quality: $(READY) ## Judge the verdicts on 240 simulated faults (a few minutes); ARGS=--write writes the page
	$(BIN)/python benchmarks/alert_quality.py $(ARGS)

learning: $(READY) ## Judge what the sidecar learns of simulated engines by itself (a few minutes)
	$(BIN)/python benchmarks/learning.py $(ARGS)

lint: $(READY) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(READY) ## Check types
	$(BIN)/mypy

format: $(READY) ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## Write the generated tables of docs/
	$(BIN)/python -m stepscope.docs_tables

check-docs: $(READY) ## Fail if a generated table is out of step with the code
	$(BIN)/python -m stepscope.docs_tables --check

rules: $(READY) ## Write the rule files from rules/templates
	$(BIN)/python rules/generate.py

dashboards: $(READY) ## Write the Grafana dashboards from grafana/boards
	$(BIN)/python grafana/generate.py

screenshots: $(READY) ## Take the pictures of docs/images (three minutes; needs Chromium, Prometheus, npm and ../shared)
	PYTHONPATH=grafana/screenshots:tests $(BIN)/python grafana/screenshots/shoot.py

lock: ## Resolve the dependencies anew into the lock files (needs uv)
	uv pip compile pyproject.toml --group dev --generate-hashes --universal --upgrade \
		--custom-compile-command "make lock" --quiet -o requirements-dev.lock
	uv pip compile pyproject.toml --extra auth --generate-hashes --universal -c requirements-dev.lock --upgrade \
		--custom-compile-command "make lock" --quiet -o requirements.lock
	sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml | uv pip compile - --generate-hashes --universal \
		-c requirements-dev.lock --python-version 3.11 --custom-compile-command "make lock" --quiet -o requirements-build.lock

chart-files: $(READY) ## Write what the chart takes from rules, grafana, settings and version
	$(BIN)/python tools/chart_files.py

chart-golden: $(READY) $(HELM_READY) ## Write anew what the chart's tests expect; read the difference
	WRITE_GOLDEN=1 $(BIN)/python -m pytest -q tests/helm -k golden

helm-tools: $(READY) $(LINT_READY) ## Fetch the real helm and kubectl, and linters of workflows and image, into .tools
	$(BIN)/python tools/get_helm.py --with-helm3

package: $(READY) $(HELM_READY) ## Build wheel, sdist, chart and a zip of rules and dashboards into dist
	$(BIN)/python tools/package.py $(ARGS)

clean: ## Remove .venv, caches and build results
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp makes the second run instant; a changed lock or pyproject.toml makes the first run again.
$(READY): requirements-dev.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found; name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv || \
		{ echo "$(PYTHON) cannot make a virtual environment; on Debian install python3-venv" >&2; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

# The chart's tests use the real helm; without it they are skipped and say so.
test: $(HELM_READY)

$(HELM_READY): $(READY)
	@$(BIN)/python tools/get_helm.py --with-helm3 && touch $@ || \
		echo "helm could not be fetched: the chart's tests will be skipped, unless it is installed" >&2

$(LINT_READY): $(READY)
	@$(BIN)/python -m venv --clear .tools/lint
	@.tools/lint/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r tools/requirements-lint.lock
	@touch $@
