# Two commands do everything on a machine with Python 3.11 to 3.13, make and git:
#   make demo   the main job, end to end
#   make test   format check, lint, types, the whole test suite

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Where it is set, every process compiles all that it imports again, which takes most of a short run.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test harden docs docs-serve notebooks notebooks-check format lint types generate catalogue clean

demo: $(READY)
	@$(BIN)/python scripts/demo.py

test: lint types
	$(BIN)/python -m pytest -n 3 --dist worksteal  # many tests wait for processes, so three keep two cores busy

harden: $(READY)  ## what the tool survives, as a table: up to 45 minutes
	@$(BIN)/python -m harden $(PARTS)

docs: $(READY)  ## the site of docs/, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: $(READY)  ## the site at http://127.0.0.1:8000 with its search, or at PORT=…
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python scripts/serve_docs.py $(PORT)

notebooks: $(READY)  ## run the notebooks of examples/ and store their outputs: 4 minutes; NAMES=lab2 for one
	$(BIN)/python scripts/notebooks.py $(NAMES)

notebooks-check: $(READY)  ## run them and compare with what is stored
	$(BIN)/python scripts/notebooks.py --check $(NAMES)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate catalogue: $(READY)  ## rewrite what is generated, after adding a model, format, pass, option …
	$(BIN)/python scripts/generate.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Installed again only when the metadata or the pins change. torch goes first and pinned: an
# unpinned one, asked for by another package, would fetch gigabytes of GPU libraries. Python compiles
# what it imports; compiling everything that is installed would take another half a minute.
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[test]"
	@touch $@
