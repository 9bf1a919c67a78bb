"""Plots about wishes, skills and things that are made, and about small faults that are put right."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import wraps

from grammar import expand
from world import Character, Plot, Story, cast, character, opening, plot, usual_facts

Say = Callable[[str], str]
Fact = tuple[list[str], list[str]]

EVERYDAY = (
    "fox rabbit mouse bear squirrel hedgehog frog turtle cat dog puppy kitten pig lamb pony goat deer badger otter "
    "beaver duck goose monkey panda koala mole bunny donkey girl boy girl boy girl boy"
).split()
NOT_SWIMMERS = (
    "mouse rabbit pig hedgehog squirrel cat kitten puppy lamb fox chick mole bunny monkey goat koala girl boy girl boy"
).split()
SWIMMERS = "duck otter frog turtle beaver goose penguin".split()
TINY = "mouse mole kitten bunny chick hedgehog squirrel frog".split()
GROUNDED = (
    "rabbit pig turtle cat puppy fox lamb monkey penguin badger mouse kitten bunny hedgehog girl boy girl boy"
).split()


def players(
    rng: random.Random, heroes: list[str] | None = None, friends: list[str] | None = None
) -> tuple[Character, Character, dict[str, str], Say]:
    """A cast for a plot on land, its slots, and a function that reads a template with them."""
    while True:
        hero, friend, s = cast(rng, heroes or EVERYDAY)
        if "oak" not in s["place"]:
            break
    friend = character(rng, friends or EVERYDAY, not_like=hero)
    s.update(friend.slots("f"))

    def say(template: str) -> str:
        end = " " if template[-1:].isspace() else ""  # so that the next piece may follow
        return expand(rng, " ".join(template.split()), s) + end

    return hero, friend, s, say


def start(rng: random.Random, s: dict[str, str], say: Say, own: str) -> str:
    """The shared opening, or the plot's own."""
    return opening(rng, s) if rng.random() < 0.5 else say(own)


def short(function: Plot) -> Plot:
    """Draw a story again, a few times at most, when it is a little too long."""

    @wraps(function)
    def drawn(rng: random.Random) -> Story:
        for _ in range(6):
            story = function(rng)
            if len(story.text.split()) <= 195:
                break
        return story

    return drawn


def pages(*parts: str) -> str:
    """The paragraphs of a story, with single spaces."""
    return "\n\n".join(" ".join(part.split()) for part in parts)


def ask(say: Say, questions: str, answers: str) -> Fact:
    """Questions and answers, each list parted by `|`."""
    return [say(q) for q in questions.split("|")], [say(a) for a in answers.split("|")]


@plot
@short
def wants_to_fly(rng: random.Random) -> Story:
    way = rng.choice(["back", "balloons", "swing"])
    heroes, friends = GROUNDED, "crow robin parrot owl goose duck".split()
    if way == "back":
        heroes, friends = (TINY, ["goose", "owl"]) if rng.random() < 0.5 else (GROUNDED, ["dragon"])
    hero, friend, s, say = players(rng, heroes, friends)
    s["wings"] = rng.choice(["leaves", "paper", "an old blanket", "two big feathers", "sticks and cloth"])
    s["high"] = rng.choice(["a big rock", "a low wall", "a fence", "a little hill"])
    s["soft"] = rng.choice(["a heap of hay", "the mud", "a soft bush", "a pile of leaves"])
    s["seen"] = rng.choice(["the river", "the tops of the trees", "the hills", "all the little roofs"])
    first = start(
        rng, s, say,
        """[Birds can fly, but {k}s cannot. Still, a {adj} {k} named {n}, who lived {inplace}, had only one wish.
        |{n} was a {adj} {k} who lived {inplace} and always looked up at the sky.
        |{Inplace} lived {n}, a {adj} {k} with a big dream.]""",
    )  # fmt: skip
    if hero.kind == "penguin":
        first = opening(rng, s)
    first += " " + say(
        """[More than anything|Most of all], {n} wanted to fly. [Every day {he} watched the clouds.|"I wish I had
        wings,"
        {he} said every morning.|{He} even dreamed about it at night.] [One day|One windy day|One sunny morning], {he}
        made
        wings from {wings}. {He} [climbed up on|stood on top of] {high}, [counted to three|took a deep breath|closed
        {his}
        eyes], and jumped. [Down {he} fell|Bump! Down {he} fell|Plop! {He} fell], right into {soft}."""
    )
    middle = say(
        """{His} friend {fn} the {fk} [saw it all|came down from the sky|flew over to see]. "Are you hurt?" [asked
        {fn}.|{fn}
        asked.] "[No, only sad|I am not hurt, but I am sad]," said {n}. "[I will never fly|I only want to fly, just
        once]."
        {fn} [thought for a while|looked at {him} kindly|sat down next to {him}]. """
    )
    if way == "back":
        middle += say(
            """"[Climb on my back|Sit on my back], and hold on [tight|well]," said {fn}. {n} [climbed on|held on with
            all
            {his} might]. [Up, up, up they went!|Then {fn} opened {fhis} wide wings, and up they went!] The wind [sang
            in
            {his} ears|was cool on {his} face]. Far below, {n} could see {seen}, as small as [toys|a picture]."""
        )
        s["how"] = "on the back of {fn} the {fk}"
        s["helped"] = "{fn} the {fk} took {him} up on {fhis} back"
    elif way == "balloons":
        s["balloons"] = rng.choice(
            ["ten red balloons", "a hundred balloons", "one very big balloon", "many blue balloons"]
        )
        middle += say(
            """"[I have an idea|I know a way]," {fhe} said. {fn} brought {balloons} and tied them to a [basket|strong
            basket].
            {n} [sat down in it|climbed in]. [Slowly the basket went up.|Up went the basket, higher and higher!] {fn}
            flew
            [next to|around] {him} and [held the rope|showed {him} the way]. From up there, {n} could see {seen}."""
        ).replace("tied them", "tied it" if "one" in s["balloons"] else "tied them")
        s["how"] = "in a basket with {balloons}"
        s["helped"] = "{fn} the {fk} made {him} fly with {balloons}"
    else:
        s["tree"] = rng.choice(["apple tree", "tall tree", "old tree"])
        middle += say(
            """"[There is more than one way to fly|I have an idea]," {fhe} said. {fn} flew up into the {tree}
            with a
            long rope, and together they made a swing. "Now sit down and close your eyes!" {fn} said. {n} went [up and
            down,
            up and down|higher and higher]. The wind [was in {his} face|sang in {his} ears]. When {he} opened {his}
            eyes,
            {he} could see {seen}."""
        ).replace("the " + s["tree"], "an " + s["tree"] if s["tree"][0] in "ao" else "a " + s["tree"])
        s["how"] = "on a swing in a tree"
        s["helped"] = "{fn} the {fk} made a swing with {him}"
    last = say(
        """["I am flying!" {n} [called|cried]. "I am really flying!"|"Look at me!" {n} called. "I am flying!"] [That
        night
        {he} slept with a smile.|When it was time to go home, {n} gave {fn} a big hug.|{He} laughed so much that {fn}
        had to
        laugh too.] [{n} never got wings, but {he} had a friend, and that was even better.|And from then on, they did
        it again
        every [Sunday|sunny day].|"Thank you," {n} said. "That was the best day of my life."]"""
    )
    return Story(
        topic=say("[a {k} who wants to fly|a {k} who wants to fly like a bird|a {k} who makes wings]").lower(),
        text=pages(first, middle, last),
        summary=say(
            "[{n} the {k} wanted to fly|A {adj} {k} named {n} wanted to fly but fell down], and then {helped}."
        ),
        facts=[
            *usual_facts(hero, friend, s),
            ask(say, "What did {n} want?|What was {n}'s wish?|What did {n} want to do?", "{n} wanted to fly."),
            ask(say, "What did {n} make the wings from?|What were the wings made of?",
                "{n} made wings from {wings}.|The wings were made of {wings}."),
            ask(say, "Where did {n} fall?|Where did {n} land?", "{n} fell into {soft}.|{n} landed in {soft}."),
            ask(say, "How did {n} fly at last?|How could {n} fly in the end?", "{n} flew {how}."),
            ask(say, "What could {n} see?", "{n} could see {seen}."),
            ask(say, "How did {n} feel at the end?", "{n} was very happy.|{n} felt happy at the end."),
        ],
    )  # fmt: skip


