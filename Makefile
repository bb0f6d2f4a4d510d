# The commands that people type. Each installs what it needs into .venv; Python and make must be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test test-all mutants lint format clean

help:
	@echo "make demo      train a white-box transformer and show its layers"
	@echo "make test      run the tests (minutes)"
	@echo "make test-all  run all tests, also the slow ones"
	@echo "make mutants   put errors into the code one by one and see that tests find them (an hour)"
	@echo "make lint      check style, types and the direction of imports"
	@echo "make format    format the code"

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/crate demo

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-all: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal

mutants: $(READY)
	PYTHONPATH=src $(BIN)/python -m tests.mutants.run --write docs/mutants.md

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
