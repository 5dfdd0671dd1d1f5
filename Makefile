# Two commands on a fresh machine: `make tune` and `make test`. Only Python 3.11 or 3.12 and make are needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out

.PHONY: tune test lint bench docs clean

tune: $(VENV)/.installed
	$(BIN)/tessel tune gpt2 --target cpu --devices 4 --micro-batches 16 --train --out $(OUT)/gpt2 --records sqlite:///$(OUT)/records.db

test: lint
	$(BIN)/coverage erase
	$(BIN)/pytest --cov --cov-report=term

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict --site-dir $(OUT)/site
	@echo "$(OUT)/site/index.html"

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(OUT) build dist *.egg-info .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v[:2] <= (3, 12) else "Python %d.%d found; 3.11 or 3.12 is needed: make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	$(BIN)/python -m tessel.search.cold_start
	touch $@

$(VENV)/.installed-test: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	$(BIN)/python -m tessel.search.cold_start
	touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m tessel.search.cold_start
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@
