"""The commands in docs/real-checkpoints.md are ones that torchrun and minillama know, and its figures are ours."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from test_cli import succeed
from torch.distributed.run import get_args_parser
from typer.main import get_command

from minillama import cli

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = (ROOT / "docs" / "real-checkpoints.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if re.match(r"(minillama [a-z]|torchrun )", line)]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command: str) -> None:
    program, *arguments = shlex.split(command)
    if program == "torchrun":
        torchrun = get_args_parser().parse_args(arguments)
        assert torchrun.module and torchrun.training_script == "minillama"
        arguments = torchrun.training_script_args
    name, *rest = arguments
    get_command(cli.app).commands[name].make_context(name, rest)  # raises for an option that is not there


def test_there_are_commands_for_every_purpose() -> None:
    text = " ".join(COMMANDS)
    for part in ("--nproc_per_node 8", "--nnodes 2", "--node_rank 1", "--to hf", "--to meta", "--gpu-memory", "chat"):
        assert part in text
    for script in re.findall(r"(?:python|bash) (tools/\S+)", DOCUMENT):
        assert (ROOT / script).is_file()


def test_the_plan_shown_is_the_one_that_is_computed() -> None:
    (command,) = (line for line in COMMANDS if "--gpu-memory" in line)
    shown = BLOCKS[BLOCKS.index(command + "\n") + 1]
    assert shown in succeed(*shlex.split(command)[1:])
