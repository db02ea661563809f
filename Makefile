# Needs python3 (3.11 to 3.14), git and make, nothing else. Everything is installed into .venv, from the locks.
#
#   make serve [SERVE_ARGS="scripted --port 9000"]    serve a model
#   make test  [TEST_ARGS="tests/parsers -x"]         the tests, in a few minutes
#   make test-long                                    property tests with a longer search, and slow tests
#   make test-clients                                 real clients (LangChain, Pydantic AI, lm-eval, ...) against a server (installs them)
#   make test-vllm                                    vLLM's scheduler over the embedded model, and against the simulator's (installs it, and torch)
#   make test-ray                                     Ray clusters on this machine, with replicas (installs Ray)
#   make check                                        lint, format, types, layers
#   make docs                                         build/site: the documentation as a site (installs mkdocs-material)
#   make bench                                        benchmarks
#   make soak [SOAK_MINUTES=20]                       mixed requests against a server process; memory, descriptors, loop lag
#   make coverage                                     the tests with code coverage (installs coverage and pytest-cov)
#   make sbom                                         dist/dragoman.cdx.json: the server's bill of materials, as CycloneDX
#   make lock  [LOCK_ARGS=--upgrade]                  update the lock files (needs uv)
#   make clean                                        remove build outputs and caches
#
# PYTHON=python3.13 chooses another Python for a new .venv, TEST_WORKERS=0 one process for all tests (`-s`, `--pdb`).

PYTHON ?= python3
VENV ?= .venv
UV ?= uv
SERVE_ARGS ?=
TEST_ARGS ?=
TEST_WORKERS ?= auto
LONG_PROFILE ?= long
RAY_MARKS ?= ray and not long
BENCH_ARGS ?=
SOAK_MINUTES ?= 20
SOAK_ARGS ?=
LOCK_ARGS ?=

BIN := $(VENV)/bin
PARALLEL := -n $(TEST_WORKERS) --dist worksteal
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --no-header $(LOCK_ARGS)
INPUT := pyproject.toml requirements/build.in
# The extras that the tests use.
TESTED := --extra postgres --extra redis --extra kv-events --extra plots

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help serve test test-long test-clients test-vllm test-ray check docs bench soak coverage sbom lock clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

serve: $(VENV)/.serve
	@exec $(BIN)/dragoman serve $(SERVE_ARGS)

test: $(VENV)/.test
	$(BIN)/pytest $(PARALLEL) -m "not torch and not mlx and not vllm and not llamacpp and not ray and not clients and not long" $(TEST_ARGS)

test-long: $(VENV)/.test
	$(BIN)/pytest $(PARALLEL) -m "(hypothesis or long) and not torch and not mlx and not vllm and not llamacpp and not ray and not clients" --hypothesis-profile=$(LONG_PROFILE) $(TEST_ARGS)

# The lock constrains the installation: packages that conflict with it are not installed.
test-clients: $(VENV)/.check $(VENV)/openapi/.made
	@sed -n '/^[A-Za-z0-9]/s/ \\$$//p' requirements/check.lock > $(VENV)/constraints.txt
	@grep -E '^(torch|trl|lm-eval|langchain|langchain-openai|langchain-anthropic|pydantic-ai-slim)[=[]' requirements/clients.txt \
		| $(PIP) install --constraint $(VENV)/constraints.txt -r /dev/stdin
	@grep -E '^(langchain-ollama|litellm|ollama|openapi-spec-validator|schemathesis)=' requirements/clients.txt \
		| $(PIP) install --constraint $(VENV)/constraints.txt -r /dev/stdin
	-@npm install --prefix tests/clients/node --no-package-lock --no-audit --no-fund
	$(BIN)/pytest -m clients $(TEST_ARGS)

# A separate environment, as the generator of clients needs another version of typer than the lock's.
$(VENV)/openapi/.made: requirements/clients.txt $(VENV)/.made
	@$(BIN)/python -m venv $(VENV)/openapi
	@grep '^openapi-python-client=' $< | $(VENV)/openapi/bin/python -m pip --disable-pip-version-check --quiet install -r /dev/stdin
	@touch $@

# A separate environment on top of the project's, as vLLM pins other versions than the locks do. ResourceWarnings are
# ignored because vLLM leaves sockets to the garbage collector.
test-vllm: $(VENV)/vllm/.made
	$(VENV)/vllm/bin/python -m pytest $(PARALLEL) -m vllm -W "ignore:Unclosed context:ResourceWarning" $(TEST_ARGS)

