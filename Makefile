# Headrace: `make up` runs it, `make test` tests it; each sets itself up from nothing.
#
#   make setup   create .venv with the hub, its command line, Spark and the development tools
#   make up      run the hub, its http door and the Spark pipeline
#   make quick   the tests that need no JVM and no browser and are neither slow nor thorough: under two minutes
#   make test    every test
#   make check   format, lint, types, layers, docs, and a second of fuzzing per codec
#   make fmt     format the code and redraw the generated pages, as `check` and `test` require
#   make walks   trace the walks of docs/architecture.md anew, and the figures of ADR 0013
#   make fuzz    fuzz every codec for FUZZ_SECONDS (5) each
#   make soak    mixed traffic with faults for SECONDS (600); then long repetitions of the tests, and fuzzing
#   make bench   every benchmark, with its ratios; bench/recorded.json and the docs' charts are written anew
#   make bench-check  compare key ratios with the recorded ones: a fifth worse fails
#   make spark-matrix  try source and sink on every 4.x release of PySpark, each in an environment of its own
#   make docs    build the documentation site into site/
#   make clean   remove everything made by the above
#
# PYTHON=/path/to/python names the interpreter (3.11 or newer); by default setup.sh looks for one.

PYTHON ?=
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
CLASSES := $(VENV)/spark.jsa
# One more than there are cores, as some tests wait; two more took as long, and each may start a JVM.
JOBS   ?= $(shell nproc | awk '{ print ($$1 < 4 ? $$1 : 4) + 1 }')
QUICK_JOBS ?= $(shell nproc | awk '{ print ($$1 < 4 ? $$1 : 4) * 2 }')
PYTEST  = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
FUZZ_SECONDS ?= 5
# Of `make soak`: how long the soak itself takes, and whether the tests are repeated after it.
SECONDS ?= 600
REPEATS ?= yes

# mkdocs-material prints advice about its successor on every build; it is not about our pages.
export NO_MKDOCS_2_WARNING := 1

# Some containers set this. Then every hub, command and Python worker that a test starts would compile our modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup up quick test check fmt walks soak bench bench-check clean docs fuzz spark-matrix

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

setup: $(READY)

# Nothing is done if the environment is newer than the files it is made from. Naming an interpreter of another
# version rebuilds it.
$(READY): pyproject.toml setup.sh
	@PYTHON='$(PYTHON)' sh ./setup.sh '$(VENV)'

ifneq ($(PYTHON),)
VERSION := -c 'import sys; print(*sys.version_info[:2])' 2>&1
ifneq ($(shell '$(PYTHON)' $(VERSION)),$(shell $(BIN)/python $(VERSION)))
.PHONY: $(READY)
endif
endif

up: setup
	@$(BIN)/headrace up

# Without JVMs there is memory for more at a time, and most of these tests wait now and then.
quick: setup
	$(PYTEST) -n $(QUICK_JOBS) -m 'not spark and not browser and not slow and not thorough'

test: setup $(CLASSES)
	@sh tools/browser.sh
	$(PYTEST)

# The classes that JVMs map in tests; see tests/jvm.py.
$(CLASSES): $(READY)
	@echo 'Archiving what Spark loads ...'
	@$(BIN)/python -m tests.jvm

# mkdocs --quiet would silence the warnings that --strict counts, and so pass everything.
check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict
	$(BIN)/python -m fuzz --seconds 1

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/diagrams.py

walks: setup
	$(BIN)/python tools/walks.py --figures

fuzz: setup
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS)

# First the soak itself, with its report in soak/; then every test with many more seeds and examples, each process
# started as users start it. `make soak REPEATS=` leaves the second part out.
soak: setup
	$(BIN)/python tools/soak.py --seconds $(SECONDS) --report soak
ifneq ($(REPEATS),)
	HEADRACE_SOAK=1 $(PYTEST) --timeout 7200
	$(BIN)/python -m fuzz --seconds 120
endif

bench: setup
	$(BIN)/python -m bench --json bench/recorded.json --charts docs/img

bench-check: setup
	$(BIN)/python -m bench backbone link cluster services --check bench/recorded.json

spark-matrix: setup
	$(BIN)/python tools/spark_matrix.py $(RELEASES)

docs: setup
	$(BIN)/mkdocs build --strict
	@echo "The site is in site/; $(BIN)/mkdocs serve shows it while you write."

clean:
	rm -rf $(VENV) .spark-matrix site dist soak .coverage .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
