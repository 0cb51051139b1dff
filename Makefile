# Tempo: `make help` lists the targets.

PYTHON ?= python3
VENV ?= .venv
VENV_PYTHON := $(VENV)/bin/python

TEST_JOBS ?= 2
PYTEST_ARGS ?=
FUZZ_COUNT ?= 5000
FUZZ_SEED ?= 0

RUNTIME_STAMP := $(VENV)/.runtime-stamp
DEV_STAMP := $(VENV)/.dev-stamp

PIP_INSTALL := $(VENV_PYTHON) -m pip install -q -c constraints.txt
PYTEST := $(VENV_PYTHON) -m pytest

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Both stamps install into one environment, so nothing here may run side by side.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# $(call check_python,INTERPRETER): stop with a readable message if it is missing or too old.
define check_python
@command -v "$(1)" >/dev/null 2>&1 || { \
	echo "Tempo needs Python 3.11 or newer, but '$(1)' was not found." >&2; \
	echo "Name another interpreter, e.g.: make $(or $(MAKECMDGOALS),help) PYTHON=python3.12" >&2; \
	exit 1; }
@"$(1)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "Tempo needs Python 3.11 or newer, but '$(1)' is $$("$(1)" --version 2>&1)." >&2; \
	echo "Name another interpreter, e.g.: make $(or $(MAKECMDGOALS),help) PYTHON=python3.12" >&2; \
	echo "(remove $(VENV) first if it was made with the old one)" >&2; \
	exit 1; }
endef

.PHONY: help
help: ## List the targets
	@echo "Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) TEST_JOBS=$(TEST_JOBS) PYTEST_ARGS=$(PYTEST_ARGS)" \
		"FUZZ_COUNT=$(FUZZ_COUNT) FUZZ_SEED=$(FUZZ_SEED)"

.PHONY: demo
demo: $(RUNTIME_STAMP) ## Run the demonstration (examples/demo.py)
	$(VENV_PYTHON) examples/demo.py

.PHONY: test
test: lint ## Lint, then run the default tests (neither slow nor gpu)
	$(PYTEST) -n $(TEST_JOBS) $(PYTEST_ARGS)

.PHONY: test-all
test-all: lint ## Lint, then run all tests that need no GPU, the slow ones too
	$(PYTEST) -n $(TEST_JOBS) -m "not gpu" $(PYTEST_ARGS)

# pytest exits with 5 when it collected no test.
.PHONY: test-gpu
test-gpu: $(DEV_STAMP) ## Run only the tests that need a GPU
	@rc=0; $(PYTEST) -m gpu $(PYTEST_ARGS) || rc=$$?; \
	if [ $$rc -eq 5 ]; then \
		echo "test-gpu: no test is marked gpu, so there was nothing to run."; \
	else \
		exit $$rc; \
	fi

.PHONY: lint
lint: $(DEV_STAMP) ## Check style (ruff), formatting (ruff format) and types (mypy)
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy

.PHONY: format
format: $(DEV_STAMP) ## Rewrite the sources: ruff's safe fixes, then ruff format
	$(VENV_PYTHON) -m ruff check --fix-only .
	$(VENV_PYTHON) -m ruff format .

# common.py, and files whose name starts with an underscore, are helpers, not benchmarks.
.PHONY: bench
bench: $(DEV_STAMP) ## Run every benchmark in benchmarks/ with --quick
	@found=0; failed=""; \
	for file in benchmarks/[!_]*.py; do \
		[ -e "$$file" ] && [ "$$file" != benchmarks/common.py ] || continue; \
		found=1; \
		echo "== $$file --quick"; \
		$(VENV_PYTHON) "$$file" --quick || failed="$$failed $$file"; \
	done; \
	if [ $$found -eq 0 ]; then echo "bench: there is no benchmark in benchmarks/."; fi; \
	if [ -n "$$failed" ]; then echo "bench: failed:$$failed" >&2; exit 1; fi

.PHONY: fuzz
fuzz: $(DEV_STAMP) ## Check random programs (FUZZ_COUNT, FUZZ_SEED), and compile some of them
	$(VENV_PYTHON) -m tempo.testing.fuzz --count $(FUZZ_COUNT) --seed $(FUZZ_SEED)

.PHONY: fuzz-all
fuzz-all: $(DEV_STAMP) ## Check random programs, and compile all of them with both backends
	$(VENV_PYTHON) -m tempo.testing.fuzz --count $(FUZZ_COUNT) --seed $(FUZZ_SEED) --backends numpy,jax

.PHONY: clean
clean: ## Remove caches and build outputs (the virtual environment stays)
	rm -rf build dist out htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f $(RUNTIME_STAMP) $(DEV_STAMP)
	@for dir in src tests examples benchmarks; do \
		if [ -d $$dir ]; then find $$dir -type d -name __pycache__ -prune -exec rm -rf {} +; fi; \
	done

# The environment is made only where there is none; one made by hand is used as it is.
$(VENV_PYTHON):
	$(call check_python,$(PYTHON))
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot make virtual environments: it lacks venv or ensurepip" >&2; \
		echo "(on Debian and Ubuntu, install the package python3-venv)." >&2; \
		exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(RUNTIME_STAMP): pyproject.toml constraints.txt | $(VENV_PYTHON)
	$(call check_python,$(VENV_PYTHON))
	$(PIP_INSTALL) -e '.[report]'
	@touch $@

# The dev extra includes what the demo needs, so this satisfies the runtime stamp, too.
$(DEV_STAMP): pyproject.toml constraints.txt | $(VENV_PYTHON)
	$(call check_python,$(VENV_PYTHON))
	$(PIP_INSTALL) -e '.[dev]'
	@touch $(RUNTIME_STAMP) $@
