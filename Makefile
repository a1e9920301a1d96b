PYTHON ?= python3
JOBS ?= auto
FUZZ_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt --build-constraints constraints.txt
STAMP := $(VENV)/.stamp
PYTEST := $(BIN)/python -m pytest
# What exists of the places that hold Python; benchmarks may not be there yet.
CODE := $(wildcard src tests tools benchmarks examples)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.PHONY: help demo test test-slow lint format bench coverage conformance mutation java spark clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv: $(STAMP) ## create or refresh the virtual environment

$(BIN)/uv: constraints.txt
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "VEEN needs Python 3.11 or newer: make PYTHON=python3.x")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@touch $@

$(STAMP): $(BIN)/uv pyproject.toml constraints.txt
	@echo "installing veen[dev]"
	@$(UV) --editable '.[dev]'
	@touch $@

$(VENV)/.stamp-fuzz: $(STAMP)
	@echo "installing veen[fuzz]"
	@$(UV) --editable '.[fuzz]'
	@touch $@

$(VENV)/.stamp-spark: $(STAMP)
	@echo "installing veen[spark]; this downloads about half a gigabyte the first time"
	@$(UV) --editable '.[spark]'
	@touch $@

# Without Java, and without the right to install one, what needs no Java is shown. By another name, so that `make -n`
# does not run it: make does run lines in which it sees $(MAKE) itself.
AGAIN = $(MAKE)
demo: $(STAMP) ## send, receipt, proof, tamper, detection, and the same log on Spark: the whole idea
	@if tools/ensure_java.sh >&2; then $(AGAIN) --silent $(VENV)/.stamp-spark && $(BIN)/veen demo --spark; \
		else echo "so the Spark part is left out: veen demo"; $(BIN)/veen demo; fi

# Tests that share a Spark session carry a group, and a group runs in one process.
test: $(STAMP) java $(VENV)/.stamp-spark ## the fast tests
	@$(PYTEST) -q -n $(JOBS) --dist loadgroup --benchmark-disable -m "not slow"

# Exit status 5 of pytest is "no tests ran": not a failure while nothing is marked slow.
test-slow: $(STAMP) java $(VENV)/.stamp-spark $(VENV)/.stamp-fuzz ## the slow tests and every fuzz target (FUZZ_ARGS)
	@$(PYTEST) -q -n $(JOBS) --dist loadgroup --benchmark-disable --hypothesis-profile=thorough -m slow || [ $$? -eq 5 ]
	@if [ -f tests/fuzz/run.py ]; then $(BIN)/python tests/fuzz/run.py $(FUZZ_ARGS); else echo "no fuzz targets yet"; fi

lint: $(STAMP) $(VENV)/.stamp-spark ## formatting, ruff, mypy, import layers, conformance table
	@echo "ruff format"; $(BIN)/ruff format --check --quiet $(CODE) || { echo "run make format"; exit 1; }
	@echo "ruff check"; $(BIN)/ruff check --quiet $(CODE)
	@echo "mypy"; $(BIN)/mypy --no-error-summary $(CODE)
	@echo "import layers"; $(BIN)/lint-imports > $(VENV)/lint-imports.log 2>&1 || { cat $(VENV)/lint-imports.log; exit 1; }
	@echo "conformance"; $(BIN)/python tools/conformance.py --check

format: $(STAMP) ## rewrite the code in the house format
	@$(BIN)/ruff check --quiet --fix-only $(CODE)
	@$(BIN)/ruff format $(CODE)

# The hub beside NATS (a package), Redis and PostgreSQL (Debian's, if they are or can be installed; no cluster is made);
# the largest directory takes 6 GB for a while.
$(VENV)/.stamp-bench: $(STAMP)
	@echo "installing veen[bench]"
	@$(UV) --editable '.[bench]'
	@command -v redis-server >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -y -qq redis-server >/dev/null; } || echo "no redis-server: it is left out"
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || { [ "$$(id -u)" = 0 ] \
		&& mkdir -p /etc/postgresql-common && echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Options::=--force-confold postgresql >/dev/null; } \
		|| echo "no PostgreSQL: it is left out"
	@touch $@

bench: $(STAMP) $(VENV)/.stamp-bench java $(VENV)/.stamp-spark ## measure: core, hub, peers, growth, Spark (an hour)
	@$(PYTEST) benchmarks -q -p no:xdist --benchmark-only --benchmark-disable-gc --benchmark-warmup=on \
		--benchmark-min-rounds=10 --benchmark-sort=name --benchmark-columns=min,median,iqr,ops,rounds
	@$(BIN)/python -m benchmarks.hub
	@$(BIN)/python -m benchmarks.client
	@$(BIN)/python -m benchmarks.overlays
	@$(BIN)/python -m benchmarks.growth 10000 1000000 10000000
	@$(BIN)/python -m benchmarks.spark

coverage: $(STAMP) java $(VENV)/.stamp-spark ## branch coverage of veen.core, at least 95 %
	@$(PYTEST) tests/core tests/cli tests/test_vectors.py -q -n $(JOBS) --benchmark-disable -m "not slow" --cov=veen.core --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=95

conformance: $(STAMP) $(VENV)/.stamp-spark ## write docs/conformance.md from the req marks of the tests
	@$(BIN)/python tools/conformance.py

mutation: $(STAMP) ## change the code of the core and see whether a test notices
	@$(BIN)/mutmut run
	@$(BIN)/mutmut results

java: ## find or install a Java for Spark
	@tools/ensure_java.sh

spark: java $(VENV)/.stamp-spark ## everything the Spark pipeline needs

clean: ## remove what the targets above made
	@rm -rf $(VENV) build dist mutants htmlcov .benchmarks .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache spark-warehouse metastore_db derby.log
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
