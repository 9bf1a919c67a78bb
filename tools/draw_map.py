"""Draw `assets/pictures/map.svg`: the model, the module that holds each piece, the chapter that builds it."""

import sys
from pathlib import Path

import matplotlib

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from minillama.teach.plots.start import the_map  # noqa: E402

matplotlib.rcParams["svg.hashsalt"] = "minillama"  # the same file from the same code
target = ROOT / "assets" / "pictures" / "map.svg"
target.parent.mkdir(parents=True, exist_ok=True)
the_map().savefig(target, metadata={"Date": None})
