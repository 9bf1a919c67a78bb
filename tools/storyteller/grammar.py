"""A small template language for stories: `[this|that]` chooses, `{slot}` fills in, nesting allowed.

Two repairs follow expansion, so that whoever writes a template need not think of them: `a owl` becomes
`an owl`, and every sentence starts with a capital letter.
"""

from __future__ import annotations

import random
import re

VOWEL_SOUND = re.compile(r"\b([Aa])(?= (?:[aeio]|u(?!ni|se))|(?= (?:hour|honest)))", re.IGNORECASE)
# Not after `?"` and `!"`: a lower-case word there goes on with the sentence ("Who is there?" he said).
SENTENCE_START = re.compile(r'(^|[.!?] +["“]?|\."  *|\n+["“]?|^["“])([a-z])')


def expand(rng: random.Random, template: str, slots: dict[str, str]) -> str:
    """One reading of `template`: choices drawn with `rng`, slots filled from `slots`, grammar repaired."""
    return tidy(_fill(_choose(rng, template), slots))


def _choose(rng: random.Random, text: str) -> str:
    # Innermost brackets first: a choice has no bracket inside once its inner choices are made.
    while True:
        match = re.search(r"\[([^\[\]]*)\]", text)
        if match is None:
            return text
        text = text[: match.start()] + rng.choice(match.group(1).split("|")) + text[match.end() :]


def _fill(text: str, slots: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        key = match.group(1)
        if key in slots:
            return slots[key]
        lower = key[0].lower() + key[1:]
        if lower in slots:  # {He} is the slot `he`, capitalised
            return slots[lower][0].upper() + slots[lower][1:]
        raise KeyError(f"template uses {{{key}}}, and the slots are {sorted(slots)}")

    # Slot values may hold slots themselves ("{his} red kite"), so fill until nothing is left.
    while "{" in text:
        text = re.sub(r"\{(\w+)\}", value, text)
    return text


def tidy(text: str) -> str:
    text = re.sub(r"[ \t]+", " ", text).strip()
    text = re.sub(r" ([.,!?;:])", r"\1", text)
    text = VOWEL_SOUND.sub(lambda m: m.group(1) + "n", text)
    return SENTENCE_START.sub(lambda m: m.group(1) + m.group(2).upper(), text)