@plot
@short
def learns_to_swim(rng: random.Random) -> Story:
    hero, friend, s, say = players(rng, NOT_SWIMMERS, SWIMMERS)
    s["water"] = rng.choice(["the pond", "the lake", "the river", "the blue pond"])
    if "lake" in s["place"]:
        s["water"] = "the lake"
    way = rng.choice(["steps", "toy", "fall"])
    s["toy"] = rng.choice(["red ball", "little boat", "yellow hat", "blue ball", "paper boat"])
    s["hold"] = rng.choice(["a piece of wood", "an old log", "a big round leaf", "a long stick"])
    first = start(
        rng, s, say,
        """[On hot days everyone went to {water}. Only {n} stayed on the grass. {n} was a {adj} {k} who lived {inplace}.
        |{n}, a {adj} {k}, lived {inplace}, not far from {water}.
        |Splash! Splash! {n} heard that sound all summer. {He} was a {adj} {k}, and {he} lived {inplace}.]""",
    )  # fmt: skip
    first += " " + say(
        """{n} [could not swim|did not know how to swim], but {he} wanted to learn. [When the others [jumped
        into|played in]
        {water}, {he} only [watched|put one foot in].|"The water is so deep," {he} thought.|{He} was a little afraid
        of the
        deep water.]"""
    )
    if way == "steps":
        middle = say(
            """[One day|One warm morning], {his} friend {fn} the {fk} [came to sit by {him}|swam up to {him}]. "[Why
            don't you
            come in|Why do you sit here alone]?" asked {fn}. "I can't swim," {n} said [softly|sadly]. "Then I will
            teach you!"
            said {fn}. [On the first day|First], {n} only [stood in the water|got {his} feet wet]. [On the second
            day|Next], {he} [put {his} face in|blew bubbles in the water]. [On the third day|After that], {he} held
            {hold} and
            kicked with {his} legs. [Kick, kick, kick!|Splash, splash, splash!] Then {fn} said, "Now let go." {n} let
            go,
            and {he} did not sink!"""
        )
        s["did"] = "{fn} the {fk} taught {him} step by step"
        why = ask(say, "What did {n} hold in the water?|What helped {n} to learn?", "{n} held {hold}.")
    elif way == "toy":
        middle = say(
            """[One day|One windy day], the wind blew {n}'s {toy} into {water}. [Oh no!|"Oh no!" cried {n}. "I can't
            get it!"]
            {His} friend {fn} the {fk} [heard {him}|came by]. "I can get it for you," {fn} said, "[or I can teach you
            how to get
            it|but I can also teach you to get it yourself]." {n} [thought about it|looked at the water]. "[Teach me,
            please|I want to learn]," {he} said. {fn} held {him} up and showed {him} how to kick. [They tried again and
            again.|At first {he} went under, but {he} tried again.] At last {n} swam, all alone, and [got {his} {toy}
            back|came
            back with {his} {toy}]."""
        )
        s["did"] = "{fn} the {fk} taught {him}, and {he} got {his} {toy} back"
        why = ask(say, "What did the wind blow into the water?|What fell into the water?",
                  "The wind blew {n}'s {toy} into the water.|It was {n}'s {toy}.")  # fmt: skip
    else:
        s["slip"] = rng.choice(["a wet stone", "some mud", "the wet grass", "an old log"])
        middle = say(
            """[One day|One afternoon], {n} slipped on {slip} and fell into {water}. [Splash!|"Help!" {he} cried.]
            {His} friend
            {fn} the {fk} [came at once|was there in a moment]. "Lie on your back," said {fn}, "and look at the sky."
            {n} lay on
            {his} back. The water [held {him} up|carried {him} like a soft bed]. "[I do not sink|It holds me]!" {he}
            said.
            "[That is how swimming begins|That is the first step]," said {fn}. [Then|After that,] {fn} showed {him}
            how to kick,
            and [every day they swam a little more|they tried it again every day]."""
        )
        s["did"] = "{he} fell in, and {fn} the {fk} taught {him}"
        why = ask(say, "Why did {n} fall into the water?|What happened to {n}?",
                  "{n} slipped on {slip} and fell into {water}.")  # fmt: skip
    last = say(
        """["I can swim!" {n} [shouted|called]. "Look, {fn}, I can swim!"|"You did it!" {fn} cried. {n} was so proud.]
        [By the end of the summer, {he} could swim from one side to the other.|Soon {n} and {fn} were playing in the
        water all
        day.|All {his} friends clapped and cheered.] [The water was still deep, but {he} was not afraid of it any
        more.|And when
        a small chick came and said, "I can't swim," {n} said, "Then I will teach you!"|In the evening they lay in the
        sun until
        they were dry.|"Everyone starts with one wet foot," said {fn}, and they laughed.]"""
    )
    if hero.kind == "chick":
        last = last.replace("a small chick", "a small mouse")
    return Story(
        topic=say("[a {k} who learns to swim|a {k} who cannot swim|a {k} who wants to learn to swim]").lower(),
        text=pages(first, middle, last),
        summary=say("[{n} the {k} could not swim, but then|A {adj} {k} named {n} wanted to swim, and] {did}."),
        facts=[
            *usual_facts(hero, friend, s),
            ask(say, "What did {n} want to learn?|What did {n} want?|What did {n} learn?",
                "{n} wanted to learn to swim."),
            ask(say, "Who taught {n} to swim?|Who was {n}'s teacher?", "{fn} the {fk} taught {n} to swim."),
            ask(say, "What could {n} not do at first?", "At first, {n} could not swim."),
            why,
            ask(say, "How did {n} feel at the end?",
                "{n} felt happy and proud.|{n} was happy, because {he} could swim."),
        ],
    )  # fmt: skip


@plot
@short
def learns_for_the_show(rng: random.Random) -> Story:
    hero, friend, s, say = players(rng)
    s["do"], s["doing"], s["bad"], s["lost"] = rng.choice(
        [
            ("sing", "singing", "{his} voice went too high and too low", "the words of the song"),
            ("sing", "singing", "{his} song came out like an old door", "the words of the song"),
            ("dance", "dancing", "{his} feet went the wrong way", "the first steps"),
            ("dance", "dancing", "{he} fell over {his} own feet", "the first steps"),
            ("play the drum", "playing the drum", "it went too fast and then too slow", "how the song began"),
            ("play the flute", "playing the flute", "it made a noise like a sick goose", "how the song began"),
            ("play the bells", "playing the bells", "{he} rang all of them at once", "how the song began"),
        ]
    )
    s["show"] = rng.choice(["the spring show", "the summer show", "the big show", "the winter show", "the moon show"])
    s["spot"] = rng.choice(["behind the barn", "under a tree", "on a hill", "by the stream"])
    way = rng.choice(["together", "slow", "pot" if s["do"].startswith("play") else "slow", "together"])
    first = start(
        rng, s, say,
        """[Soon it would be time for {show}. A {adj} {k} named {n}, who lived {inplace}, could think of nothing else.
        |"{Show} is coming!" called the birds {inplace}, where {n} lived. {n} was a {adj} {k}.
        |{n} lived {inplace}. {He} was a {adj} {k} who loved music.]""",
    )  # fmt: skip
    first += " " + say(
        """{n} wanted to {do} at {show}. [But there was one problem.|It was not easy.|But {he} had never done it
        before.] When
        {he} tried it, {bad}. [Some crows laughed.|"Oh dear," said {n}.|Even the cows covered their ears.] {n} [felt
        sad|wanted
        to give up|hung {his} head]."""
    )
    middle = say(
        """"[Don't give up|Don't be sad], {n}," said {his} friend {fn} the {fk}. "[Nobody is good on the first day|I
        will help
        you. We have seven days]." So every [day|evening] they met {spot}, and {n} tried [again and again|ten times].
        {fn}
        [clapped {fhis} hands to help {him}|listened and counted for {him}|showed {him} how to go slowly]. [Day by day,
        it got better.|Each day it was a little better.]"""
    )
    if way == "together":
        ending = say(
            """Then it was the night of {show}. [So many faces looked at {n}!|The lights were bright, and everyone was
            quiet.]
            Suddenly, {n} forgot {lost}. {His} [knees shook|heart beat fast]. Then {fn} [came and stood next to
            {him}|jumped
            up on the stage]. "[We will do it together|You are not alone]," {fn} whispered. [They started softly.|Then
            {n}
            remembered.] Soon {he} was {doing} better than ever."""
        )
        s["end"] = "{fn} the {fk} stood next to {him} at {show}"
        special = ask(say, "What did {n} forget?|What went wrong at the show?", "{n} forgot {lost}.")
    elif way == "pot":
        s["tool"] = {"drum": "drum", "flute": "flute", "bells": "bells"}[s["do"].split()[-1]]
        s["new"] = rng.choice(["an old pot and a spoon", "two spoons", "a row of cups", "a box and a stick"])
        ending = say(
            """But on the day of {show}, {n} [dropped|fell and broke] the {tool}. [Crack!|Crash!] "Now I can't play,"
            {n}
            cried. {fn} [ran to the kitchen|looked around] and came back with {new}. "[Try these|Use these]!" said
            {fn}. {n}
            went up on the stage. Tap, tap, tap! [Nobody had ever heard such a funny, happy song.|Soon everyone was
            tapping
            along.]"""
        ).replace("dropped the " + s["tool"], "dropped the " + s["tool"] + ", and now it was broken")
        s["end"] = "{fn} the {fk} brought {him} {new} when the {tool} broke"
        special = ask(say, "What did {n} play on at the show?|What did {fn} bring?", "{fn} brought {new}.")
    else:
        ending = say(
            """At last it was the night of {show}. {n} looked [out at all the faces|for {fn}], and {fn} [smiled and
            waved|nodded at {him}]. [{n} took a deep breath and began.|"One, two, three," {n} whispered, and {he}
            began.] It was
            not perfect, but it was [full of joy|warm and lovely]. [Even the crows were quiet.|Even the moon seemed to
            listen.]"""
        )
        s["end"] = "{fn} the {fk} helped {him} until {he} could do it"
        special = ask(say, "Where did {n} and {fn} meet every day?|Where did they practice?", "They met {spot}.")
    ending += " " + say(
        """[When it was over, everyone clapped and cheered.|"More, more!" everyone called.|How they all clapped!]
        ["Thank you,
        {fn}," said {n}.|{n} bowed, and {he} pulled {fn} up to bow too.|{n} was so happy that {he} hugged {fn}.]
        [After the show
        they ate [cake|apple pie] under the stars.|"Next year we will do it again," said {fn}.|And all the way home,
        {n} could
        not stop {doing}.|Then {he} knew that hard work can be fun with a friend.]"""
    )
    return Story(
        topic=say("[a {k} who wants to {do}|a {k} who learns to {do}|a {k} who learns to {do} for a show]").lower(),
        text=pages(first, middle, ending),
        summary=say("[{n} the {k}|A {k} named {n}] wanted to {do}, and {end}."),
        facts=[
            *usual_facts(hero, friend, s),
            ask(say, "What did {n} want to do?|What did {n} want?|What did {n} learn?",
                "{n} wanted to {do} at {show}."),
            ask(say, "What happened when {n} tried it?|What went wrong at first?", "When {n} tried it, {bad}."),
            ask(say, "Who helped {n} to learn?|Who told {n} not to give up?", "{fn} the {fk} did."),
            special,
            ask(say, "What did everyone do when the show was over?|Did the others like it?",
                "Everyone liked it very much."),
            ask(say, "How did {n} feel at the end?", "{n} felt very happy.|{n} was happy at the end."),
        ],
    )  # fmt: skip


