"""Figures of chapter 07: pieces, bytes that wait, the chat template by role, and what a wrong template costs."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.collections import PolyCollection
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

from minillama.teach.figures import BROKEN, INK, OTHER, OURS, QUERY, QUIET, VALUE, Picture, picture
from minillama.tokenizer import Tokenizer

MONO = "DejaVu Sans Mono"
COLUMNS = 90  # letters in a line of the figures that show pieces
LETTER = 0.08  # inches: a letter of MONO at 9 points takes 8 whole pixels
ROLES = {"template": QUIET, "system": OTHER, "user": QUERY, "assistant": VALUE}
CONTROL = "control"
Messages = Sequence[Mapping[str, str]]


@functools.cache
def _glyphs() -> Any:
    return get_font(findfont(MONO))


def legible(text: str) -> str:
    """`text` as the figures' font can show it: a space as a dot, an emoji by its name, other scripts by number."""
    return "".join(map(_legible, text))


@functools.cache
def _legible(character: str) -> str:
    special = {" ": "·", "\u2581": "·", "\n": "↵", "\t": "⇥"}
    if character in special:
        return special[character]
    if character.isprintable() and _glyphs().get_char_index(ord(character)):
        return character
    name = unicodedata.name(character, "").lower()
    return f"‹{name}›" if unicodedata.category(character) == "So" and name else f"U+{ord(character):04X}"


