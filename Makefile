# One command each; `make help` lists them. All need bash only; what else they need, they install.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
SOURCE ?=
PYTEST_ARGS ?=

.PHONY: help install demo test test-rig test-kvm test-firecracker check lint unit slow faults bench lock openapi clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## Install system packages, .venv and the package
	@scripts/bootstrap

demo: install ## Run the main job on this repository, or on SOURCE=folder
	@$(BIN)/torpor demo $(SOURCE)

test: ## Run the whole test suite (real machines included); PYTEST_ARGS=... for pytest
	@scripts/bootstrap --dev
	@# two processes, a file in one, in the order of tests/machines.py; each boots its machines in a home of its own
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-rig: ## Run the suite of drivers that need KVM in emulated hosts that have it (14 minutes on 2 idle cores)
	@scripts/bootstrap --dev
	@$(BIN)/python -m tests.rig test --limit 1500 $(RIG_ARGS)

test-kvm: ## Run the same suite on this host, which needs KVM
	@scripts/bootstrap --dev
	@$(BIN)/python -m pytest -m kvm tests/kvm $(PYTEST_ARGS)

test-firecracker: ## Run it, as root, with Firecracker (which torpor host setup installs) and with QEMU
	@TORPOR_TEST_DRIVERS=firecracker,qemu $(MAKE) --no-print-directory test-kvm

check: lint unit ## Run format, lint, import contracts, types, spelling and unit tests

lint: ## Run all checks that read the code only
	@scripts/bootstrap --dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/mypy
	@$(BIN)/codespell

unit: ## Run the unit tests
	@scripts/bootstrap --dev
	@$(BIN)/python -m pytest tests/unit $(PYTEST_ARGS)

slow: ## Run the tests that are left out of `make test` because they take minutes each (real machines)
	@scripts/bootstrap --dev
	@$(BIN)/python -m pytest -m slow tests/vm $(PYTEST_ARGS)

faults: ## Try all of the fault-injection suite, each fault alone, with its control (real machines)
	@scripts/bootstrap --dev
	@$(BIN)/python -m pytest -m slow tests/vm/test_faults.py $(PYTEST_ARGS)

bench: install ## Measure against the bare floor
	@$(BIN)/torpor bench $(BENCH_ARGS)

openapi: ## Write docs/reference/openapi.json anew from the code
	@$(BIN)/python -m torpor.server.openapi >docs/reference/openapi.json

lock: ## Pin the newest dependencies that work in constraints.txt
	@scripts/lock

clean: ## Remove what was built here; templates and sandboxes in TORPOR_HOME stay
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache test-results
