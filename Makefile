# Two commands do everything on a fresh Debian or Ubuntu machine with Python 3.10 or newer:
#   make demo      make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# As root, tests run where nothing but loopback can be reached: cloud SDKs try to leave even when told not to.
ISOLATED := sh scripts/isolated.sh
# Tests that run at once. Most of them wait for something most of the time.
WORKERS ?= 6
TESTS ?=
SEED ?= 1
COUNT ?= 100

# Some machines tell Python to keep no compiled files; the tests start thousands of processes, and each would compile all.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check bench lint docs mutants clean

help:
	@echo "make demo    set up, and run a job through two reclaims and two kill -9"
	@echo "make test    set up, and run the tests"
	@echo "make bench   set up, and print the figures"
	@echo "make check   set up, and run lint, unit and property tests"
	@echo "make lint    set up, and run ruff, mypy, import-linter and the check of words"
	@echo "make docs    write the generated references again"
	@echo "make mutants SEED=7 COUNT=100   break random lines, and list those that no test notices"

# The virtual environment; made anew when the project's dependencies change.
$(BIN)/stoker: pyproject.toml
	@sh scripts/need-venv.sh $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.test: $(BIN)/stoker constraints.txt
	@sh scripts/need-tools.sh
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

$(VENV)/.lint: $(BIN)/stoker constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lint]'
	@touch $@

# Compile the tests once after a checkout, and not once in each worker.
$(VENV)/.compiled: $(VENV)/.test $(wildcard tests/*/test_*.py)
	@if [ $(words $?) -gt 50 ]; then echo $(filter %.py,$?) | \
	  xargs -n 150 -P 2 $(ISOLATED) $(BIN)/python -m pytest -qq --collect-only >/dev/null 2>&1 || true; fi
	@touch $@

setup: $(BIN)/stoker

demo: $(BIN)/stoker
	@$(BIN)/python examples/demo.py

test: $(VENV)/.test $(if $(TESTS),,$(VENV)/.compiled)
	@sh scripts/need-machines.sh $(BIN)/python
	@sh scripts/need-sagemaker.sh $(BIN)/python
	@sh scripts/need-rie.sh $(BIN)/python
	@$(ISOLATED) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

bench: $(VENV)/.test
	@sh scripts/need-machines.sh $(BIN)/python
	@sh scripts/need-wheels.sh $(BIN)/python
	@sh scripts/need-rie.sh $(BIN)/python
	@$(ISOLATED) $(BIN)/python -m bench

lint: $(VENV)/.lint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/plain_words.py

# The quick loop: neither machines nor containers nor emulators, and no file that takes many seconds.
check: lint $(VENV)/.test
	@$(ISOLATED) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow" tests/unit tests/property

# Takes some minutes, after twenty to measure once which test runs which line.
mutants: $(VENV)/.test
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	@$(ISOLATED) $(BIN)/python scripts/mutants --seed $(SEED) --count $(COUNT)

docs: $(VENV)/.test
	@$(BIN)/python scripts/write_docs.py

clean:
	rm -rf $(VENV) bench/out .mypy_cache .ruff_cache .pytest_cache .hypothesis
