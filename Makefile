# The two commands are `make demo` and `make test`; both set up everything they need. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest
# One worker per core: the tests wait for servers more than they compute.
WORKERS ?= 2
KEEP ?=
ARGS ?=

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# ---- set-up -------------------------------------------------------------------------------------------------------

$(VENV)/.ready: requirements.lock library/pyproject.toml operator/pyproject.toml dev/pyproject.toml dev/bootstrap.sh
	@dev/bootstrap.sh $(VENV)

.PHONY: setup
setup: $(VENV)/.ready ## The virtual environment, from requirements.lock

.PHONY: binaries
binaries: setup ## kube-apiserver, etcd, kube-controller-manager, helm: found, or built once (6 to 12 minutes) and cached
	@$(BIN)/python -m streamhold_dev binaries

.PHONY: lock
lock: setup ## Resolve the dependencies anew (ARGS=--upgrade) and write requirements.lock
	@$(BIN)/uv lock --quiet $(ARGS)
	@$(BIN)/uv export --quiet --frozen --all-packages --group dev --no-emit-workspace --no-header \
		--format requirements.txt --output-file requirements.lock

# ---- the product --------------------------------------------------------------------------------------------------

.PHONY: demo
demo: setup ## The main job end to end on this machine (KEEP=1 leaves it running; `make down` ends it)
	@$(BIN)/python -m streamhold_dev demo $(if $(KEEP),--keep)

.PHONY: down
down: setup ## End what `make demo KEEP=1` left running
	@$(BIN)/python -m streamhold_dev down

# ---- tests --------------------------------------------------------------------------------------------------------

.PHONY: test
test: binaries ## Every test but those marked slow (ARGS="-k name" to narrow)
	$(PYTEST) -n $(WORKERS) -m "not slow" $(ARGS)

.PHONY: test-all
test-all: binaries ## Every test, the slow ones too
	$(PYTEST) -n $(WORKERS) $(ARGS)

.PHONY: bench
bench: setup ## Measure the library beside raw redis-py, as ratios of one run
	@$(BIN)/python -m benchmarks $(ARGS)

# ---- quality ------------------------------------------------------------------------------------------------------

.PHONY: lint
lint: setup ## Format, lint, strict types, layers, generated files, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests/library/typing/api.py
	$(BIN)/lint-imports
	$(BIN)/python -m streamhold_operator.api.schema --check
	$(BIN)/codespell

.PHONY: format
format: setup ## Rewrite the files as `make lint` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: crds
crds: setup ## Write crds/, the chart's copies and docs/reference/resources.md from the operator's models
	$(BIN)/python -m streamhold_operator.api.schema
	$(BIN)/python -m streamhold_dev.reference

.PHONY: check
check: lint test ## What CI runs