@plot
@short
def bakes_a_cake(rng: random.Random) -> Story:
    hero, friend, s, say = players(rng)
    s["cake"] = rng.choice(
        ["apple pie", "honey cake", "carrot cake", "berry pie", "chocolate cake", "nut cake", "plum pie"]
    )
    s["thing"] = "pie" if "pie" in s["cake"] else "cake"
    s["who"] = rng.choice(["grandmother", "mother", "father", "little brother", "little sister", "grandfather", "aunt"])
    way = rng.choice(["salt", "burned", "dropped", "big"])
    first = start(
        rng, s, say,
        """[Tomorrow would be a special day for {n}, a {adj} {k} who lived {inplace}.|{n} was a {adj} {k} with a big
        white apron. {He} lived
        {inplace}.|{Inplace}, where {n} lived, the air often smelled of warm bread. {n} was a {adj} {k}.]""",
    )  # fmt: skip
    first += " " + say(
        """[It was nearly|The next day was] the birthday of {n}'s {who}. "I will bake [the best {cake} in the world|a
        big {cake}|a
        {cake} all by myself]!" said {n}. {He} put [a big bowl, flour, eggs and butter|the flour, the eggs
        and the milk|flour, sugar, eggs and butter] on the table. {He} [mixed and mixed|stirred and sang a song|mixed
        until {his} arms
        hurt]."""
    )
    if way == "salt":
        wrong = """But {n} was in a hurry. {He} [took the wrong jar|did not look at the jar]. [When the {thing} was
        ready, {he}
        tasted a small bite.|The {thing} came out of the oven, and {he} tried a little bit.] "[Yuck|Ugh]!" {n} cried.
        {He} had used salt and
        not sugar! """
        s["wrong"], s["tip"] = "{n} used salt and not sugar", "taste it first, to see if it is sugar"
    elif way == "burned":
        s["play"] = rng.choice(["play with a ball", "look at a butterfly", "sit in the sun", "pick flowers"])
        wrong = """Then {he} put the {thing} in the oven and went out to {play}. [{He} forgot the time.|{He} forgot
        all about
        the {thing}.] Soon there was [a bad smell|smoke in the kitchen]. {n} ran [inside|back in]. "Oh no!" {he}
        cried. The
        {thing} was [as black as night|burned and black]! """
        s["wrong"], s["tip"] = "{n} went out to {play}, and the {thing} burned", "stay here and watch the oven"
    elif way == "dropped":
        s["trip"] = rng.choice(["a toy", "a chair", "the rug", "an old shoe", "a spoon on the floor"])
        wrong = """The {thing} came out of the oven, [golden and warm|warm and sweet]. {n} [danced with joy|ran to the
        window with it]. But {he} did not look where {he} was going, and {he} fell over {trip}. [Splat!|Crash!] The
        {thing} [was
        all over the floor|fell on the floor]. """
        s["wrong"], s["tip"] = (
            "{n} fell over {trip} and dropped the {thing}",
            "put everything away, so that nobody falls",
        )
    else:
        wrong = """"[More is better|A little more can't hurt]," said {n}, and {he} put in [ten|five|twenty] spoons of
        baking powder,
        not one. In the oven, the {thing} [grew and grew|got bigger and bigger]. It [pushed open the oven door|came
        out of the
        door]. [Pop! Splat!|Plop! Plop!] It was [on the walls|on the floor] and [even in {n}'s hair|all over {n}'s
        ears]! """
        s["wrong"], s["tip"] = "{n} used too much baking powder", "read every word in the book"
    middle = say(
        wrong
        + """[{n} sat down and cried.|"Now there will be no {thing}," {n} said sadly.|{n} did not know what to do.]"""
    )
    last = say(
        """[Knock, knock!|Just then there was a knock at the door.] It was {his} friend {fn} the {fk}. {n} told {fhim}
        everything. "[Everyone makes mistakes|That can happen to anyone]," said {fn}. "Let us [clean
        up and start again|try again]. And this time we will {tip}." So they [worked side by side|did it all again,
        step by
        step]. {fn} [broke the eggs|washed the bowl], and {n} [mixed|stirred] slowly. This time the {cake} was [just
        right|warm
        and sweet]. [The next day|On the birthday], {n}'s {who} ate [a big piece|two pieces|three
        pieces]. "[This is the
        best {cake} I have ever had|How good it is]!" [There was even a piece left for {fn}.|{n} and {fn} looked at
        each other and
        smiled.|"It was the second one," said {n}, and {he} laughed with {fn}.|And {n} gave the biggest piece to
        {fn}.]"""
    )
    return Story(
        topic=say(
            "[a {k} who bakes a {cake}|a {k} and a {cake} that goes wrong|a {k} who bakes a birthday {thing}]"
        ).lower(),
        text=pages(first, middle, last),
        summary=say("[{n} the {k}|A {adj} {k} named {n}] wanted to bake a {cake}. "
                    "[It went wrong|The first one went wrong], but "
                    "{fn} the {fk} helped {him} try again."),
        facts=[
            *usual_facts(hero, friend, s),
            ask(say, "What did {n} want to bake?|What did {n} bake?|What did {n} want to make?",
                "{n} wanted to bake a {cake}.|It was a {cake}."),
            ask(say, "Who was the {thing} for?|Whose birthday was it?",
                "The {thing} was for {n}'s {who}.|It was the birthday of {n}'s {who}."),
            ask(say, "What went wrong?|Why did the first {thing} go wrong?", "{wrong}."),
            ask(say, "Who came to the door?|Who knocked at the door?", "{fn} the {fk} came to the door."),
            ask(say, "What did {fn} say they would do this time?", '{fn} said, "This time we will {tip}."'),
            ask(say, "Was the second {thing} good?|What was the second {thing} like?",
                "The second {thing} was very good."),
        ],
    )  # fmt: skip


@plot
@short
def grows_a_seed(rng: random.Random) -> Story:
    hero, friend, s, say = players(rng)
    s["plant"], s["part"], s["use"] = rng.choice(
        [
            ("sunflower", "a big yellow flower", "gave its seeds to all the birds"),
            ("pumpkin", "a huge orange pumpkin", "made soup for all their friends"),
            ("bean plant", "more beans than they could count", "had beans for dinner with all their friends"),
            ("apple tree", "sweet red apples", "gave an apple to everyone who came by"),
            ("carrot", "a carrot as long as a bed", "shared it with all their friends"),
            ("melon", "a melon as big as a chair", "ate it in the sun with all their friends"),
            ("rose", "a hundred pink roses", "gave a rose to everyone they met"),
        ]
    )
    s["giver"] = rng.choice(["an old crow", "a kind old woman", "{his} grandmother", "an old farmer", "{his} uncle"])
    s["seed"] = rng.choice(["a tiny seed", "a small brown seed", "a round little seed", "one little seed"])
    way = rng.choice(["wait", "dry", "eater"])
    s["spot"] = rng.choice(["by the door", "behind the house", "next to the fence", "under the window"])
    first = start(
        rng, s, say,
        """[It all began with something very small. {n}, a {adj} {k}, lived {inplace}.|{n} lived {inplace} and had a
        little garden. {He} was a {adj} {k}.|{Inplace} lived {n}, a {adj} {k} who loved all green things.]""",
    )  # fmt: skip
    first += " " + say(
        """[One day in spring|One morning], {giver} gave {n} {seed}. "[What can such a small thing do|What is it
        for]?" asked {n}.
        "[Plant it and wait|Put it in the ground, and you will see]," [was the answer|{n} was told]. So {n} [dug|made]
        a little hole
        {spot}, put in the seed, and [gave it water|poured water on it]."""
    )
    if way == "wait":
        middle = say(
            """[The next day|The next morning], nothing was there. "[Grow|Hurry up], little seed!" said {n}. [After two
            days|On the third day], {he} could not wait. {He} began to dig it up. "Stop!" called {his} friend {fn} the
            {fk}. "A
            seed needs [to sleep in the dark|time and quiet]. If you dig it up, it can't grow." "[But waiting is
            hard|I can't
            wait]," said {n}. "Then we will wait together," said {fn}. [They told stories|They sang songs|They played
            games], and
            the days went by. One morning, [a green tip came out of the ground|two small green leaves were there]."""
        )
        s["trouble"], s["did"] = (
            "{n} could not wait and began to dig up the seed",
            "{fn} told {n} to stop and waited with {him}",
        )
        s["short"] = "{he} wanted to dig it up, but {fn} the {fk} helped {him} wait"
    elif way == "dry":
        middle = say(
            """Soon [a green leaf came up|there were two little leaves]. But then it did not rain for [many days|three
            weeks].
            The ground was [dry and hard|as hard as stone], and the leaves [hung down|turned yellow]. "[Please do not
            die|Don't give up], little plant," said {n}. {His} friend {fn} the {fk} [came by with a bucket|found an
            old bucket].
            "[The river still has water|There is still water in the well]," said {fn}. "[Let us go|I will help you]."
            Every
            [morning|evening], they carried water [back and forth|together], and [slowly|day by day] the leaves stood up
            again."""
        )
        s["trouble"], s["did"] = "It did not rain, and the leaves hung down", "{fn} helped {n} to carry water every day"
        s["trouble"] = "It did not rain for a long time, and the ground was dry"
        s["short"] = "it did not rain, so {fn} the {fk} helped {him} carry water"
    else:
        s["eater"] = rng.choice(["caterpillar", "snail", "slug"])
        middle = say(
            """Soon [a green plant came up|there were four green leaves]. But one morning, [half of a leaf was
            gone|there were
            holes in the leaves]! A [hungry|fat] little {eater} was eating [them|the leaves]. "[Go away|Stop that]!"
            cried {n}.
            "But I am [so hungry|hungry]," said the {eater}. {His} friend {fn} the {fk} [came to look|heard the
            noise]. "[I have a
            plan|I know what to do]," said {fn}. {Fhe} [planted some salad|put some old salad] on the other side of
            the garden.
            "[This is for you|You can eat this], little {eater}, and the plant is for {n}." [Everyone was happy with
            that.|"Yum, salad!" said the {eater}.]"""
        )
        s["trouble"], s["did"] = "A {eater} was eating the leaves", "{fn} gave the {eater} some salad"
        s["short"] = "a {eater} ate the leaves, so {fn} the {fk} gave it salad"
    last = say(
        """[The plant grew and grew.|Then the plant grew, first up to {n}'s knees and then over {his} head.|Up and up
        the plant went in
        the sun and the rain.] [In the end|One fine day], it was a big {plant}, with {part}.  {n} and {fn} {use}. [And
        {n} kept one small seed for the next spring.|"Good
        things take time," said {fn}, and {n} nodded.|It was the best day of the year.|Then {n} gave a seed to a
        little mouse and
        said, "Plant it and wait."]"""
    )
    if s["plant"] in ("pumpkin", "carrot", "melon"):
        last = last.replace(f"it was a big {s['plant']}, with {s['part']}", f"it was {s['part']}")
    if hero.kind == "mouse" or friend.kind == "mouse":
        last = last.replace("a little mouse", "a little bird")
    return Story(
        topic=say("[a {k} who plants a seed|a {k} and a little seed|a {k} who grows a big {plant}]").lower(),
        text=pages(first, middle, last),
        summary=say("[{n} the {k} planted a seed|A {adj} {k} named {n} planted a little seed]; {short}, and it grew."),
        facts=[
            *usual_facts(hero, friend, s),
            ask(say, "Who gave {n} the seed?|Where did the seed come from?", "{giver} gave {n} the seed."),
            ask(say, "Where did {n} plant the seed?", "{n} planted the seed {spot}."),
            ask(say, "What was the problem?|What went wrong?", "{trouble}."),
            ask(say, "What did {fn} do?|How did {fn} help?", "{did}."),
            ask(say, "What did the seed grow into?|What grew from the seed?", "It grew into a big {plant}."),
            ask(say, "What did {n} and {fn} do at the end?", "They {use}."),
        ],
    )  # fmt: skip


