# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV ?= .venv
PY := $(VENV)/bin/python

EXTRAS := $(VENV)-extras
TORCH ?= torch==2.13.0  # a version that is tested; without one, pip takes the newest with several GB for GPUs

# Three processes keep two cores busy: a third of the time of a test with workers is spent waiting for them.
# Files are started in the order of tests/slow_files.txt, the longest first.
TEST_PROCESSES ?= 3
IN_PARALLEL := -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

.PHONY: demo test slowest test-extras test-python test-lowest smoke nightly faults chaos lint docs sbom clean

$(VENV)/.demo: pyproject.toml
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.demo
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

$(EXTRAS)/.ready: pyproject.toml
	python3 -m venv $(EXTRAS)
	$(EXTRAS)/bin/pip install --quiet --disable-pip-version-check $(TORCH)
	$(EXTRAS)/bin/pip install --quiet --disable-pip-version-check -e '.[dev,extras]'
	touch $@

demo: $(VENV)/.demo  ## k-means on HIGGS-shaped data: a team of threads under flexible barriers, beside another library
	$(VENV)/bin/flegel submit kmeans --data higgs --set k=10 --sync fsp
	@$(VENV)/bin/python -m bench.demo_beside

test: $(VENV)/.dev lint  ## everything that CI runs, three files of tests at a time
	$(PY) -m pytest $(IN_PARALLEL) --junitxml build/tests.xml --ignore tests/extras
	@echo "tests/extras was left out: make test-extras installs what it needs and runs it"

slowest:  ## the slowest 50 tests of the last `make test`
	@$(PY) -m tests.slowest

test-extras: $(EXTRAS)/.ready  ## the parts that need large libraries, with those libraries, in an environment of their own
	$(EXTRAS)/bin/python -m pytest $(IN_PARALLEL) tests/extras

FAST := tests/test_job.py tests/sync tests/cluster/test_decoder.py tests/cluster/test_master_machine.py \
	tests/algorithms/test_kmeans.py

test-python:  ## a fast part of the tests under another Python: make test-python PYTHON=python3.13
	$(PYTHON) -m venv build/python-$(notdir $(PYTHON))
	build/python-$(notdir $(PYTHON))/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
	build/python-$(notdir $(PYTHON))/bin/python -m pytest -p no:cacheprovider $(FAST)

test-lowest:  ## the same with the lowest versions of all dependencies that pyproject.toml allows
	python3 -m venv build/lowest
	python3 packaging/lowest.py > build/lowest.txt
	build/lowest/bin/pip install --quiet --disable-pip-version-check -r build/lowest.txt pytest hypothesis psutil fsspec
	build/lowest/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	build/lowest/bin/python -m pytest -p no:cacheprovider $(FAST)

smoke: $(VENV)/.dev  ## one small case of every figure, two minutes of processor time (seven where others use both cores, too); fails where one is not complete
	$(PY) -m bench.run_suite run all --scale smoke --out runs/smoke

nightly: $(VENV)/.dev  ## the conservation laws at length: 10,000 stories of 50 steps, about ten minutes of a core; slow tests; the gauntlet
	FLEGEL_PROFILE=nightly $(PY) -m pytest tests/balance/test_conservation.py
	$(PY) -m pytest -m slow
	$(PY) -m bench.gauntlet --jobs 2 --workers rotate --fresh

faults: $(VENV)/.dev  ## two thousand simulated jobs under faults, 4.5 minutes of processor time, so 2.3 on two idle cores; all 245 freezes among them
	$(PY) -m bench.chaos.simulate --seeds 250

chaos: $(VENV)/.dev  ## every fault at length, about an hour; may be interrupted and goes on where it was
	$(PY) -m bench.chaos.run --out chaos

docs: $(VENV)/.dev  ## the site, in build/docs; fails on every warning
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[docs]'
	$(PY) -m sphinx -W --keep-going -q -b html docs build/docs

sbom: $(VENV)/.demo  ## what an installation holds, as CycloneDX on standard output
	@$(PY) packaging/sbom.py

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) $(EXTRAS) build dist *.egg-info runs .pytest_cache .mypy_cache .ruff_cache
