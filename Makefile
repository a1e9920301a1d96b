PYTHON ?= python3
# One process more than cores: tests wait for hubs, disks and JVMs about as long as they compute.
JOBS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
FUZZ_ARGS ?=
# Of the order of the tests, of the examples that `make explore` draws, and of the hashes of Python. Without one,
# `make explore` draws a seed and prints it; the other targets use 1, so that a commit has one verdict everywhere.
SEED ?=
# Files or directories: make test TESTS=tests/hub
TESTS ?=

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.lock --build-constraints constraints.lock
STAMP := $(VENV)/.stamp
PYTEST := $(BIN)/python -m pytest
# The tests of a file in one process, the longest files first (tests/scheduling.py). What a process that crashes wrote
# last is kept (tests/workers.py).
RUN := $(PYTEST) -q --dist loadgroup --no-loadscope-reorder --benchmark-disable -p tests.workers
# With fixed seeds, and a second look at what fails (tests/reruns.py).
FIXED := PYTHONHASHSEED=$(or $(SEED),1) $(RUN) -p tests.reruns --randomly-seed=$(or $(SEED),1)
# Where the tests write. Programs of Debian packages write to the disk, as they do for users.
IN_MEMORY = TMPDIR=$$(tools/find_scratch.sh)
# The client for S3 has threads of its own that end when they like: its tests share their process with no others.
S3_TESTS = $(shell grep -rl --include='test_*.py' 'pytest\.mark\.s3' tests)
# What the tests marked `system` run, each with the Debian package that brings it.
PROGRAMS := systemd-analyze:systemd zsh:zsh fish:fish buildah:buildah umoci:umoci bwrap:bubblewrap \
	chromium:chromium firefox-esr:firefox-esr rsyslogd:rsyslog logger:bsdutils journalctl:systemd ip:iproute2 nsenter:util-linux iptables:iptables openssl:openssl \
	/lib/systemd/systemd-journal-remote:systemd-journal-remote nginx:nginx-light \
	dbus-run-session:dbus-daemon gnome-keyring-daemon:gnome-keyring
# What exists of the places that hold Python; benchmarks may not be there yet.
CODE := $(wildcard src tests tools benchmarks examples)

# Without compiled modules each worker and each program that a test starts would compile all of them again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.PHONY: help demo dist release-check native native-deny check check-tests test explore test-python test-system test-slow style lint format bench crashes coverage conformance generated mutation java spark clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv: $(STAMP) ## create or refresh the virtual environment

$(BIN)/uv: constraints.lock
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "VEEN needs Python 3.11 or newer: make PYTHON=python3.x")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@awk '/^uv==/{found=1} found{print} found && !/\\$$/{exit}' constraints.lock > $(VENV)/uv.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(VENV)/uv.lock
	@touch $@

$(STAMP): $(BIN)/uv pyproject.toml constraints.lock
	@echo "installing veen[dev]"
	@$(UV) --compile-bytecode --editable '.[dev]'
	@touch $@

$(VENV)/.stamp-fuzz: $(STAMP)
	@echo "installing veen[fuzz]"
	@$(UV) --editable '.[fuzz]'
	@touch $@

$(VENV)/.stamp-spark: $(STAMP)
	@echo "installing veen[spark]; this downloads about half a gigabyte the first time"
	@$(UV) --compile-bytecode --editable '.[spark]'
	@touch $@

# The JVMs that tests start take their classes from it: half of the time of a start.
$(VENV)/.stamp-classes: $(VENV)/.stamp-spark
	@tools/ensure_java.sh >&2
	@echo "making the class-data archive for the JVMs of the tests"
	@rm -rf $(VENV)/spark-classes
	@VEEN_SPARK_ARCHIVE=$(CURDIR)/$(VENV)/spark-classes $(BIN)/python -c "from veen.lake.spark.startup import prepare; prepare()" \
		|| echo "there is none: the tests go on without"
	@touch $@

# Built where it runs, for the CPU it runs on (NATIVE_FLAGS= for any CPU of its architecture). Nothing needs it: without
# cargo or its registry everything goes on in Python, and the next make tries again.
NATIVE_FLAGS ?= -C target-cpu=native
native: $(STAMP) ## build the optional module in Rust, if cargo is here (docs/native.md)
	@VENV="$(VENV)" RUSTFLAGS="$(NATIVE_FLAGS)" tools/build_native.sh

# Licences, sources and versions of its crates (native/deny.toml). A tool for developers: nothing else needs it.
native-deny: ## check what the native module stands on, with cargo-deny
	@test -x $(VENV)/cargo/bin/cargo-deny || cargo install --quiet --locked --root $(VENV)/cargo --version "=0.18.9" cargo-deny
	@cd native && PATH="$(abspath $(VENV))/cargo/bin:$$PATH" cargo deny check bans licenses sources

# Without Java, and without the right to install one, what needs no Java is shown.
# Installed is what runs: the core, 5 s; and Spark, while the first part is played already. No development tools.
$(VENV)/.stamp-run: $(BIN)/uv pyproject.toml constraints.lock
	@echo "installing veen"
	@$(UV) --editable .
	@touch $@

