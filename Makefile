# `make` alone prints the targets. Only Python 3.11-3.14 and make are required: the first target that is called
# installs everything into .venv; later calls reinstall only if pyproject.toml or constraints.txt has changed.
#
#   PYTHON     the Python used to create .venv, e.g. PYTHON=python3.13
#   VENV       the folder of the environment, to keep one for each Python: PYTHON=python3.13 VENV=.venv-3.13
#   PIP_ARGS   further arguments for pip. On Linux, PyPI's torch is the CUDA build, which also runs without a GPU but is
#              gigabytes larger than the CPU build. For the CPU build, use in the first call:
#              make bench PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#   ARGS       further arguments for `make bench` and `make reproduce` (overrides) and `make test` (for pytest, e.g.
#              ARGS="-k tent")

PYTHON   ?= python3
PIP_ARGS ?=
ARGS     ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

# METHODS="source tent" becomes methods=[source,tent]; commas work as well.
comma := ,
empty :=
space := $(empty) $(empty)
list = [$(subst $(space),$(comma),$(strip $(subst $(comma),$(space),$(1))))]

# Only given values are passed on: the program has the defaults.
WORDS = $(if $(LAUNCHER),'launcher=$(LAUNCHER)') $(if $(DATASET),'dataset=$(DATASET)') \
        $(if $(METHODS),'methods=$(call list,$(METHODS))') \
        $(if $(SEEDS),'seeds=$(call list,$(SEEDS))')

# Data sets with a class per pixel need mmsegmentation, which is installed when one of them is used.
SEG := $(if $(filter streets_c acdc cityscapes segmentation_folder,$(DATASET)),$(VENV)/.seg)
# Ray is a download of 70 MB, which only LAUNCHER=ray needs.
RAY := $(if $(filter ray,$(LAUNCHER)),$(VENV)/.ray)
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --no-input $(PIP_ARGS) -c constraints.txt

# One test process per processor, each with one thread; the tests of a file share fixtures and stay together.
PARALLEL := -n auto --maxprocesses 8 --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help bench reproduce test test-all seg lint docs pictures format wheel clean

help: ## Print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

bench: $(STAMP) $(SEG) $(RAY) ## Compare methods: SETTING=cdc DATASET=shapes_c METHODS="source tent dpcore" SEEDS="0 1 2" ARGS="dataset.severity=3"
	@$(BIN)/tta-bench bench $(if $(SETTING),'setting=$(SETTING)') $(WORDS) $(ARGS)

reproduce: $(STAMP) $(SEG) $(RAY) ## Run a table of the paper: TABLE=components DATASET=shapes_c SEEDS="0 1" (TABLE=list for all)
	@$(BIN)/tta-bench reproduce $(or $(TABLE),list) $(if $(TABLE),$(WORDS) $(ARGS))

test: $(STAMP) ## Run the tests (minutes; the slow ones: make test-all)
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-all: $(STAMP) ## Run the tests and the slow ones
	@$(BIN)/python -m pytest $(PARALLEL) -m "not gpu" $(ARGS)

seg: $(VENV)/.seg ## Install the packages for segmentation (bench and reproduce do so if DATASET needs them)

lint: $(STAMP) ## Check style, types and imports: ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(STAMP) ## Write docs/methods.md and what `list` shows from the classes
	@$(BIN)/python -m tta_bench.cli.options
	@$(BIN)/tta-bench list methods --markdown > docs/methods.md

pictures: $(STAMP) ## Regenerate the pictures of README.md (minutes)
	@$(BIN)/python -m benchmarks.pictures

format: $(STAMP) ## Rewrite the code in the project's style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

wheel: $(STAMP) ## Build dist/tta_bench-*.whl
	@$(BIN)/python -m build --wheel --no-isolation

clean: ## Remove caches and build outputs (runs/ and .venv stay)
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find tta_bench tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment for users and developers: the dev tools are small compared to torch, and `make test` thus tests the
# same packages that `make bench` uses. The stamp is written last, so that a failed installation is repeated.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no $(PYTHON): install Python 3.11, 3.12, 3.13 or 3.14, or set for example PYTHON=python3.13." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || { \
	  echo "tta_bench needs Python 3.11, 3.12, 3.13 or 3.14, but $(PYTHON) is `$(PYTHON) -V 2>&1`: set for example" \
	    "PYTHON=python3.13." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the module venv: install it (on Debian and Ubuntu, the package python3-venv)." >&2; exit 1; }
	@echo "Installing tta_bench and its dependencies into $(VENV); the first time this takes several minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@

$(VENV)/.seg: $(STAMP)
	@echo "Installing mmsegmentation."
	@$(PIP_INSTALL) -e '.[dev,seg]'
	@touch $@

$(VENV)/.ray: $(STAMP)
	@echo "Installing Ray."
	@$(PIP_INSTALL) -e '.[dev,ray]'
	@touch $@
