"""Figures and widgets: what they hand to a notebook, with and without a kernel, and what they say of bad input."""

from __future__ import annotations

import ast
import base64
import inspect
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib", reason="matplotlib, which comes with the extra notebooks, is not installed")
widgets = pytest.importorskip("ipywidgets", reason="ipywidgets comes with the extra notebooks")

from minillama import Transformer  # noqa: E402
from minillama.teach import plots  # noqa: E402
from minillama.teach.exploring import Explorer, explore  # noqa: E402
from minillama.teach.figures import RANKS, SERIES, Picture, picture, words  # noqa: E402
from minillama.teach.watch import watching  # noqa: E402

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PNG = b"\x89PNG\r\n\x1a\n"
MODULES = [import_module(f"{plots.__name__}.{info.name}") for info in pkgutil.iter_modules(plots.__path__)]
PLOTS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": function
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
    and not name.startswith("_")
    and "Picture" in str(inspect.signature(function).return_annotation)
}
# Arguments for some; those that need none are drawn as well.
SHAPES = torch.rand(3, 20, generator=torch.Generator().manual_seed(0)) + 0.5
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "norm.two_norms": (torch.tensor([1.0, -2.0, 3.0, 0.5]), 2.0, 1.0),
    "norm.mean_share": (["first", "second", "last"], SHAPES / 2),
    "norm.sizes_through_layers": (["first", "second", "last"], SHAPES, SHAPES * 2),
    "norm.overflow": (torch.tensor([1.0, 100, 1000]), {"fp16": torch.tensor([1.0, 1, 0]), "fp32": torch.ones(3)}),
    "kv_cache.memory": (4,),
}
DRAWN = {
    name: EXAMPLES.get(name, ())
    for name, function in PLOTS.items()
    if name in EXAMPLES or all(p.default is not p.empty for p in inspect.signature(function).parameters.values())
}


def line(height: float = 1.0, alt: str = "A line from 0 to its height.") -> Picture:
    fig, ax = picture(width=2, height=1, alt=alt)
    ax.plot([0, 1], [0, height])
    return fig


def source(page: str) -> bytes:
    """The picture that a piece of HTML holds."""
    return base64.b64decode(page.partition("data:image/png;base64,")[2].partition('"')[0])


# --- The figures of the chapters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLOTS)
def test_every_figure_says_what_it_shows(name: str) -> None:
    function = PLOTS[name]
    assert inspect.getdoc(function)
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(function))) if isinstance(node, ast.Call)]
    made = [call for call in calls if getattr(call.func, "id", "") == "picture"]
    assert all("alt" in [keyword.arg for keyword in call.keywords] for call in made)
    handed_on = {getattr(call.func, "id", "") for call in calls} & {n for m in MODULES for n in vars(m) if n[0] != "_"}
    assert made or handed_on or any(getattr(call.func, "id", "").startswith("_") for call in calls)


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_has_a_title_labelled_axes_and_a_description(name: str) -> None:
    drawn = PLOTS[name](*DRAWN[name])
    assert isinstance(drawn, Picture) and len(drawn.alt) > 20
    assert drawn.png().startswith(PNG)
    read = [ax for ax in drawn.axes if ax.axison]  # a drawing without axes has none to label
    assert not read or drawn.get_suptitle() or any(ax.get_title() for ax in drawn.axes)
    assert not read or any(ax.get_xlabel() for ax in read) and any(ax.get_ylabel() for ax in read)
    for ax in read:
        assert ax.get_xlabel() or not ax.get_xticks().size or ax.get_shared_x_axes().get_siblings(ax) != [ax]


def test_colours_of_a_series_are_told_apart() -> None:
    assert len(set(SERIES)) == len(SERIES) and len(set(RANKS)) == len(RANKS) == 8


# --- Picture ---------------------------------------------------------------------------------------------------------

AWKWARD = "x < 3 & \"y\" > 4, 'z' and <b>bold</b> &amp; ▁the"


def test_a_picture_offers_a_png_and_a_page_with_its_description() -> None:
    bs4 = pytest.importorskip("bs4")
    data, _ = line(alt=AWKWARD)._repr_mimebundle_()
    png = data["image/png"] if isinstance(data["image/png"], bytes) else base64.b64decode(data["image/png"])
    assert png.startswith(PNG)
    [image] = bs4.BeautifulSoup(data["text/html"], "html.parser").select("img")
    assert image["alt"] == AWKWARD
    assert source(data["text/html"]) == png
    assert data["text/plain"] == f"<picture: {AWKWARD}>"