$(VENV)/vllm/.made: requirements/vllm.txt $(VENV)/.check
	@sed -n '/^[A-Za-z0-9]/s/ \\$$//p' requirements/check.lock > $(VENV)/constraints.txt
	@$(PIP) install --constraint $(VENV)/constraints.txt torch==2.13.0 transformers==5.23.0
	@$(BIN)/python -m venv $(VENV)/vllm
	@$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
		> $$($(VENV)/vllm/bin/python -c 'import site; print(site.getsitepackages()[0])')/beneath.pth
	@$(VENV)/vllm/bin/python -m pip --disable-pip-version-check --quiet install --no-deps -r $<
	@touch $@

# A separate environment on top of the project's, so that Ray is not there when the other tests run.
test-ray: $(VENV)/ray/.made
	$(VENV)/ray/bin/python -m pytest -m "$(RAY_MARKS)" $(TEST_ARGS)

$(VENV)/ray/.made: requirements/ray.txt $(VENV)/.check
	@$(BIN)/python -m venv $(VENV)/ray
	@$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
		> $$($(VENV)/ray/bin/python -c 'import site; print(site.getsitepackages()[0])')/beneath.pth
	@$(VENV)/ray/bin/python -m pip --disable-pip-version-check --quiet install --no-deps -r $<
	@touch $@

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
	$(BIN)/python benchmarks/overhead.py --json build/overhead.json --plot build/overhead.svg $(BENCH_ARGS)

soak: $(VENV)/.test
	$(BIN)/python benchmarks/soak.py --minutes $(SOAK_MINUTES) $(SOAK_ARGS)

# The lock constrains the installation. Servers that tests start as separate processes are not measured.
coverage: $(VENV)/.test
	@sed -n '/^[A-Za-z0-9]/s/ \\$$//p' requirements/check.lock > $(VENV)/constraints.txt
	@$(PIP) install --constraint $(VENV)/constraints.txt coverage==7.17.3 pytest-cov==7.1.0
	$(BIN)/pytest $(PARALLEL) -m "not torch and not mlx and not vllm and not llamacpp and not ray and not clients and not long" \
		--cov --cov-report=term --cov-report=html $(TEST_ARGS)

sbom:
	@mkdir -p dist
	@$(PYTHON) requirements/sbom.py requirements/serve.lock > dist/dragoman.cdx.json
	@echo dist/dragoman.cdx.json

lock:
	$(COMPILE) $(INPUT) $(TESTED) --group test --group check -o requirements/check.lock
	$(COMPILE) $(INPUT) $(TESTED) --group test -c requirements/check.lock -o requirements/test.lock
	$(COMPILE) $(INPUT) -c requirements/check.lock -o requirements/serve.lock
	$(COMPILE) --group docs -c requirements/check.lock -o requirements/docs.lock

clean:
	rm -rf build dist .coverage .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks training -name __pycache__ -type d -prune -exec rm -rf {} +

# Each lock includes the previous one in the same versions, so installing the later one is enough.

$(VENV)/.serve: requirements/serve.lock
	$(INSTALL)
	@touch $@

$(VENV)/.test: requirements/test.lock
	$(INSTALL)
	@touch $@ $(VENV)/.serve

$(VENV)/.check: requirements/check.lock
	$(INSTALL)
	@touch $@ $(VENV)/.test $(VENV)/.serve

# On top of any of the others, in the versions of the locks.
$(VENV)/.docs: requirements/docs.lock $(VENV)/.test
	@sh requirements/pip_install.sh $(BIN)/python --require-hashes -r $<
	@touch $@

$(VENV)/.serve $(VENV)/.test $(VENV)/.check: pyproject.toml $(VENV)/.made

define INSTALL
@echo "Installing the $$(grep -c '^[A-Za-z0-9].*==' $<) packages of $< into $(VENV) (a minute or two the first time) ..."
@sh requirements/pip_install.sh $(BIN)/python --require-hashes -r $<
@echo "Installing dragoman into $(VENV) ..."
@sh requirements/pip_install.sh $(BIN)/python --no-deps --no-build-isolation -e .
endef

$(VENV)/.made:
	@sh requirements/make_venv.sh "$(PYTHON)" $(VENV)
	@touch $@
