# Two commands on a fresh machine: `make tune` and `make test`. Only Python 3.11 to 3.14 and make are needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out
# A checkout of torchtitan's main, which `make frameworks` and `frameworks-newest` train by, too.
TORCHTITAN ?=
TITAN_MAIN := $(if $(TORCHTITAN),--torchtitan $(TORCHTITAN))
# Releases whose configuration and model tests ask, each in a folder of its own: a whole installation brings 300 MB
# and another fsspec than the pinned ones. Beside each is what it imports for that.
TITANS := 0.2.2 0.3.0
TITAN_NEEDS := docstring-parser==0.18.0 spmd_types==0.2.3 torchdata==0.11.0 typeguard==4.6.1 tyro==1.0.17
# What has torch with CUDA, TVM and the rest of what this project needs: `make gpu-report` installs nothing.
GPU_PYTHON ?= python3
# Wheels of what that Python lacks, in a folder; put into a folder of their own before the report.
WHEELS ?=

# What the compiled searches import: with it they are compiled while pip installs the rest.
SEARCHES := numba numpy scipy networkx msgspec sqlalchemy

# Installs `$(2)`, this project with an extra or without; pip's further options in `$(1)`.
define install_all
$(BIN)/python -m pip install --quiet $(1) --constraint constraints.txt $(SEARCHES)
$(BIN)/python -m tessel.search.jit.cache >/dev/null 2>&1 & \
	$(BIN)/python -m pip install --quiet $(1) --constraint constraints.txt --editable $(2) || exit 1; wait
$(BIN)/python -m tessel.search.jit.cache
endef

.PHONY: install tune test pytest test-slow coverage lint mutate bench frameworks frameworks-newest gpu-report gpu-day docs schemas clean

install: $(VENV)/.installed
	@echo 'installed; now: . $(VENV)/bin/activate'

tune: $(VENV)/.installed
	$(BIN)/tessel tune gpt2 --target cpu --devices 4 --micro-batches 16 --train --placement mshape --link 10GB/s --hop-us 5 --memory 480MiB --backends tvm,blas --work 4 --jobs 2 --out $(OUT)/gpt2 --records sqlite:///$(OUT)/records.db

# Files are tested whole, so that what a file's tests share is made once, and in the order of tests/conftest.py.
# One more than cores, since many tests wait for processes of their own.
WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Both at once: types are checked on one core.
test: $(VENV)/.installed-test
	$(MAKE) --no-print-directory --jobs=2 lint pytest

pytest: $(VENV)/.installed-test
	$(PYTEST)

# What `make test` leaves a sample of: all kills, faults and pairs of options, and models of others; hours.
test-slow: $(VENV)/.installed-test
	$(PYTEST) -m slow

coverage: $(VENV)/.installed-test
	$(BIN)/coverage erase
	$(PYTEST) --cov --cov-report=term

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Small changes of the validator, bounds, records, memory, gradients and shards, each to be noticed by a test; half an hour.
mutate: $(VENV)/.installed-test
	$(BIN)/python .ci/mutate.py

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict --site-dir $(OUT)/site
	@echo "$(OUT)/site/index.html"

schemas: $(VENV)/.installed-test
	$(BIN)/python .ci/write_schemas.py

# Exported plans, trained for three steps by pinned releases of the frameworks; minutes, the installation longer.
frameworks: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.frameworks --venv $(OUT)/frameworks --report benchmarks/reports/frameworks_2026-11.md $(TITAN_MAIN)

# The same plans in whatever is newest; what became of which plan another thing than in the report heads the new one.
frameworks-newest: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.frameworks --venv $(OUT)/frameworks --newest --against benchmarks/reports/frameworks_2026-11.md --report benchmarks/reports/frameworks_newest_2026-11.md $(TITAN_MAIN)

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks

# What one GPU allows, measured on its own machine; fetches nothing, and goes on where it stopped.
gpu-report:
	if [ -n "$(WHEELS)" ]; then $(GPU_PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target $(OUT)/gpu-site $(WHEELS)/*.whl; fi
	PYTHONPATH=$(OUT)/gpu-site:. $(GPU_PYTHON) -m benchmarks.gpu_report --target cuda --sizes full --out $(OUT)/gpu-report

# The next four minutes of whole jobs on a GPU, for whoever has one for a short time; call it again to go on.
gpu-day:
	if [ -n "$(ARCHIVES)$(WHEELS)" ] && [ ! -d $(OUT)/gpu-site ]; then \
		wheels="$(if $(ARCHIVES),$(OUT)/gpu-wheels,$(WHEELS))"; rm -rf $(OUT)/gpu-site.partial; \
		$(if $(ARCHIVES),$(GPU_PYTHON) -m benchmarks.gpu_day.archives unpack $(ARCHIVES) $(OUT)/gpu-wheels &&) \
		$(GPU_PYTHON) -m pip install --quiet --no-index --no-deps --target $(OUT)/gpu-site.partial $$wheels/*.whl && \
		mv $(OUT)/gpu-site.partial $(OUT)/gpu-site; fi
	PYTHONPATH=$(OUT)/gpu-site:.:$$PYTHONPATH $(GPU_PYTHON) -m benchmarks.gpu_day --out $(OUT)/gpu-day $(GPU_DAY)

clean:
	rm -rf $(VENV) $(OUT) build dist *.egg-info .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v[:2] <= (3, 14) else "Python %d.%d found; 3.11 to 3.14 is needed: make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	# Byte code is written for what is imported, when it is, and not for all that is installed: 100 MB less.
	$(call install_all,--no-compile,.)
	touch $@

$(VENV)/.installed-test: $(BIN)/python pyproject.toml constraints.txt
	$(call install_all,,'.[test]')
	for release in $(TITANS); do $(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/torchtitan-$$release torchtitan==$$release $(TITAN_NEEDS) || exit 1; done
	touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: $(BIN)/python pyproject.toml constraints.txt
	$(call install_all,,'.[bench]')
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@
