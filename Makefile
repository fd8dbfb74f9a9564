# Each target builds what it needs; `make test` and `make reproduce` work on a fresh machine with Python 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Idle threads of torch soon sleep: spinning, as by default, they take the cores from whatever else runs.
ifeq ($(OMP_WAIT_POLICY)$(GOMP_SPINCOUNT)$(KMP_BLOCKTIME),)
export GOMP_SPINCOUNT := 3000
export KMP_BLOCKTIME := 0
endif

# Neighbours share what is set up for their file, so they stay together as long as there is work for all.
PARALLEL := -n auto --dist worksteal

.PHONY: test quick shapes reproduce benchmark check docs clean

test: check
	$(BIN)/python -m pytest $(PARALLEL)
	$(MAKE) shapes

# Linters, types and the core: about two minutes.
quick: check
	$(BIN)/python -m pytest $(PARALLEL) tests/test_imports.py tests/test_causality.py tests/test_streaming.py tests/test_address.py \
		tests/test_rotary.py tests/test_config.py tests/units tests/attention/test_reference.py tests/attention/test_backends.py \
		tests/hf/test_equivalence.py

# The shapes in the signatures, checked at run time. Not for functions a compiler or FlexAttention traces; and not for tests of
# numbers that go where others have been.
shapes: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) --jaxtyping-packages=contentrope,beartype.beartype \
		-k "not flex and not fused and not compiles and not padding and not reuse and not bfloat16 and not dropout_keeps" \
		tests/attention tests/test_streaming.py tests/test_memory_units.py tests/test_address.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

reproduce: $(READY)
	$(BIN)/python -m experiments growth --preset quick --out runs/growth-quick

benchmark: $(READY)
	$(BIN)/python -m benchmarks.cpu

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The lock file pins everything, torch included; the project itself is installed without asking for more.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "contentrope needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf $(VENV) runs