SPARK_READY := $(VENV)/.stamp-run-spark
demo: $(VENV)/.stamp-run ## send, receipt, proof, tamper, detection, and the same log on Spark: the whole idea
	@if tools/ensure_java.sh >&2; then rm -f $(SPARK_READY) $(SPARK_READY).failed; \
		{ $(UV) --compile-bytecode -r pyproject.toml --extra spark && touch $(SPARK_READY) || touch $(SPARK_READY).failed; } & \
		$(BIN)/veen demo --spark --wait-for $(SPARK_READY); status=$$?; wait; \
		else echo "so the Spark part is left out: veen demo"; $(BIN)/veen demo; status=$$?; fi; \
		echo "veen is $(BIN)/veen; to have it as a command: . $(BIN)/activate"; exit $$status

# The same bytes for the same commit: the time of the commit stands in for the time of the build.
dist: $(BIN)/uv ## build wheel and sdist into dist/, reproducibly
	@rm -rf dist
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 315532800)} \
		$(BIN)/uv build --quiet --python $(BIN)/python --build-constraints constraints.lock --out-dir dist
	@cd dist && sha256sum *
	@echo "install it: pip install dist/*.whl, with extras: pip install \"$$(ls dist/*.whl)[spark]\""

$(VENV)/.stamp-release: $(STAMP)
	@$(UV) --editable '.[release]'
	@touch $@

# Installs the wheel into an empty environment of each Python on the machine, so it takes some minutes.
release-check: $(VENV)/.stamp-release ## build twice, install on every Python here, run the demo, write the SBOM
	@$(BIN)/python tools/release_check.py

# What an edit breaks first, in a minute: no Spark, no hub processes, fewer examples. .ci/run is the whole check.
# Types are checked beside the tests: mypy uses one core.
check: $(STAMP) $(VENV)/.stamp-spark ## the quick check while editing: style, core, storage, overlays, architecture
	@$(MAKE) --jobs=2 --output-sync=target style check-tests

check-tests: $(STAMP) $(VENV)/.stamp-spark
	@$(IN_MEMORY) $(FIXED) -n $(JOBS) --hypothesis-profile=quick -m "not slow and not system and not long" \
		tests/core tests/overlays tests/storage tests/test_architecture.py tests/test_words.py

# Tests that share a Spark session carry a group, and a group runs in one process.
test: $(STAMP) native java $(VENV)/.stamp-spark $(VENV)/.stamp-classes ## the fast tests, with fixed seeds (TESTS=tests/hub)
	@$(call beside_s3,$(IN_MEMORY) $(FIXED),)

# What it finds becomes a fixed example of its test. Nothing that fails is run again: each failure is a finding.
explore: $(STAMP) native java $(VENV)/.stamp-spark $(VENV)/.stamp-classes ## the fast tests with new seeds and more examples (SEED=7 repeats)
	@seed=$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')); export PYTHONHASHSEED=$$seed; \
		echo "seed $$seed; to repeat it: make explore SEED=$$seed"; \
		{ $(call beside_s3,$(IN_MEMORY) $(RUN),--hypothesis-profile=explore --hypothesis-seed=$$seed --randomly-seed=$$seed); }; status=$$?; \
		echo "seed $$seed; to repeat it: make explore SEED=$$seed"; exit $$status

# Runs all but the tests of S3, which run beside them and are shown at the end. $(1) is the command, $(2) its options.
define beside_s3
$(if $(TESTS),$(1) $(2) -n $(JOBS) -m "not slow and not system" $(TESTS),{ \
	$(1) $(2) -n 0 -m "s3 and not slow and not system" $(S3_TESTS) > $(VENV)/s3.log 2>&1 & s3=$$!; failed=0; \
	$(1) $(2) -n $(JOBS) -m "not slow and not system and not s3" || failed=$$?; \
	wait $$s3 || failed=$$?; echo "tests of S3:"; cat $(VENV)/s3.log; (exit $$failed); })
endef

# What the native module has a part in, once more without it: pure Python is what other machines run.
PYTHON_TESTS := tests/core/test_ed25519.py \
	$(addprefix tests/hub/test_,$(addsuffix .py,api http kill model overload rotation sequencer signals verifier)) \
	$(addprefix tests/storage/test_,$(addsuffix .py,fsck fsckpool store))
test-python: $(STAMP) ## hub and storage without the native module
	@if [ -f $(VENV)/.stamp-native ]; then \
		$(IN_MEMORY) VEEN_NATIVE=0 $(FIXED) -n $(JOBS) -m "not slow and not system" $(PYTHON_TESTS); \
		else echo "the native module is not built: make test has tested Python already"; fi

# Exit status 5 of pytest is "no tests ran": not a failure, but worth a line.
test-system: $(STAMP) $(VENV)/.stamp-spark ## the tests that run programs of Debian packages, which root gets installed
	@tools/ensure_packages.sh $(PROGRAMS)
	@$(FIXED) -n 0 -m "system and not slow" || { [ $$? -eq 5 ] && echo "no test is marked system"; }

