"""pyproject.toml, constraints.txt and environment.yml say the same, and what is built from them works elsewhere."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
COURSE = ["torch", "jupyterlab", "matplotlib", "ipywidgets", "sentencepiece", "fairscale", "nbval", "einops"]
CHECKPOINT = ["consolidated.00.pth", "params.json", "tokenizer.model"]
DEMO = ROOT / "assets" / "storyteller"
needs_demo = pytest.mark.skipif(
    not all((DEMO / name).is_file() for name in CHECKPOINT),
    reason="assets/storyteller is not there yet: tools/storyteller/train.py makes it",
)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


@pytest.fixture(scope="module")
def conda() -> dict[str, Any]:
    """environment.yml: its Python, its conda packages, the arguments of its pip section."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["name"] == "minillama"
    packages = [one for one in environment["dependencies"] if isinstance(one, str)]
    (pip,) = (one["pip"] for one in environment["dependencies"] if isinstance(one, dict))
    named = dict(one.split("=", 1) for one in packages if "=" in one)
    return {"python": named.pop("python"), "pinned": named, "packages": packages, "pip": pip}


def extra_requirements(project: dict[str, Any], extras: set[str]) -> list[Requirement]:
    """All that `minillama[extras]` asks for, extras that name other extras of minillama included."""
    lines = list(project["dependencies"])
    for extra in sorted(extras):
        lines += project["optional-dependencies"][extra]
    found = []
    for requirement in map(Requirement, lines):
        if requirement.name == project["name"]:
            found += extra_requirements(project, requirement.extras)
        else:
            found.append(requirement)
    return found


def conda_requirements(project: dict[str, Any], conda: dict[str, Any]) -> list[Requirement]:
    """What environment.yml has pip install, its own lines and those of the checkout's extras."""
    found = []
    for line in conda["pip"]:
        option, _, value = line.partition(" ")
        if option == "-e":
            path, _, extras = value.partition("[")
            assert (ROOT / path).resolve() == ROOT, line
            found += extra_requirements(project, set(extras.rstrip("]").split(",")))
        elif option != "-c":
            found.append(Requirement(line))
    return found


def test_python_version_of_conda_is_one_that_pip_accepts(project, conda):
    assert Version(conda["python"]) in SpecifierSet(project["requires-python"])
    assert sys.version_info >= (3, 10)


def test_conda_installs_the_checkout_under_the_constraints(conda):
    assert "pip" in conda["packages"]  # conda warns, and may take another's pip, without it
    assert "-c constraints.txt" in conda["pip"]
    assert (ROOT / "constraints.txt").is_file()
    assert sum(line.startswith("-e .") for line in conda["pip"]) == 1


def test_conda_has_every_package_of_the_course(project, conda):
    names = {canonicalize_name(one.name) for one in conda_requirements(project, conda)} | set(conda["pinned"])
    assert set(COURSE) <= names


def test_core_needs_no_jupyter(project):
    core = {one.name for one in extra_requirements(project, set())}
    lab = {one.name for one in extra_requirements(project, {"notebooks"})}
    assert core == {
        "torch", "sentencepiece", "safetensors", "fairscale", "einops", "numpy", "tqdm", "typer", "typing_extensions"
    }  # fmt: skip
    assert {"jupyterlab", "matplotlib", "ipywidgets"} == lab - core


def test_torch_is_pinned_to_one_release(constraints):
    (torch,) = (one for one in constraints if one.name == "torch")
    (pin,) = torch.specifier
    assert pin.operator == "=="


def test_no_two_files_contradict_each_other(project, constraints, conda):
    everything = [*extra_requirements(project, {"notebooks", "dev"}), *conda_requirements(project, conda), *constraints]
    everything += [Requirement(f"{name}=={version.lstrip('=')}") for name, version in conda["pinned"].items()]
    pins = {canonicalize_name(r.name): s.version for r in everything for s in r.specifier if s.operator == "=="}
    assert "torch" in pins
    for requirement in everything:
        if (name := canonicalize_name(requirement.name)) in pins:
            assert Version(pins[name]) in requirement.specifier, f"{requirement} against {name}=={pins[name]}"


def test_this_environment_is_the_one_described(project, constraints):
    """The tests run with what the files ask for, torch's pin included."""
    for requirement in [*extra_requirements(project, {"dev"}), *constraints]:
        if requirement.marker is None or requirement.marker.evaluate():
            installed = importlib.metadata.version(requirement.name)
            assert requirement.specifier.contains(installed, prereleases=True), f"{requirement.name} {installed}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the source distribution that is built from the checkout."""
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT], cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, as pip lays it."""
    target = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", "--target", target]
    run([sys.executable, "-m", "pip", "install", *options, wheel], cwd=target)
    return target


def run(command: list[Any], cwd: Path, site: Path | None = None) -> str:
    """stdout of `command`, run in `cwd` with `site` before everything else that Python can import."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command} gave {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_wheel_holds_the_whole_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "minillama").rglob("*.py")}
    assert package == {name for name in names if name.endswith(".py")}
    beside = [name for name in names if not name.startswith("minillama/")]
    assert all(name.split("/")[0].endswith(".dist-info") for name in beside), beside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@needs_demo
def test_wheel_holds_the_demo_checkpoint(wheel):
    archive = zipfile.ZipFile(wheel)
    for name in CHECKPOINT:
        assert archive.read(f"minillama/assets/storyteller/{name}") == (DEMO / name).read_bytes()


def test_installed_metadata(installed, project):
    (found,) = (one for one in importlib.metadata.distributions(path=[str(installed)]) if one.name == "minillama")
    assert found.version == run([sys.executable, "-c", "import minillama; print(minillama.__version__)"], ROOT).strip()
    (script,) = found.entry_points
    assert (script.group, script.name, script.value) == ("console_scripts", "minillama", "minillama.cli:main")
    assert SpecifierSet(found.metadata["Requires-Python"]) == SpecifierSet(project["requires-python"])
    assert set(found.metadata.get_all("Provides-Extra")) == {"notebooks", "llama3", "bench", "dev"}


@needs_demo
def test_installed_package_tells_a_story_from_anywhere(installed, tmp_path):
    program = (
        "import json, minillama; answer = minillama.demo().text_completion(['Once upon a time'], max_gen_len=8)[0];"
        "print(json.dumps([minillama.__file__, answer['generation']]))"
    )
    file, text = json.loads(run([sys.executable, "-c", program], tmp_path, installed))
    assert Path(file).is_relative_to(installed)
    assert text.strip()


@needs_demo
@pytest.mark.parametrize("way", ["module", "script"])
def test_installed_command_tells_a_story_from_anywhere(installed, tmp_path, way):
    command = [sys.executable, "-m", "minillama"] if way == "module" else [installed / "bin" / "minillama"]
    out = run([*command, "complete", "Once upon a time", "--max-gen-len", "8", "--json"], tmp_path, installed)
    assert json.loads(out)