def as_notebook(thing: Any) -> Any:
    """A notebook with `thing` as the stored output of its only cell, as a kernel would send it."""
    nbformat = pytest.importorskip("nbformat")
    data, metadata = thing._repr_mimebundle_()
    data = {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in data.items()}
    output = nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=1)
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("thing", outputs=[output], execution_count=1)])


@pytest.mark.parametrize("kind", ["picture", "widget"])
def test_the_web_page_has_one_picture_with_its_description_escaped_once(kind: str) -> None:
    bs4 = pytest.importorskip("bs4")
    exporters = pytest.importorskip("nbconvert").HTMLExporter
    thing: Any = line(alt=AWKWARD) if kind == "picture" else explore(lambda: line(alt=AWKWARD))
    page = bs4.BeautifulSoup(exporters().from_notebook_node(as_notebook(thing))[0], "html.parser")
    [image] = page.select("img")
    assert image["alt"] == AWKWARD
    assert image["src"].startswith("data:image/png;base64,")
    assert page.select(f'script[type="{WIDGET_VIEW}"]') == []


@pytest.mark.parametrize("alt", ["", " \n"])
def test_a_picture_without_a_description_is_refused(alt: str) -> None:
    with pytest.raises(ValueError, match="a picture needs alt"):
        picture(alt=alt)


def test_axes_come_as_from_subplots() -> None:
    _, one = picture(alt="one")
    _, grid = picture(2, 3, alt="six")
    assert not hasattr(one, "shape") and grid.shape == (2, 3)
    assert not grid[1, 2].spines["top"].get_visible()


def test_pieces_become_labels_that_can_be_drawn() -> None:
    labels = words(["▁the", "<0x0A>", "$", "a$b$c"])
    assert labels[:2] == ["·the", "↵"]
    fig, ax = picture(alt="labels")
    ax.set_xticks(range(4), labels)
    assert fig.png().startswith(PNG)


# --- explore ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, start, other, kind",
    [
        ((0, 4), 0, 3, "IntSlider"), ((0, 4, 2), 2, 0, "IntSlider"), ((-5, 3, -1), -1, -5, "IntSlider"),
        ([1, 2, 5], 1, 5, "SelectionSlider"), ([0.5, 1.5], 0.5, 1.5, "SelectionSlider"),
        (([0.5, 1.5], 1.5), 1.5, 0.5, "SelectionSlider"), (["a", "b"], "a", "b", "Dropdown"),
        ((["a", "b"], "b"), "b", "a", "Dropdown"), ({"one": 1, "two": 2}, 1, 2, "Dropdown"),
        (({"one": 1, "two": 2}, 2), 2, 1, "Dropdown"), (True, True, False, "Checkbox"),
        (False, False, True, "Checkbox"),
        (widgets.FloatSlider(value=1, min=0, max=2), 1.0, 0.5, "FloatSlider"),
    ],
)  # fmt: skip
def test_each_kind_of_control_draws_again_when_it_is_moved(given: Any, start: Any, other: Any, kind: str) -> None:
    seen = []

    def draw(what: Any) -> Picture:
        seen.append(what)
        return line(height=len(seen), alt=f"A line for {what}.")

    made = explore(draw, what=given)
    assert type(made.controls["what"]).__name__ == kind
    assert seen == [start]
    before = source(made.view.value)
    assert f'alt="A line for {start}."' in made.view.value
    made.controls["what"].value = other
    assert seen == [start, other]
    assert source(made.view.value).startswith(PNG) and source(made.view.value) != before
    assert f'alt="A line for {other}."' in made.view.value


def test_the_page_of_the_course_finds_its_widgets() -> None:
    made = explore(lambda a_long_name: line(), a_long_name=(0, 3))
    assert "minillama-explore" in made._dom_classes and "minillama-view" in made.view._dom_classes
    assert made.controls["a_long_name"].description == "a long name"


