# `make` alone lists the targets. All targets but `clean` set up a fresh machine first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTENSIONS := $(VENV)/.extensions
EXTRAS := opencl,wasm,grpc,compositions,test,lint,bench,docs
# Tests start thousands of interpreters, which are to find compiled modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check bytecode extensions sources bench gpu docs docs-serve clean

help:
	@echo "make demo    run the flagship composition (digits), then text_topics and text_generation"
	@echo "make test    run every test that needs no GPU"
	@echo "make check   format, lint and type checks"
	@echo "make extensions  compile the modules on the path of a call to C, here in the checkout"
	@echo "make sources   remove what make extensions made"
	@echo "make bench   measure dispatcher, data paths and sandboxes on this machine"
	@echo "make gpu     test and measure on an NVIDIA device"
	@echo "make docs    build the documents as a site in site/; make docs-serve serves them"
	@echo "make setup   make $(VENV) with all dependencies"
	@echo "make clean   remove all files that make created"

setup: $(VENV)/.complete

# The path of the checkout in place of pip's finder of its modules: an interpreter starts 10 ms sooner, one that imports
# dandelion 1 ms. setuptools would write the same with editable_mode=compat, but is going to refuse that mode.
# uv installs in a tenth of pip's time; pip does it where uv cannot be had, or pip has an index of its own.
PIP := $(BIN)/python -m pip --disable-pip-version-check
UV := UV_LINK_MODE=copy UV_HTTP_TIMEOUT=15 $(BIN)/uv
define install
	@{ ! $(PIP) config list | grep -q '\.index-url=' && $(PIP) install --quiet uv && \
		$(UV) pip install --quiet --python $(BIN)/python --editable '.[$(1)]'; } 2>/dev/null || \
		$(PIP) install --quiet --editable '.[$(1)]'
	@for finder in $(VENV)/lib/python3*/site-packages/__editable__.dandelion_engine-*.pth; do \
		echo "$(CURDIR)" > "$$finder"; done
endef

$(VENV)/.complete: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: apt install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "venv is missing: apt install python3-venv"; exit 1; }
	@echo "Installing into $(VENV), once (up to a minute) ..."
	$(call install,$(EXTRAS))
	@touch $@

demo: setup
	@$(BIN)/python -m dandelion.compositions.digits.demo
	@echo; echo "text_topics: messages sorted by a transformer that was exported from PyTorch"
	@$(BIN)/python -m dandelion.compositions.text_topics.demo
	@echo; echo "text_generation: texts continued by a decoder that was exported from PyTorch"
	@$(BIN)/python -m dandelion.compositions.text_generation.demo

test: setup
	$(BIN)/python -m pytest -n 3 --dist worksteal

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy dandelion backends registry compositions bench

# What each worker of the tests would otherwise compile for itself.
bytecode: setup
	@$(BIN)/python -m compileall -q dandelion backends registry compositions bench
	@$(BIN)/python -m pytest --collect-only --quiet --quiet --quiet

# Python prefers extension modules to their sources: repeat this after changes, or make sources.
extensions: $(EXTENSIONS)

$(EXTENSIONS): setup.py $(shell find dandelion backends -name '*.py') | setup
	@$(MAKE) --no-print-directory sources
	@echo "Compiling the modules on the path of a call (a minute) ..."
	@$(BIN)/python setup.py --quiet build_ext --force --inplace
	@touch $@

sources:
	@find . -path ./$(VENV) -prune -o -name '*.so' -exec rm {} +
	@rm -f $(EXTENSIONS)

bench: extensions
	$(BIN)/python -m dandelion bench run dispatcher data sandbox

gpu: extensions
	$(call install,cuda)
	$(BIN)/python -m pytest -k 'cuda or gpu' tests/gpu tests/conformance/test_device.py \
		tests/test_gpu_engine.py
	$(BIN)/dandelion bench run gpu

docs: setup
	@$(BIN)/python -m docs.reference_pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "the site is in site/: open site/index.html, or run make docs-serve"

docs-serve: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

clean: sources
	rm -rf $(VENV) site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo
	find . -name __pycache__ -prune -exec rm -rf {} +
