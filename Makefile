# Every developer task. Each target sets up what it needs in .venv, and is quick the second time.

PYTHON ?= python3
BIN := .venv/bin
# Newer than these, and the package is installed as it is now; C sources are compiled by that.
INSTALLED_FROM := pyproject.toml setup.py $(wildcard src/aboard/events/*.c src/aboard/events/*.h)

# Many tests wait for something, so that three at once suit two processors.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n > 3 ? n : 3)))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint format bench fuzz docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/installed ## train something small, and watch it on a live board
	@$(BIN)/aboard demo demo-logs || [ $$? -eq 130 ]

# Skipped tests are told, with the engine they miss; ABOARD_TESTS_MUST_RUN=1 makes them fail instead.
test: .venv/installed-test ## run the tests
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -r fEsR

lint: .venv/installed-lint .venv/installed-test ## check style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: .venv/installed-lint ## put the code into its usual form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/installed-test ## compare with TensorBoard's own loaders on this machine
	$(BIN)/python bench/run.py

fuzz: .venv/installed ## throw damaged files at the scanning core (needs clang)
	fuzz/run.sh

docs: .venv/installed-test ## write the CLI reference anew, and check the documentation
	$(BIN)/python tools/cli_reference.py
	$(BIN)/pytest tests/test_docs.py

clean: ## remove what the other targets made
	rm -rf .venv build demo-logs *.egg-info src/*.egg-info src/aboard/events/*.so

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

.venv/installed: $(INSTALLED_FROM) | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/installed-%: .venv/installed
	$(BIN)/python -m pip install --quiet --group $*
	@touch $@
