"""Plots about fears that are overcome."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

from grammar import expand
from world import ANIMALS, NAMES_M, Character, Plot, Story, cast, opening, plot, usual_facts

PEOPLE = ["girl", "boy"] * 6
SEA = ["seal", "whale", "crab"]
SWIMMERS = "duck frog turtle otter beaver goose seal whale penguin crab".split()
LAND = [kind for kind in ANIMALS if kind not in SEA] + PEOPLE
NO_SWIMMERS = [kind for kind in ANIMALS if kind not in SWIMMERS and kind not in ("snail", "bee", "dragon")] + PEOPLE
CLIMBERS = "cat kitten bear panda koala monkey squirrel mouse fox badger goat puppy".split() + ["girl", "boy"] * 3
SMALL = (
    "rabbit mouse squirrel hedgehog duck frog turtle kitten lamb hen mole robin bunny snail chick beaver otter".split()
    + ["girl", "boy"] * 3
)
Say = Callable[[str], str]
Fact = tuple[list[str], list[str]]


def _expand(rng: random.Random, slots: dict[str, str], template: str) -> str:
    return expand(rng, template, slots)


def _pair(
    rng: random.Random, kinds: list[str], friend_kinds: list[str] | None = None
) -> tuple[Character, Character, dict[str, str], Say]:
    """A hero of `kinds`, a friend of `friend_kinds` (who lives on land if not said), slots, and their `say`."""
    while True:
        hero, friend, s = cast(rng, kinds)
        if friend.kind in (friend_kinds or LAND):
            return hero, friend, s, functools.partial(_expand, rng, s)


def _fact(say: Say, questions: list[str], *answers: str) -> Fact:
    return [say(question) for question in questions], [say(answer) for answer in answers]


def _short(make: Plot) -> Plot:
    """Draw again when the choices add up to a long story."""

    @functools.wraps(make)
    def made(rng: random.Random) -> Story:
        while True:
            story = make(rng)
            if len(story.text.split()) <= 190 and len(story.summary.split()) <= 25:
                return story

    return made


def _topic(say: Say, template: str) -> str:
    topic = say(template)
    return topic[0].lower() + topic[1:]


@plot
@_short
def afraid_of_the_dark(rng: random.Random) -> Story:
    hero, friend, s, say = _pair(rng, LAND)
    s["light"] = rng.choice(
        ["a small lantern", "a candle", "a jar of fireflies", "a little lamp", "a round yellow lamp"]
    )
    s["sound"] = rng.choice(
        ["the wind in the leaves", "the rain on the roof", "an old door", "a sleepy cricket", "a branch at the window"]
    )
    stars = s["sound"] != "the rain on the roof" and rng.random() < 0.6
    if not stars and "fireflies" in s["light"]:  # nobody can put them out
        s["light"] = "a small lantern"
    first = say(
        "{n} [was not afraid of much, but {he} was afraid of the dark|loved the day, but {he} was afraid of the dark"
        "|was afraid of the dark|had one big fear, and it was the dark]. [Every night|When the sun went down"
        "|When the lamp went out], {he} [hid under {his} blanket|pulled the blanket over {his} head|could not sleep"
        "|lay in bed with open eyes] and [wished for the morning|waited for the sun|listened to every sound]."
    )
    middle = say(
        '[One night|One evening|One dark night], {n} heard a strange sound. ["Who is there?" {he} whispered.'
        '|"What was that?" said {n}.|{His} heart beat fast.|"Oh no, what is that?" {he} whispered.] '
        "[Just then|At that moment], {his} friend {fn} the {fk} [came by|knocked at the door|looked in] with "
        '{light}. "[Do not be afraid|Don\'t worry|I am here], {n}," said {fn}. "[Let us look together'
        '|Come with me, and we will look|We will find out what it is]." '
        "They [looked in every corner|walked outside, step by step|followed the sound]. It was only {sound}! "
        '[{n} began to laugh.|{n} laughed and laughed.|{n} felt much better.|"Is that all?" said {n}.]'
    )
    if stars:
        last = say(
            '[Then {fn} pointed up at the sky.|"Now look up," said {fn}.] [The stars were shining|Hundreds of '
            "stars "
            'were shining|The sky was full of stars], and the moon was [round and bright|big and silver]. "[The '
            "dark "
            "is where the stars live|Without the dark, we could not see the stars|The stars need the dark to "
            'shine]," '
            "said {fn}. [From that night on|After that], {n} was not afraid [any more|of the dark any more]. [Before "
            "{he} slept, {he} always said good night to the moon.|{He} liked to sit at the window and count the "
            "stars."
            "|{He} even showed the stars to others who were afraid.]"
        )
        summary = say(
            "[{n} the {k}|A {adj} {k} named {n}] was afraid of the dark until {his} friend {fn} the {fk} showed "
            "{him} "
            "the stars."
        )
        how = _fact(
            say,
            ["What did {fn} show {n}?", "What did they see in the sky?", "What was up in the sky?"],
            "{fn} showed {n} the stars and the moon.",
            "They saw the stars and the moon.",
        )
        lesson = _fact(
            say,
            ["What did {n} learn?", "What is the lesson of the story?", "What did we learn?"],
            "{n} learned that the dark is where the stars shine.",
            "{n} learned that the dark is nothing to be afraid of.",
        )
    else:
        last = say(
            "[Then they sat down side by side|After that they went back to the bedroom|Then they sat down "
            "on the floor], and "
            "{fn} "
            'put out the light. "[What can you hear|Listen. What do you hear|Close your eyes. What do you hear]?" '
            "{fhe} asked. {n} listened. {He} heard [an owl far away|the clock|{fn} breathe] and [the soft wind|a "
            "little "
            'mouse in the wall|{his} own heart]. "[The dark is only the day with its eyes shut|The same things are '
            'here by day and by night|Nothing is here that was not here by day]," said {fn}. [From that night on'
            "|After that], {n} [was not afraid any more|was not afraid of the dark any more]. [When {he} heard a "
            "sound,"
            " {he} smiled and went to sleep.|{He} shut {his} eyes, listened to the quiet sounds, and fell asleep.]"
        )
        summary = say(
            "[{n} the {k}|A {adj} {k} named {n}] was afraid of the dark until {his} friend {fn} the {fk} helped "
            "{him} "
            "[find out what the sounds were|listen to the sounds of the night]."
        )
        how = _fact(
            say,
            ["What did {fn} do with the light?", "What did {n} do in the dark?"],
            "{fn} put out the light, and {n} listened to the sounds of the night.",
        )
        lesson = _fact(
            say,
            ["What did {n} learn?", "What is the lesson of the story?", "What did we learn?"],
            "{n} learned that the dark is nothing to be afraid of.",
            "{n} learned that the same things are there by day and by night.",
        )
    fear = _fact(
        say,
        ["What was {n} afraid of?", "Why was {n} afraid?", "What was {n}'s fear?"],
        "{n} was afraid of the dark.",
        "{He} was afraid of the dark.",
    )
    sound = _fact(
        say,
        ["What was the sound that {n} heard?", "What was the strange sound?", "What made the sound?"],
        "It was only {sound}.",
        "The sound was only {sound}.",
    )
    lamp = _fact(
        say, ["What did {fn} bring?", "What did {fn} have with {fhim}?"], "{fn} brought {light}.", "{fn} had {light}."
    )
    return Story(
        topic=_topic(
            say,
            "a {k} who is afraid of the dark"
            if rng.random() < 0.6
            else "a {k} who [could not sleep in the dark|was afraid of the dark|hears a strange sound at night"
            "|is afraid at night|learns not to be afraid of the dark]",
        ),
        text="\n\n".join([opening(rng, s) + " " + first, middle, last]),
        summary=summary,
        facts=[*usual_facts(hero, friend, s), fear, sound, lamp, how, lesson],
    )


@plot
@_short
def afraid_of_thunder(rng: random.Random) -> Story:
    hero, friend, s, say = _pair(rng, LAND)
    night = rng.random() < 0.5
    s["when"] = rng.choice(
        ["one night", "late one evening"] if night else ["one afternoon", "one summer day", "one day"]
    )
    s["hide"] = rng.choice(["under the bed", "under the table", "under a blanket", "behind the big chair"])
    s["pots"] = rng.choice(["two pots and two spoons", "some pots and wooden spoons", "two old pans and two spoons"])
    start = (
        opening(rng, s)
        if rng.random() < 0.6
        else say("[{Inplace} lived|{Inplace} there was|There lived, {inplace},] a {adj} {k} named {n}.")
    )
    first = say(
        "{n} [liked the sun and the wind, but {he} was afraid of thunder|was afraid of thunder|was afraid of only "
        "one "
        "thing, and that was thunder|was brave on most days, but thunder made {him} afraid]. [When a storm came|When "
        "dark clouds came|When the sky turned black], {he} hid {hide} and [did not move until it was over|shook "
        "like a "
        "leaf|waited until it was quiet again]."
    )
    middle = say(
        "{When}, [the wind began to blow|big dark clouds came over the hill|the sky grew dark] and [the rain began "
        "to "
        'fall|it began to rain]. "Boom!" went the thunder. ["Oh no!" cried {n}, and {he} hid {hide}.|{n} gave a '
        "little cry and hid {hide}.|{n} ran and hid {hide}.] [Then|Just then] there was a knock at the door. It was "
        '{his} friend {fn} the {fk}, [all wet from the rain|as wet as a fish]. ["I am so afraid," said {n}.|"I '
        'am afraid of the thunder," said {n}.|"Please stay with me," said {n}.]'
    )
    if rng.random() < 0.5:
        branch = say(
            '"[When you see the light in the sky, count with me|Let us count together|I know a trick. We will '
            'count]," '
            'said {fn}. [There was a bright light in the sky|They saw a flash at the window]. "One, two, three," '
            "they "
            "counted, and then came the boom. The next time they counted to [five|six], and then to [nine|ten]. "
            '"[The storm is going away|It is farther away each time|You see, the storm is leaving]," said {fn}. '
            "[{n} came out and smiled.|{n} was so busy counting that {he} forgot to be afraid.|{n} felt better with "
            "every number.]"
        )
        s["did"], s["trick"] = "counted", "count when the storm comes"
        ending = "{n} [sat at the window and counted|began to count, and {he} was not afraid|counted until it was gone]"
    else:
        branch = say(
            '"[The thunder is only a big drum in the sky|The sky is playing its big drum]," said {fn}. "[Let us '
            "play "
            'too|We can play with it|Come, we will make music]!" They took {pots}. [Each time the thunder went '
            "boom, "
            '{n} and {fn} went bang.|"Boom!" went the thunder. "Bang!" went {n} and {fn}.] [Soon {n} was '
            "laughing so "
            "much that {he} forgot to be afraid.|It was so much fun that {n} forgot {his} fear.|They danced around "
            "the "
            "table, and {n} was not afraid.]"
        )
        s["did"], s["trick"] = "made music with {pots}", "make music with the thunder"
        ending = "{n} [took {his} pot and played along|made music, and {he} was not afraid|was ready to play the drum]"
    last = say(
        "[At last|After a while|Then] the rain stopped, and "
        + (
            "[the stars came out|the moon came out|the night was quiet again]"
            if night
            else "[a rainbow came out|the sun came out again|a big rainbow stood in the sky]"
        )
        + ". "
        "[From that day on|After that], when a storm came, " + ending + ". [Thunder is loud, but it is only a sound.|"
        "And sometimes {fn} came to help.|{He} knew now that thunder is only a loud noise.]"
    )
    return Story(
        topic=_topic(
            say,
            "a {k} who is afraid of [thunder|thunder|storms]"
            if rng.random() < 0.7
            else "[a {k} and the big storm|a {k} who hides from the thunder]",
        ),
        text="\n\n".join([start + " " + first, middle, branch, last]),
        summary=say(
            "[{n} the {k}|A {adj} {k} named {n}] was afraid of thunder, but {his} friend {fn} the {fk} "
            "[taught {him} to|showed {him} how to] {trick}."
        ),
        facts=[
            *usual_facts(hero, friend, s),
            _fact(
                say,
                ["What was {n} afraid of?", "Why was {n} afraid?", "What made {n} hide?"],
                "{n} was afraid of thunder.",
                "{He} was afraid of thunder.",
            ),
            _fact(
                say,
                ["Where did {n} hide?", "Where did {n} hide from the thunder?"],
                "{n} hid {hide}.",
                "{He} hid {hide}.",
            ),
            _fact(
                say,
                ["What did {n} and {fn} do?", "What did they do in the storm?", "How did {fn} help {n}?"],
                "{n} and {fn} {did}.",
                "They {did}.",
            ),
            _fact(
                say,
                ["Who knocked at the door?", "Who came in the storm?"],
                "It was {fn} the {fk}.",
                "{fn} the {fk} came to the door.",
            ),
            _fact(
                say,
                ["What did {n} learn?", "What is the lesson of the story?"],
                "{n} learned that thunder is only a loud noise.",
                "{n} learned that thunder is only a sound.",
            ),
        ],
    )


@plot
@_short
def afraid_of_deep_water(rng: random.Random) -> Story:
    hero, friend, s, say = _pair(rng, NO_SWIMMERS, [k for k in SWIMMERS if k not in SEA])
    s["water"] = rng.choice([water for water in ("lake", "river", "pond") if water not in s["place"]])
    s["toy"] = rng.choice(["red ball", "little boat", "blue hat", "yellow ball", "straw hat"])
    alone = rng.random() < 0.5  # whether the hero learns step by step, or goes in to fetch something
    if rng.random() < 0.5:
        start = opening(rng, s) + " " + say("Not far away there was a [deep|big|wide] {water}.")
    else:
        start = say(
            "[Once upon a time|Once|Long ago], there was a {adj} {k} named {n}. {He} lived {inplace}, [close to a "
            "{water}|near a {water}|not far from a {water}]."
        )
    first = say(
        "[On hot days|In the summer|Every day], [the others swam and splashed|all the others jumped in and swam], "
        "but {n} "
        "[stayed on the grass|only watched from far away|sat under a tree]. {He} was afraid of the deep water. "
        '"[What if I sink|What if I go under]?" {he} thought.'
    )
    meet = say(
        "[One day|One warm morning|One afternoon], {his} friend {fn} the {fk} [came out of the water|swam up to the "
        "bank|called to {him}]. \"[Why do you never swim|Why don't you come in|Won't you come in], {n}?\" "
        'asked {fn}. "[I am afraid of the deep water|The water is too deep for me|I am afraid that I will sink]," '
        "[said {n}|{n} said softly|{n} answered]."
    )
    if alone:
        branch = say(
            '"[Then we will start where it is not deep|We will go slowly|We will go one small step at a time]," '
            "said "
            '{fn}. "[I will stay beside you|I will be next to you]." On the first day, {n} [only put {his} feet '
            "in|only got {his} feet "
            "wet]. On the second day, {he} [went in up to {his} knees|sat down in the water and laughed]. On the "
            "third "
            'day, {n} [lay on {his} back beside {fn}|lay on the water like a leaf, with {fn} beside {him}]. "[I am '
            'not sinking|Look, the water is holding me|I can float]!" {he} cried.'
        )
        s["how"] = "learn to swim one small step at a time"
        did = _fact(
            say,
            ["What did {n} do on the first day?", "How did {n} begin?"],
            "{n} only put {his} feet in the water.",
            "On the first day, {he} only got {his} feet wet.",
        )
        end_fact = _fact(
            say,
            ["How did {fn} help {n}?", "What did {fn} do?"],
            "{fn} stayed beside {n} and helped {him} one small step at a time.",
        )
        lesson = "big things can be learned in small steps"
    else:
        branch = say(
            "Just then [the wind came|a strong wind blew] and took {n}'s {toy}. It [fell into the {water}|flew into "
            "the "
            '{water}] and floated away. "[My {toy}|Oh no, my {toy}]!" cried {n}. "[We can get it together|Hold '
            "on to me, and we "
            'will get it|Come, hold on to me]," said {fn}. {n} [took a deep breath|closed {his} eyes for a moment] '
            "and went in. "
            "{He} held on to {fn} and kicked and kicked. [At last|Soon] {he} had the "
            '{toy}. "[You are swimming|Look, {n}, you are swimming]," said {fn}.'
        )
        s["how"] = "swim out and get {his} {toy} back"
        did = _fact(
            say,
            ["What fell into the {water}?", "What did the wind take?"],
            "{n}'s {toy} fell into the {water}.",
            "The wind took {n}'s {toy}.",
        )
        end_fact = _fact(
            say,
            ["How did {n} get the {toy} back?", "How did {fn} help {n}?"],
            "{n} held on to {fn}, and they swam to the {toy} together.",
        )
        lesson = "{he} could be brave with a friend"
    s["lesson"] = lesson
    last = say(
        "[From that day on|After that|All that summer], {n} [swam with {fn} every day|went to the {water} with {fn} "
        "every day]. "
        "{He} [was still careful|still looked before {he} jumped|always stayed close to {his} friend], but {he} was "
        'not afraid any more. ["The '
        'water was waiting for me," {he} said.|"Now I can see the fish," {he} said happily.|And when someone '
        "else stayed on the "
        'grass, {n} said, "Come, we will go slowly."]'
    )
    return Story(
        topic=_topic(
            say,
            "a {k} who is afraid of [deep water|deep water|the water|the {water}]"
            if rng.random() < 0.65
            else "a {k} who [learns to swim|cannot swim|does not want to swim]",
        ),
        text="\n\n".join([start + " " + first, meet, branch, last]),
        summary=say(
            "[{n} the {k}|A {adj} {k} named {n}] was afraid of deep water until {his} friend {fn} the {fk} helped "
            "{him} {how}."
        ),
        facts=[
            *usual_facts(hero, friend, s),
            _fact(
                say,
                ["What was {n} afraid of?", "Why did {n} not swim?", "Why did {n} stay on the grass?"],
                "{n} was afraid of the deep water.",
                "{He} was afraid of the deep water.",
            ),
            did,
            end_fact,
            _fact(
                say,
                ["Was {n} afraid at the end?", "What did {n} do after that?"],
                "{n} was not afraid any more and went to the {water} with {fn}.",
            ),
            _fact(
                say,
                ["What did {n} learn?", "What is the lesson of the story?"],
                "{n} learned that {lesson}.",
                "{n} learned to swim, and that {lesson}.",
            ),
        ],
    )


@plot
@_short
def afraid_of_school(rng: random.Random) -> Story:
    hero, friend, s, say = _pair(rng, LAND)
    s["bring"] = rng.choice(["a new blue bag", "a red bag", "a small green bag", "a yellow bag"])
    s["lunch"] = rng.choice(["an apple", "a piece of cake", "some bread and honey", "a big pear", "two cookies"])
    s["lesson"] = rng.choice(
        ["sang a song about the sun", "painted a big tree", "learned to count to ten", "heard a story about the moon"]
    )
    start = (
        opening(rng, s)
        if rng.random() < 0.6
        else say("[{n} was a {adj} {k}, and {he} lived {inplace}.|{Inplace} lived a {adj} {k} named {n}.]")
    )
    first = say(
        "[Tomorrow was {his} first day at school|Soon it would be {his} first day at school], and {he} was afraid. "
        '"[What if nobody likes me|What if nobody plays with me|What if I do not know anything]?" '
        '{he} [asked {his} mother|said to {his} mother]. "[Be kind, and you will find a friend|Everyone is new on '
        'the first day]," '
        "[said {his} mother|{his} mother answered]."
    )
    morning = say(
        "In the morning, {n} took {bring}, and {his} mother put {lunch} in it. The school was [big and loud|full of "
        "noise|full of new faces]. "
        "{n} [stood at the door and did not dare to go in|wanted to turn around and run home|stayed close to the "
        "door]."
    )
    if rng.random() < 0.5:
        s["where"] = rng.choice(["behind a tree", "behind the gate", "on the steps", "under the coats"])
        branch = say(
            "Then {he} saw someone {where}. It was a {fk}, [and {fhe} was crying|who looked very sad|with tears in "
            '{fhis} eyes]. "[What is '
            'wrong|Why are you so sad|Are you all right]?" asked {n}. "[I am afraid to go in|It is my first day, '
            "and I am afraid"
            '|I am new here, and I know nobody]," said the {fk}. {Fhis} name was {fn}. "[I am afraid too|It is my '
            'first day too]," said {n}. "[Let us '
            'go in together|If we go together, it is not so bad|We can go in together]." So they went in side by '
            "side."
        )
        s["how"] = "they were afraid together, and so they went in side by side"
        met = _fact(say, ["Where was {fn}?", "Where did {n} see {fn}?"], "{fn} was {where}.", "{n} saw {fn} {where}.")
        help_ = _fact(
            say,
            ["Why was {fn} sad?", "Why did {fn} not go in?"],
            "{fn} was afraid of {fhis} first day at school too.",
            "It was {fn}'s first day, and {fhe} was afraid.",
        )
        s["sum"] = "met {fn} the {fk}, and they went in together"
    else:
        s["seat"] = rng.choice(["next to the window", "in the last row", "near the door"])
        branch = say(
            "[At last the bell rang|Then the bell rang], and {n} had to go in. {He} did not know where to sit. "
            '"[You can sit with me'
            '|Come and sit here|There is a place here]," said a [friendly|kind] voice {seat}. It was a {fk} named '
            '{fn}. "[Were you afraid on your first '
            'day|Are you ever afraid at school]?" {n} [asked|whispered]. "[Oh yes|Very much]!" said {fn}. "[I '
            "even cried a little"
            '|I hid under my coat], but it was soon better." {n} [smiled|had to smile] and sat down.'
        )
        met = _fact(
            say,
            ["Where did {n} sit?", "Where did {fn} sit?"],
            "{n} sat with {fn}, {seat}.",
            "{He} sat {seat}, beside {fn}.",
        )
        help_ = _fact(
            say,
            ["How did {fn} help {n}?", "What did {fn} do?", "Who was kind to {n}?"],
            "{fn} let {n} sit beside {fhim}.",
            "{fn} was kind and gave {n} a place to sit.",
        )
        s["sum"] = "{fn} the {fk} gave {him} a place to sit"
    last = say(
        "[That morning|In class], they {lesson}. [At noon|At lunch], {n} [shared {his} lunch with {fn}|gave half of "
        "{his} lunch to {fn}]. When {his} mother came, {n} [did not want to go home|ran to her with a smile|had so "
        "much to "
        'tell]. "[May I come back tomorrow|Can I go again tomorrow|Is there school tomorrow too]?" {he} asked. '
        "[{He} was not afraid any more.|And the "
        "fear was gone.|All the way home {he} talked about {his} new friend {fn}.]"
    )
    return Story(
        topic=_topic(
            say,
            "a {k} who is afraid of [school|the first day at school|{his} first day at school]"
            if rng.random() < 0.6
            else "a {k}'s first day at school"
            if rng.random() < 0.5
            else "a {k} who [goes to school|finds a friend at school]",
        ),
        text="\n\n".join([start + " " + first, morning, branch, last]),
        summary=say(
            "[{n} the {k}|A {adj} {k} named {n}] was afraid of {his} first day at school, but "
            + ("{he} {sum}." if "met" in s["sum"] else "{sum}.")
        ),
        facts=[
            *usual_facts(hero, friend, s),
            _fact(
                say,
                ["What was {n} afraid of?", "Why was {n} afraid?"],
                "{n} was afraid of {his} first day at school.",
                "It was {his} first day at school, and {n} was afraid.",
            ),
            met,
            help_,
            _fact(
                say,
                ["What did {n} take to school?", "What did {n} have for lunch?", "What was in {n}'s bag?"],
                "{n} took {bring} with {lunch} in it.",
                "{n} had {lunch} in {his} bag.",
            ),
            _fact(say, ["What did they do at school?", "What did they do in class?"], "They {lesson}."),
        ],
    )


@plot
@_short
def afraid_of_heights(rng: random.Random) -> Story:
    hero, friend, s, say = _pair(rng, CLIMBERS)
    s["tree"] = rng.choice(["apple tree", "oak tree", "pine tree", "old tree", "cherry tree"])
    s["thing"] = rng.choice(["a red kite", "a white kite", "a yellow ball", "a blue balloon"])
    s["thing2"] = s["thing"].replace("a ", "the ", 1)
    start = opening(rng, s)
    if rng.random() < 0.5:  # up already, afraid to come down
        first = say(
            "{n} [liked to play outside|loved to run and play], but {he} was afraid of high places. [{He} never "
            "climbed up on "
            "anything.|{He} did not even like to stand on a chair.|Even a low wall was too high for {him}.]"
        )
        middle = say(
            "[One day|One windy day|One morning], {he} saw {thing} in a tall {tree}. {He} wanted it so much that "
            "{he} [forgot to be "
            "afraid|did not think of {his} fear]. {He} climbed up and up, from branch to branch. Then {n} looked "
            "down. [The ground was "
            'so far away|Everything down there looked very small]! "[Help! I cannot get down|Help me! I am too '
            'high up|Help! I am afraid to come down]!" {he} cried.'
        )
        branch = say(
            '{His} friend {fn} the {fk} [heard {him} and came running|was near and heard {him}]. "[Do not look at '
            'the ground|Do not look down]," [called '
            '{fn}|said {fn}]. "[Look at me and listen|Just listen to my voice]. There is a branch under your left '
            'foot." {n} [put {his} foot on it|felt for '
            'it and found it]. "[Good|Very good|Well done]! [Now the next one|And now one more]," said {fn}. '
            "[Step by step|Slowly, one branch at a time], "
            "{n} came down with {thing2}, [until {his} feet were on the soft grass|until {he} stood on the grass]."
        )
        last = say(
            '"[You did it|You were very brave|You came down by yourself]," said {fn}. '
            "[Then they played with {thing2} all day.|They played with {thing2} until the sun went down.] [After "
            "that|From that day on], {n} was not afraid of [high "
            'places|climbing] any more. ["One step at a time," {he} always said.|{He} always took one step at a '
            "time.]"
        )
        s["sum"] = "climb down from a tall {tree}"
        facts = [
            _fact(
                say,
                ["What was in the tree?", "Why did {n} climb up the tree?", "What did {n} see in the tree?"],
                "{n} saw {thing} in the {tree}.",
                "{n} wanted {thing2} that was in the {tree}.",
            ),
            _fact(
                say,
                ["How did {fn} help {n}?", "How did {n} come down?"],
                "{fn} told {n} where to put {his} feet.",
                "{n} came down step by step, and {fn} told {him} the way.",
            ),
            _fact(say, ["What did {n} do after that?", "What did they play with?"], "They played with {thing2}."),
        ]
        topics = [
            "a {k} who is afraid to climb down a tree",
            "a {k} who is afraid of high places",
            "a {k} who cannot get down from a tree",
        ]
    else:  # afraid to go up to where the friend is
        s["house"] = rng.choice(["a tree house", "a little house", "a small wooden house"])
        first = say(
            "{n}'s friend {fn} the {fk} had {house} in a tall {tree}. [All the others|The others] climbed up and "
            "[played there|had fun up there], but {n} "
            "[stayed on the ground|always stayed down on the grass]. {He} was afraid of high places. [When {he} "
            'looked up, {his} legs began to shake.|"It is so high," {he} thought.]'
        )
        middle = say(
            '[One day|One afternoon|One sunny morning], {fn} came down and sat next to {n}. "[Why do you never '
            'come up|Why don\'t you come up to my house]?" {fhe} asked. "[I am '
            'afraid of high places|I am afraid that I will fall]," said {n}. {fn} did not laugh. "[We will try '
            'one branch a day|We will climb only a little each day]," {fhe} said.'
        )
        branch = say(
            "So on the first day, they sat on the lowest branch [and ate some bread|and talked|and sang a "
            "song]. On the "
            "second day, they went one branch higher. "
            "Every day, {n} was a little less afraid. [And at the end "
            "of the week|After seven days|One day], {he} [climbed up to the very top|reached the house in the "
            'tree]! ["I am here! I am really here!" {he} cried.|"I did it!" {he} cried.]'
        )
        last = say(
            "From up there, {n} could see [the whole valley|the hills and the river|the roofs and the fields]. "
            '"[It is so beautiful|I can see my home|I am so glad that I came up]," '
            "{he} said. [From then on|After that], {n} [was not afraid of high places any more|climbed up every "
            "day, and {he} was not afraid]. [And the two friends had "
            "many picnics in the tree.|And when the sun went down, the two friends watched it together.]"
        )
        s["sum"] = "climb up a tall {tree}, one branch a day"
        facts = [
            _fact(
                say,
                ["What was in the {tree}?", "What did {fn} have?"],
                "{fn} had {house} in the {tree}.",
                "There was {house} in the {tree}.",
            ),
            _fact(
                say,
                ["How did {fn} help {n}?", "How did {n} get to the top?"],
                "They climbed a little higher every day.",
                "{fn} climbed with {n}, one branch a day.",
            ),
            _fact(
                say,
                ["Where did they sit on the first day?", "What did they do on the first day?"],
                "They sat on the lowest branch.",
            ),
        ]
        topics = [
            "a {k} who is afraid of heights",
            "a {k} who is afraid of high places",
            "a {k} who is afraid to climb a tree",
            "a {k} and a house in a tree",
        ]
    return Story(
        topic=_topic(say, rng.choice(topics)),
        text="\n\n".join([start + " " + first, middle, branch, last]),
        summary=say(
            "[{n} the {k}|A {adj} {k} named {n}] was afraid of high places, but {fn} the {fk} helped {him} {sum}."
        ),
        facts=[
            *usual_facts(hero, friend, s),
            _fact(
                say,
                ["What was {n} afraid of?", "Why was {n} afraid?", "What was {n}'s problem?"],
                "{n} was afraid of high places.",
                "{He} was afraid of high places.",
            ),
            *facts,
            _fact(
                say,
                ["What did {n} learn?", "What is the lesson of the story?"],
                "{n} learned to go one step at a time.",
                "{n} learned that {he} could do it one step at a time.",
            ),
        ],
    )


@plot
@_short
def afraid_to_speak(rng: random.Random) -> Story:
    hero, friend, s, say = _pair(rng, LAND)
    s["adj"] = rng.choice(["shy", "quiet", "gentle", "little", "young", "kind"])
    s["what"] = rng.choice(
        ["a poem about the moon", "a poem about the spring", "a song about the rain", "a short story about a star"]
    )
    s["verb"] = "sing" if "song" in s["what"] else "tell" if "story" in s["what"] else "say"
    s["sang"] = {"sing": "sang", "tell": "told", "say": "said"}[s["verb"]]
    s["party"] = rng.choice(["the spring party", "the summer party", "the harvest party", "the big birthday party"])
    s["piece"] = s["what"].split(" about")[0].replace("a ", "the ").replace("short ", "")
    start = (
        opening(rng, s)
        if rng.random() < 0.6
        else say("[Once there lived|There once was|Once there was] a {adj} {k} {inplace}. {His} name was {n}.")
    )
    first = say(
        "{n} [had a lovely voice|liked songs and poems], but {he} was afraid to speak in front of others. [When "
        "everyone looked at {him}|When "
        "others listened], [{his} face became hot|{his} voice became very small|{he} forgot every word|{he} wanted "
        "to run away]."
    )
    middle = say(
        '[One day|One morning], {n} was asked to {verb} {what} at {party}. "[I cannot do it|What if I forget the '
        'words? I cannot do it|Everyone will look at me]," {he} [said to|told] {his} friend {fn} the {fk}. "[I '
        'know what we can do|I have an idea|Let me help you]," said {fn}.'
    )
    if rng.random() < 0.5:
        crowds = {
            "the flowers in the garden": "the flowers",
            "a row of stones": "the stones",
            "the trees": "the quiet trees",
            "ten round stones": "the ten round stones",
        }
        s["crowd"] = rng.choice(list(crowds))
        branch = say(
            '[The next day|Every day after that], they went outside, and {n} {sang} {piece} to {crowd}. "[They '
            'will never laugh at you|They are good listeners]," said {fn}. '
            "At first, {n} {sang} it [very softly|in a tiny voice]. [The next time|Then] "
            "{he} {sang} it a little louder. "
            "{fn} [clapped each time|sat at the back and listened]. [Soon|In the end] {n} knew {piece} [by heart|so "
            "well that {he} could do it with {his} eyes shut]."
        )
        s["how"] = "helped {him} practise in front of {crowd}"
        s["trick"] = "thought of " + crowds[s["crowd"]]
        how = _fact(
            say,
            ["How did {n} practise?", "Who did {n} practise in front of?", "How did {fn} help {n}?"],
            "{n} practised in front of {crowd}.",
            "{fn} let {n} practise in front of {crowd}.",
        )
    else:
        s["seat"] = rng.choice(["in the first row", "in the middle", "right at the front"])
        branch = say(
            '"[Do not look at all the others|Forget all the others]. I will sit {seat}, and you will [look only at '
            'me|speak only to me]," said {fn}. "[Then it will be the same as at home'
            '|It will be as if we two were alone|You are never afraid with me]." [That evening|That week], {he} '
            "{sang} {piece} to {fn} again and again."
        )
        s["how"] = "sat {seat} so that {n} could look only at {fhim}"
        s["trick"] = "looked only at {fn}"
        how = _fact(
            say,
            ["How did {fn} help {n}?", "Where did {fn} sit?"],
            "{fn} sat {seat}, and {n} looked only at {fhim}.",
            "{fn} sat {seat}.",
        )
    last = say(
        "[Then the day of {party} came|At last it was time for {party}]. {n} [stood in front of everyone|went to "
        "the front], and [{his} legs shook|{his} heart beat like a drum]. {He} {trick} and began. [The first word "
        "was soft|{His} voice was small at first], but [then it grew strong|soon it was clear and strong]. When "
        "{he} was done, everyone clapped. "
        '"[You did it|I knew you could do it|That was wonderful]," said {fn}. [{n} was still a little shy, but '
        '{he} was not afraid any more.|{n} smiled. "May I do it again?" {he} asked.]'
    )
    return Story(
        topic=_topic(
            say,
            "a {k} who is [afraid to speak in front of others|afraid to speak|too shy to speak]"
            if rng.random() < 0.7
            else "a shy {k}"
            if rng.random() < 0.4 and s["adj"] == "shy"
            else "a {k} who [has to {verb} {what}|is afraid to {verb} {what}]",
        ),
        text="\n\n".join([start + " " + first, middle, branch, last]),
        summary=say(
            "{n} the {k} was afraid to speak in front of others, but {his} friend {fn} {how}."
            if "crowd" in s
            else "{n} the {k} was afraid to speak in front of others, so {his} friend {fn} {how}."
        ),
        facts=[
            *usual_facts(hero, friend, s),
            _fact(
                say,
                ["What was {n} afraid of?", "Why was {n} afraid?", "What was {n} afraid to do?"],
                "{n} was afraid to speak in front of others.",
            ),
            _fact(
                say,
                ["What did {n} have to do at {party}?", "What was {n} asked to do?"],
                "{n} was asked to {verb} {what}.",
            ),
            how,
            _fact(
                say,
                ["What did everyone do at the end?", "Did the others like it?", "What happened at {party}?"],
                "Everyone clapped when {n} was done.",
                "{n} {sang} {piece}, and everyone clapped.",
            ),
        ],
    )


@plot
@_short
def afraid_of_the_neighbour(rng: random.Random) -> Story:
    hero, friend, s, say = _pair(rng, SMALL)
    s["big"] = rng.choice(["dog", "dog", "dog", "bear", "wolf"])
    while friend.kind in ("dog", "puppy", "bear", "wolf"):
        hero, friend, s2, _ = _pair(rng, SMALL)
        s.update(s2)
    s["bn"] = rng.choice([name for name in NAMES_M if name not in (hero.name, friend.name)])
    s["voice"] = rng.choice(["a deep, loud voice", "a voice like thunder", "very big teeth", "very big feet"])
    s["toy"] = rng.choice(["ball", "kite", "hat"])
    start = (
        opening(rng, s)
        if rng.random() < 0.6
        else say(
            "[{n} was a {adj} {k}|Once there was a {adj} {k} named {n}|There once was a {adj} {k} called {n}]. {He} "
            "lived {inplace}."
        )
    )
    first = say(
        "[Next door|In the house next door|On the other side of the fence] lived a big {big} named {bn}. {n} was "
        "afraid of him, for he had {voice}. [When {bn} came out of his house, {n} ran home and shut the "
        "door.|When {n} had to pass his house, {he} ran as fast as {he} could.|Every time {n} saw him, {he} hid "
        "behind a tree.]"
    )
    if rng.random() < 0.5:
        middle = say(
            "[One day|One windy day|One afternoon], {n} was playing with {his} friend {fn} the {fk}. {n}'s {toy} "
            "flew over the fence and landed [in {bn}'s garden|right in front of {bn}'s door]. \"[Oh no, the big "
            '{big} will be angry|I am too afraid to get it]," said {n}. "[Let us go and ask him|Come, we will ask '
            'him together]," said {fn}.'
        )
        branch = say(
            "{n} [knocked very softly|was shaking when they knocked]. The door opened, and there stood {bn}. "
            '"[Please, may we have my {toy} back|May we have the {toy}, please]?" {n} '
            'whispered. The big {big} [smiled|began to smile]. "[Of course|Here it is]!" he said. "[Would you '
            'like some cake too|And I have just made a cake. Would you like some]?"'
        )
        s["how"] = "went with {him} to ask for {his} {toy}"
        special = _fact(
            say,
            [
                "What flew over the fence?",
                "What landed in {bn}'s garden?" if "garden" in middle else "What did {n} lose?",
            ],
            "{n}'s {toy} flew over the fence.",
            "{n} lost {his} {toy} over the fence.",
        )
        nice = _fact(
            say,
            ["What did {bn} give them?", "What did the {big} have?"],
            "{bn} gave {n} the {toy} back, and he had cake for them.",
        )
        after = "They [sat in {bn}'s kitchen and ate cake|ate cake together, and {bn} told funny stories]."
    else:
        s["hurt"] = rng.choice(["hurt {his} foot", "fell and hurt {his} knee", "fell over a stone and hurt {his} foot"])
        middle = say(
            "[One day|One rainy day|One evening], {n} was on the way home with {his} friend {fn} the {fk}. {n} "
            '{hurt}, and {he} could not walk. "[I will get help|Wait here. I will get help]," said {fn}, and '
            "{fhe} ran to the nearest house. It was "
            'the house of the big {big}! "[Oh no, not him|Please, not {bn}]!" cried {n}. But {fn} [was not '
            "afraid|had already knocked at the door]."
        )
        branch = say(
            "{bn} came out at once, and {n} shut {his} eyes. But the {big} [was very gentle|spoke very softly]. "
            '"[Do not be afraid, little one|Don\'t cry, little one|You poor thing]," he said. "[I will '
            'carry you home|You can sit on my back]." So {bn} carried {n} [home|all the way home], and {fn} walked '
            "beside them."
        )
        s["how"] = "got {bn} to carry {him} home"
        special = _fact(
            say,
            ["What happened to {n}?", "Why could {n} not walk?"],
            "{n} {hurt}.",
            "{n} could not walk because {he} {hurt}.",
        )
        nice = _fact(
            say,
            ["What did {bn} do?", "How did {bn} help {n}?", "Who carried {n} home?"],
            "{bn} the {big} carried {n} home.",
        )
        after = (
            "The next day, {n} and {fn} brought {bn} [some cake|a bunch of flowers|a basket of apples] to "
            "say thank you."
        )
    last = say(
        after + ' "[I was afraid of you|I always ran away from you]," said {n}. "I am sorry." '
        '"[I am big, but I like to have friends|I am big outside, but inside I am soft]," [said '
        "{bn}|laughed the big {big}]. "
        "[From that day on|After that], {n} [said good morning to {bn}|waved to {bn}] every day, and [they were good "
        "friends|{he} was not afraid any more]."
    )
    return Story(
        topic=_topic(
            say,
            "a {k} who is afraid of [the big {big} next door|a big {big}|{his} neighbour]"
            if rng.random() < 0.75
            else "[a {k} and the big {big} next door|a {k} and a kind {big}]",
        ),
        text="\n\n".join([start + " " + first, middle, branch, last]),
        summary=say(
            "{n} the {k} [was afraid of {bn}, the big {big} next door,|thought that the big {big} next door was bad] "
            "until {fn} the {fk} {how}."
        ),
        facts=[
            *usual_facts(hero, friend, s),
            _fact(
                say,
                [
                    "Who was {n} afraid of?",
                    "What was {n} afraid of?",
                    "Who did {n} hide from?" if "hid" in first else "Who did {n} run away from?",
                ],
                "{n} was afraid of {bn}, the big {big}.",
                "{n} was afraid of the big {big} next door.",
            ),
            _fact(
                say,
                ["Who lived next door?", "Who was {bn}?", "What was the {big}'s name?"],
                "A big {big} named {bn} lived next door.",
                "{bn} was the big {big} next door.",
            ),
            special,
            nice,
            _fact(
                say,
                ["Was the {big} really bad?", "Was {bn} kind?", "What was {bn} really like?"],
                "{bn} was really kind.",
                "{bn} was big, but he was kind.",
            ),
            _fact(
                say,
                ["What did {n} learn?", "What is the lesson of the story?"],
                "{n} learned that someone big can be very kind.",
                "{n} learned that {bn} was kind.",
            ),
        ],
    )


@plot
@_short
def afraid_to_sleep_away(rng: random.Random) -> Story:
    hero, friend, s, say = _pair(rng, LAND)
    s["gift"] = rng.choice(
        ["a smooth white stone", "a small bell", "a red scarf", "a little wooden star", "a soft pillow"]
    )
    s["eat"] = rng.choice(["warm soup", "pancakes", "apple cake", "bread and honey"])
    s["sound"] = rng.choice(["a clock", "the wind", "an owl", "a strange sound"])
    start = opening(rng, s)
    if rng.random() < 0.5:
        s["gift2"] = "the " + s["gift"].split(" ", 1)[1]
        s["who"] = rng.choice(["grandmother", "grandfather", "aunt"])
        first = say(
            "{n} had never slept away from home, and {he} was afraid of it. [Then, one day, a letter came from "
            '{his} {who}|One day, {his} {who} wrote {him} a letter]. "[Come and stay with me for a night|Please '
            'come and sleep at my house]," it said. "[I will not be able to sleep there|I will be all alone in a '
            'strange bed|I will miss my own bed]," said {n}.'
        )
        middle = say(
            '{His} friend {fn} the {fk} came [to the door|to see {him}]. "[I felt the same the first time|I was '
            'afraid the first time too]," said {fn}. "[Take this|This is for you]." {Fhe} gave {n} '
            '{gift}. "[Hold it when you feel alone|When you feel alone, hold it tight]." '
            "{n} put it in {his} bag."
        )
        branch = say(
            "So {n} went. {He} ate {eat} with {his} {who}. But when the light was out, the room was [dark and "
            "strange|big and quiet], and {he} heard {sound}. Then {n} remembered {gift2}. {He} held it "
            "[close|tight] and thought of {fn}. [Soon|A little later], {he} was asleep."
        )
        last = say(
            'In the morning, the sun shone [on {his} bed|through the window]. "[Did you sleep well|How did you '
            'sleep]?" asked {his} {who}. "[Very well|I slept very well]!" said {n}. [When {he} was home '
            "again|Back at home], {he} told {fn} [everything|all about it]. "
            "And {he} was not afraid to sleep away from home any more."
        )
        s["sum"] = "gave {him} {gift} to hold at night"
        facts = [
            _fact(
                say,
                ["Where did {n} sleep?", "Where did {n} go?", "Who did {n} visit?"],
                "{n} slept at {his} {who}'s house.",
                "{n} went to stay with {his} {who}.",
            ),
            _fact(
                say,
                ["What did {fn} give {n}?", "How did {fn} help {n}?"],
                "{fn} gave {n} {gift}.",
                "{fn} gave {him} {gift} to hold when {he} felt alone.",
            ),
        ]
    else:
        first = say(
            "{n} had never slept away from home. [One day|One morning|One Friday], {his} friend {fn} the {fk} "
            'asked, "[Will you sleep at my house tonight|Can you come and sleep at my house]?" {n} wanted to say '
            'yes, but {he} was afraid. "[Just try it|Try it. It will be fun]," [said {his} mother|{his} mother '
            "said]."
        )
        middle = say(
            "[So {n} went|So {n} took {his} pillow and went]. [In the evening|That evening], they ate {eat} and "
            "[built a cave of blankets|laughed a lot]. Then it was time for bed, and {fn} [put out the light|said "
            "good night]. {n} heard {sound}. [A tear ran down {his} cheek.|{He} began to cry very "
            "softly.]"
        )
        branch = say(
            '"{n}, are you [crying|awake]?" asked {fn}. "[I am afraid|I miss my home|I have never slept away '
            "from home],\" [whispered {n}|said {n} softly]. {fn} [pulled {fhis} bed next to {n}'s bed|moved {fhis} "
            'bed closer]. "[Let us look at the moon|Look, there is the moon]," {fhe} said. "Your mother can see '
            'it too." [So they looked at the moon|They both looked up at the moon] and told each other [funny '
            "stories|little stories]. [Soon {n} was asleep|In the middle of a story, {n} fell asleep]."
        )
        last = say(
            "In the morning, [the birds were singing|the sun was shining], and {n} [sat up and laughed|smiled]. "
            'When {his} mother came, {n} [ran to her|hugged her]. "[Next time, {fn} can sleep at our house|I want '
            'to sleep here again soon|I slept all night]," {he} said. After that, {he} was not afraid to sleep '
            "away from home any more."
        )
        s["sum"] = "looked at the moon with {him}"
        facts = [
            _fact(say, ["Where did {n} sleep?", "Whose house did {n} sleep at?"], "{n} slept at {fn}'s house."),
            _fact(
                say,
                ["How did {fn} help {n}?", "What did {fn} do?"],
                "{fn} moved {fhis} bed closer, and they looked at the moon.",
                "{fn} told stories and looked at the moon with {n}.",
            ),
        ]
    return Story(
        topic=_topic(
            say,
            "a {k} who is afraid [to sleep away from home|to sleep away from home|to be alone at night]"
            if rng.random() < 0.7
            else "[a {k}'s first night away from home|a {k} who has never slept away from home]",
        ),
        text="\n\n".join([start + " " + first, middle, branch, last]),
        summary=say("{n} the {k} was afraid to sleep away from home, but {his} friend {fn} {sum}."),
        facts=[
            *usual_facts(hero, friend, s),
            _fact(
                say,
                ["What was {n} afraid of?", "Why was {n} afraid?", "What was {n} afraid to do?"],
                "{n} was afraid to sleep away from home.",
            ),
            *facts,
            _fact(
                say,
                ["What did {n} eat?", "What did they eat?", "What did {n} have for dinner?"],
                "They ate {eat}.",
                "{n} ate {eat}.",
            ),
            _fact(
                say,
                ["What did {n} hear in the night?", "What sound did {n} hear?"],
                "{n} heard {sound}.",
                "{He} heard {sound}.",
            ),
            _fact(
                say,
                ["Was {n} afraid at the end?", "How did {n} feel in the morning?"],
                "{n} was happy and not afraid any more.",
            ),
        ],
    )
