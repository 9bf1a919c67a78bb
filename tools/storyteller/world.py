"""Who lives in the stories and where: the cast, the places, and the record that a plot returns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from grammar import expand, tidy

ANIMALS = (
    "fox rabbit mouse bear owl squirrel hedgehog duck frog turtle cat dog puppy kitten pig lamb pony goat deer badger "
    "otter beaver hen penguin elephant lion monkey panda koala mole robin goose bunny snail bee crow wolf seal whale "
    "parrot donkey cow chick dragon giraffe zebra crab"
).split()
NAMES_F = (
    "Lily Mia Anna Rosie Bella Lucy Daisy Molly Poppy Ruby Nora Ella Hazel Ivy Clara Tilly Maya Sara Emma Zoe Penny "
    "Luna Grace Kitty Amy Dora Nina Willow Pearl Olive"
).split()
NAMES_M = (
    "Tom Ben Sam Max Leo Finn Oscar Toby Jack Hugo Felix Milo Theo Otto Rusty Bruno Charlie Archie Barney Pip Gus Eddie "
    "Ralph Teddy Billy Jasper Monty Ned Rory Walter"
).split()
ADJECTIVES = "little|small|young|kind|cheerful|quiet|curious|brave|clever|gentle|playful|funny|friendly|shy".split("|")
PLACES = (
    "the green forest|a small village|the quiet valley|a farm on the hill|the meadow|a little town by the sea|the woods|"
    "a cottage near the river|the garden behind the old mill|a snowy mountain|the edge of the lake|a busy town|"
    "the big oak tree|a sunny island|the riverbank"
).split("|")


@dataclass(frozen=True)
class Character:
    name: str
    kind: str  # "fox", "girl", "boy"
    female: bool

    def slots(self, prefix: str = "") -> dict[str, str]:
        """{n} {k} {he} {him} {his} {himself}, each behind `prefix` (friend: {fn} {fk} {fhe} ...)."""
        he, him, his = ("she", "her", "her") if self.female else ("he", "him", "his")
        own = {"n": self.name, "k": self.kind, "he": he, "him": him, "his": his, "himself": him + "self"}
        return {prefix + key: value for key, value in own.items()}


@dataclass
class Story:
    """One story and what can be asked about it.

    topic: "a fox who is afraid of the dark": it stands behind "Tell me a story about".
    text: the story; paragraphs are joined by a blank line.
    summary: the same in one sentence.
    facts: (questions, answers) pairs; any of the questions may be asked, any of the answers is right.
    """

    topic: str
    text: str
    summary: str
    facts: list[tuple[list[str], list[str]]] = field(default_factory=list)


Plot = Callable[[random.Random], Story]
PLOTS: list[Plot] = []


def plot(function: Plot) -> Plot:
    """Register a plot: a function of a random generator that returns one Story."""
    PLOTS.append(function)
    return function


def character(rng: random.Random, kinds: list[str] | None = None, not_like: Character | None = None) -> Character:
    """Someone to tell of; `kinds` narrows the choice, `not_like` keeps name and kind apart from another's."""
    while True:
        female = rng.random() < 0.5
        people = ["girl" if female else "boy"] * 12
        kind = rng.choice(kinds or ANIMALS + people)
        if kind in ("girl", "boy"):
            female = kind == "girl"
        one = Character(rng.choice(NAMES_F if female else NAMES_M), kind, female)
        if not_like is None or (one.name != not_like.name and one.kind != not_like.kind):
            return one


def cast(rng: random.Random, kinds: list[str] | None = None) -> tuple[Character, Character, dict[str, str]]:
    """A hero, a friend of another kind, and the slots for both: {n} {k} {he} ... and {fn} {fk} {fhe} ...

    Besides: {adj} (one adjective for the hero), {place} ("the green forest"), {inplace} ("in the green forest").
    """
    hero = character(rng, kinds)
    friend = character(rng, not_like=hero)
    place = rng.choice(PLACES)
    preposition = "on" if ("mountain" in place or "island" in place or "riverbank" in place) else "in"
    if "edge" in place:
        preposition = "at"
    if "farm" in place:
        preposition = "on"
    slots = {
        **hero.slots(), **friend.slots("f"),
        "adj": rng.choice(ADJECTIVES), "place": place, "inplace": f"{preposition} {place}",
    }  # fmt: skip
    return hero, friend, slots


def opening(rng: random.Random, slots: dict[str, str]) -> str:
    """A first sentence or two that names the hero and the place."""
    return expand(
        rng,
        "[[Once upon a time|Once|Long ago|One spring|A long time ago], there [was|lived] a {adj} {k} named {n}. "
        "[{He} lived {inplace}.|{His} home was {inplace}.|{n} lived {inplace} with {his} family.]"
        "|{n} was a {adj} {k} who lived {inplace}."
        "|Once upon a time, {inplace}, there lived a {adj} {k}. {His} name was {n}."
        "|[There was once|Once there was] a {adj} {k} called {n}, who lived {inplace}.]",
        slots,
    )


def usual_facts(hero: Character, friend: Character | None, slots: dict[str, str]) -> list[tuple[list[str], list[str]]]:
    """Questions that fit nearly every plot: who, what kind, where, which friend."""
    facts = [
        (
            [f"What was the {hero.kind}'s name?", f"What was the {hero.kind} called?", "Who was the story about?"],
            [f"The {hero.kind}'s name was {hero.name}.", f"The {hero.kind} was called {hero.name}."],
        ),
        (
            [f"Where did {hero.name} live?", f"Where was {hero.name}'s home?"],
            [f"{hero.name} lived {slots['inplace']}."],
        ),
        ([f"Who was {hero.name}?", f"What kind of animal was {hero.name}?" if hero.kind not in ("girl", "boy") else f"Who was {hero.name}?"],
         [f"{hero.name} was a {slots['adj']} {hero.kind}."]),
    ]  # fmt: skip
    if friend is not None:
        facts.append(
            (
                [f"Who helped {hero.name}?", f"Who was {hero.name}'s friend?", f"Did {hero.name} have a friend?"],
                [
                    f"{friend.name} the {friend.kind} helped {hero.name}.",
                    f"{hero.name}'s friend was {friend.name} the {friend.kind}.",
                ],
            )
        )
    return [([tidy(q) for q in questions], [tidy(a) for a in answers]) for questions, answers in facts]
