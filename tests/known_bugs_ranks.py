"""What each rank of `test_known_bugs.py`'s launch does: load every folder of a list and write down what came out.

    python -m torch.distributed.run --standalone --nproc_per_node 2 known_bugs_ranks.py WORK

WORK/cases.json: {name: folder}; WORK/tokens.pt: (B, T) ids. Rank r writes WORK/rank{r}.pt: {name: logits or message}.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from minillama import launch, parallel
from minillama.checkpoint import load_model
from minillama.generation import Llama


@torch.no_grad()
def main(work: Path) -> None:
    torch.set_num_threads(1)
    device = launch.start(None, "auto")
    results: dict[str, object] = {"backend": dist.get_backend(), "device": device.type}
    tokens = torch.load(work / "tokens.pt")
    for name, folder in json.loads((work / "cases.json").read_text()).items():
        try:
            results[name] = load_model(folder, device=device)(tokens.to(device)).cpu()
        except ValueError as error:
            results[name] = str(error)
    llama = Llama.build(work / "with_tokenizer")
    results["generated"] = llama.generate(tokens.tolist(), 8, temperature=0, stop_ids=())[0]
    results["sampled"] = llama.generate(tokens.tolist(), 8, temperature=1.0, top_p=0.9, seed=7, stop_ids=())[0]
    # A launch that hides the output of ranks above 0 hides their errors as well.
    print(f"rank {parallel.rank()} can be heard", flush=True)
    torch.save(results, work / f"rank{parallel.rank()}.pt")
    dist.barrier()
    launch.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