@plot
@short
def builds_something(rng: random.Random) -> Story:
    hero, friend, s, say = players(rng)
    s["thing"] = rng.choice(["house", "bridge", "boat"])
    s["stuff"], s["strong"] = rng.choice(
        [("straw", "wood"), ("thin sticks", "thick wood"), ("old boxes", "strong wood"), ("dry grass", "logs and rope")]
    )
    s["need"], s["fail"], s["test"], s["end"] = {
        "house": (
            rng.choice(["a house of {his} own", "a little house for rainy days"]),
            rng.choice(["a strong wind blew the house down", "the rain came in and the roof fell down"]),
            "When the next storm came, the house stood still, and {n} and {fn} sat inside, warm and dry",
            rng.choice(["a red door", "two round windows", "a blue roof", "a small garden"]),
        ),
        "bridge": (
            rng.choice(["a bridge over the stream", "a bridge to the other side of the river"]),
            rng.choice(
                ["the bridge broke in the middle, and {n} fell into the water", "the water carried the bridge away"]
            ),
            "{n} and {fn} walked over it hand in hand, and the bridge did not even shake",
            rng.choice(["a rope to hold on to", "a lamp at each end", "flowers on both sides"]),
        ),
        "boat": (
            rng.choice(["a boat to sail to the other side of the lake", "a boat with a real sail"]),
            rng.choice(["water came into the boat, and it sank", "the boat turned over, and {n} fell into the water"]),
            "{n} and {fn} sailed all afternoon, and not one drop came in",
            rng.choice(["a white sail", "a red flag", "a yellow sail", "a little bell"]),
        ),
    }[s["thing"]]
    way = rng.choice(["hurry", "alone", "ask"])
    first = start(
        rng, s, say,
        """[Bang, bang, bang! What was that noise? It was {n}, a {adj} {k} who lived {inplace}.|{n} was a {adj} {k}
        who liked to make
        things. {He} lived {inplace}.|{Inplace} lived a {adj} {k} named {n}, who always had a hammer with {him}.]""",
    )  # fmt: skip
    first += " " + say("[One day, {n} wanted to build {need}.|{n} had a plan. {He} wanted to build {need}.]")
    if way == "hurry":
        first += " " + say(
            """"[I will be done by lunch|I will build it in one day]!" {he} said. {He} took {stuff}, because that was
            [quick|easy and
            quick]. {His} friend {fn} the {fk} [watched|looked at it]. "[Will that hold|Is it strong]?" asked {fn}.
            "[It is good
            enough|Of course]!" said {n}."""
        )
        s["why"] = "{n} was in a hurry and used {stuff}"
    elif way == "alone":
        first += " " + say(
            """{His} friend {fn} the {fk} came by. "May I help you?" asked {fn}. "[No, I can do it all alone|No, thank
            you. I don't
            need help]," said {n}. {He} [worked all day|pulled and pushed], but the big wood was too heavy for {him}.
            So {he} used
            {stuff}."""
        )
        s["why"] = "{n} wanted to work alone, and {he} used {stuff}"
    else:
        s["teller"] = rng.choice(["crow", "sparrow", "squirrel"])
        first += " " + say(
            """But {he} did not know how. "Use {stuff}," said a {teller}. "[That is how I make my nest|I always do]."
            So {n} used
            {stuff} and [worked until evening|was done very soon]. [It looked nice.|{He} was happy with it.]"""
        )
        s["why"] = "{n} listened to a {teller} and used {stuff}"
    middle = say(
        """[But that very night|But the next day], {fail}.  {n} [looked at it with tears in {his}
        eyes|sat down on a stone and was sad]. "[All my work is gone|I will never build a {thing}]," {he} said. """
    )
    if "night" in middle and "fell into the water" in s["fail"]:
        middle = middle.replace("But that very night", "But the next day")
    middle += say(
        "[Then {fn} came back.|Soon {fn} was there.]" if way != "ask" else "Then {his} friend {fn} the {fk} came by."
    )
    middle += " " + say(
        """"[Let us build it again|We can try again]," said {fn}, "[but slowly, and with {strong}|and this time with
        {strong}]." "[Will
        you help me|Would you really help me]?" asked {n}. "[That is what friends are for|Yes, of course]," said
        {fn}."""
    )
    last = say(
        """[They worked for three days.|For a whole week they worked side by side.|They cut and carried and tied.] {n}
        [held|carried]
        the wood, and {fn} [hit the nails|tied it all with rope]. [At last|In the end], the {thing} was [done|ready].
        It even had {end}.
        {test}. ["Next time I will ask you first," said {n}.|"We are good builders, you and I," said {fn}.|"It is our
        {thing}
        now," said {n}.|"What shall we build next?" asked {n}.] [And they both laughed.|The sun went down, and all was
        well.|Then they shared a warm [pie|bread] and were happy.]"""
    ).replace("a warm bread", "some warm bread")
    return Story(
        topic=say("[a {k} who builds a {thing}|a {k} who wants to build a {thing}|a {k} and a {thing}]").lower(),
        text=pages(first, middle, last),
        summary=say("[{n} the {k}|A {k} named {n}] built a {thing} with {stuff}, but it [did not hold|was not "
                    "strong], so {fn} the {fk} helped {him} build a better one."),
        facts=[
            *usual_facts(hero, friend, s),
            ask(say, "What did {n} want to build?|What did {n} want?|What did {n} make?",
                "{n} wanted to build {need}."),
            ask(say, "What was the first {thing} made of?|What did {n} use at first?", "At first, {n} used {stuff}."),
            ask(say, "What happened to the first {thing}?|What went wrong?", "{fail}."),
            ask(say, "Why did the first {thing} not hold?|Why was the first {thing} not strong?", "Because {why}."),
            ask(say, "What did they use for the new {thing}?|What was the new {thing} made of?", "They used {strong}."),
            ask(say, "What did the new {thing} have?", "It had {end}."),
        ],
    )  # fmt: skip


