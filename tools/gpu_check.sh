#!/usr/bin/env bash
# One GPU, 8 minutes at most, one table on stdout: see gpu_check.py, which takes the same arguments.
#   bash tools/gpu_check.sh > table.txt
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then
  python=.venv/bin/python
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.max.memory --format=csv >&2
fi
# The script begins nothing new after 7.5 minutes; what hangs is ended at 8.
exec timeout --kill-after=5 480 "$python" tools/gpu_check.py "$@"