test-slow: $(STAMP) native java $(VENV)/.stamp-spark $(VENV)/.stamp-classes $(VENV)/.stamp-fuzz ## the slow tests and every fuzz target (FUZZ_ARGS)
	@$(RUN) -n $(JOBS) --hypothesis-profile=thorough -m slow || { [ $$? -eq 5 ] && echo "no test is marked slow"; }
	@$(BIN)/python tests/fuzz/run.py $(FUZZ_ARGS)
	@VENV="$(VENV)" tools/fuzz_native.sh

style: $(STAMP) $(VENV)/.stamp-spark ## formatting, ruff, mypy, import layers, words
	@echo "ruff format"; $(BIN)/ruff format --check --quiet $(CODE) || { echo "run make format"; exit 1; }
	@echo "ruff check"; $(BIN)/ruff check --quiet $(CODE)
	@echo "mypy"; $(BIN)/mypy --no-error-summary $(CODE)
	@echo "import layers"; $(BIN)/lint-imports > $(VENV)/lint-imports.log 2>&1 || { cat $(VENV)/lint-imports.log; exit 1; }
	@echo "words"; $(BIN)/python tools/words.py

lint: style ## style and the conformance table
	@echo "conformance"; $(BIN)/python tools/conformance.py --check

format: $(STAMP) ## rewrite the code in the house format
	@$(BIN)/ruff check --quiet --fix-only $(CODE)
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/python tools/words.py --lower

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

# BASELINE=DIR: another checkout with its own .venv, whose hub is measured in the same rounds.
bench: $(STAMP) native $(VENV)/.stamp-bench java $(VENV)/.stamp-spark ## measure: core, hub, peers, growth, Spark (an hour)
	@$(PYTEST) benchmarks -q -p no:xdist -p no:randomly --timeout=0 --benchmark-only --benchmark-disable-gc --benchmark-warmup=on \
		--benchmark-min-rounds=10 --benchmark-sort=name --benchmark-columns=min,median,iqr,ops,rounds
	@$(BIN)/python -m benchmarks.hub $(if $(BASELINE),--baseline $(BASELINE))
	@$(BIN)/python -m benchmarks.cliffs
	@$(BIN)/python -m benchmarks.hostile
	@$(BIN)/python -m benchmarks.verify
	@$(BIN)/python -m benchmarks.client
	@$(BIN)/python -m benchmarks.overlays
	@$(BIN)/python -m benchmarks.growth 10000 1000000 10000000
	@$(BIN)/python -m benchmarks.labels 1000 1000000
	@$(BIN)/python -m benchmarks.requests
	@$(BIN)/python -m benchmarks.transports
	@$(BIN)/python -m benchmarks.replica
	@$(BIN)/python -m benchmarks.attest
	@$(BIN)/python -m benchmarks.recorder --events 100000
	@$(BIN)/python -m benchmarks.bridge --events 10000 100000 1000000 --openings
	@$(BIN)/python -m benchmarks.reconcile --events 1000000
	@$(BIN)/python -m benchmarks.spark
	@$(BIN)/python -m benchmarks.startup $(if $(BASELINE),--baseline $(BASELINE))

crashes: $(STAMP) ## a million simulated crashes of the store, resumable (an hour)
	@$(BIN)/python -m benchmarks.crashes

coverage: $(STAMP) java $(VENV)/.stamp-spark ## branch coverage of veen.core, at least 95 %
	@$(PYTEST) tests/core tests/cli tests/test_vectors.py -q -n $(JOBS) --benchmark-disable -m "not slow and not system" --cov=veen.core --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=95

conformance: $(STAMP) $(VENV)/.stamp-spark ## write docs/conformance.md from the req marks of the tests
	@$(BIN)/python tools/conformance.py

generated: $(STAMP) $(VENV)/.stamp-spark ## write everything that is made from the code: reference, specification, API, pictures, tables
	@$(BIN)/python tools/make_vectors.py
	@$(BIN)/python tools/history_vectors.py
	@$(BIN)/python tools/make_spec.py
	@$(BIN)/python tools/make_metrics.py
	@$(BIN)/python tools/make_pictures.py
	@$(BIN)/python tools/command_index.py
	@$(BIN)/python tools/json_shapes.py
	@$(BIN)/python tools/make_reference.py
	@$(BIN)/python -m veen.hub.api.openapi > docs/openapi.json
	@$(BIN)/python -m veen.products.queryservice.openapi > docs/query-openapi.json
	@$(BIN)/python tools/conformance.py
	@$(BIN)/python tools/compliance.py

mutation: $(STAMP) ## change the code in one place at a time and see whether a test notices (ARGS="--sample 200 view")
	@$(BIN)/python tools/mutation.py $(ARGS)

java: ## find or install a Java for Spark
	@tools/ensure_java.sh

spark: java $(VENV)/.stamp-spark ## everything the Spark pipeline needs

clean: ## remove what the targets above made
	@rm -rf $(VENV) native/target build dist mutants htmlcov .benchmarks .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache spark-warehouse metastore_db derby.log
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