@plot
@short
def a_race(rng: random.Random) -> Story:
    hero, friend, s, say = players(
        rng, "turtle snail mole hedgehog duck pig koala panda badger".split(),
        "rabbit fox deer pony cat dog goat zebra wolf squirrel".split(),
    )  # fmt: skip
    s["goal"] = rng.choice(["the old tree", "the red gate", "the windmill", "the big rock", "the bridge"])
    s["prize"] = rng.choice(["a basket of apples", "a gold cup", "a honey cake", "a blue ribbon", "a big melon"])
    way = rng.choice(["nap", "lost", "mud"])
    s["slow"] = rng.choice(["Step by step", "Slowly, slowly", "One step and then one more"])
    first = start(
        rng, s, say,
        """[Some are fast and some are slow. {n} was slow. {He} was a {adj} {k} who lived {inplace}.|{n}, a {adj} {k},
        lived {inplace} and
        was never in a hurry.|{Inplace} lived {n}, a {adj} {k} who walked very slowly.]""",
    )  # fmt: skip
    first += " " + say(
        """{fn} the {fk}, who lived next door, was very fast. "[You are so slow|A stone is faster than you], {n},"
        {fn} [always said|said
        and laughed]. [One day|One morning], {n} said, "[Then let us have a race|Let us run a race], from here to
        {goal}." {fn}
        [laughed out loud|laughed until {fhe} cried].  [An old owl|A crow|The farmer's
        wife] promised {prize} to the winner. """
    )
    middle = say(
        """["One, two, three, go!"|"Ready, steady, go!"] {fn} [ran like the wind|was gone in a moment]. {n}
        [walked|went] as {he}
        always did. "{slow}," {he} said to {himself}.  """
    )
    if way == "nap":
        s["rest"] = rng.choice(["under a tree", "in the soft grass", "in the warm sun", "behind a bush"])
        middle += say(
            """Halfway, {fn} looked back. [{n} was far, far away.|Nobody was there.] "[I have so much time|I can rest
            a bit]," {fn} said.
            {Fhe} lay down {rest} and [fell asleep|soon began to snore]. {n} [walked past without a sound|came by and
            smiled, but did
            not stop]."""
        )
        last = say(
            """When {fn} woke up, [the sun was low|it was late]. {Fhe} ran as fast as {fhe} could, but {n} was already
            at {goal}! "[{n}
            wins|The winner is {n}]!" everyone shouted. """
        )
        s["why"], s["winner"], s["how"] = (
            "{fn} lay down {rest} and fell asleep",
            "{n} won the race",
            "{n} won because {fn} fell asleep",
        )
    elif way == "lost":
        s["sign"] = rng.choice(["sign", "map"])
        middle += say(
            """At the end of the field, the path went two ways. {fn} did not stop to look at the {sign}. {Fhe} ran
            left, [faster and
            faster|as fast as {fhe} could]. But the right way was right! When {n} came there, {he} [read the {sign}
            slowly|looked well at the {sign}] and went the right way."""
        )
        last = say(
            """{fn} ran [into the deep wood|to the end of the lake], and [nobody was there|there was no {goal}]. When
            {fhe} came back at
            last, {n} was sitting at {goal}. "[{n} wins|The winner is {n}]!" everyone shouted. """
        ).replace("no the ", "no ")
        s["why"], s["winner"] = "{fn} did not look at the {sign} and ran the wrong way", "{n} won the race"
        s["how"] = "{n} won because {fn} ran the wrong way"
    else:
        s["hole"] = rng.choice(["the deep mud", "a deep hole", "a thorn bush"])
        middle += say(
            """Then {he} heard a cry. {fn} [had jumped into|was stuck in] {hole} and could not get out. "[Help me,
            please|Help]!" called
            {fn}. {n} could win now, but {he} stopped. {He} [held out a long stick|found a
            long rope] and
            pulled and pulled until {fn} was free."""
        )
        last = say(
            """"[Why did you help me|You could have won]," said {fn}. "[A friend is better than a prize|I don't want
            to win like that],"
            said {n}. So they went on, side by side, and came to {goal} at the same time. "[Two winners|Both of them
            win]!" everyone
            shouted. """
        ).replace('"Why did you help me,"', '"Why did you help me?"')
        s["why"], s["winner"] = "{fn} was stuck in {hole}", "They both won, because they came to {goal} together"
        s["how"] = "{n} helped {fn} out of {hole}, and they both won"
    last += say(
        """[{fn} never laughed at {n} again.|"I am sorry that I laughed at you," said {fn}.|"Well done, {n}," said
        {fn}.] {n} [got|was given] {prize}, and {he} shared it with {fn}. [From then
        on, they were good
        friends.|The next day they went for a walk, and {fn} walked slowly.|Fast or slow, it was a very good day.|If
        you keep going, you
        will get there too.]"""
    )
    if way == "mud":
        last = last.replace(f"{hero.name} got", "They got").replace(f"{hero.name} was given", "They got")
        last = last.replace(f", and {s['he']} shared it with {friend.name}", ", and they shared it")
        last = last.replace("Fast or slow, it was a very good day.", "")
    elif s["prize"] in ("a gold cup", "a blue ribbon"):
        last = last.replace(f"and {s['he']} shared it with", f"and {s['he']} showed it to")
    return Story(
        topic=say("[a race between a {k} and a {fk}|a {k} who runs a race|a slow {k} and a fast {fk}]").lower(),
        text=pages(first, middle, last),
        summary=say("[{n} the {k} and {fn} the {fk} ran a race|A slow {k} and a fast {fk} ran a race], and {how}."),
        facts=[
            *usual_facts(hero, None, s),
            ask(say, "Who ran the race with {n}?|Who was fast?|Who laughed at {n}?", "It was {fn} the {fk}."),
            ask(say, "Where did the race end?|Where did they have to run to?",
                "They ran to {goal}.|The race ended at {goal}."),
            ask(say, "Who won the race?|Who was the winner?", "{winner}."),
            ask(say, "What happened to {fn}?|Why did {fn} not come first?", "{why}."),
            ask(say, "What was the prize?|What was promised to the winner?", "The prize was {prize}."),
            ask(say, "Was {n} fast or slow?", "{n} was slow, but {he} kept going."),
        ],
    )  # fmt: skip


@plot
@short
def greedy_one(rng: random.Random) -> Story:
    hero, friend, s, say = players(rng)
    s["food"], s["from"] = rng.choice(
        [
            ("berries", "a bush full of red berries"), ("apples", "a tree full of apples"), ("nuts",
             "a tree full of nuts"),
            ("cookies", "a big box of cookies"), ("plums", "a tree full of sweet plums"), ("pears",
             "a tree full of pears"),
            ("cakes", "a table full of little cakes"),
        ]
    )  # fmt: skip
    way = rng.choice(["tummy", "stuck", "bad"])
    if s["food"] in ("nuts", "cookies") and way == "bad":
        way = "tummy"
    first = start(
        rng, s, say,
        """["More, more, more!" That is what {n} always said. {n} was a {adj} {k} who lived {inplace}.|{n} lived
        {inplace}. {He} was a {adj}
        {k}, but {he} did not like to share.|There was a {adj} {k} {inplace} who never had enough. {His} name was {n},
        and {he} lived there
        with {his} family.]""",
    )  # fmt: skip
    first += " " + say(
        """[One day|One autumn day|One fine morning], {n} found {from}. "[Mine, all mine|All for me]!" {he} said.
        {His} friend {fn} the
        {fk} came by. "[I am so hungry|They look so good]," said {fn}. "[May I have one|Can I have one, please]?"
        "No," said {n}. "[I
        found them, so they are mine|I need them all]." {fn} [went away sadly|went away with an empty basket]."""
    )
    if way == "tummy":
        s["count"] = rng.choice(["ten", "twenty", "thirty", "fifty"])
        middle = say(
            """{n} began to eat. {He} ate {count} {food}, and then {count} more.  Then {his} tummy began to hurt.
            "[Oh, oh, oh|Ow, my tummy]!" cried {n}. {He} lay [on the grass|under
            a bush] and could not get up. {fn} heard {him} and came [back|running]. {Fhe} made [warm tea|a cup of hot
            tea] for {n} and
            [sat with {him} all night|stayed until {he} felt better]."""
        )
        s["bad"], s["help"] = (
            "{n} ate too many {food}, and {his} tummy hurt",
            "{fn} made tea for {n} and stayed with {him}",
        )
        s["sum"] = "ate too many {food} and felt sick, but {fn} the {fk} was kind to {him}"
    elif way == "stuck":
        s["gap"] = rng.choice(["the gate", "the door", "the little bridge", "the hole in the fence"])
        s["bag"] = rng.choice(["sack", "bag", "basket"])
        middle = say(
            """{n} put all the {food} in a [huge|very big] {bag} [and even in {his} hat|until it was full to the top].
             At {gap}, {he} [got stuck|could not go on and could not go back]. {He} pulled and
            pulled.
             [The sun went down.|It got cold and dark.] "Help!"
            {he} called at
            last. {fn} came with a lamp. {Fhe} pulled {n} out, but [rip|crack], the {bag} broke, and the {food} rolled
            away."""
        )
        s["bad"], s["help"] = "{n} got stuck at {gap} with a big {bag}", "{fn} came with a lamp and pulled {n} out"
        s["sum"] = "took all the {food} and got stuck, until {fn} the {fk} pulled {him} out"
    else:
        s["hide"] = rng.choice(["under {his} bed", "in a deep hole", "in a dark corner", "behind the house"])
        middle = say(
            """{n} took all the {food} home and hid them {hide}.  {He} [did not
            play with the others, because {he} had to watch the {food}|sat there day and night and let nobody in]. But
            after [a
            week|some days], there was a bad smell. [The {food} were soft and brown!|All the {food} had gone bad!] Now
            {n} had
            nothing, and {he} was hungry and alone. Then {fn} came. "[I have some soup|I made soup]," {fhe} said.
            "[There is
            enough for two|You can have half]." """
        )
        s["bad"], s["help"] = "The {food} went bad", "{fn} shared some soup with {n}"
        s["sum"] = "hid all the {food} and they went bad, but {fn} the {fk} shared some soup"
    last = say(
        """"[Why are you so good to me|Why did you help me]?" asked {n}. "[I gave you nothing|I was not good to you]."
        "[You are my
        friend|Friends help each other]," said {fn}.  "[I am sorry|I was wrong]," said {n}. """
    ) + say(
        """[The next day|Soon after that], {n} [put out a big bowl of {food}|found some more {food}]. "[Come,
        everyone|Come here, all of
        you]!" {he} called. "[There is enough for all|One for you, and one for you]!" [They ate and laughed
        together|They all sat in a
        circle], and [to {n}, everything tasted better than before|{n} gave the biggest one to {fn}]. [How good it is to
        share!|And nobody went home hungry.|"Sharing is more fun," {n} said.|{n} had less than before, but {he} was
        much happier.]"""
    )
    if way == "bad" or way == "stuck":
        last = last.replace(f"put out a big bowl of {s['food']}", f"found some more {s['food']}")
    return Story(
        topic=say(
            "[a {k} who is greedy|a greedy {k}|a {k} who does not want to share|a {k} who learns to share]"
        ).lower(),
        text=pages(first, middle, last),
        summary=say("[{n} the {k}|A greedy {k} named {n}] {sum}[, and {n} learned to share|, so {n} began to share]."),
        facts=[
            *usual_facts(hero, friend, s),
            ask(say, "What did {n} find?", "{n} found {from}."),
            ask(say, "What did {fn} ask for?|What did {fn} want?", "{fn} asked for one of the {food}."),
            ask(say, "What went wrong?|What was the problem?|What happened to {n}?", "{bad}."),
            ask(say, "What did {fn} do to help?|How did {fn} help {n}?", "{help}."),
            ask(say, "What did {n} learn?|What is the lesson of the story?",
                "{n} learned to share.|It is good to share."),
            ask(say, "What did {n} do at the end?", "{n} shared the {food} with everyone."),
        ],
    )  # fmt: skip


