# Two commands matter: `make run` and `make test`. Both do all the set-up they need.
VENV := .venv
PYTHON := $(VENV)/bin/python
# Set by `make run HOST=...` alone: shells and CI systems export these names for themselves.
HOST = 127.0.0.1
PORT = 7860
# Where it is empty, STUDIO_HOME or ./workspace is taken.
WORKSPACE =
IN_WORKSPACE = $(if $(WORKSPACE),--workspace "$(WORKSPACE)")
# More for app.py, as in make run ARGS="--allow FOLDER".
ARGS =
# More for pytest, as in make test TEST_ARGS="-k forms".
TEST_ARGS =
# Every command starts many processes: none compiles again what another has compiled.
export PYTHONDONTWRITEBYTECODE =
CORES := $(shell nproc 2>/dev/null || echo 2)
# A file's tests stay together, for they share what they have trained; slow files go first.
PYTEST := $(PYTHON) -m pytest --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# One process more than cores, because many long tests wait for other processes.
PYTEST_ALL := $(PYTEST) -n $(shell expr $(CORES) + 1) --fail-on-skip
# Python compiles what is imported, a third of the packages' modules.
PIP_INSTALL := $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: run quickstart test test-all test-thorough lint format audit benchmark setup setup-dev help clean
.DEFAULT_GOAL := run

run: setup ## start the page; with an empty workspace, the quickstart too
	$(PYTHON) app.py --host $(HOST) --port $(PORT) $(IN_WORKSPACE) --quickstart $(ARGS)

quickstart: setup ## the same without the page
	$(PYTHON) -m core quickstart $(IN_WORKSPACE)

test: setup-dev ## the quick tests; what the machine lacks is skipped by name
	$(PYTEST) -n $(CORES) -m "not slow and not long" $(TEST_ARGS)

test-all: setup-dev ## the slow ones and those in a browser too; a skip is a failure
	$(PYTEST_ALL) $(TEST_ARGS)

test-thorough: setup-dev ## all tests, more variants and repetitions; for hours
	STUDIO_TEST_THOROUGH=1 $(PYTEST_ALL)

lint: setup-dev ## style and types
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

format: setup-dev ## what of the style can be mended by itself
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

benchmark: setup-dev ## everything beside its peers, which are installed too; for hours
	@$(PYTHON) -c "import sentencepiece, torch" 2>/dev/null || $(PIP_INSTALL) -r requirements-benchmark.txt
	$(PYTHON) -m benchmarks $(if $(TEXT),--text $(TEXT))

audit: setup-dev ## known vulnerabilities in what is installed; exit code 3 where nothing was checked
	$(PYTHON) .ci/audit.py

setup: $(VENV)/installed ## the environment alone, in .venv
setup-dev: $(VENV)/installed-dev ## the same with what the tests need

$(VENV)/bin/python:
	@python=$$(sh .ci/find-python) && echo "Making $(VENV) with $$python" && $$python -m venv $(VENV)

$(VENV)/installed: requirements.txt constraints.txt pyproject.toml | $(VENV)/bin/python
	@echo "Installing the packages (some minutes the first time)"
	$(PIP_INSTALL) -r requirements.txt
	$(PIP_INSTALL) --no-deps --editable .
	@touch $@

$(VENV)/installed-dev: requirements-dev.txt $(VENV)/installed
	$(PIP_INSTALL) -r requirements-dev.txt
	@touch $@

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

clean: ## remove the environment; the workspace stays
	rm -rf $(VENV)