def test_a_widget_carries_its_first_picture_for_readers_without_a_kernel() -> None:
    made = explore(lambda height: line(height, alt=f"A line to {height}."), height=(1, 3))
    data, _ = made._repr_mimebundle_()
    assert {WIDGET_VIEW, "image/png", "text/html"} <= data.keys()
    assert data[WIDGET_VIEW]["model_id"] == made.model_id
    assert 'alt="A line to 1."' in data["text/html"]
    assert source(data["text/html"]) == data["image/png"]
    made.controls["height"].value = 3
    assert 'alt="A line to 3."' in made.view.value
    assert 'alt="A line to 1."' in made._repr_mimebundle_()[0]["text/html"]


@pytest.mark.parametrize(
    "given",
    [
        (5, 1), (1,), (1, 2, 3, 4), (1, 5, 9), (0.0, 1.0), ("a", "b"), (), [], {}, "text", None, 5, 1.5,
        ([1, 2], 3), (["a", "b"], "c"), ({}, 1), widgets.Layout(), object(),
    ],
    ids=lambda given: f"{type(given).__name__} {given}" if type(given) is not object else "object",
)  # fmt: skip
def test_a_control_that_cannot_be_is_refused_by_its_name(given: Any) -> None:
    with pytest.raises(ValueError, match="the control height "):
        explore(line, height=given)


@pytest.mark.parametrize("drawn", [None, "a picture", 5])
def test_a_draw_that_draws_nothing_is_refused(drawn: Any) -> None:
    with pytest.raises(ValueError, match="draw returned .*; expected a figure"):
        explore(lambda: drawn)


def test_a_draw_that_stops_at_first_says_so_itself() -> None:
    with pytest.raises(ZeroDivisionError):
        explore(lambda n: line(1 / n), n=(0, 3))


def test_a_draw_that_stops_later_keeps_the_last_picture_and_says_why() -> None:
    def draw(n: int, **more: Any) -> Picture:
        return line(1 / (n - 2))  # not for 2

    made = explore(draw, n=(0, 3), m=["<b>", "c"])
    before = made.view.value
    made.controls["n"].value = 2
    assert made.view.value == before
    assert "n = 2" in made.message.value and "ZeroDivisionError: division by zero" in made.message.value
    assert "<code>return line(1 / (n - 2))  # not for 2</code>" in made.message.value
    assert "<b>" not in made.message.value
    made.controls["n"].value = 3
    assert made.message.value == "" and made.view.value != before
    assert isinstance(made, Explorer) and made.message in made.children


# --- watching --------------------------------------------------------------------------------------------------------


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def test_watching_sees_what_goes_in_and_comes_out(tiny_model: Callable[..., Transformer]) -> None:
    model = tiny_model()
    tokens = torch.tensor([[1, 2, 3]])
    with watching(model, "attention_norm", "layers.1.feed_forward", "attention") as seen:
        model(tokens)
    assert seen.keys() == {
        "layers.0.attention_norm", "layers.1.attention_norm", "layers.1.feed_forward", "layers.0.attention",
        "layers.1.attention",
    }  # fmt: skip
    first = seen["layers.0.attention_norm"]
    assert first.module is model.layers[0].attention_norm
    assert torch.equal(first.x, model.tok_embeddings(tokens)) and torch.equal(first.out, first.module(first.x))
    assert not first.out.requires_grad
    assert hooks(model) == 0


def test_watching_ends_also_after_an_exception(tiny_model: Callable[..., Transformer]) -> None:
    model = tiny_model()
    with pytest.raises(KeyError, match="own"), watching(model, "w1"):
        assert hooks(model) == 2
        raise KeyError("own")
    assert hooks(model) == 0


def test_a_module_that_is_called_by_keyword_is_seen(tiny_model: Callable[..., Transformer]) -> None:
    model = tiny_model()
    x = torch.ones(1, 2, 64)
    with watching(model, "norm") as seen:
        model.norm(x=x)
    assert torch.equal(seen["norm"].x, x)


@pytest.mark.parametrize(
    "ends, says",
    [(("w9",), "w9"), (("w1", "atention"), "atention"), (("orm",), "orm"), ((), "nothing"), (("a", "b"), "a or b")],
)
def test_unknown_names_are_refused(tiny_model: Callable[..., Transformer], ends: tuple[str, ...], says: str) -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match=f"no module's name ends in {says}; print"), watching(model, *ends):
        pytest.fail("the block began")
    assert hooks(model) == 0