@plot
@short
def says_no_or_lazy(rng: random.Random) -> Story:
    hero, friend, s, say = players(rng)
    if rng.random() < 0.5:
        s["ask1"], s["ask2"] = rng.sample(
            [
                "play ball",
                "come to the river",
                "eat some soup",
                "pick flowers",
                "sing a song",
                "fly a kite",
                "go for a walk",
            ],
            2,
        )
        s["missed"] = rng.choice(["a party", "a picnic", "a big dance", "a tea party"])
        way = rng.choice(["quiet", "need"])
        first = start(
            rng, s, say,
            """["No!" That was {n}'s favorite word. {n} was a {adj} {k} who lived {inplace}.|{n} was a {adj} {k} who
            lived {inplace} and
            knew only one word.|{Inplace} lived {n}, a {adj} {k} who shook {his} head all day.]""",
        )  # fmt: skip
        first += " " + say(
            """{n} always said no. "Do you want to {ask1}?" asked {his} friend {fn} the {fk}. "No!" said {n}. "Then do
            you want to {ask2}?"
            "No, no, no!" said {n} [and shut the door|and turned around|and stamped {his} foot]. """
        )
        if way == "quiet":
            middle = say(
                """[After a while|One day], nobody asked {n} any more. [It was very quiet.|At first {he} liked that.]
                Then {n} looked out of
                the window. {His} friends were having {missed}. [They were laughing.|There was music.] "Why did nobody
                ask me?" {n} said
                [sadly|with a tear in {his} eye]. [{He} sat and thought for a long time.|{He} knew why.] {n} [felt
                very alone|was
                lonely]. Then there was a knock at the door. It was {fn}! "I will ask you [one more time|once more],"
                said {fn}. "Do you
                want to come with me?" """
            )
            s["why"] = "{n} was lonely, because nobody asked {him} any more"
            s["what"] = "{n}'s friends were having {missed}"
        else:
            s["stuck"] = rng.choice(["a high branch", "the roof", "a high rock", "a high wall"])
            middle = say(
                """[One day|One windy day], {n} climbed up on {stuck} and could not get down. {fn} came by. "Do you
                want help?" asked {fn}. "No!" said {n}, as {he}
                always did. So {fn}
                went on. "Oh, why did I say no?" {n} cried. [Just then|Then] {fn} came
                back with a
                ladder. "I will ask you one more time," {fhe} said. "Do you want help?" """
            )
            s["why"] = "{n} sat on {stuck} and could not get down"
            s["what"] = "{n} climbed up on {stuck} and could not get down"
        last = say(
            """{n} opened {his} mouth to say no. [But what came out was something new.|Then {he} shut it again and
            took a deep breath.]
            "[Yes|Yes, please]," {he} said [very softly|in a small voice]. {fn} [smiled|was so happy that {fhe}
            jumped]. """
        )
        last += (
            say(
                "Soon {n} was with all {his} friends at {missed}. "
                if way == "quiet"
                else "{Fhe} put up the ladder and held {n}'s hand until {he} was safe on the ground. "
            ).replace("at a ", "at the ")
            + " "
        )
        last += say(
            """"[Do you want to {ask1} tomorrow|And now, do you want to {ask2}]?" asked {fn}. "Yes!" said {n}. [{He}
            liked that word. It was
            short, and good things came after it.|"Yes, yes, yes!"|It was the best word {he} had ever said.] [{n}
            still says no
            sometimes, but not to {his} friends.|And they laughed all the way home.|From then on, {n} said yes much
            more often.]"""
        )
        topic = "[a {k} who always says no|a {k} who only says no|a {k} who learns to say yes]"
        summary = (
            "[{n} the {k}|A {adj} {k} named {n}] "
            "always said no until {he} was [alone|sad and alone] and {fn} the {fk} asked {him} once more."
        )
        facts = [
            ask(say, "What did {n} always say?|What was the problem with {n}?", "{n} always said no."),
            ask(
                say, "What did {fn} ask first?|What did {fn} want to do first?", '{fn} asked, "Do you want to {ask1}?"'
            ),
            ask(say, "Why was {n} sad?", "{why}."),
            ask(say, "What happened one day?" if way == "need" else "What did {n} see from the window?", "{what}."),
            ask(say, "What did {n} say at last?|What did {n} learn to say?|What did {n} learn?", "{n} said yes."),
        ]
    else:
        s["rest"] = rng.choice(["in the sun", "in {his} soft chair", "in bed", "under a tree", "in the grass"])
        s["job"], s["result"], s["trouble"] = rng.choice(
            [
                ("cut wood for the winter", "wood", "It was cold, and {n} had no wood for the fire"),
                ("pick apples for the winter", "apples", "Snow lay on the ground, and {n} had nothing to eat"),
                ("mend the hole in {his} roof", "hammer and nails", "The rain came in, and {n}'s bed was all wet"),
            ]
        )
        way = "story" if "Snow" in s["trouble"] else rng.choice(["story", "work"])
        first = start(
            rng, s, say,
            """[{n} was a {adj} {k}, and {he} could sleep all day. {He} lived {inplace}.|Who was that, still in bed at
            noon? It was {n}, a
            {adj} {k} who lived {inplace}.|{Inplace} lived a {adj} {k} named {n}, who did not like to get up.]""",
        )  # fmt: skip
        first += " " + say(
            """{n} was very lazy. [All summer|Day after day], {he} lay {rest} [and looked at the clouds|and did
            nothing at all]. "It is time to
            {job}," said {his} friend {fn} the {fk}. "[Tomorrow|Not today. I will do it tomorrow]," said {n} [and
            closed {his} eyes|and
            yawned]. """
        ).replace("to mend the hole in his roof", "to mend the hole in your roof").replace(
            "to mend the hole in her roof", "to mend the hole in your roof"
        )
        middle = say(
            """Then [the cold days came|a big storm came]. {trouble}. "[Brr|Oh dear]," said {n}. "[Why did I wait|I
            should have listened]?"
            [{He} walked through the wind to {fn}'s house.|{He} went to {fn}'s house and knocked.] "[Please help
            me|Please let me in], {fn},"
            {he} said. {fn} opened the door. It was warm inside. """
        ).replace('listened?"', 'listened."')
        if "rain" in s["trouble"]:
            middle = middle.replace("the cold days came", "a big storm came")
        else:
            middle = middle.replace("a big storm came", "the cold days came")
        if way == "work":
            middle += say(
                """"[I will help you, but we will do it together|Come in and get warm, and then we will work]," said
                {fn}. [The next
                morning|Early the next day], they [went to work|began]. {n} [worked hard for the first time|did not
                sit down
                once]. By evening, {he} was [tired but proud|tired, but it was a good tired], and everything was
                done."""
            )
            s["how"] = "{fn} let {n} in, and then they worked together"
        else:
            middle += say(
                """"[Come in|You can stay here]," said {fn}. "I have enough for two. But everyone in this house does a
                little work." So {n}
                [washed the cups and swept the floor|made the soup and washed the cups]. [To {his} surprise, it was
                fun.|"This is not so
                bad," {he} said.] {He} stayed with {fn} until the sun came back."""
            )
            s["how"] = "{fn} let {n} stay in {fhis} house, and {n} helped with the work"
        last = say(
            """[The next year|When summer came again], {n} was the first one who got up. "[Wake up|Get up], {fn}!"
            {he} called. "[It is time to
            work|There is so much to do]!" "[Tomorrow|Five more minutes]," said {fn}, and they both laughed. [They
            worked in the morning
            and rested in the afternoon.|{n} still liked to lie {rest}, but only when the work was done.|And when
            winter came,
            they had all that they needed.] """
        )
        topic = "[a lazy {k}|a {k} who is very lazy|a {k} who does not want to work]"
        summary = (
            "[{n} the {k}|A {adj} {k} named {n}] [was very lazy|did not like to work],"
            " but {fn} the {fk} helped, and {n} learned to work."
        )
        facts = [
            ask(say, "What did {n} do all day?|Where did {n} lie?", "{n} lay {rest}."),
            ask(say, "What did {n} always say?|What did {n} say to {fn}?", '{n} said, "Tomorrow."'),
            ask(say, "What was the problem?|What went wrong?", "{trouble}."),
            ask(say, "How did {fn} help {n}?|What did {fn} do?", "{how}."),
            ask(
                say, "Was {n} lazy at the end?|What did {n} learn?", "{n} was not lazy any more. {He} learned to work."
            ),
        ]
    return Story(
        topic=say(topic).lower(),
        text=pages(first, middle, last),
        summary=say(summary),
        facts=[*usual_facts(hero, friend, s), *facts],
    )


