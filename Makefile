# make demo: install what it needs into .venv, compare robust aggregation, clipping and item level.
# make test: install the rest, run the fast tests.
# make site: the documentation, to read in a browser.
# make mutants: plant each listed fault in a copy and see that the tests notice.
# make long: everything, before an issue is called resolved; commit the record that it writes, tests/long_run.json.
# Needs python3 (3.11 to 3.14), make, and a network with a package index. Every target may be run again.
#   make demo PYTHON=python3.12
#   make demo TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"   (no CUDA libraries)

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
SLOW ?= slow or containers
CONTAINERS ?= containers
# As new as pyproject.toml allows, and the tests that meet them. From PyPI torch brings gigabytes of CUDA libraries.
NEWEST ?= "flwr==1.42.*" "torch>=2.14,<2.16" "pandas==3.1.*"
NEWEST_TESTS ?= tests/apps tests/strategies/test_drop_in.py tests/simulations/engines/test_grids.py \
	tests/simulations/account/test_account_command.py tests/simulations/test_arrow_tables.py \
	tests/simulations/test_modules_as_objects.py tests/userdp/neural/test_private_gradients.py tests/test_coming_from.py
# Seeds the draw of what a change runs; anyone can repeat it.
CHANGE ?= $(shell git rev-parse HEAD)
# Processes that run tests: the machine's cores, four at most (each takes a gigabyte); JOBS=0 for one without xdist.
JOBS ?= logical
SPREAD := -n $(JOBS) --maxprocesses 4 --dist loadfile
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# uv, where it is there, takes a tenth of pip's time.
PIP := $(if $(shell command -v uv 2>/dev/null),uv pip install --python $(BIN)/python,$(BIN)/python -m pip install) --quiet
# Compiled modules and tests are kept, whatever the shell says: a dozen processes import them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo dist docs site install test test-slow test-change mutants mutate containers newest drill long lock lint format bench results clean

# Clients in Ray actors hold 10, 100 and 1,000 samples each; one seed and a short search keep it below a minute.
demo: $(STAMP)-demo
	$(BIN)/userdp compare simulations/configs/user-level.toml --seeds 1 --output comparisons --set engine.kind=ray \
		--set tuning.repeats=1 --set 'grid={"data.samples_per_user"=[10, 100, 1000]}'
	@echo
	@echo "The picture: $(CURDIR)/comparisons/user-level/report.html (error against samples of a user; lower is better)"
	@echo "Next: $(BIN)/userdp run simulations/configs/quickstart.toml trains one model; docs/train.md takes your table"

install: $(STAMP)

# torch first: whatever else is installed must not choose another torch.
$(STAMP)-demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v in {(3, 11), (3, 12), (3, 13), (3, 14)} else "userdp needs Python 3.11 to 3.14, %s is %d.%d: name another, such as make PYTHON=python3.12" % (sys.executable, *v))'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt $(TORCH)
	$(PIP) -c constraints.txt -e '.[fast,report]'
	touch $@

$(STAMP): $(STAMP)-demo
	$(PIP) -c constraints.txt -e '.[dev]'
	touch $@

test: $(STAMP)
	$(BIN)/python -m pytest -q $(SPREAD) -m "not slow and not containers" $(PYTEST_ARGS)

# What `make test` leaves out; SLOW="slow and not containers" without a container engine.
test-slow: $(STAMP)
	$(BIN)/python -m pytest -q $(SPREAD) -m "$(SLOW)" $(PYTEST_ARGS)

# The slow tests that can notice what changed since the last long run; of large products a covering draw.
test-change: $(STAMP)
	$(BIN)/python -m pytest -q $(SPREAD) -m "slow and not containers" --change "$(CHANGE)" $(PYTEST_ARGS) || \
		{ test $$? -eq 5 && echo "no slow test can notice what changed since the last long run"; }

# make mutants MUTANTS_ARGS="recentred --verbose": some of them, and which test noticed.
mutants: $(STAMP)
	$(BIN)/python tests/mutants/run.py $(MUTANTS_ARGS)

# Every small change of some files, and which of them their rooms' tests miss. make mutate FILES="userdp/sampling/base.py"
mutate: $(STAMP)
	$(PIP) mutmut
	$(BIN)/python tests/mutants/mutate.py $(FILES)

# Needs a container engine with Compose. CONTAINERS="containers and scenario" for the four that every change runs.
containers: $(STAMP)
	$(BIN)/python -m pytest -q -m "$(CONTAINERS)" $(PYTEST_ARGS)

# Fast tests, and apps on Flower's engines, in an environment beside the tested one.
newest:
	$(MAKE) install VENV=$(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet $(NEWEST)
	$(VENV)-newest/bin/python -m pytest -q $(SPREAD) -m "(not slow or long) and not containers" $(NEWEST_TESTS) \
		$(PYTEST_ARGS)

# Ten runs of a federation in containers and a fault each minute; writes the table of docs/drill.md. Half an hour.
drill: $(STAMP)
	$(BIN)/python -m pytest -s -m containers tests/simulations/drill $(PYTEST_ARGS)

# More than an hour on two cores. make long LONG="'slow tests' containers" for some of its stages.
long: $(STAMP)
	$(BIN)/python tests/long_run.py --python $(BIN)/python $(LONG)

# Every page that is made from the code. A test fails when one is stale.
docs: $(STAMP)
	$(BIN)/python docs/make.py

# The pages as a site, with a gallery of reports; a warning, such as a link that leads nowhere, is an error.
site: $(STAMP)-docs
	$(BIN)/python docs/make.py --gallery
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site: $(CURDIR)/build/site/index.html"

$(STAMP)-docs: $(STAMP)
	$(PIP) -c constraints.txt -e '.[docs]'
	touch $@

# What the index gets: built and checked; the README's lines run with the wheel in place of this tree.
dist: $(STAMP)
	rm -rf dist build/wheel
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m pip install --quiet --no-deps --target build/wheel dist/*.whl
	PYTHONPATH=$(CURDIR)/build/wheel $(BIN)/pytest -q -c /dev/null --rootdir=. -W ignore -m "not slow" \
		-k "readme_says or of_the_page" tests/test_readme.py

# requirements.lock, after pyproject.toml or constraints.txt has changed.
lock: $(STAMP)
	$(BIN)/python deploy/lock.py --torch-backend cpu

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Limits, and no kernel slower than before: make bench REGRESS_ARGS="--against v1.0".
bench: $(STAMP)
	$(BIN)/python benchmarks/round.py --check
	$(BIN)/python benchmarks/clipping.py --check
	$(BIN)/python benchmarks/population.py --check
	$(BIN)/python benchmarks/sparse.py --check
	$(BIN)/python benchmarks/embeddings.py --check
	$(BIN)/python benchmarks/secure.py --check
	$(BIN)/python benchmarks/adapters.py --check
	$(BIN)/python benchmarks/regress.py $(REGRESS_ARGS)

# The tables behind the pages' numbers that are not there yet; each goes on where it was. make results RESULTS="papers"
RESULTS ?= papers zero_tuning neural_table server_steps byzantine
results: $(STAMP)
	for table in $(RESULTS); do $(BIN)/python research/$$table.py || exit 1; done

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage
