# One folder, .venv, holds everything that is installed; `make clean` removes it.
PYTHON ?= python3
PROFILE ?= quick
BIN := .venv/bin
# Each module in one process; the slow ones begin (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --numprocesses
PROCESSORS := $(shell nproc)
# Nights wait much, unit tests do not.
MORE := $(shell expr $(PROCESSORS) + 2)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export DO_NOT_TRACK := 1
# The tests start many processes, which would all compile the modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help nightly test test-all tests tests-all unit lint format docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

nightly: .venv/installed ## Install if needed, then run a night over the built-in workloads (PROFILE=quick|standard|full)
	$(BIN)/nightquant nightly --profile $(PROFILE)

test: .venv/installed-dev ## Install if needed, then lint and run the tests that a change needs
	@$(MAKE) --no-print-directory --jobs=2 lint tests

test-all: .venv/installed-dev ## The same with the long tests, as CI runs them
	@$(MAKE) --no-print-directory --jobs=2 lint tests-all

tests: .venv/installed-dev
	$(PYTEST) $(MORE) -m "not long"

tests-all: .venv/installed-dev
	$(PYTEST) $(MORE)

unit: .venv/installed-dev ## Run the fast tests only
	$(PYTEST) $(PROCESSORS) -m "not slow and not server and not long"

lint: .venv/installed-dev ## Check style, types, import layers and dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/deptry flows tasks storage

format: .venv/installed-dev ## Rewrite the source in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/installed-dev ## Build the documentation as a site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean: ## Remove the virtual environment and every cache (the store stays)
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit("nightquant needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	@touch $@

# uv takes a fifth of pip's time for the same pins; where it cannot be had, pip does.
define install
	$(BIN)/python -m pip install --quiet uv \
	  && $(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --constraint constraints.txt --editable '$(1)' \
	  || $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '$(1)'
endef

.venv/installed: .venv/python pyproject.toml constraints.txt
	$(call install,.[all])
	@touch $@

.venv/installed-dev: .venv/python pyproject.toml constraints.txt
	$(call install,.[dev])
	@touch $@ .venv/installed