@plot
@short
def cannot_sleep(rng: random.Random) -> Story:
    hero, friend, s, say = players(rng)
    s["tried1"], s["tried2"] = rng.sample(
        [
            "drank warm milk",
            "counted to a hundred",
            "lay on {his} left side",
            "put {his} head under the pillow",
            "sang a slow song",
        ],
        2,
    )
    way = rng.choice(["toy", "noise", "thoughts", "song"])
    first = start(
        rng, s, say,
        """[It was late, and all the lamps were out. Only one {adj} {k} was awake. {His} name was {n}, and {he} lived
        {inplace}.|The moon was high in the sky. {n}, a {adj} {k} who lived {inplace}, lay in bed.|{n} was a {adj} {k}
        who lived {inplace}.
        {He} had a
        warm bed and a soft
        pillow.]""",
    )  # fmt: skip
    s["night"] = "That night" if first.startswith(("It was late", "The moon")) else "One night"
    first += " " + say(
        """{night}, {n} could not sleep. {He} {tried1}. [It did not help.|But {he} was still awake.] Then {he} {tried2}.
        [That did not help, either.|No, {he} could not sleep.|{His} eyes would not stay shut.] "[Why can't I
        sleep|What is wrong with me]?"
        {n} said."""
    )
    middle = say(
        """[{He} got up and went to {his} friend {fn} the {fk}.|{He} went outside, and there was {his} friend {fn} the
        {fk}.] "[I can't
        sleep|Sleep does not come to me], {fn}," {he} said. "[Hmm|Let me think]," said {fn}. """
    )
    if way == "toy":
        s["toy"] = rng.choice(["old blue blanket", "toy bear", "toy rabbit", "little red pillow", "soft toy duck"])
        s["where"] = rng.choice(
            ["under the bed", "behind the door", "in the garden", "in the laundry basket", "under a chair"]
        )
        middle += say(
            """"Is something [missing|not there]?" {n} thought about it. "[Oh|Yes]!" {he} said. "My {toy} is not in my
            bed!" They went back
            and looked [everywhere|here and there]. {fn} [looked up high, and {n} looked down low|held the lamp]. At
            last {fn} found the
            {toy} {where}. [{n} hugged it.|"There you are!" said {n} to it.]"""
        )
        s["why"], s["help"], s["sum"] = (
            "{his} {toy} was missing",
            "{fn} found the {toy} {where}",
            "{fn} the {fk} found {his} {toy}",
        )
    elif way == "noise":
        s["noise"], s["from"], s["fix"] = rng.choice(
            [
                ("Drip, drip, drip", "the rain dripped into a pot", "put a soft cloth in the pot"),
                ("Bang, bang, bang", "the wind pushed the garden gate", "tied the gate with a rope"),
                ("Tap, tap, tap", "a branch tapped on the window", "tied the branch back"),
                ("Hoo, hoo, hoo", "a baby owl was calling for its mother", "brought the baby owl back to its nest"),
            ]
        )
        middle += say(
            """"[Listen|Be still for a moment]," {fhe} said. "[What do you hear|Do you hear that]?" [{n}
            listened.|They both listened.]
            {noise}! That was the noise that kept {n} awake. They took a lamp and [went to look|followed the sound].
            It was only this:
            {from}. So {fn} {fix}. [Now it was quiet.|Then there was no more noise.]"""
        )
        s["why"], s["help"] = "{he} heard a noise: {from}", "{fn} {fix}"
        s["sum"] = "{fn} the {fk} stopped the noise"
    elif way == "thoughts":
        s["worry"] = rng.choice(
            ["the first day of school", "the big race", "a long trip", "{his} birthday", "the new teacher"]
        )
        middle += (
            say(
                """"What are you thinking about?" "[About tomorrow|Tomorrow]," said {n}. "[I think and think|My head is so
            full]. It is
            about {worry}." "[Then give me your thoughts|Put your thoughts in this box]," said {fn}, and {fhe} held
            out a [little|small]
            box. {n} [told {fhim} everything|whispered into the box], one thing after another. {fn} shut the box. "[I
            will keep them until
            the morning|They will stay in here tonight]," {fhe} said. {n}'s head [felt light|was quiet at last]."""
            )
            .replace("about his birthday", "about my birthday")
            .replace("about her birthday", "about my birthday")
        )
        s["why"], s["help"] = "{he} was thinking about {worry}", "{fn} kept {n}'s thoughts in a box"
        s["sum"] = "{fn} the {fk} put {his} thoughts in a box"
    else:
        s["about"] = rng.choice(
            ["a sleepy cloud", "a boat on a quiet sea", "the moon and her children", "a very slow snail"]
        )
        middle += say(
            """"I will [sing you a song|tell you a story]." They sat down side by side, and {fn} began. It was about
            {about}. {fn}
            went on, slower and slower, softer and softer. [{n} yawned.|{n}'s eyes got heavy.] Then [it was
            quiet|there was no
            sound]. {n} looked up. {fn} was the one who had fallen asleep! {n} [laughed softly|smiled] and put a
            blanket over {fhim}.
            Then {he} lay down too, [close to {his} friend|next to {fhim}]."""
        )
        s["why"], s["help"] = "sleep did not come to {him}", "{fn} sang or told {him} something about {about}"
        kind = "sang a song" if "sing you a song" in middle else "told a story"
        s["help"] = "{fn} " + kind + " about {about}"
        s["sum"] = "{fn} the {fk} " + kind + " and fell asleep first"
    last = (
        say(
            """"[Thank you, {fn}|Good night, {fn}]," [said {n}|{n} said]. "[Sleep well|Good night], {n}," {fn}
            [said|whispered]. {n} [went
            back to bed|lay down in {his} warm bed] and [shut {his} eyes|closed {his} eyes]. """
        )
        if way != "song"
        else say('"[Good night|Sleep well], {fn}," {he} whispered. ')
    )
    last += say(
        """[The moon looked in at the window.|Outside, the stars were shining.|The wind was soft in the trees.|The
        whole world was quiet.]
        [One breath, two breaths, three breaths,|Before {he} could count to [three|five],] and {n} was asleep. [{He}
        slept until the sun was
        high.|{He} dreamed of [flying|honey|a sea of stars] all night.|And in the morning, {he} felt as fresh as a
        flower.|Good night,
        {n}. Good night, moon.]"""
    ).replace(", and " + s["n"] + " was asleep", f", and {s['n']} was asleep")
    for count in ("three", "five"):
        last = last.replace(f"count to {count}, and {s['n']} was", f"count to {count}, {s['n']} was")
    return Story(
        topic=say("[a {k} who cannot sleep|a {k} who is awake at night|a {k} who can't fall asleep]").lower(),
        text=pages(first, middle, last),
        summary=say(
            "[{n} the {k} could not sleep|A {adj} {k} named {n} could not fall asleep], "
            "but {sum}, and then {n} slept well."
        ),
        facts=[
            *usual_facts(hero, friend, s),
            ask(say, "What was {n}'s problem?|What could {n} not do?", "{n} could not sleep."),
            ask(say, "What did {n} try first?", "First {n} {tried1}."),
            ask(say, "Why could {n} not sleep?|Why was {n} awake?", "{n} could not sleep because {why}.")
            if way != "song"
            else ask(say, "Who fell asleep first?", "{fn} the {fk} fell asleep first."),
            ask(say, "What did {fn} do?|How did {fn} help {n}?", "{help}."),
            ask(say, "Did {n} sleep in the end?|What happened at the end?",
                "Yes, {n} slept well.|{n} fell asleep at last."),
        ],
    )  # fmt: skip


@plot
@short
def kind_giant(rng: random.Random) -> Story:
    hero, friend, s, say = players(rng, None, ["dragon", "giant"])
    s["home"] = rng.choice(
        ["a dark cave", "an old castle", "the top of a hill", "a deep valley", "a cave by a waterfall"]
    )
    s["at"] = "on" if "top" in s["home"] else "in"
    s["big"] = {"dragon": "fire came out of {fhis} nose", "giant": "the ground shook when {fhe} walked"}[friend.kind]
    way = rng.choice(["thorn", "lonely", "storm"])
    first = start(
        rng, s, say,
        """[Everyone knew that a {fk} lived near by. {n}, a {adj} {k} who lived {inplace}, had heard it many
        times.|"Never go near the {fk}!"
        the old ones always said to {n}. {n} was a {adj} {k} who lived {inplace}.|{n} was a {adj} {k}. {He} lived
        {inplace}, and there was a
        {fk} not far away.]""",
    )  # fmt: skip
    first += " " + say(
        ("The {fk} lived {at} {home}. " if friend.kind in first else "{At} {home} lived a {fk}. ")
        + """[{Fhe} was as big as a house|{Fhe} was as tall as a tree], and {big}. Everyone was afraid of {fhim}. "[It
        will eat you|It eats children for lunch]!" they said. """
    ).replace("It will eat", f"The {friend.kind} will eat").replace("It eats", f"The {friend.kind} eats")
    if way == "thorn":
        s["hurt"] = rng.choice(
            ["a thorn in {fhis} foot", "a big splinter in {fhis} toe", "a bad tooth", "a thorn in {fhis} hand"]
        )
        middle = say(
            """[One day|One morning], {n} heard someone cry. [{He} went closer, step by step.|{He} was afraid, but
            {he} went to look.] It was
            the {fk}! {Fhe} had {hurt}. "Please don't run away," said the {fk}. "[It hurts so much|I can't get it
            out]." {n}'s knees
            shook, but {he} said, "[Hold still|I will help you]." {He} pulled and pulled. [Pop!|Plop!] Out it came.
            "[Oh, thank
            you|That is so much better]!" said the {fk}. "My name is {fn}." """
        )
        after = say(
            """[The next day|Soon after that], {fn} helped {n} too. {Fhe} [carried a big log out of the way|lifted a
            rock off the road] for
            {him}, and then {n} could ride home on {fhis} back."""
        )
        s["why"], s["help"] = "The {fk} cried because {fhe} had {hurt}", "{fn} let {n} ride home on {fhis} back"
        s["sum"] = "helped a {fk} who had {hurt}"
    elif way == "lonely":
        s["gift"] = rng.choice(["some cookies", "a basket of apples", "a warm bread", "a jar of honey", "some flowers"])
        if s["gift"] == "a warm bread":
            s["gift"] = "some warm bread"
        middle = say(
            """But {n} wanted to see for {himself}. [One day|One morning], {he} took {gift} and [walked up to the
            {fk}'s home|knocked at the
            {fk}'s home]. "[Who is there|Who comes here]?" called a deep voice. "I am {n}," {he} said, "and I brought
            you {gift}." The
            {fk} came out, and big tears ran down {fhis} face. "[Nobody ever comes to see me|Nobody has ever brought
            me anything]," {fhe}
            said. "[They all run away|I am always alone]. My name is {fn}." [They sat down and ate together.|{n} sat
            down next to {fhim}.]
            "[I will come every day|I will be your friend]," said {n}."""
        )
        if s["gift"] == "some flowers":
            middle = middle.replace("They sat down and ate together.", "They sat down and talked.")
        after = say(
            """{fn} helped {n} to [make a big swing|build a tree
            house|pick the highest
            apples], and they played all day."""
        )
        s["why"], s["help"] = (
            "The {fk} cried because nobody ever came to see {fhim}",
            "{fn} helped {n} and played with {him}",
        )
        s["sum"] = "brought {gift} to a lonely {fk}"
    else:
        s["weather"] = rng.choice(["snow", "rain", "fog"])
        middle = say(
            """[One evening|One day], {n} was [lost|far from home] in the {weather}. [It was dark and cold.|{He} could
            not see the path.] "Help!"
            {he} called. Boom, boom, boom! Somebody very big was coming. It was the {fk}! [{n} wanted to run, but {he}
            was too tired.|{n} hid
            behind a rock and shook.] "Don't be afraid, little one," said a [soft|deep] voice. "[I will take you
            home|You must be cold]. My
            name is {fn}." {fn} [picked {him} up|put {him} on {fhis} shoulder] and kept {him} [dry and warm|safe and
            warm]."""
        )
        after = say(
            """{fn} [walked through the {weather}|went on and on] until they saw a light. It was {n}'s house!
            "[You are good|You are kind],"
            said {n}.
            "[I always was|I only look big]," said {fn}, and {fhe} smiled."""
        )
        s["why"], s["help"] = "{n} was lost in the {weather}", "{fn} carried {n} home"
        s["sum"] = "was lost in the {weather}, and a {fk} carried {him} home"
    last = say(
        """When [the others|all the neighbors] saw them, they [ran and hid|were afraid]. "[Come out|Don't run away]!"
        called {n}. "This is {fn}.
        {Fhe} is my friend, and {fhe} is kind." [One by one, they came.|First came a small mouse, and then all the
        others.] """
    )
    if hero.kind == "mouse":
        last = last.replace("First came a small mouse", "First came a small bird")
    last += say(
        """[That winter, {fn} kept everyone warm.|Soon the little ones were playing on {fn}'s back.|That evening they
        had a party, and {fn} ate
        [twelve|twenty] cakes.|Now nobody was afraid of the {fk} any more.] [Being big is not the same as being
        bad.|And {fn} was never alone
        again.|And {n} was very proud of {his} big friend.|"I am glad I found you," said {fn} to {n}.]"""
    )
    return Story(
        topic=say("[a {k} and a kind {fk}|a kind {fk}|a {k} who meets a {fk}|a {fk} who is not bad at all]").lower(),
        text=pages(first, middle + " " + after, last),
        summary=say("[{n} the {k}|A {adj} {k} named {n}] {sum}, and [they became friends|the {fk} was kind]."),
        facts=[
            *usual_facts(hero, friend, s),
            ask(say, "Where did the {fk} live?|Where was the {fk}'s home?", "The {fk} lived {at} {home}."),
            ask(say, "What was the {fk}'s name?|What was the {fk} called?", "The {fk}'s name was {fn}."),
            ask(say, "Why did the {fk} cry?" if way != "storm" else "What was {n}'s problem?|What happened to {n}?",
                "{why}."),
            ask(say, "What did {fn} do for {n}?|How did {fn} help {n}?", "{help}."),
            ask(say, "Was the {fk} bad?|What was the {fk} really like?", "No, the {fk} was kind."),
            ask(say, "Who was afraid of the {fk}?", "Everyone was afraid of the {fk}."),
        ],
    )  # fmt: skip


