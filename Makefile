# Headrace: `make up` runs it, `make test` tests it; each sets itself up from nothing.
#
#   make setup   create .venv with the hub, its command line, Spark and the development tools
#   make up      run the hub, its dashboard and the pipeline
#   make test    every test
#   make check   format, lint, types, layers, docs, and some seconds of fuzzing per codec
#   make fmt     put the code into the form `check` asks for
#   make soak    the long repeats of simulations and fuzzing
#   make bench   every benchmark, with its ratios
#   make clean   remove what the above made

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
JOBS   ?= 2
FUZZ_SECONDS ?= 5

.DEFAULT_GOAL := help
.PHONY: help setup up test check fmt soak bench clean docs fuzz

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

setup: $(READY)

# A new pyproject.toml or another interpreter makes the environment anew; otherwise set-up is one stat().
$(READY): pyproject.toml
	@PYTHON='$(PYTHON)' sh ./setup.sh '$(VENV)'

up: setup
	@$(BIN)/headrace up

test: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS)

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fuzz: setup
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS)

soak: setup
	HEADRACE_SOAK=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout 7200
	$(BIN)/python -m fuzz --seconds 120

bench: setup
	$(BIN)/python -m bench

docs: setup
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