def _rows(widths: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Lines of boxes: (which, column) for each, broken where a line is full."""
    rows: list[list[tuple[int, int]]] = [[]]
    column = 0
    for i, width in enumerate(widths):
        if column + width > COLUMNS and rows[-1]:
            rows.append([])
            column = 0
        rows[-1].append((i, column))
        column += width
    return rows


def _ribbon(
    pieces: Sequence[str],
    colors: Sequence[str],
    title: str,
    alt: str,
    legend: Mapping[str, str],
    ids: Sequence[int] | None = None,
) -> Picture:
    """Pieces in boxes, line after line, the id of each below it where `ids` are given."""
    labels = [_name(piece) for piece in pieces]
    numbers = [str(i) for i in ids] if ids is not None else [""] * len(labels)
    widths = [max(len(label), len(number)) + 1 for label, number in zip(labels, numbers)]
    rows = _rows(widths)
    deep = 2.0 if ids is not None else 1.35  # of a line, in the units of the axis
    height = 0.21 * deep * len(rows) + 0.75
    top = 1 - 0.42 / height
    fig, ax = picture(height=height, alt=alt, margins=dict(left=0.01, right=0.99, bottom=0.3 / height, top=top))
    ax.axis("off")
    ax.set_xlim(0, 0.98 * 7.5 / LETTER)
    ax.set_ylim(deep * len(rows), 0)
    # One artist for all boxes, one text for a whole line (each letter is as wide as any other): a slider redraws.
    boxes, fills = [], []
    for line, row in enumerate(rows):
        y = deep * line
        for i, column in row:
            left, right = column + 0.1, column + widths[i] - 0.1
            boxes.append([(left, y + 0.1), (right, y + 0.1), (right, y + 1.15), (left, y + 1.15)])
            fills.append(colors[i])
        for down, texts, color in ((0.65, labels, INK), (1.5, numbers, "#666666")):
            text = "".join(f" {texts[i]}".ljust(widths[i]) for i, _ in row).rstrip()
            if text:
                ax.text(-0.4, y + down, text, family=MONO, fontsize=9, va="center", color=color, parse_math=False)
    ax.add_collection(PolyCollection(boxes, facecolors=fills, alpha=0.35, linewidths=0), autolim=False)
    ax.set_title(title)
    handles = [Patch(facecolor=color, alpha=0.35, label=label) for label, color in legend.items()]
    fig.legend(handles=handles, frameon=False, fontsize=8.5, loc="lower center", ncols=len(handles))
    return fig


def _name(piece: str) -> str:
    """A byte by its two digits, anything else as it is."""
    return piece[3:5] if piece.startswith("<0x") else legible(piece)


def pieces(tokenizer: Tokenizer, text: str) -> Picture:
    """`text` cut into the tokenizer's pieces, bytes and longer ones told apart."""
    text = text[:100]
    ids = tokenizer.encode(text, bos=False, eos=False)
    names = [tokenizer.sp_model.id_to_piece(i) for i in ids]
    kinds = [_kind(tokenizer, i) for i in ids]
    single = kinds.count(BROKEN)
    per = f", {len(ids) / len(text):.2f} for each" if text else ""
    title = f"{len(text)} characters are {len(ids)} tokens{per}; single bytes among them: {single}"
    shown = ", ".join(f"{_name(name)} {i}" for name, i in zip(names, ids))
    legend = {"begins a word": OURS, "goes on": QUIET, "a byte": BROKEN}
    return _ribbon(names, kinds, title, f"{title}. Pieces with their ids: {shown}.", legend, ids)


def _kind(tokenizer: Tokenizer, i: int) -> str:
    if tokenizer.sp_model.is_byte(i):
        return BROKEN
    return OURS if tokenizer.sp_model.id_to_piece(i).startswith("\u2581") else QUIET


def merges(counts: Sequence[int], learned: Sequence[str]) -> Picture:
    """Pieces in the text after each merge; some of the merges by name."""
    ratio = counts[0] / counts[-1]
    title = f"The text takes 1/{ratio:.1f} of the pieces after {len(learned)} merges"
    alt = f"Pieces in the text after each merge: from {counts[0]:,} to {counts[-1]:,}."
    fig, ax = picture(height=2.8, alt=alt)
    ax.plot(range(1, len(counts)), counts[1:], color=OURS)
    for n in (1, 2, 5, 10, 20, 40, 100, len(learned)):
        if n <= len(learned):
            ax.plot(n, counts[n], "o", color=OURS, markersize=4)
            ax.annotate(
                legible(learned[n - 1]), (n, counts[n]), (0, 7), textcoords="offset points", fontsize=9, ha="center"
            )
    ax.set_xscale("log")
    ax.set_xlim(0.9, 1.3 * len(learned))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.set_ylim(0, 1.08 * counts[0])
    ax.set_xlabel("merges (and what the merge of that number joined)")
    ax.set_ylabel("pieces in the text")
    ax.set_title(title)
    return fig


def per_character(found: Mapping[str, Mapping[str, float]]) -> Picture:
    """Tokens per character by language, for each tokenizer: {tokenizer: {language: tokens per character}}."""
    names = list(found)
    languages = list(found[names[0]])
    first = found[names[0]]
    least, most = min(first, key=lambda n: first[n]), max(first, key=lambda n: first[n])
    title = f"{most}: {first[most]:.1f} tokens a character, {least}: {first[least]:.2f} (with the {names[0]})"
    rows = (f"{name}: " + ", ".join(f"{lang} {value:.2f}" for lang, value in found[name].items()) for name in names)
    fig, ax = picture(height=0.34 * len(languages) + 1.1, alt="Tokens per character. " + "; ".join(rows) + ".")
    thick = 0.8 / len(names)
    for n, (name, color) in enumerate(zip(names, (OURS, OTHER))):
        y = [i + thick * (n - (len(names) - 1) / 2) for i in range(len(languages))]
        bars = ax.barh(
            y, [found[name][language] for language in languages], height=0.9 * thick, color=color, label=name
        )
        ax.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    ax.set_yticks(range(len(languages)), languages)
    ax.invert_yaxis()
    ax.set_xlabel("tokens per character")
    ax.set_title(title)
    if len(names) > 1:
        ax.legend(frameon=False)
    return fig


def filling(tokenizer: Tokenizer, text: str, tokens: int) -> Picture:
    """The bytes of `text` when `tokens` of its ids have arrived: what can be shown, what waits, what is to come."""
    ids = tokenizer.encode(text, bos=False, eos=False)
    raw = [tokenizer.id_bytes(i) for i in ids]
    raw[0] = raw[0][1:]  # the space that encoding put before the text
    everything = b"".join(raw)
    arrived = len(b"".join(raw[:tokens]))
    said = everything[:arrived].decode("utf-8", errors="ignore")  # all is whole but the end
    ready = len(said.encode())
    waiting = arrived - ready
    wait = "none waits" if waiting == 0 else "1 byte waits" if waiting == 1 else f"{waiting} bytes wait"
    title = f"{tokens} of {len(ids)} tokens: “{legible(said).replace('·', ' ')}” can be shown, {wait}"
    fig, ax = picture(height=1.55, alt=f"{title}.", margins=dict(left=0.01, right=0.99, bottom=0.2, top=0.82))
    ax.axis("off")
    n = len(everything)
    ax.set_xlim(0, n)
    ax.set_ylim(2.1, 0)
    colors = [OURS] * ready + [OTHER] * waiting + [QUIET] * (n - arrived)
    ax.broken_barh([(i + 0.04, 0.92) for i in range(n)], (0.1, 0.9), facecolors=colors, alpha=0.45, linewidth=0)
    for i, byte in enumerate(everything):
        if i < arrived:
            ax.text(i + 0.5, 0.56, f"{byte:02X}", family=MONO, fontsize=9, ha="center", va="center", color=INK)
    at = 0
    for character in everything.decode():
        size = len(character.encode())
        if at + size <= ready:
            ax.plot([at + 0.1, at + size - 0.1], [1.15, 1.15], color=OURS, linewidth=1.5)
            ax.text(at + size / 2, 1.6, legible(character), fontsize=9, ha="center", va="center", color=INK)
        at += size
    ax.set_title(title)
    labels = (("can be shown", OURS), ("must wait", OTHER), ("still to come", QUIET))
    handles = [Patch(facecolor=color, alpha=0.45, label=label) for label, color in labels]
    fig.legend(handles=handles, frameon=False, fontsize=8.5, loc="lower center", ncols=3)
    return fig


def by_role(dialog: Messages, tokenizer: Tokenizer) -> list[tuple[int, str]]:
    """The ids of a dialog, each with whose it is: "system", "user", "assistant", "template" or "control"."""
    messages = list(dialog)
    opening: list[tuple[str, str]] = []
    if messages[0]["role"] == "system":
        system = messages.pop(0)["content"]
        opening = [("<<SYS>>\n", "template"), (system, "system"), ("\n<</SYS>>\n\n", "template")]
    found: list[tuple[int, str]] = []
    for i in range(0, len(messages), 2):
        content = messages[i]["content"]
        question = content.rstrip() if opening else content.strip()
        parts = [("[INST] ", "template"), *opening, (question, "user"), (" [/INST]", "template")]
        opening = []
        done = i + 1 < len(messages)
        if done:
            parts += [(" ", "template"), (messages[i + 1]["content"].strip(), "assistant"), (" ", "template")]
        found += _owned(parts, tokenizer, done)
    return found


def _owned(parts: Sequence[tuple[str, str]], tokenizer: Tokenizer, done: bool) -> list[tuple[int, str]]:
    owners = ["template"]  # of each byte; the first is the space that encoding puts before a text
    for text, owner in parts:
        owners += [owner] * len(text.encode())
    found = [(tokenizer.bos_id, CONTROL)]
    at = 0
    for i in tokenizer.encode("".join(text for text, _ in parts), bos=False, eos=False):
        at += len(tokenizer.id_bytes(i))
        found.append((i, owners[at - 1]))
    return found + [(tokenizer.eos_id, CONTROL)] * done


def template(dialog: Messages, tokenizer: Tokenizer) -> Picture:
    """The dialog as the model gets it, token by token, coloured by whose each is."""
    found = by_role(dialog, tokenizer)
    names = [tokenizer.sp_model.id_to_piece(i) for i, _ in found]
    colors = {**ROLES, CONTROL: INK}
    count = {owner: sum(o == owner for _, o in found) for owner in colors}
    frame = count["template"] + count[CONTROL]
    title = f"{len(found)} tokens, {frame} of them the template's"
    alt = f"{title}: " + ", ".join(f"{_name(name)} ({owner})" for name, (_, owner) in zip(names, found)) + "."
    legend = {owner: color for owner, color in colors.items() if count[owner]}
    return _ribbon(names, [colors[owner] for _, owner in found], title, alt, legend)


def answers(found: Mapping[str, float], unit: str = "perplexity of the right answers") -> Picture:
    """What the right answers come to under each template; the first is the right one."""
    right, *rest = found
    worst = max(rest, key=lambda name: found[name])
    times = found[worst] / found[right]
    title = f"Worst: {worst}, {times:.1f} times the perplexity"
    alt = f"{unit}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()) + "."
    fig, ax = picture(height=0.34 * len(found) + 1.1, alt=alt)
    bars = ax.barh(list(found), list(found.values()), color=[OURS, *[BROKEN] * len(rest)], height=0.7)
    ax.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    ax.set_xscale("log")
    most = 2 * max(found.values())
    ax.set_xlim(1, most)
    ax.set_xticks([n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if n < most])
    ax.set_xticks([], minor=True)
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.invert_yaxis()
    ax.set_xlabel(f"{unit} (1 is certainty)")
    ax.set_title(title)
    return fig


def context(dialog: Messages, tokenizer: Tokenizer, limit: int) -> Picture:
    """Tokens of a conversation at each of its questions, by whose they are, against what the model can read."""
    asked = [i for i, message in enumerate(dialog) if message["role"] == "user"]
    turns = [by_role(dialog[: i + 1], tokenizer) for i in asked]
    layers = {owner: [sum(_as_frame(o) == owner for _, o in turn) for turn in turns] for owner in ROLES}
    last = len(turns[-1])
    frame = layers["template"][-1]
    title = f"After {len(turns)} questions: {last} of {limit} tokens, {100 * frame / last:.0f}% of them the template's"
    parts = ", ".join(f"{owner} {values[-1]}" for owner, values in layers.items())
    sizes = ", ".join(str(len(turn)) for turn in turns)
    fig, ax = picture(height=2.9, alt=f"Tokens to read at each question: {sizes} of {limit}. At the last: {parts}.")
    below = [0] * len(turns)
    for owner, values in layers.items():
        if not any(values):
            continue
        ax.bar(range(1, len(turns) + 1), values, bottom=below, color=ROLES[owner], label=owner, width=0.7)
        below = [a + b for a, b in zip(below, values)]
    ax.axhline(limit, color=INK, linewidth=0.8)
    ax.annotate(f"max_seq_len {limit}", (0.5, limit), (0, -11), textcoords="offset points", fontsize=9, color=INK)
    ax.set_xticks(range(1, len(turns) + 1))
    ax.set_ylim(0, 1.05 * limit)
    ax.set_xlabel("question")
    ax.set_ylabel("tokens to read")
    ax.set_title(title)
    ax.legend(frameon=False, fontsize=8.5, loc="center left")
    return fig


def _as_frame(owner: str) -> str:
    return "template" if owner == CONTROL else owner