@plot
@short
def small_but_great(rng: random.Random) -> Story:
    hero, friend, s, say = players(
        rng, "mouse mole chick frog robin kitten bunny squirrel hedgehog mouse".split(),
        "elephant bear lion giraffe pony donkey deer wolf zebra".split(),
    )  # fmt: skip
    s["cannot"] = rng.choice(
        ["carry the big logs", "reach the high apples", "pull the heavy cart", "jump over the stream"]
    )
    way = rng.choice(["rope", "key", "alarm"])
    first = start(
        rng, s, say,
        """[{n} was the smallest of all. {He} was a {adj} {k} who lived {inplace}.|How big must you be to do a great
        thing? {n}, a {adj} {k} who
        lived {inplace}, often asked {himself} that.|{Inplace} lived a {adj} {k} named {n}, who was not much bigger
        than an apple.]""",
    )  # fmt: skip
    first += " " + say(
        """{n} was very small and could not {cannot}. "[You are too small|You are so tiny]," said {fn} the {fk}, who
        was big and strong. ["Go and play
        with the ants!"|"What can you do?"] [{n} said nothing.|{n} felt sad.] "[One day I will do something big|I wish
        I could do something
        big]," {he} [thought|said softly]."""
    )
    if way == "rope":
        s["trap"] = rng.choice(["a net", "a strong rope", "some thick vines", "an old net"])
        s["place2"] = rng.choice(["between two trees", "near the road", "by the water", "behind the hill"])
        middle = say(
            """[One day|The next week], {fn} walked into {trap} {place2}. [{Fhe} pulled and kicked|The more {fhe}
            pulled, the worse it was], but
            {fhe} could not get free. "Help! Help!" {fn} called. [All the big animals came and pulled, but it only got
            tighter.|The others
            came, but their feet were too big for the little knots.] Then {n} [came running|said, "Let me try."]
            "[You|Oh, it's you]?" said
            {fn}. {n} was so small that {he} could get right in. {He} worked at the knots, [one by one|one after
            another], all [night|day]
            long. [At last|Snap!] The last one was open, and {fn} was free!"""
        ).replace("At last The last one", "At last, the last one")
        middle = middle.replace('"Oh, it\'s you?"', '"Oh, is it you?"').replace("came running ", "came running. ")
        s["prob"], s["did"] = "{fn} was stuck in {trap}", "{n} opened the knots and set {fn} free"
        s["sum"] = "set {fn} the {fk} free from {trap}"
    elif way == "key":
        s["lost"] = rng.choice(["key", "ring", "silver bell"])
        s["gap"] = rng.choice(["a deep, narrow hole", "a crack in the rock", "a gap under the floor", "an old pipe"])
        s["for"] = {"key": "{Fhe} could not get into {fhis} house", "ring": "It was {fhis} grandmother's ring",
                    "silver bell": "It was old, and {fhe} loved it very much"}[s["lost"]]  # fmt: skip
        middle = say(
            """[One day|The next week], {fn} dropped {fhis} {lost} into {gap}. {for}. [{Fhe} tried to get it, but
            {fhis} foot was too big.|{Fhe}
            used a stick, but the stick was too short.] All the big animals tried, and nobody could reach it. {fn}
            began to cry, and the tears
            were as big as plums. "[I can fit in there|Let me try]," said {n}. [Nobody laughed now.|"You? Yes,
            please," said {fn}.] {n} took a
            deep breath and went in. It was dark [and cold|and wet] inside, but {he} went on. [They waited and
            waited.|For a long
            time there was no sound.] Then {he} came out again, all [dirty|black], with the {lost}!"""
        )
        s["prob"], s["did"] = "{fn} dropped {fhis} {lost} into {gap}", "{n} went in and got the {lost}"
        s["sum"] = "got {fn} the {fk}'s {lost} out of {gap}"
    else:
        s["danger"], s["do"] = rng.choice(
            [("the river was rising", "ran up the hill"), ("there was smoke in the barn",
             "put out the fire with water"),
             ("big stones began to roll down the hill", "ran out of the way"), ("a big wave was coming",
              "ran up the hill")]
        )  # fmt: skip
        s["noise"] = rng.choice(
            ["rang the big bell", "beat on an old pot", "tapped on every door", "banged two spoons"]
        )
        middle = say(
            """[One night|Late one night], everyone was asleep. Only {n} was awake, [because {he} wanted to see the
            moon|because {he} was
            thirsty]. Suddenly {he} saw it: {danger}! "Wake up!" {he} called, but {his} voice was too small. {fn} only
            [snored|turned
            over]. So {n} [ran as fast as {he} could|did not wait]. {He} {noise}. [Then {he} pulled {fn}'s ear.|Then
            {he} jumped up and
            down on {fn}'s nose.] "What is it?" asked {fn}. "[Quick|Look outside]!" said {n}. {fn} [saw it and
            called|called] with {fhis} big
            voice, and everyone {do}, [just in time|and nobody was hurt]."""
        )
        s["prob"], s["did"] = "{danger}", "{n} {noise} and woke up {fn}"
        s["sum"] = "saw that {danger} and woke up {fn} the {fk}"
    last = say(
        """"[You saved us all|You saved the day]," said {fn}. "[I was wrong|I am sorry that I laughed]. You are
        [small, but you are the bravest
        of us|the biggest friend I have]." """
    )
    if way != "alarm":
        last = last.replace("You saved us all", "Thank you")
        last = last.replace("You saved the day", f"Thank you, {hero.name}")
    last = last.replace("that I laughed", "for what I said")
    last += say(
        """[{fn} lifted {him} up high, and everyone cheered.|Then everyone cheered for {n}, three times.|{n} stood
        very straight and felt as tall as
        a tree.] [From then on, {n} rode on {fn}'s back wherever they went.|After that, {fn} carried the heavy things,
        and {n} did the small,
        hard ones.|And {n} was not sad about being small any more.|Small ones can do big things too.] """
    )
    return Story(
        topic=say(
            "[a small {k} who does a big thing|a little {k} who helps a big {fk}|a {k} who is very small]"
        ).lower(),
        text=pages(first, middle, last),
        summary=say("[{n} the {k} was very small, but {he}|A tiny {k} named {n}] {sum}."),
        facts=[
            *usual_facts(hero, None, s),
            ask(say, "Who was big and strong?|Who said that {n} was too small?", "It was {fn} the {fk}."),
            ask(say, "What could {n} not do?", "{n} could not {cannot}."),
            ask(say, "What was the problem?|What went wrong?|What happened?", "{prob}."),
            ask(say, "What did {n} do?|How did {n} help?", "{did}."),
            ask(say, "How did {n} feel at the end?", "{n} felt proud and happy."),
            ask(say, "What does the story tell us?|What did {fn} learn?", "Small ones can do big things too."),
        ],
    )  # fmt: skip
