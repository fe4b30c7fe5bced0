# Two commands do all the set-up on a bare machine: `make solve` and `make test`.
# TASK=examples/x.py chooses the task; ARGS="--effort standard" passes options on; PYTHON=python3.12 another Python.

PYTHON ?= python3
TASK ?= examples/softmax.py
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

# The tests start hundreds of Python processes: each would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: solve test test-all test-gpu lint environment check-tools clean

solve: $(VENV)/.run-ready
	$(BIN)/foundry agent solve $(TASK) $(ARGS)

# `slow` tests take long and rarely break; `make test-all` runs them too, and whatever else this machine can run.
test: MARKED := -m "not slow"
test test-all: $(VENV)/.test-ready
	@$(MAKE) --no-print-directory lint >$(VENV)/lint.log 2>&1 & lint=$$!; \
	$(BIN)/python -m pytest -n 2 $(MARKED); tests=$$?; \
	wait $$lint && echo "lint, format and types: clean" || { cat $(VENV)/lint.log; exit 1; }; exit $$tests

# Those marked `alone` measure the whole GPU: nothing else may use it meanwhile.
test-gpu: $(VENV)/.test-ready
	$(BIN)/python -m pytest -n 4 -m "gpu and not alone"
	$(BIN)/python -m pytest -m "gpu and alone"

lint: $(VENV)/.test-ready
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

environment: $(VENV)/.test-ready

check-tools:
	@command -v $(PYTHON) >/dev/null || { echo "Foundry needs Python 3.11 or newer: sudo apt-get install python3 python3-venv" >&2; exit 3; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Foundry needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=python3.11 ..." >&2; exit 3; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv module is missing: sudo apt-get install python3-venv" >&2; exit 3; }
	@command -v g++ >/dev/null || { echo "Foundry needs a C++ compiler: sudo apt-get install g++" >&2; exit 3; }

# A torch that $(PYTHON) can already import (a GPU user's CUDA build) is used as it is; otherwise the version pinned in
# constraints.txt is installed from whatever sources pip is set up with. The .pth file finds it also where $(PYTHON) is
# itself of a virtual environment, whose packages --system-site-packages does not show.
FIND_TORCH := import pathlib, torch; new = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 6); print(pathlib.Path(torch.__file__).parents[1] if new else "")
$(VENV)/bin/python: | check-tools
	@outer=$$($(PYTHON) -c '$(FIND_TORCH)' 2>/dev/null); \
	if [ -n "$$outer" ]; then \
	  echo "using the torch in $$outer"; \
	  $(PYTHON) -m venv --system-site-packages $(VENV); \
	  echo "$$outer" > $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/torch-of-the-user.pth; \
	  grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt; \
	else \
	  $(PYTHON) -m venv $(VENV); \
	  cp constraints.txt $(VENV)/constraints.txt; \
	  grep '^torch==' constraints.txt | xargs $(BIN)/python -m pip install --quiet --disable-pip-version-check; \
	fi

$(VENV)/.run-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e .
	@touch $@

$(VENV)/.test-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.run-ready

clean:
	rm -rf $(VENV) build dist *.egg-info
