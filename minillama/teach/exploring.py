"""`explore`: sliders around a figure. What is moved is drawn again at once; with no kernel the first picture stays."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ipywidgets as widgets
from traitlets import TraitError

from minillama.teach.exercise import marked
from minillama.teach.figures import Picture
from minillama.teach.slots import blame

STYLE = {"description_width": "initial"}


class Explorer(widgets.VBox):
    """Controls above a picture that `draw` makes from their values; `controls` has them by name."""

    def __init__(self, draw: Callable[..., Picture], controls: dict[str, widgets.Widget]):
        self.draw = draw
        self.controls = controls
        self.first = self._drawn()
        self.view = widgets.HTML(self.first.page())  # an Image has no place for an alt text
        self.message = widgets.HTML()  # empty while all is well
        self.view.add_class("minillama-view")
        row = widgets.HBox(list(controls.values()), layout={"flex_flow": "row wrap"})
        super().__init__([row, self.view, self.message])
        self.add_class("minillama-explore")
        for control in controls.values():
            control.observe(self._moved, "value")

    def values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    def _drawn(self) -> Picture:
        drawn = self.draw(**self.values())
        if not isinstance(drawn, Picture):
            raise ValueError(f"draw returned {type(drawn).__name__}; expected a figure made by `teach.picture`")
        return drawn

    def _moved(self, _: Any) -> None:
        try:
            with _without_pauses():
                self.view.value = self._drawn().page()
            self.message.value = ""
        except Exception as error:  # a widget's callback has nowhere else to say it
            at = ", ".join(f"{name} = {value!r}" for name, value in self.values().items())
            self.message.value = marked(f"No picture for {at}: {blame(error, self.draw)}. The last one stays.")

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        picture, alt = self.first._repr_mimebundle_()
        return {**data, **picture}, {**metadata, **alt}


@contextmanager
def _without_pauses() -> Iterator[None]:
    """No garbage collection in here, which looks at all that PyTorch has for a quarter of a second; what is left
    behind in here, a picture's thousands of parts, goes at the end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            gc.collect(0)  # the young: these are all


def explore(draw: Callable[..., Picture], **controls: Any) -> Explorer:
    """A widget that shows `draw(**values)` and draws again when a control is moved.

    controls, by the name of draw's argument: (least, most) or (least, most, start) of whole numbers for a slider;
    a list or a dict of choices for a menu (a list of numbers for a slider with those stops), or (choices, start); True
    or False for a box; or any widget with a `value`.
    """
    return Explorer(draw, {name: _control(name, given) for name, given in controls.items()})


def _control(name: str, given: Any) -> widgets.Widget:
    label = name.replace("_", " ")
    if isinstance(given, widgets.Widget) and given.has_trait("value"):
        return given
    if isinstance(given, bool):
        return widgets.Checkbox(value=given, description=label, indent=False)
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], (list, dict)):
        control = _control(name, given[0])
        try:
            control.value = given[1]
        except TraitError:
            raise ValueError(f"the control {name} starts at {given[1]!r}, which is none of {given[0]!r}") from None
        return control
    if isinstance(given, tuple):
        whole = len(given) in (2, 3) and all(type(v) is int for v in given)
        if not whole or given[0] > given[1] or not given[0] <= given[-1] <= given[1]:
            raise ValueError(
                f"the control {name} is {given!r}; expected whole numbers (least, most) or (least, most, start between)"
            )
        least, most, *start = given
        return widgets.IntSlider(
            min=least, max=most, value=start[0] if start else least, description=label, style=STYLE
        )
    if isinstance(given, dict) and given:
        return widgets.Dropdown(options=list(given.items()), description=label, style=STYLE)
    if isinstance(given, Sequence) and given and all(isinstance(v, (int, float)) for v in given):
        return widgets.SelectionSlider(options=given, description=label, style=STYLE)
    if isinstance(given, Sequence) and given and not isinstance(given, str):
        return widgets.Dropdown(options=given, description=label, style=STYLE)
    raise ValueError(f"the control {name} is {given!r}; expected (least, most), a list, a dict, a bool or a widget")
