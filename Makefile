# Every target sets up what it needs. On a fresh machine with Python >= 3.10, `make demo` or `make test` is enough.
#
#   make test PYTHON=python3.12     another interpreter for the virtual environment
#   make gpu VENV= PYTHON=python3   no virtual environment: use an interpreter that already has torch and the rest

PYTHON ?= python3
VENV ?= .venv

ifeq ($(strip $(VENV)),)
RUN := PYTHONPATH=. $(PYTHON)
READY :=
HERMETIC := $(RUN) -c 'from hermetic.cli import main; main()'
else
RUN := $(VENV)/bin/python
READY := $(VENV)/.installed
HERMETIC := $(VENV)/bin/hermetic
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-browser check bench gpu docs

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: $(READY)  ## show a leak, seal it, train four arms and compare them
	@$(HERMETIC) demo

test: $(READY)  ## run the tests that need neither long nor a GPU
	$(RUN) -m pytest -m "not slow and not gpu" --numprocesses 2 --dist loadfile

test-slow: $(READY)  ## run the long tests; those of real length files only if HERMETIC_LENGTHS_DIR names their folder
	$(if $(HERMETIC_LENGTHS_DIR),,@echo "HERMETIC_LENGTHS_DIR is not set: the tests of real length files are left out")
	$(RUN) -m pytest -m "slow and not gpu and not browser and not stacks$(if $(HERMETIC_LENGTHS_DIR),, and not lengths)"

test-browser: $(READY)  ## look at every page in headless Chromium; fails where there is none
	@$(RUN) tests/browser.py
	$(RUN) -m pytest -m browser tests/test_report_browser.py

check: $(READY)  ## lint, check the format, check the types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: $(READY)  ## measure every part on the CPU, in short runs where there are long ones
	$(RUN) benchmarks/plan.py
	$(RUN) benchmarks/ranks.py
	$(RUN) benchmarks/attention.py
	$(RUN) benchmarks/attention_layout.py
	$(RUN) benchmarks/block_mask.py
	$(RUN) benchmarks/seal.py
	$(RUN) benchmarks/noise_floor.py
	$(RUN) benchmarks/audit.py
	$(RUN) benchmarks/collate.py
	$(RUN) benchmarks/loss.py --tokens 1024
	$(RUN) benchmarks/curves.py --steps 40
	$(RUN) benchmarks/data.py --documents 20000 --peer-documents 5000
	$(HERMETIC) compare --data near-duplicates --seeds 1 --steps 40

gpu: $(READY)  ## run the GPU tests and the attention benchmark, write gpu-results.json; fails without a CUDA device
	$(RUN) benchmarks/gpu.py

docs: $(READY)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

ifneq ($(READY),)
# torch goes first and by its pin alone: pip then takes the build that its index or wheel folder offers, and the
# packages that depend on torch find it installed and do not choose another one.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "hermetic needs Python >= 3.10, this is " + sys.version.split()[0] + ": make PYTHON=python3.11")'
	@echo "setting up $(VENV) (a few minutes, once)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip --quiet install "$$(grep -E '^torch==' constraints.txt)"
	@$(RUN) -m pip --quiet install -c constraints.txt -e '.[hf,data,dev]'
	@touch $@
endif
