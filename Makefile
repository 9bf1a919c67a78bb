# make lab needs Python 3.10 or newer and nothing else: the rest goes into .venv, once.
# Written for GNU make 3.81 (macOS) and a POSIX shell.

PYTHON =
LAB_ARGS =
WORKERS = 2

VENV = .venv
PY = $(VENV)/bin/python
CANDIDATES = python3 python3.14 python3.13 python3.12 python3.11 python3.10 python

.PHONY: help lab install test lint promote

help:
	@echo "make lab       the course in JupyterLab (LAB_ARGS=... are passed on to it)"
	@echo "make test      lint, types, unit tests, notebooks (WORKERS=$(WORKERS))"
	@echo "make lint      ruff and mypy alone"
	@echo "make promote   write the modules from the notebooks' promoted cells"
	@echo "make install   everything for development, into $(VENV) (PYTHON=... chooses the Python)"

lab: $(VENV)/.notebooks
	@# Or the first thing to be seen is a question: may JupyterLab fetch news?
	@mkdir -p $(VENV)/etc/jupyter/labconfig
	@echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}' \
		> $(VENV)/etc/jupyter/labconfig/default_setting_overrides.json
	@flags=; \
	if [ "$$(id -u)" = 0 ]; then flags="$$flags --allow-root"; fi; \
	if [ "$$(uname)" = Linux ] && [ -z "$$DISPLAY$$WAYLAND_DISPLAY$$BROWSER$$WSL_DISTRO_NAME" ]; then \
		flags="$$flags --no-browser"; \
		echo "No display here: open the address with the token that JupyterLab prints below."; \
	fi; \
	exec $(PY) -m jupyterlab $$flags --ServerApp.root_dir=. \
		--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb \
		--LabApp.news_url=None --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate $(LAB_ARGS)

install: $(VENV)/.dev

# One thread a process: two workers whose torch each takes all cores wait for each other.
test: lint
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile --nbval-lax --nbval-current-env tests notebooks/*.ipynb

lint: $(VENV)/.dev
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

promote: $(VENV)/.dev
	$(PY) -m minillama.teach.promote

# The stamps are older than the files that say what to install: install again.
$(VENV)/.notebooks: pyproject.toml constraints.txt
	@$(make_venv)
	@$(call pip_install,notebooks)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	@$(make_venv)
	@$(call pip_install,dev)
	@touch $(VENV)/.notebooks $@

# A terminal sees pip's progress, a log does not.
define pip_install
quiet=--quiet; if [ -t 1 ]; then quiet=; fi; \
$(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip >/dev/null; \
echo "Installing torch, JupyterLab and the rest into $(VENV): some minutes, 1 to 6 GB, once."; \
$(PY) -m pip install --disable-pip-version-check $$quiet -c constraints.txt -e '.[$(1)]'
endef

# A .venv that works stays; else the first Python that is new enough and has venv makes one.
define make_venv
enough='import sys; sys.exit(sys.version_info < (3, 10))'; \
if $(PY) -c "$$enough" >/dev/null 2>&1; then exit 0; fi; \
seen=; bare=; \
for python in $(or $(PYTHON),$(CANDIDATES)); do \
	version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
	if ! "$$python" -c "$$enough"; then seen="$$seen$$python is $$version, "; \
	elif ! "$$python" -c 'import venv, ensurepip' 2>/dev/null; then bare=$${bare:-$$version}; \
	else \
		"$$python" -m venv --clear $(VENV) && exit 0; \
		rm -rf $(VENV); exit 1; \
	fi; \
done; \
if [ -n "$$bare" ]; then \
	echo "Python $$bare here has no venv module; on Debian or Ubuntu: apt install python$$bare-venv" >&2; \
else \
	echo "minillama needs Python 3.10 or newer: $${seen:-none found, }looked for $(or $(PYTHON),$(CANDIDATES)) (PYTHON=... names another)" >&2; \
fi; \
exit 1
endef
