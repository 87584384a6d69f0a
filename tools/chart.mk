# Chart, tools and release files; included by the Makefile.
.PHONY: chart-files chart-golden helm-tools package

HELM_READY := .tools/.helm-$(shell cksum < tools/get_helm.py | cut -d ' ' -f 1)
LINT_READY := .tools/.lint-$(shell cksum < tools/requirements-lint.lock | cut -d ' ' -f 1)

chart-files: $(READY) ## Write what the chart takes from rules, grafana, settings and version
	$(BIN)/python tools/chart_files.py

chart-golden: $(READY) $(HELM_READY) ## Write what the chart's tests expect anew; read the difference
	WRITE_GOLDEN=1 $(BIN)/python -m pytest -q tests/helm -k golden

helm-tools: $(READY) $(LINT_READY) ## Fetch the real helm and kubectl, and linters of workflows and image, into .tools
	$(BIN)/python tools/get_helm.py --with-helm3

package: $(READY) $(HELM_READY) ## Build wheel, sdist, chart and a zip of rules and dashboards into dist
	$(BIN)/python tools/package.py $(ARGS)

# Tests of the chart use them; without, those are skipped and say so.
test: $(HELM_READY)

$(HELM_READY): $(READY)
	@$(BIN)/python tools/get_helm.py --with-helm3 && touch $@ || \
		echo "helm could not be fetched: the chart's tests will be skipped, unless it is installed" >&2

$(LINT_READY): $(READY)
	@$(BIN)/python -m venv --clear .tools/lint
	@.tools/lint/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r tools/requirements-lint.lock
	@touch $@
