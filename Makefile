# `make quickstart`, `make world` and `make test` each make .venv, install what is needed, and run. They need Python 3.11–3.13 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart world test test-all faults lint docs cuda install install-dev

quickstart: $(VENV)/installed
	$(BIN)/rewardedit train quickstart

# Every model of the offline world, in order; about a day on two cores. Stopped, the same command goes on.
world: $(VENV)/installed
	set -e; for name in $$(cat rewardedit/shapes/recipes/order.txt); do \
	  run=runs/shapes-$$name; \
	  $(BIN)/rewardedit train shapes/$$name $$(test -f $$run/config.yaml && echo --resume); \
	done

# Two processes with one thread each: tiny models gain nothing from a second thread. Bytecode is kept, also where the
# environment says otherwise: many tests start processes.
test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

# All tests but those that need a GPU: also the slow ones, and those of the offline world's own models.
test-all: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu"

# Plants known faults in a copy, one by one, and shows that a test turns red for each; FAULTS="name name" for some of them.
faults: $(VENV)/installed-dev
	$(BIN)/python tests/faults/run.py $(FAULTS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright && $(BIN)/lint-imports

# Builds docs/ into site/; a broken link or a page without a place in the menu is an error.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# On a machine with CUDA, with the Python that it is given: make cuda PYTHON=python3 OUT=folder PARTS=tests,quickstart
cuda:
	$(PYTHON) benchmarks/cuda.py $(if $(OUT),--out "$(OUT)") $(if $(PARTS),--parts "$(PARTS)")

install: $(VENV)/installed
install-dev: $(VENV)/installed-dev

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "rewardedit needs Python 3.11 to 3.13; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# torch comes first and alone, so that nothing else draws in another build of it.
$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

# UniRL's client is tested against our server; it asks for Python 3.12 and a GPU's packages, its client needs neither.
$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install -q --no-deps --ignore-requires-python unirl==0.2.0
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	touch $@
