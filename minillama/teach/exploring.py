"""`explore`: sliders around a figure. What is moved is drawn again at once; with no kernel the first picture stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets

from minillama.teach.figures import Picture

STYLE = {"description_width": "initial"}


class Explorer(widgets.VBox):
    """Controls above a picture that `draw` makes from their values; `controls` has them by name."""

    def __init__(self, draw: Callable[..., Picture], controls: dict[str, widgets.Widget]):
        self.draw = draw
        self.controls = controls
        self.first = draw(**self.values())
        self.view = widgets.Image(value=self.first.png(), format="png", layout={"max_width": "100%"})
        self.view.add_class("minillama-view")
        row = widgets.HBox(list(controls.values()), layout={"flex_flow": "row wrap"})
        super().__init__([row, self.view])
        self.add_class("minillama-explore")
        for control in controls.values():
            control.observe(self._moved, "value")

    def values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    def _moved(self, _: Any) -> None:
        self.view.value = self.draw(**self.values()).png()

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        picture, alt = self.first._repr_mimebundle_()
        return {**data, **picture}, {**metadata, **alt}


def explore(draw: Callable[..., Picture], **controls: Any) -> Explorer:
    """A widget that shows `draw(**values)` and draws again when a control is moved.

    controls, by the name of draw's argument: (least, most) or (least, most, start) of whole numbers for a slider;
    a list or a dict of choices for a menu (a list of numbers for a slider with those stops), or (choices, start); True
    or False for a box; or any widget with a `value`.
    """
    return Explorer(draw, {name: _control(name, given) for name, given in controls.items()})


def _control(name: str, given: Any) -> widgets.Widget:
    label = name.replace("_", " ")
    if isinstance(given, widgets.Widget):
        return given
    if isinstance(given, bool):
        return widgets.Checkbox(value=given, description=label, indent=False)
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], (list, dict)):
        control = _control(name, given[0])
        control.value = given[1]
        return control
    if isinstance(given, tuple):
        least, most, *start = given
        return widgets.IntSlider(
            min=least, max=most, value=start[0] if start else least, description=label, style=STYLE
        )
    if isinstance(given, dict):
        return widgets.Dropdown(options=list(given.items()), description=label, style=STYLE)
    if isinstance(given, Sequence) and given and all(isinstance(v, (int, float)) for v in given):
        return widgets.SelectionSlider(options=given, description=label, style=STYLE)
    if isinstance(given, Sequence) and given and not isinstance(given, str):
        return widgets.Dropdown(options=given, description=label, style=STYLE)
    raise ValueError(f"the control {name} is {given!r}; expected (least, most), a list, a dict, a bool or a widget")
