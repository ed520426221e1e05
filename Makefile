# make help lists the commands. PYTHON=... chooses the interpreter that the virtual environment is made with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input install --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help sweep test tracking-server bench bench-faults chaos clean
.DELETE_ON_ERROR:

help:
	@echo "make sweep   install into $(VENV) if needed, then run: python -m accum_sweeps +grid=adamw"
	@echo "make test    install if needed, then run every check and the whole test suite"
	@echo "make tracking-server   install if needed, then run MLflow on PostgreSQL for this machine (SERVER.md); Ctrl-C stops it"
	@echo "make bench   install if needed, then run the side-by-side timings of tests/benchmarks (bench-faults: the fault benchmark)"
	@echo "make chaos   an hour of faults on a SLURM and a tracking server of its own (as root, with Debian's packages)"
	@echo "make clean   delete $(VENV) and everything that tools have built (results in sweeps/ stay)"

# Stamps: an installation is repeated only when what it depends on has changed. An environment holds absolute paths, so
# one whose folder was moved is made anew.
ifneq ($(shell cat $(VENV)/.stamp-venv 2>/dev/null),$(CURDIR))
.PHONY: $(VENV)/.stamp-venv
endif

$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) --version 2>&1) || found="not there"; \
	  echo "accum_sweeps needs Python 3.11 or newer; $(PYTHON) is $$found. Name another one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "making $(VENV)"
	@if [ -e $@ ]; then $(PYTHON) -m venv --clear $(VENV); else $(PYTHON) -m venv $(VENV); fi
	@echo "$(CURDIR)" > $@

# torch comes first, alone: its pinned version decides the numbers, and nothing installed later may choose another.
$(VENV)/.stamp-run: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	@echo "installing accum_sweeps (minutes the first time)"
	@$(PIP_INSTALL) torch setuptools
	@$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-run
	@echo "installing what the tests need"
	@$(PIP_INSTALL) --no-build-isolation --editable ".[dev]"
	@touch $@

$(VENV)/.stamp-server: $(VENV)/.stamp-run
	@$(PIP_INSTALL) --no-build-isolation --editable ".[server]"
	@touch $@

$(VENV)/.stamp-bench: $(VENV)/.stamp-dev
	@echo "installing what the timings compare with"
	@$(PIP_INSTALL) --no-build-isolation --editable ".[bench]"
	@touch $@

sweep: $(VENV)/.stamp-run
	@$(BIN)/python -m accum_sweeps +grid=adamw

# What tests need of Debian: a browser, and the daemons that SLURM and tracking tests start on loopback, each in a folder of its own. Where
# packages can be installed, missing ones are; elsewhere those tests are left out, and say so at the end.
PACKAGES := chromium fonts-dejavu-core slurmctld slurmd slurm-client munge slurmdbd mariadb-server postgresql
PROGRAMS := chromium slurmctld slurmd sbatch munged slurmdbd mariadbd /usr/lib/postgresql/*/bin/initdb
INSTALL_PACKAGES := apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $(PACKAGES)

test: $(VENV)/.stamp-dev
	@PATH=$$PATH:/usr/sbin; missing=; for each in $(PROGRAMS); do command -v $$each >/dev/null || missing="$$missing $$each"; done; \
	  [ -z "$$missing" ] || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { \
	  echo "installing $(PACKAGES)"; ($(INSTALL_PACKAGES)) >/dev/null || echo "could not be installed: tests that need$$missing are left out" >&2; }
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -n 2 --dist loadgroup --cov

# FOLDER=... and PORT=... choose where the data are and where MLflow listens.
FOLDER ?= tracking
PORT ?= 5000
tracking-server: $(VENV)/.stamp-server
	@exec $(BIN)/python -m accum_sweeps.record.server --folder "$(FOLDER)" --port "$(PORT)"

bench: $(VENV)/.stamp-bench
	@set -e; for script in $(filter-out %/bench_faults.py,$(wildcard tests/benchmarks/bench_*.py)); do echo "== $$script"; $(BIN)/python "$$script"; done

bench-faults: $(VENV)/.stamp-dev
	@$(BIN)/python tests/benchmarks/bench_faults.py

chaos: $(VENV)/.stamp-dev
	@$(BIN)/python -m tests.chaos.campaign

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov
