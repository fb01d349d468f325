# make demo     a fresh machine to a trained, audited run on real text, and its page
# make ladder   four rungs, a forecast on the record, the model it is of, the score: half an hour to an hour on two cores
# make test     the whole test suite, as CI runs it
# make test-slow  the tests that it leaves out
# make lint     ruff check and format, mypy strict
# Both make their own virtual environment in .venv and install what they need.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo ladder test test-slow lint bench clean

demo: $(VENV)/.demo
	$(BIN)/millstream run recipes/demo.yaml

ladder: $(VENV)/.demo
	$(BIN)/millstream build recipes/ladder.yaml
	$(BIN)/millstream ladder make recipes/ladder.yaml --widths 96,128,160,192 --batch constant
	$(BIN)/millstream ladder run recipes/ladder.yaml
	$(BIN)/millstream ladder fit recipes/ladder.yaml
	$(BIN)/millstream ladder forecast recipes/ladder.yaml
	test -e runs/ladder || $(BIN)/millstream forecast register recipes/ladder.yaml
	$(BIN)/millstream train recipes/ladder.yaml
	$(BIN)/millstream forecast score ladder --record
	$(BIN)/millstream page ladder --ladder ladders/ladder

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-slow: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: bench-scale bench-stream bench-curation bench-memory

bench-stream: $(VENV)/.dev $(VENV)-peers/.made
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/stream.py --peers $(VENV)-peers/bin/python

bench-%: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/$*.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing into $(VENV) (a minute or two)"
	@$(PIP) --editable ".[train,demo]"
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing into $(VENV) (a minute or two)"
	@$(PIP) --editable ".[train,filters,urls,language,demo,dev]"
	@touch $@ $(VENV)/.demo

# An environment of their own, since each wants other versions of what it stands on.
$(VENV)-peers/.made: benchmarks/peers.txt
	$(PYTHON) -m venv $(VENV)-peers
	@echo "installing the loaders that ours is compared with into $(VENV)-peers"
	@$(VENV)-peers/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/peers.txt
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-peers build dist *.egg-info src/*.egg-info
