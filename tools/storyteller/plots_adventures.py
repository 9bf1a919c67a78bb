"""Plots about small adventures: things lost and found, trips, maps, keys and weather."""

from __future__ import annotations

import functools
import random
import re

from grammar import expand
from world import Character, Plot, Story, cast, character, opening, plot, usual_facts

PEOPLE = ["girl", "boy"]
WALKERS = (
    "fox rabbit mouse bear squirrel hedgehog cat dog puppy kitten pig lamb pony goat deer badger otter beaver penguin "
    "lion monkey panda koala mole bunny donkey wolf zebra"
).split()
FLYERS = ["owl", "robin", "crow", "parrot"]
CLIMBERS = ["squirrel", "monkey", "cat", "kitten", "koala", "girl", "boy", "bear", "panda"]
HEROES = WALKERS + PEOPLE * 4
FRIENDS = WALKERS + FLYERS + PEOPLE + ["duck", "hen", "frog", "turtle", "goose"]


def fitted(function: Plot) -> Plot:
    """Draw again until story and summary have the right length (or, after many tries, take the last)."""

    @functools.wraps(function)
    def fit(rng: random.Random) -> Story:
        for _ in range(200):
            story = function(rng)
            if 110 <= len(story.text.split()) <= 190 and len(story.summary.split()) <= 25:
                break
        return story

    return fit


class Tale:
    """A story in the making: its cast and slots, its random generator, and the questions collected so far."""

    def __init__(self, rng: random.Random, friends: list[str] = FRIENDS, near: str = "", avoid: str = "") -> None:
        """`near` and `avoid`: words, one of which the place must have, or none of which it may have."""
        self.rng = rng
        while True:
            self.hero, self.friend, self.s = cast(rng, HEROES)
            place = self.s["place"]
            near_ok = not near or any(word in place for word in near.split())
            if self.friend.kind in friends and near_ok and not any(word in place for word in avoid.split()):
                break
        self.brief = rng.choice([0.5, 0.7, 0.9])  # how often a choice marked ~ is left out
        self.facts: list[tuple[list[str], list[str]]] = []

    def pick(self, slot: str, choices: str) -> str:
        """Draw one of `choices` (separated by |) into a slot."""
        self.s[slot] = self.rng.choice(choices.split("|"))
        return self.s[slot]

    def pick_kind(self, slot: str, kinds: str) -> str:
        """Draw a kind of animal that is neither the hero's nor the friend's."""
        taken = {self.hero.kind, self.friend.kind}
        if taken & {"rabbit", "bunny"}:
            taken |= {"rabbit", "bunny"}
        self.s[slot] = self.rng.choice([kind for kind in kinds.split() if kind not in taken])
        return self.s[slot]

    def branch(self, *names: str) -> str:
        return self.rng.choice(names)

    def say(self, template: str) -> str:
        """`template` expanded; a choice that begins with ~ may be left out altogether, to keep the story short."""

        def maybe(match: re.Match[str]) -> str:
            return "" if self.rng.random() < self.brief else "[" + match.group(1) + "]"

        return expand(self.rng, re.sub(r"\[~([^\[\]]*)\]", maybe, template), self.s)

    def start(self, *own: str) -> str:
        """The shared opening, or one of the plot's own."""
        if self.rng.random() < 0.5:
            return opening(self.rng, self.s)
        return self.say(self.rng.choice(own))

    def ask(self, questions: str, answers: str) -> None:
        """Add a fact; alternatives are separated by |, and there are no [choices] in it."""
        self.facts.append(([self.say(q) for q in questions.split("|")], [self.say(a) for a in answers.split("|")]))

    def story(self, topics: str, paragraphs: list[str], summary: str) -> Story:
        return Story(
            topic=self.say(self.rng.choice(topics.split("|"))).lower(),
            text="\n\n".join(paragraphs),
            summary=self.say(summary),
            facts=[*usual_facts(self.hero, self.friend, self.s), *self.facts],
        )


def stranger(tale: Tale, prefix: str, kinds: list[str]) -> Character:
    """A third one, of another name and kind than hero and friend; fills the slots behind `prefix`."""
    while True:
        one = character(tale.rng, kinds, not_like=tale.hero)
        if one.name != tale.friend.name and one.kind != tale.friend.kind:
            tale.s.update(one.slots(prefix))
            return one


@plot
@fitted
def lost_toy(rng: random.Random) -> Story:
    t = Tale(rng)
    s = t.s
    t.pick("toy", "red ball|blue ball|wooden horse|little drum|toy boat|yellow top|rag doll|toy train|green toy car")
    t.pick("giver", "grandmother|grandfather|mother|father|aunt|uncle")
    t.pick("feel", "happy|glad|happy and thankful")
    s["spot1"], s["spot2"] = rng.sample(
        ["under the bed", "behind the door", "in the kitchen", "under the table", "by the gate", "in the tall grass"], 2
    )
    start = t.start(
        '"Where is my {toy}?" That was {n}, a {adj} {k} who lived {inplace}.',
        "This is the story of {n}, a {adj} {k} who lived {inplace}. {He} had a box full of toys.",
        "{Inplace}, there lived a {adj} {k} whose name was {n}. {He} loved to play.",
    )
    first = t.say(
        "[Of all {his} toys, {n} loved {his} {toy} best|{n} had many toys, but {he} loved {his} {toy} the most"
        "|The thing that {n} loved most was {his} {toy}]. [{His} {giver} had made it for {him}|It was a present from "
        "{his} "
        "{giver}|{His} {giver} gave it to {him} one winter], and {he} [took it everywhere|played with it every "
        "day|never "
        "left it behind]. But [one morning|one day|one afternoon], the {toy} was gone! {n} looked {spot1}. {He} looked "
        "{spot2}. [~It was not there.|Nothing!|No {toy}!] [{n} began to cry.|A big tear ran down {his} cheek.|{n} "
        "felt very "
        "sad.]"
    )
    comes = (
        "[{His} friend|Then {his} friend|Soon {his} good friend] {fn} the {fk} [came by|came to visit|heard {him}]. "
        '"[Why are '
        'you sad|What is the matter|What is wrong]?" asked {fn}. "I lost my {toy}," said {n}. '
    )
    how = t.branch("bag", "little one", "home")
    if how == "bag":
        t.pick("where", "under a bush|behind a big stone|in a pile of leaves|next to the old bridge|between two roots")
        middle = t.say(
            comes + '"[Where did you play yesterday|Where were you yesterday|Where did you go with it]?" asked {fn}. '
            '"[Let us walk the '
            'same way again|We will go back the same way|Come, we will look there together]." So they walked slowly '
            "and looked "
            "[left and right|at every stone and flower|high and low]. [At last|Then|After a long time], {fn} [gave a "
            "shout|"
            'jumped with joy|began to smile]. "Look! There!" The {toy} was lying {where}. {n} looked at {his} bag. '
            "There was a "
            "[big|little|round] hole in it! [~The {toy} had fallen out.|That was how the {toy} fell out.]"
        )
        last = t.say(
            "[~{n} hugged {his} {toy} and then {he} hugged {fn}.|{n} was so {feel} that {he} danced around "
            '{fn}.|"Thank you, '
            '{fn}!" said {n}.] [That evening|Back at home|Before supper], they closed the hole in the bag with '
            "[red|blue|strong"
            "|green] thread. {n} was very {feel}. [And the {toy} never fell out again.|Then the two friends played "
            "until the "
            "stars came out.|That night the {toy} slept next to {him}.]"
        )
        t.ask("Where was the {toy}?|Where did they find the {toy}?", "The {toy} was {where}.|They found it {where}.")
        t.ask("Why did {n} lose the {toy}?|How did the {toy} get lost?", "There was a hole in {n}'s bag.")
        end = "found it {where}"
    elif how == "little one":
        t.pick_kind("small", "mouse rabbit kitten squirrel hedgehog mole")
        t.pick("where", "under the old tree|by the well|behind the fence|near the pond")
        middle = t.say(
            comes + '"[I will help you look|Let us look together|Do not cry, we will find it]," said {fn}. They '
            "[asked everyone they met"
            "|looked all around|walked up and down the path]. Then {fn} [heard a soft sound|saw something "
            "move|stopped and "
            "pointed]. {Where}, a [tiny|very small] {small} was sleeping with the {toy} in its arms! The little "
            "{small} woke up. "
            '"[I am sorry|Oh! Is this yours|Please do not be angry]," it said. "I found it in the grass. I have no '
            "toys, and "
            '[it was nice to hold|I was lonely|I wanted a friend]."'
        )
        last = t.say(
            '[~{n} was not angry any more.|{n} thought for a moment.|{n} sat down next to the little one.] "[We can '
            "play with it "
            'together|Come and play with us|Let us all share it]," said {n}. [So the three of them played|They all '
            "played] "
            "[until supper|all afternoon|until the sun went down]. {n} was {feel}. {He} had {his} {toy} again, and [a "
            "new friend "
            "too|{he} had one more friend|one friend more than before]."
        )
        t.ask("Where was the {toy}?|Where did they find the {toy}?", "The {toy} was {where}, with a little {small}.")
        t.ask(
            "Who had the {toy}?|Who found the {toy} first?", "A little {small} had the {toy}.|A tiny {small} found it."
        )
        t.ask("What did {n} do with the little {small}?", "{n} shared the {toy} with the little {small}.")
        end = "found it with a little {small} and shared it"
    else:
        t.pick("where", "in the big basket|inside {his} winter hat|under {his} pillow|in the pocket of {his} coat")
        t.pick("danger", "the rain|the wind|the dust|the mud")
        middle = t.say(
            comes + '"[Then we will look for it|Let us look together|Two can look better than one]," said {fn}. They '
            "looked in the garden "
            "and [by the river|down the road|behind the trees]. They asked [the neighbors|everyone they met|all their "
            "friends]. "
            "[~No one had seen it.|Nobody knew where it was.] [~Tired and sad, they went home.|At last they went home "
            "to rest.] "
            'Then {fn} asked, "[Where do you put things that you love|What did you do with it last night|Where would '
            "you put it "
            'to keep it safe]?" {n} [thought and thought|closed {his} eyes and thought|stood very still]. Then {he} '
            "ran and "
            "looked {where}. There was the {toy}!"
        )
        last = t.say(
            '"[I put it there myself|Now I remember! I put it there|Oh, I forgot! I hid it]," said {n}, "to keep it '
            "safe from "
            '{danger}!" {fn} laughed, and [soon {n} laughed too|then they both laughed|{n} had to laugh too]. {n} was '
            '{feel} again. [They played together all day.|From then on, all the toys had their own place.|"Next '
            "time, we will "
            'look at home first," said {fn}.]'
        )
        t.ask("Where was the {toy}?|Where did {n} find the {toy}?", "The {toy} was {where}.")
        t.ask("Who put the {toy} there?|Why was the {toy} there?", "{n} put it there to keep it safe from {danger}.")
        end = "found it {where}"
    t.ask("What did {n} lose?|What was gone?|Why was {n} sad?", "{n} lost {his} {toy}.")
    t.ask("Who gave {n} the {toy}?", "{n}'s {giver} gave it to {him}.")
    t.ask("How did {n} feel at the end?|Was {n} happy at the end?", "At the end, {n} was {feel}.")
    return t.story(
        "a {k} who loses a {toy}|a lost {toy}|a {k} and a lost toy",
        [start + " " + first, middle, last],
        "[{n} the {k} lost {his} {toy}, but with the help of {fn} the {fk} {he} " + end + ".|When {n} the {k} lost "
        "{his} {toy}, "
        "{fn} helped {him} look, and {he} " + end + ".]",
    )


@plot
@fitted
def way_home(rng: random.Random) -> Story:
    t = Tale(rng, avoid="forest woods island oak")
    t.pick(
        "thing",
        "a yellow butterfly|a blue butterfly|a big green dragonfly|a round red leaf in the wind|a tiny white feather",
    )
    t.pick("wait", "hot soup|warm bread|apple pie|pancakes|honey cakes")
    t.pick("parent", "mother|father|grandmother|grandfather")
    t.s["it"] = t.s["thing"].split(" ", 1)[1].replace(" in the wind", "")
    start = t.start(
        "This is a story about a {adj} {k}. {His} name was {n}, and {he} lived {inplace}.",
        "{n} lived {inplace}. {He} was a {adj} {k} who liked to run and play all day.",
        "Do you know {n}? {He} was a {adj} {k}, and {his} home was {inplace}.",
    )
    first = t.say(
        "[One day|One morning|One sunny afternoon|After breakfast one day], {n} saw {thing}. [{He} ran after it|{He} "
        "wanted to "
        'catch it|"How pretty!" {he} said, and {he} ran after it]. [Over the fields it went, and into the dark '
        "forest.|It flew "
        "on and on, deep into the forest.|It went past the bridge and into the trees.] {n} [ran and ran|did not look "
        "back|did not "
        "look where {he} was going]. Then the {it} was gone. [~All the trees looked the same.|There were trees on "
        "every side.|{He} "
        'looked around and saw only trees.] {n} was lost. "[How will I get home|Where is my home|Which way is '
        'home]?" {he} '
        "[cried|said in a small voice|asked, but no one was there]."
    )
    meets = (
        "[Then|Just then,|After a while,] someone [came down the path|came out from behind a tree|called {his} name]. "
        "It was "
        '{his} friend {fn} the {fk}. [~{n} told {fn} what had happened.|"I am lost," said {n}.|"Oh, {fn}! I do not '
        "know the "
        'way," said {n}.] '
    )
    ways = ["smell", "river", "bell"] + (["fly"] * 4 if t.friend.kind in FLYERS else [])
    how = rng.choice(ways)
    if how == "smell":
        middle = t.say(
            meets
            + '"[I do not know the way|I have never been to your house|I am not sure], but [do not be '
            "afraid|we can find it|we are "
            'two now]," said {fn}. "Close your eyes. What do you smell?" {n} [closed {his} eyes|sat still|took a '
            "deep breath]. "
            '"I smell [flowers|wet leaves|grass]," {he} said. "And... I smell {wait}! {His} {parent} made that for '
            'supper!"'.replace("{His} {parent}", "My {parent}")
            + " So they [followed the smell|walked after the good smell|went where the smell was stronger], step by "
            "step. [Soon "
            "they saw a light between the trees.|Soon the trees ended, and there was the house.|And there, at last, "
            "was the door.]"
        )
        t.ask("How did {n} find the way home?|What did they follow?", "They followed the smell of {wait}.")
        end = "they followed the smell of {wait} home"
    elif how == "river":
        middle = t.say(
            meets + '"[Think, {n}|Let us think|Sit down and think]. [What is near your house|What can you see from '
            'your window]?" asked '
            '{fn}. "[A little stream|There is a stream]," said {n}. "It comes down from the forest." "[Then '
            "listen!|Be very "
            'still!|Hush!] I can hear water," said {fn}. They found the stream [behind some bushes|under the tall '
            "trees|between "
            "two big stones], and they walked next to it, [on and on|hand in hand|singing a song]. [~The sky grew "
            "dark, but they "
            "were not afraid.|{fn} told funny stories on the way.|The water ran and sang next to them.] And then {n} "
            "saw "
            "{his} own [house|door|window]!"
        )
        t.ask("How did {n} find the way home?|What did they follow?", "They followed the stream.")
        end = "they followed a stream home"
    elif how == "bell":
        t.pick("bell", "a bell|a horn|a drum|a song")
        middle = t.say(
            meets
            + '"[Do not run|Do not cry|Sit with me]. When you are lost, [it is best to stay in one place|it is '
            "good to stop]"
            ' and listen," said {fn}. So they sat on [a log|a flat stone|the soft moss] and listened. They heard [a '
            "bird|the "
            'wind|a frog]. They heard [the leaves|a bee|an owl]. And then, far away, they heard {bell}. "That is my '
            '{parent}!" '
            'cried {n}. "[{parent} is calling me|I am being called home|I know that sound]!" They '
            "[walked|hurried|ran] to the "
            "sound, and it grew louder and louder, until they [came out of the trees|saw the house|stood at the "
            "gate].".replace("{parent} is calling me", "It means that I must come home")
        )
        t.ask("What did they hear far away?|What did {n} hear?", "They heard {bell} far away.")
        t.ask("What did {fn} tell {n} to do?|What did {n} do when {he} was lost?", "{fn} said to stop and listen.")
        end = "they stopped and listened until they heard {bell} from home"
    else:
        middle = t.say(
            meets + '"[That is easy|Do not be afraid|I can help you]," said {fn}. "I have wings. I will fly up and '
            'look." Up, up, up '
            'flew {fn}, [over the tops of the trees|until {fhe} was only a small dot|high into the sky]. "I can see '
            "[a red roof|"
            'smoke from your chimney|the road to your house]!" {fhe} called. Then {fn} flew slowly from tree to '
            "tree, and {n} "
            'walked below. [~Left, right, and left again.|{He} did not stop once.|"This way!" called {fn}. "This '
            'way!"] [Soon|'
            "At last|Before dark], they were out of the forest."
        )
        t.ask(
            "How did {fn} help {n}?|How did {n} find the way home?",
            "{fn} flew up over the trees and showed {n} the way.",
        )
        end = "{fn} flew over the trees and showed {him} the way"
    last = t.say(
        '{His} {parent} stood at the door with open arms. "[There you are|I was looking for you|You are home]!" '
        "said {his} "
        "{parent}. [There was {wait} for {n} and for {fn} too.|They all sat down and had {wait}.|{n} and {fn} ate "
        "{wait} by the "
        "fire.] [Never had it tasted so good.|{n} was warm and happy.|After that, {n} always looked back to see the "
        'way.|"Thank '
        'you, {fn}," said {n}. "You are a good friend."|That night, {n} was happy to be in {his} own bed.]'
    )
    t.ask(
        "How did {n} get lost?|Why did {n} get lost?|What did {n} run after?", "{n} ran after {thing} into the forest."
    )
    t.ask("Who stood at the door?|Who was waiting for {n}?", "{n}'s {parent} stood at the door.")
    t.ask("What did they eat at the end?|What was there to eat?", "They had {wait}.")
    return t.story(
        "a {k} who gets lost in the forest|a {k} who gets lost and finds the way home|a lost {k} and a good friend",
        [start + " " + first, middle, last],
        "[{n} the {k} got lost in the forest|A {adj} {k} named {n} lost {his} way in the forest], but {he} met {fn} "
        "the {fk}, and "
        + end + ".",
    )  # fmt: skip


@plot
@fitted
def treasure_map(rng: random.Random) -> Story:
    t = Tale(rng, avoid="oak island")
    t.pick(
        "found", "in an old book|under a loose board|in an old coat|behind a picture on the wall|at the bottom of a box"
    )
    s = t.s
    s["step1"], s["step2"] = rng.sample(
        [
            "over the little bridge",
            "past the old mill",
            "around the pond",
            "through the tall grass",
            "along the stone wall",
        ],
        2,
    )
    t.pick("cross", "three white stones|a tall pine tree|a big gray rock|an old apple tree")
    t.pick("tool", "a small shovel|a big spoon|a shovel and some bread|a rope and a shovel")
    start = t.start(
        "{n} was a {adj} {k}, and {he} lived {inplace}. {He} liked stories about ships and gold.",
        "A {adj} {k} named {n} lived {inplace}. [~Nothing ever happened there, or so {he} thought.|{He} dreamed of "
        "big adventures.]",
        "{Inplace} lived {n}, a {adj} {k} who loved to look for things.",
    )
    first = t.say(
        "[One rainy day|One morning|One day|One quiet afternoon], {n} found [a piece of yellow paper|an old, yellow "
        "paper|a "
        'folded paper] {found}. [~{He} opened it carefully.|It was very old.|What could it be?] "[It is a map|A '
        "map|This is a "
        'treasure map]!" {he} cried. [~There was a red cross on it.|A red cross showed the place of the treasure.] '
        "{n} ran to "
        '{his} friend {fn} the {fk}. "[Will you come with me|Shall we look for the treasure|Do you want to find a '
        'treasure]?" '
        '[{he} asked|said {n}]. "[Yes|Of course|Oh, yes]!" said {fn}, and {fhe} brought {tool}.'
    )
    walk = (
        "[They followed the map|The map showed the way|They looked at the map and walked]: {step1}, then {step2}. "
        "[~Once they went "
        'the wrong way, but {fn} turned the map around.|"You hold it upside down!" laughed {fn}.|{fn} read the map, '
        "and {n} "
        'counted the steps.|{n} got tired, but {fn} sang a funny song.] At last they saw {cross}. "Here it is!" '
        "said {fn}. They "
        "[dug and dug|dug a deep hole|dug until they were hot and dirty]. Tock! They hit something hard. It was a "
        "[wooden|little old|heavy iron] box. "
    )
    what = t.branch("full", "note", "buried long ago")
    if what == "full":
        t.pick("gold", "gold coins|shiny stones|glass marbles in every color|silver buttons")
        t.pick(
            "use",
            "a new roof for the school|a long table for the whole village|a swing for all the children|a "
            "bell for the town",
        )
        middle = t.say(
            walk + "{n} opened the lid. [The box was full of {gold}!|Inside were {gold}, more than they could "
            "count!|There were {gold} up "
            'to the top!] "We are rich!" [cried|shouted|said] {n}. They [carried the box home together|pulled the '
            "box home|put the "
            "box between them and carried it home]."
        )
        last = t.say(
            '[~What should they do with it all?|That night, they thought about what to buy.|"What do you wish for?" '
            "asked {fn}.] "
            "They kept [one each|two each|a few], and with the rest they bought {use}. [Everyone was happy, and {n} "
            "was the "
            "happiest of all.|Everyone came and said thank you, and {n} was happy.|There was a big party, and {n} was "
            "very "
            'happy.] [And the map? It hangs on {n}\'s wall to this day.|"That is better than being rich," said '
            '{fn}.|"The best '
            'part was the way there," said {n}.]'
        )
        t.ask("What was in the box?|What was the treasure?", "The box was full of {gold}.")
        t.ask("What did they do with the treasure?|What did they buy?", "They bought {use}.")
        t.ask("How did {n} feel at the end?", "{n} was happy.")
        end = "they found a box of {gold} and shared it"
    elif what == "note":
        t.pick("view", "The sun was going down over the hills, and the whole sky was gold|All the fields lay below "
            "them like a big "
               "green blanket|A rainbow stood over the valley, from one end to the other")  # fmt: skip
        middle = (
            t.say(
                walk
                + "{n} opened it. But there was no gold in it. There was only a [small note|little letter|bit of "
                'paper]. "[What does it '
                'say|Read it to me|What is that]{mark}" [said|asked] {fn}. {n} read, "Now turn around and look." So '
                "they turned around. "
                "{view}.".replace("{mark}", ",")
            )
            .replace("What does it say,", "What does it say?")
            .replace("What is that,", "What is that?")
        )
        last = t.say(
            '[~They sat down and did not say a word for a long time.|"Oh!" was all that {n} could say.|"It is so '
            'beautiful," '
            '{n} said softly.] "That is a treasure [that no one can take away|for everyone|too big for any box]," '
            "said {fn}. "
            "[~They put the note back in the box for the next one who came with a map.|They stayed until the first "
            "star came "
            "out.|They ate some bread and were happy.] Then they went home, and {n} [was not sad at all|was "
            "happy|smiled all the "
            "way]."
        )
        t.ask("What was in the box?|Was there gold in the box?", "There was no gold in the box, only a note.")
        t.ask("What did the note say?", 'The note said, "Now turn around and look."')
        end = "the box had only a note, which showed them a beautiful view"
    else:
        t.pick("elder", "grandfather|grandmother")
        t.pick(
            "gold", "a wooden top and a tin whistle|a toy ship and a bag of marbles|a little drum and a wooden horse"
        )
        middle = t.say(
            walk + "In it lay {gold}. There was a [letter|note] too. [~{n} read it out loud.|{fn} read it slowly.] It "
            'said, "[These are '
            "my best toys|Here are my best toys]. I hide them for [a child who likes adventures|someone who comes "
            "after me|whoever "
            "is brave enough to look].\" And under it was a name. It was the name of {n}'s {elder}!"
        )
        last = t.say(
            "They [ran home|hurried home|ran all the way back]. {n}'s {elder} [laughed and laughed|looked at the box "
            "and smiled|"
            'had tears of joy]. "I was as small as you when I made that map," said {n}\'s {elder}. "[I almost '
            "forgot it|I hoped "
            'you would find it|Now the toys are yours]." [All evening, the three of them played|Then all three sat '
            "on the floor "
            "and played]. [The next day, {n} and {fn} made a new map.|It was the best treasure in the world.|{n} was "
            "very happy.]"
        )
        t.ask("What was in the box?|What was the treasure?", "In the box lay {gold}.")
        t.ask("Who made the map?|Who hid the box?", "{n}'s {elder} made the map.")
        end = "they found the old toys that {n}'s {elder} had hidden"
    t.ask("What did {n} find?|What was on the paper?", "{n} found a treasure map.")
    t.ask("Where did {n} find the map?|Where was the map?", "{n} found the map {found}.")
    t.ask("Where was the treasure?|Where did they dig?|What did they see at last?", "They dug by {cross}.")
    t.facts[-1] = (t.facts[-1][0][:2], t.facts[-1][1])
    return t.story(
        "a {k} who finds a treasure map|a treasure map|a {k} who looks for treasure with a friend",
        [start + " " + first, middle, last],
        "[{n} the {k} found an old map|{n} found a treasure map {found}]. With {fn} the {fk} {he} followed it, and "
        "" + end + ".",
    )


WATER = "sea river lake island riverbank"


@plot
@fitted
def raft_trip(rng: random.Random) -> Story:
    left_out = ("duck", "goose", "frog", "turtle", "otter", "beaver", "pony", "donkey")
    sailors = [kind for kind in FRIENDS if kind not in left_out]
    t = Tale(rng, friends=sailors, near="river lake riverbank")
    t.s["water"] = "lake" if "lake" in t.s["place"] else "river"
    t.pick("made", "logs and rope|old boards and rope|dry sticks and string|two doors and a long rope")
    t.pick("sail", "a red blanket|an old white shirt|a blue cloth|a yellow towel")
    t.pick("name", "Sea Star|Brave Duck|Little Wave|Wind Queen|Jolly Fish")
    t.pick("food", "cheese and bread|apples and cake|a bag of nuts and berries|pears and cookies")
    t.pick("goal", "the little green island|the other side|the old lighthouse|the yellow beach")
    start = t.start(
        "{Inplace}, a {adj} {k} named {n} watched the water every day, for that was {his} home.",
        "{n} lived {inplace}. {He} was a {adj} {k} who dreamed of boats.",
        "This story is about {n}, a {adj} {k} who lived {inplace} and wanted to be a sailor.",
    )
    first = t.say(
        "[{n} wanted to go to {goal}, but {he} had no boat.|Far over the {water} was {goal}. {n} had never been "
        "there, for {he} "
        'had no boat.|"I wish I had a boat," {he} often said. "Then I would go to {goal}."] "[Then let us make '
        "one|We can "
        "build one|Why don't we make a raft]{end}\" said {his} friend {fn} the {fk}. So they made a raft from {made}. "
        "For a sail "
        "they took {sail}. [They called it the {name}.|{n} painted a name on it: the {name}.] They packed {food}, and "
        "[off they "
        "went|away they went|{fn} pushed it into the water].".replace("{end}", ",")
    ).replace("make a raft,", "make a raft?")
    how = t.branch("rope", "stuck", "rescue")
    if how == "rope":
        t.pick("fix", "{his} belt|{his} scarf|the long string from {his} kite|a strong piece of grass")
        middle = t.say(
            "[~At first the water was still, and the sun was warm.|The wind was soft, and they sang a sailor "
            "song.|The raft went up "
            "and down on the little waves.] Then the wind grew strong. [Crack|Snap|Pop]! The rope broke, and the raft "
            "began to "
            'fall apart! "[We will sink|What can we do|Oh no]!" cried {fn}. "[Hold on|Hold it together]!" '
            "[said|called] {n}. "
            "{fn} held the wood with all {fhis} strength, and {n} tied it with {fix}. {He} made one knot, two knots, "
            "three knots. "
            "[Would it hold? Yes, it did!|It was not pretty, but it was strong.|They both waited. The knots held!]"
        )
        t.ask(
            "What happened to the raft?|What went wrong?|Why did the raft begin to fall apart?",
            "The rope broke in the wind.",
        )
        t.ask("How did they save the raft?|What did {n} do?", "{fn} held the wood, and {n} tied it with {fix}.")
        end = "when the rope broke, they mended it together"
    elif how == "stuck":
        t.pick_kind("pusher", "turtle otter beaver duck frog")
        middle = t.say(
            "[~At first all went well.|For a while, everything was fine.|They felt like real sailors.] Then, bump! "
            "The raft sat on "
            "the sand and did not move. {n} pushed with a stick. {fn} pushed too. [~It did not help.|The raft stayed "
            "where it was.|"
            'Push, push! Nothing!] Just then an old {pusher} looked out of the water. "[Good day, sailors|What a '
            "fine raft|Hello "
            'there]," said the {pusher}. "[You are too heavy in front|You both sit too far in front]. [Go to the '
            "back, both of "
            'you|Sit at the back], and I will push." {n} and {fn} [moved to the back|ran to the back], the {pusher} '
            "pushed, "
            "and the raft was free! {fn} gave the {pusher} [half of the food|some of the food|the best part of their "
            "lunch]."
        )
        t.ask(
            "Why did the raft stop?|What went wrong?|Where did the raft get stuck?", "The raft got stuck on the sand."
        )
        t.ask("Who pushed the raft?|Who made the raft free?", "An old {pusher} pushed the raft.")
        end = "an old {pusher} helped them off the sand"
    else:
        t.pick_kind("baby", "kitten mouse rabbit mole hedgehog puppy")
        middle = t.say(
            '[Halfway there|After a while|In the middle of the {water}], they heard a cry. "Help! Help!" On a small '
            "rock sat a wet "
            'little {baby}. "I fell in, and I cannot swim [home|back]!" it said. "[We must help|Turn the '
            'raft|Quick, this way]!" '
            "said {n}. The wind blew the wrong way, but {fn} [used a stick to push the raft|pulled hard at the "
            "sail|held the sail "
            'with all {fhis} strength], and {n} reached out {his} hand. "Jump!" [{he} called|said {n}]. The {baby} '
            "jumped, and it "
            "landed [safe on the raft|right in {his} arms|on top of the food]. [~They gave it something to eat.|They "
            "dried it with "
            "the sail.|Soon it was warm again.]"
        )
        t.ask(
            "Who was on the rock?|Who called for help?|What did they hear?",
            "A wet little {baby} on a rock called for help.",
        )
        t.ask("Why did the {baby} need help?", "The {baby} fell in and could not swim home.")
        end = "on the way they saved a little {baby}"
    last = t.say(
        "[In the evening|Before the sun went down|At last], they came to {goal}. [~They jumped onto the land and "
        "shouted with joy.|"
        '{n} put {his} foot on the land and danced.|"Land! Land!" shouted {n}.] They sat down and ate '
        '[all that was left|the last of the {food}]. "[You are a good captain|What a day|We did it]," said {fn}. '
        "[{n} was very "
        "proud.|{n} was proud and happy.] [~The next day they sailed home again.|Then they looked for the way home by "
        "the light "
        'of the moon.|"Where shall we go tomorrow?" asked {n}.|And the {name} went on many more trips.]'
    )
    t.ask("What did they build?|What was the raft made of?", "They made a raft from {made}.")
    t.ask("What was the name of the raft?|What did they call the raft?", "They called it the {name}.")
    t.ask("Where did {n} want to go?|Where did they sail?", "{n} wanted to go to {goal}.|They sailed to {goal}.")
    t.ask("How did {n} feel at the end?", "{n} was proud.")
    return t.story(
        "a boat trip on a raft|a {k} who builds a raft|a {k} and a {fk} who sail on a raft",
        [start + " " + first, middle, last],
        "[{n} the {k} and {fn} the {fk} built a raft|With {his} friend {fn}, {n} the {k} made a raft] to sail to "
        "{goal}, and "
        + end + ".",
    )  # fmt: skip


BABIES = {
    "duck": ("in the nest by the pond", "Quack, quack"),
    "rabbit": ("in a hole under the hill", ""),
    "owl": ("in the hollow of a tall tree", "Hoo, hoo"),
    "lamb": ("in the field behind the barn", "Baa, baa"),
    "mouse": ("in a hole in the old wall", "Squeak, squeak"),
    "hedgehog": ("under a big pile of leaves", ""),
    "robin": ("in a nest in the apple tree", "Tweet, tweet"),
    "fox": ("in a den under the rocks", ""),
    "kitten": ("in the hay in the barn", "Meow, meow"),
    "deer": ("among the birch trees", ""),
}


@plot
@fitted
def baby_brought_home(rng: random.Random) -> Story:
    t = Tale(rng, avoid="town island mountain")
    s = t.s
    kind = t.pick_kind("bk", " ".join(BABIES))
    s["bhome"], s["call"] = BABIES[kind]
    s["baby"] = kind if kind in ("lamb", "kitten") else "baby " + kind
    s["mom"] = {"lamb": "sheep", "kitten": "cat"}.get(kind, kind)
    t.pick("spot", "under a bush|in the tall grass|behind a log|next to the path|by the garden gate")
    t.pick("warm", "{his} scarf|{his} coat|a soft blanket|{his} warm hat|a basket full of moss")
    t.pick("gift", "a sweet red apple|a shiny white stone|some berries|a little bunch of flowers|a gold feather")
    start = t.start(
        "{n} was a {adj} {k}. {He} lived {inplace}, and {he} had a very soft heart.",
        "A {adj} {k} called {n} had {his} home {inplace}.",
        "Listen to the story of {n}, the {adj} {k} who lived {inplace}.",
    )
    first = t.say(
        "[One cold morning|One evening|One day after the rain|On {his} way home one day], {n} heard a "
        "[tiny|soft|thin] cry {spot}. "
        "[~{He} looked closer.|{He} bent down to look.|What could it be?] There sat a {baby}, [all alone|wet and "
        "cold|shaking with "
        'fear]. "[Where is your mother|Are you lost|Why are you crying]?" asked {n}. "I want to go home," '
        "[said|cried|sobbed] "
        'the {baby}. [~"I went out to play, and now I do not know the way."|"I chased a leaf, and then I was '
        'lost."|"I fell '
        'asleep, and when I woke up, I was all alone."] {n} [put the little one in|kept the little one warm in|took '
        "the little one "
        "up in] {warm}."
    )
    ask = (
        "[{n} carried it to {his} friend {fn} the {fk}.|Then {his} friend {fn} the {fk} came along.|{His} friend {fn} "
        "the {fk} lived "
        'close by, so they went there first.] "[Can you help us|What should we do|Do you know where it lives]?" '
        "asked {n}. "
    )
    how = rng.choice(["tracks", "wise"] + (["call", "call"] if s["call"] else []))
    if how == "call":
        middle = t.say(
            ask + '"[I am not sure|I do not know], but [a mother always calls|its mother will call for it]," said '
            '{fn}. "Let us be '
            'quiet and listen." They walked [up the hill|down the path|through the trees] and stood still. [~First '
            "they heard only "
            "the wind.|At first there was nothing.|They heard a dog, and then a bee.] Then {fn} [lifted {fhis} "
            "head|jumped up|"
            'smiled]. "{call}!" [~It came from far away.|They could hear it far away.] "That is my mother!" cried '
            "the {baby}. "
            "They hurried to the sound, and there, {bhome}, was the home of the {baby}."
        )
        t.ask("How did they find the home?|How did they find the mother?", "They were quiet and heard the mother call.")
        t.ask("What did the mother call?", 'The mother called, "{call}!"')
        end = "they listened for its mother's call"
    elif how == "tracks":
        s["marks"] = "little feathers" if kind in ("owl", "robin", "duck") else "little footprints"
        middle = t.say(
            ask + '{fn} [looked at the ground|walked around slowly|had sharp eyes]. "[Look here|I see '
            'something|Aha]!" {fhe} said. "There '
            'are {marks} on the ground. They will show us the way." So they followed the {marks}, [one by one|past '
            "the mill|over "
            "a bridge], and [around a pond|through a gate|between the trees]. [~Once they lost the way, but {n} found "
            "it again.|It was "
            "slow, but they did not give up.|The {baby} fell asleep, warm and safe.] The last of the {marks} lay "
            "close to a home. "
            'It was {bhome}. "[That is my home|I know this place|Home]!" cried the {baby}.'
        )
        t.ask("How did they find the home?|What did they follow?", "They followed the {marks} on the ground.")
        end = "they followed {marks} to its home"
    else:
        t.pick_kind("old", "turtle goat badger donkey goose")
        middle = t.say(
            ask + '"I do not know, but the old {old} knows everyone," said {fn}. "[Come, I will take you there|Let '
            "us ask|I know the way "
            'to its house]." The old {old} [looked at the {baby} for a long time|put on glasses|thought for a '
            'while]. "[Ah, yes|'
            'Hmm|I see]," said the {old}. "This little one lives {bhome}. Go [past the mill|over the bridge|along '
            "the stream] "
            'and [then turn left|do not stop|you will see it]." [~They said thank you and ran.|{n} and {fn} thanked '
            "the {old} and "
            "went on.|Off they went, as fast as they could.] And there it was!"
        )
        t.ask("Who knew where the {baby} lived?|Whom did they ask?", "The old {old} knew where the {baby} lived.")
        end = "the old {old} told them where it lived"
    last = t.say(
        'The mother {mom} [came out at once|ran to them|cried with joy]. "[My little one|My dear child|There you '
        'are]!" she said. '
        '"[I looked for you everywhere|I was so afraid for you|Where were you]." [~The {baby} was so happy!|The '
        "little one cuddled "
        'close to her.] [Then the mother turned to {n} and {fn}.|The mother thanked {n} and {fn}.] "[Take this, '
        "please|This is for you|You have "
        'kind hearts]," she said, and she gave them {gift}. [On the way home, {n} felt warm and happy.|{n} was happy '
        "all "
        "the way home.|{n} and {fn} walked home under the stars, and {n} was happy.] [~After that, the {baby} often "
        "came to play.|"
        '"It is good to help," said {fn}.|"Let us visit them soon," said {n}.]'
    ).replace("Where were you.", "Where were you?")
    t.ask("What did {n} find?|Who was lost?|Who was crying?", "{n} found a lost {baby}.")
    t.ask("Where did {n} find the {baby}?|Where was the {baby}?", "The {baby} was {spot}.")
    t.ask("Where did the {baby} live?|Where was the home of the {baby}?", "The {baby} lived {bhome}.")
    t.ask("What did the mother give them?", "The mother gave them {gift}.")
    t.ask("How did {n} feel on the way home?|How did {n} feel at the end?", "{n} was happy.")
    return t.story(
        "a lost {baby}|a {k} who helps a lost {baby}|a {k} who brings a {baby} home",
        [start + " " + first, middle, last],
        "[{n} the {k} found a lost {baby}|A {baby} was lost, and {n} the {k} found it]. With {fn}'s help, " + end + ".",
    )


@plot
@fitted
def storm_and_shelter(rng: random.Random) -> Story:
    t = Tale(rng, friends=[kind for kind in FRIENDS if kind not in ("duck", "frog", "goose")])
    s = t.s
    t.pick("doing", "picking berries|looking for nuts|flying a kite|picking flowers|playing ball")
    t.pick("food", "bread|apples|nuts|cookies|carrots")
    how = t.branch("host", "guest", "song")
    t.pick(
        "shelter", "a cave|a little stone house" if how == "host" else "a cave|a hollow tree|an old barn|an empty hut"
    )
    s["itself"] = s["shelter"].split(" ", 1)[1]
    start = t.start(
        "{n} the {k} lived {inplace}. {He} was [a very|such a|a] {adj} {k}, and {he} loved to be outside.",
        "{Inplace} there was a {adj} {k}. {n} was {his} name, and this was {his} home.",
        "Let me tell you about {n}. {He} was a {adj} {k} who lived {inplace}.",
    )
    first = t.say(
        "[One summer day|One warm afternoon|One day in autumn], {n} was {doing} with {his} friend {fn} the {fk}, far "
        "from home. [~They "
        "laughed so much that they did not look up.|They did not see the black clouds.|The time went by very fast.] "
        "Then the sky "
        "grew dark. [~Whoosh! The wind began to blow.|The wind shook all the trees.|A cold wind pulled at them.] "
        "[~Drip, drop, drip!|"
        'Big drops fell on {his} nose.|Then came the rain.] Boom! "[A storm|It is a storm|A big storm is coming]!" '
        "cried {n}. "
        '"[We cannot get home in time|What should we do|Where can we go]{end} "'.replace("{end} ", "")
    )
    first = (
        first.replace('in time"', 'in time!"')
        .replace('should we do"', 'should we do?"')
        .replace('can we go"', 'can we go?"')
    )
    run = (
        '"[Run|Come with me|This way]!" said {fn}. "[I know {shelter} near here|There is {shelter} over there|I '
        'see {shelter}]!" '
        "They ran hand in hand through the rain. "
    )
    if how == "host":
        t.pick_kind("host", "bear badger goat fox wolf")
        t.pick("soup", "hot soup|warm tea|hot milk|warm bread")
        middle = t.say(
            run + "But the {itself} was not empty. Two [big|round|yellow] eyes looked at them. It was a {host}! {n} "
            "[stood very still|hid "
            'behind {fn}|wanted to run away]. "[Please, may we come in|May we stay here|Can we wait here]?" {fn} '
            "asked "
            '[politely|in a small voice]. "[Come in, come in|Of course|You are very wet]," said the {host}. "[Sit '
            "by the "
            'fire|I have a fire, so sit down]. I do not like storms when I am alone." The {host} gave them {soup}. '
            "{n} gave the "
            "{host} some {food}. [~Soon they were warm and dry.|They told stories, and the storm was soon forgotten.]"
        )
        t.ask("Who was in the {itself}?|Who lived in the {itself}?", "A {host} was in the {itself}.")
        t.ask("What did the {host} give them?", "The {host} gave them {soup}.")
        end = "found a kind {host} in {shelter}"
    elif how == "guest":
        t.pick_kind("guest", "mouse rabbit hedgehog squirrel mole kitten")
        middle = t.say(
            run + "[~It was small, but it was dry.|Inside it was dry.|There was just room for two.] They sat close "
            "together and shared "
            "some {food}. Then {n} heard something. Tap, tap! Outside stood a {guest}, [wet from head to foot|cold "
            "and wet|as wet as a "
            'fish]. "[Is there room for one more|May I come in|Can I stay with you]?" asked the {guest}. [~{n} '
            "looked at {fn}.|It was "
            'very small in there.] "[If we sit closer, there is room|There is always room for a friend|Come in, we '
            'will make room]," '
            "said {n}. {fn} moved over. [~Now it was full, but it was warmer too.|Three in one small place is very "
            "warm.|Soon all "
            "three were warm.]"
        )
        t.ask(
            "Who came to the {itself}?|Who else wanted to come in?|Who was outside?", "A wet {guest} wanted to come in."
        )
        t.ask(
            "What did {n} say to the {guest}?|What did {n} and {fn} do for the {guest}?",
            "They made room for the {guest}.",
        )
        t.facts[-1] = (t.facts[-1][0][1:], t.facts[-1][1])
        end = "sat in {shelter} and made room for a wet {guest}"
    else:
        t.pick("game", "sang every song they knew|told funny stories|counted from the flash to the boom")
        middle = t.say(
            run + "[~It was dry inside.|Inside it was dark, but dry.|They were safe from the rain.] But the thunder "
            "was [so loud|very loud], "
            'and {n} [put {his} hands over {his} ears|was afraid|shook from head to foot]. "[I do not like it|Make '
            "it stop|I am "
            'afraid]," {he} said. "[Thunder is only noise|It is only a big drum in the sky|It can shout, but it '
            'cannot come in]," '
            'said {fn}. "Let us do something together." So they ate some {food}, and they {game}. [~Boom! They '
            "laughed.|The "
            "louder the thunder was, the louder they were.|After a while, {n} began to smile.] [Little by "
            "little|Slowly], the storm "
            "[went away|moved on]."
        )
        t.ask("Why was {n} afraid?|What was {n} afraid of?", "{n} did not like the loud thunder.")
        t.ask(
            "What did they do in the {itself}?|What did they do during the storm?",
            "They ate some {food}, and they {game}.",
        )
        end = "waited in {shelter}, where they {game}"
    t.pick("after", "a rainbow|the warm sun|a blue sky")
    last = t.say(
        "Then it was quiet. [~{n} looked out.|{fn} looked out first.|They put their heads out.] There was {after}! "
        "[~Everything was clean "
        'and bright.|The grass was full of silver drops.|The birds began to sing.] "[Thank you, storm|What a storm '
        "that was|That "
        'was an adventure]," said {n}[, and they all laughed|. {He} laughed|]. [They jumped over every puddle on the '
        "way home|They "
        "walked home and jumped in every puddle|They went home wet, dirty and happy]. [That night it rained again, "
        "but {n} was in "
        '{his} warm bed.|"Next time we will look at the clouds," said {fn}.|And {n} told the story again and '
        "again.|It was the "
        "best day of the whole year.]"
    )
    t.ask("What were {n} and {fn} doing?|What did {n} do before the storm?", "{n} was {doing} with {fn}.")
    t.ask("Where did they hide from the storm?|Where did they go in the rain?", "They ran to {shelter}.")
    t.ask("What was there after the storm?|What did they see after the storm?", "There was {after}.")
    return t.story(
        "a big storm|a {k} and a {fk} in a storm|a {k} who looks for a dry place in a storm",
        [start + " " + first, middle, last],
        "[When a storm came|In a big storm], {n} the {k} and {fn} the {fk} " + end + ".",
    )


@plot
@fitted
def climb_the_hill(rng: random.Random) -> Story:
    t = Tale(rng, friends=WALKERS + PEOPLE * 2, avoid="mountain hill")
    t.pick("hill", "the high hill|the big mountain|the tall green hill|the old gray mountain")
    t.pick("why", "to see the sea|to touch a cloud|to be close to the stars|to see where the sun goes at night")
    t.pick("food", "two apples and some bread|nuts and honey|a big piece of cheese|a bag of cookies")
    start = t.start(
        "{n} lived {inplace}. From {his} window, this {adj} {k} could see far away.",
        "There was a {adj} {k} whose home was {inplace}. {n} was what everyone called {him}.",
        "Small legs can walk a long way. So thought {n}, a {adj} {k} who lived {inplace}.",
    )
    first = t.say(
        "[Every day, {n} looked at {hill}.|Not far away stood {hill}, and {n} looked up at it every day.|Behind {his} "
        "home stood "
        '{hill}.] {He} wanted to climb to the top {why}. "[It is too high for you|You are too small|Nobody goes up '
        'there]," said '
        '[the neighbors|the others|everyone]. But {his} friend {fn} the {fk} said, "[I will go with you|Let us '
        "try|Why not? I am "
        'coming too]." [So early one morning|The next morning|On the first day of spring], they packed {food} and '
        "[off they went|"
        "began to climb|set out]. "
    )
    how = t.branch("rock", "tired", "fog")
    if how == "rock":
        t.s["fix"] = t.say("[{fn} stood still like a wall, and {n} climbed onto {fhis} back|{fn} put one stone on top "
            "of the other "
                           "until there was a step|{fn} threw a rope around a tree and held it tight]")  # fmt: skip
        middle = t.say(
            "[~Up and up they went.|The path was steep, but they were strong.|They climbed all morning.] Then a big "
            "rock stood in the "
            "way. [~It was as high as a house.|There was no way around it.|It was smooth and high.] {n} jumped, but "
            "{he} could not "
            'reach the top of it. "[It is no use|Now we must go home|That is the end]," [{he} said|said {n}] sadly. '
            '"[Wait|Not '
            'yet|I have a plan]," said {fn}. {fix}. Up went {n}! Then {n} [reached down|gave {fn} a hand|held on to '
            "{fn}] and "
            'pulled {fn} up too. [They rested and ate {food}.|"We did that together," said {n}. They ate {food}, '
            "and then they went "
            "on.]"
        )
        t.ask("What stood in the way?|Why did they have to stop?", "A big rock stood in the way.")
        t.ask("How did {n} get over the rock?|How did {fn} help?", "{fix}.")
        end = "a big rock stood in the way, but they helped each other over it"
    elif how == "tired":
        t.pick("trick", "one song|ten steps|one tree")
        middle = t.say(
            "[~The sun grew hot.|The path grew steep and full of stones.|They climbed and climbed.] Halfway up, {n} "
            'sat down. "My legs '
            'hurt. I cannot go on," {he} said. "[The top is still so far|It is too far]." {fn} sat down too, and '
            "they ate {food}. "
            '"[Do not look at the top|Forget the top]," said {fn}. "[Can you walk|Could you walk] just {trick} '
            'more?" "[Only '
            'that|Just that|That is not much]? Yes, I can," said {n}. So they walked {trick}. Then they walked '
            "{trick} more, and "
            "then [once more|again]. [~{n} forgot {his} tired legs.|It was like a game.|It was not so hard that way.]"
        )
        t.ask("Why did {n} sit down?|What was wrong with {n}?", "{n}'s legs hurt, and {he} was tired.")
        t.ask("What did {fn} say to {n}?|How did {fn} help {n}?", "{fn} asked {n} to walk just {trick} more.")
        end = "{fn} helped {him} to go on, little by little"
    else:
        t.pick("sign", "a line of white stones|goat tracks|red marks on the trees|a little stream")
        middle = t.say(
            "[~All went well until noon.|At noon they ate {food}.|The sun shone, and they sang.] Then a thick white "
            "fog came. [They could not "
            'see the path.|It was like being in a bowl of milk.|They could not see their own feet.] "[Where is the '
            "path|Which way is "
            'up|Where are you]?" called {n}. "[Take my hand|Hold on to me|I am here]," said {fn}. "[We must not '
            "run|We will go very "
            'slowly|We have time]." They stood still and looked and listened. Then {n} found {sign}. "[Someone went '
            "this way "
            'before us|This will show us the way|That comes from the top]," said {fn}. Step by step they followed '
            "it, and "
            "[all at once|suddenly] they were over the fog, in the bright sun!"
        ).replace("That comes from the top", "It will lead us to the top")
        if t.s["sign"] in ("goat tracks", "red marks on the trees"):
            middle = middle.replace("they followed it", "they followed them").replace("It will lead", "They will lead")
            middle = middle.replace("This will show", "These will show")
        t.ask(
            "Why could they not see the path?|What came down on them?|What was the problem?", "A thick white fog came."
        )
        t.facts[-1] = ([t.facts[-1][0][0], t.facts[-1][0][2]], t.facts[-1][1])
        t.ask("What did {n} find in the fog?|What showed them the way?", "{n} found {sign}.")
        end = "they found the way through the fog"
    tops = {
        "to see the sea": "Far away, [blue and bright|silver in the sun], they saw the sea",
        "to touch a cloud": "A small cloud came by, and {n} put {his} hand in it. It was [cold and wet|soft and wet]",
        "to be close to the stars": "They waited until night, and the stars were [so big and near|as bright as lamps]",
        "to see where the sun goes at night": "The sun went down behind [the far hills|the end of the world], [red "
        "and gold|"
        "big and red]",
    }
    last = t.say(
        "[And then there was nothing more to climb.|At last they stood on the top.|Then they were at the top!] "
        + tops[t.s["why"]] + ". \"[Look|Oh, look|We did it, {fn}]!\" [cried|said] {n}. {He} felt [as big as a "
            "giant|very "
        "proud]. [~Down below, {his} home was as small as a toy.|They stood there hand in hand for a long time.|{fn} "
        "put a stone on the "
        "top, so that everyone could see that they were there.] [~When they came home, {n} told everyone about "
        "it.|\"Tomorrow I want to "
        "sleep all day,\" said {fn}, and {n} laughed.|\"A small one can go far with a friend,\" said {fn}.]"
    )  # fmt: skip
    t.s["feel"] = "as big as a giant" if "a giant" in last else "very proud"
    t.ask("What did {n} want to do?|What did {n} climb?", "{n} wanted to climb {hill}.")
    t.ask("Why did {n} want to climb to the top?", "{n} wanted to climb to the top {why}.")
    t.ask("What did they take with them?|What did they eat?|What food did they pack?", "They packed {food}.")
    t.facts[-1] = ([t.facts[-1][0][0], t.facts[-1][0][2]], t.facts[-1][1])
    t.ask("How did {n} feel at the top?|How did {n} feel at the end?", "{n} felt {feel}.")
    return t.story(
        "a {k} who climbs a mountain|a {k} who wants {why}|two friends who climb to the top"
        if "mountain" in t.s["hill"] else "a {k} who climbs a high hill|a {k} who wants {why}|two friends who climb "
            "to the top",
        [start + " " + first, middle, last],
        "[{n} the {k} climbed {hill} with {fn} the {fk}|With {fn} the {fk}, {n} climbed {hill}]; " + end + ".",
    )  # fmt: skip


@plot
@fitted
def old_key(rng: random.Random) -> Story:
    t = Tale(rng, avoid="oak")
    s = t.s
    t.pick(
        "key", "golden key|rusty key|little silver key|big iron key|green old key".replace("green old", "small black")
    )
    t.pick(
        "found",
        "in the grass|under a flower pot|at the bottom of a well|in an empty nest|between two stones|in the sand",
    )
    s["try1"], s["try2"] = rng.sample(
        ["the door of the barn", "the garden shed", "the clock on the wall", "the school door", "the baker's door"], 2
    )
    start = t.start(
        "{n} was always looking for things. {He} was a {adj} {k} and lived {inplace}.",
        "In those days, a {adj} {k} lived {inplace}. {His} name was {n}.",
        "Here is the story of {n} and the key. {n} was a {adj} {k} who lived {inplace}.",
    )
    first = t.say(
        '[One day|One morning|One spring day|One windy day], {n} found a {key} {found}. "[What does it open|Whose '
        "key is this|Every "
        "key has a lock. Where is this one's]?\" {he} [said|asked|wondered]. {His} friend {fn} the {fk} [wanted to "
        "know it too|was with "
        '{him}|came to look]. "[Let us try every lock we know|We will find out|Let us look for the lock]," said '
        "{fn}. They tried "
        "{try1}. [It was too big.|Click? No.|No, it did not fit.] They tried {try2}. [It did not turn.|No, not that "
        "one.|That was "
        'wrong too.] [~{n} wanted to give up.|{n} sat down and sighed.|"Maybe it opens nothing at all," said {n}.]'
    )
    how = t.branch("garden", "box", "tower")
    if how == "garden":
        s["thing"] = "an old garden door"
        t.pick("plants", "roses|apple trees|sunflowers|strawberries")
        middle = t.say(
            'But {fn} [did not give up|looked around|had an idea]. "[What is behind those green leaves|Look at that '
            "wall|I see "
            'something behind the leaves]{end}" {fhe} [said|asked]. They pulled the leaves away. There was an old '
            "garden door! {n} "
            "put the key into the lock and turned it. [Click|Creak|Click, clack]! The door opened slowly. Behind it "
            "lay a "
            "[secret|forgotten|lost] garden. [~But it was sad to see.|Once it had been beautiful.] All the plants "
            "were dry, "
            "[for nobody gave them water|because no one came there any more].".replace("{end}", "##")
        )
        middle = (
            middle.replace("green leaves##", "green leaves?")
            .replace("wall##", "wall,")
            .replace("the leaves##", "the leaves,")
        )
        middle = middle.replace('," she asked', '," she said').replace('," he asked', '," he said')
        last = t.say(
            '"[We can help it|Let us wake it up|It is only thirsty]," said {fn}. So every day [after '
            "breakfast|after school|in the "
            "evening] the two friends came with [two cans of water|a bucket of water]. [~They pulled out the weeds "
            "and waited.|They sang "
            "to the plants, too.|They worked until their hands were brown.] When summer came, there were {plants} "
            "everywhere! {n} was "
            'very happy. [And the door? They left it open for everyone.|"Now the garden belongs to all of us," said '
            "{n}.|Then {he} "
            "hung the key on the wall, and the door was never locked again.]"
        )
        t.ask("What was behind the door?|What did they find behind the door?", "There was a garden behind the door.")
        t.ask("Why were the plants dry?", "Nobody gave them water.|Nobody came there to give them water.")
        t.ask(
            "What was in the garden in summer?|What grew in the garden?", "In summer there were {plants} in the garden."
        )
        end = "it opened a forgotten garden, which they brought back to life"
    elif how == "box":
        s["thing"] = "an old box"
        t.pick("elder", "grandmother|grandfather")
        t.pick(
            "inside",
            "a pair of dancing shoes|a little music box|a picture of a ship|a bag of glass marbles|a small violin",
        )
        middle = t.say(
            '"[Who is the oldest one we know|Let us ask someone old|Who knows about old things]{end}" said {fn}. '
            "{n} thought of "
            "{his} {elder}. So they ran there and [showed the key|held up the key]. {n}'s {elder} [looked at it and "
            "smiled|became "
            'very quiet|sat up at once]. "My key! I lost it [when I was small|many years ago|so long ago]. Come with '
            'me." Under the '
            '[bed|stairs|roof] stood an old box. It [was full of dust|was locked]. "[You may open it|Try it|Go '
            "on],\" said {n}'s "
            "{elder}. [Click! The lid went up.|{n} turned the key, and the lid went up.]".replace("{end}", "##")
        )
        middle = middle.replace("we know##", "we know?").replace("old things##", "old things?").replace("old##", "old,")
        middle = middle.replace('?" said', '?" asked')
        last = t.say(
            'In the box was {inside}. "[This was my best thing|I loved this more than anything|It was mine when I '
            'was your age]," '
            'said {n}\'s {elder}. "[I thought I would never see it again|And I could not get at it for so long]." '
            "[~All evening "
            "they sat together and heard stories of the old days.|That night they heard many stories of long "
            "ago.|Then they sat by the "
            "fire, and there were stories and cake.] [~{n} was glad that {he} had not given up.|{n} was glad that "
            "{fn} had not given "
            'up.] ["A key can open more than a box," said {fn}. "It can open a story."|It was the best evening of '
            "the year.|And "
            "since then, the key hangs by the door.]"
        )
        t.ask("Whose key was it?|Who lost the key?", "It was the key of {n}'s {elder}.|{n}'s {elder} lost it long ago.")
        t.ask("What was in the box?|What did they find in the box?", "In the box was {inside}.")
        end = "it opened the old box of {his} {elder}"
    else:
        s["thing"] = "the door of the old tower"
        t.pick("bell", "a big bell|a golden bell|a bell as big as a cow")
        middle = t.say(
            '[Then {fn} pointed up.|"We did not try the old tower," said {fn}.|"What about the old tower?" asked '
            "{fn}.] [At the end of "
            "the road|On the hill|Behind the trees] stood an old tower. [~Nobody ever went in.|The door had been shut "
            "for a hundred "
            "years.|Nobody had been in it for years.] {n} tried the key. [It turned!|It fit!|Click!] The door opened, "
            "and they went up "
            "the stairs. [~It was dark, so {n} held on to {fn}.|{fn} went first, because {fhe} was not afraid.|Up and "
            "up they went, around "
            'and around.] At the top hung {bell}. [~It was gray with dust.|A spider lived in it.] "Pull the rope," '
            "said {fn}. {n} "
            "pulled with all {his} strength."
        )
        last = t.say(
            '[Ding, dong|Bim, bam|Ding, dong, ding]! Everyone [ran out of the houses|came running|looked up]. "[The '
            "bell! The old "
            'bell|We have a bell again|How beautiful it sounds]!" they said. [~An old man cried with joy.|The '
            "children danced.|They all "
            "clapped their hands.] Since then, the bell rings [every evening|every morning|every Sunday], and {n} and "
            "{fn} are the "
            'ones who pull the rope. {n} is very proud of it. [~And the key hangs around {his} neck.|"I am glad that '
            "we did not give "
            'up," {he} always says.|When you hear a bell, think of them.]'
        )
        t.ask("What was at the top of the tower?|What did they find in the tower?", "At the top hung {bell}.")
        t.ask("Who pulls the rope of the bell now?|Who rings the bell now?", "{n} and {fn} ring the bell now.")
        t.ask("How did {n} feel about the bell?|Is {n} proud?", "{n} is very proud of it.")
        end = "it opened an old tower with a bell"
    t.ask("What did {n} find?", "{n} found a {key}.")
    t.ask("Where did {n} find the key?|Where was the key?", "{n} found the key {found}.")
    t.ask("What did the key open?|Which lock was the right one?", "The key opened {thing}.")
    t.ask("Which locks did they try first?|What did they try first?", "First they tried {try1} and {try2}.")
    return t.story(
        "a {k} who finds a {key}|a {k} who finds a key and looks for the lock|a key that opens {thing}",
        [start + " " + first, middle, last],
        "[{n} the {k} found a {key}|{n} found a {key} {found}]. With {fn} the {fk} {he} looked for its lock, and "
        "" + end + ".",
    )


@plot
@fitted
def message_in_a_bottle(rng: random.Random) -> Story:
    t = Tale(rng, near=WATER)
    s = t.s
    place = s["place"]
    s["water"] = "lake" if "lake" in place else "sea" if "sea" in place or "island" in place else "river"
    stranger(t, "m", ["seal", "penguin", "turtle", "parrot", "goat", "pig", "otter", "hen"])
    t.pick("color", "green|blue|brown|small white")
    t.pick("doing", "looking for shells|throwing stones into the water|looking for smooth stones|washing {his} feet")
    start = t.start(
        "{n} lived {inplace}. Every morning, this {adj} {k} looked to see what the water had brought.",
        "If you go far enough, you come to the home of {n}, a {adj} {k} who lived {inplace}.",
        "A {adj} {k} by the name of {n} lived {inplace}, close to the water.",
    )
    first = t.say(
        "[One day|One morning|One gray day|After a night of wind], {n} was {doing}. [Then {he} saw something shine in "
        "the {water}.|"
        "Something came up and down on the {water}.|Clink! Something hit a stone.] It was a {color} bottle, and there "
        "was [a letter|a "
        "piece of paper|a message] in it! {n} [pulled|tried to pull] at the cork[ with both hands||], but it [was too "
        "tight|did not "
        "move]. {His} friend {fn} the {fk} came and [held the bottle|pulled too|helped {him}]. Pop! [Out came the "
        "paper.|The cork flew "
        "into the air.|The bottle was open.]"
    )
    how = t.branch("lonely", "kind", "party")
    if how == "lonely":
        middle = t.say(
            '{n} read it out loud. "[Dear friend|Hello, whoever you are|To the one who finds this]! My name is {mn}. '
            "I am a {mk}, and I "
            "live all alone [on a small rock|on the other side|in the old lighthouse]. [Nobody ever writes to me|I "
            "would like to have a "
            'friend|Nobody ever comes to visit me]." {n} [had to swallow|was quiet for a moment|felt sad]. "[How '
            "lonely {mhe} must "
            'be|Poor {mn}|That is so sad]," said {fn}. "[We must write back|We can write to {mhim}|Let us '
            'answer]." So {n} wrote a '
            "letter, and {fn} [drew a funny picture|put a flower in it|drew a big sun under it]. They put it in the "
            "bottle and [threw it "
            "far out|gave it to the {water}|let it go]."
        )
        t.pick("days", "three days|five days|a week|ten days")
        last = t.say(
            'After {days}, the bottle was there again. "[Thank you|Oh, thank you|I danced with joy]!" wrote {mn}. '
            '"[Your letter is the '
            'best thing I ever got|I read your letter every night|Now I am not alone any more]." [~So the bottle '
            "went to and "
            "fro all summer.|From then on, the bottle went there and back, again and again.] [And one day a little "
            "boat came over the "
            "water, and in it sat {mn}!|Then {n} and {fn} took a boat and went to visit {mn}.] [~What a happy day "
            "that was!|They hugged "
            "and laughed until evening.|There was cake, and there was singing.]"
        )
        t.ask("Who wrote the letter?|Who was lonely?|Who was {mn}?", "{mn} was a lonely {mk} who wrote the letter.")
        t.ask(
            "What did {n} and {fn} do?|What did they do with the bottle?",
            "They wrote a letter and put it in the bottle.",
        )
        t.ask("When did the bottle come back?", "The bottle came back after {days}.")
        end = "they wrote back to a lonely {mk} named {mn}"
    elif how == "kind":
        s["deed"] = t.say(
            "[carried wood for the old {mk}|brought hot soup to a sick {mk}|mended the broken fence of the old {mk}]"
        )
        s["deed"] = s["deed"][0].lower() + s["deed"][1:]
        middle = t.say(
            '{n} read it out loud. "[You are lucky|Good day to you|Hello, stranger]! This bottle brings luck. But it '
            "only works if you do "
            'one kind thing today and then send it on." "[What does that mean|How strange|Luck? I do not see any]" '
            'said {n}. "[We '
            'can try it|It is easy|Let us find out]," said {fn}. [~They thought for a long time.|They walked up the '
            "road and looked "
            "around.|They asked themselves who needed help.] Then they {deed}. {mn} was {mhis} name, and {mhe} [could "
            "not stop "
            "smiling|laughed with joy|thanked them again and again]."
        )
        middle = middle.replace('that mean" said', 'that mean?" asked').replace('strange" said', 'strange," said')
        middle = middle.replace('see any" said', 'see any," said')
        last = t.say(
            'In the evening, they [sat by the water|came back to the water]. "[And where is the luck|So where is our '
            "luck|I still see no "
            'luck]," said {fn}. But {n} [put {his} hand on {his} heart|smiled]. "[It is in here|I have it already|I '
            "can feel it]. I "
            'feel so happy!" Then {fn} was happy too. [They put the letter back and threw the bottle far out.|They '
            "closed the bottle "
            "and gave it back to the {water}.] [~Perhaps you will find it one day.|Who will find it next?|Away it "
            "went, to bring luck to "
            "someone else.]"
        )
        for question in ("where is the luck", "where is our luck"):
            last = last.replace(question + '," said', question + '?" asked')
        t.ask(
            "What did the message say?|What did the message ask?",
            "It said to do one kind thing and then send the bottle on.",
        )
        t.ask("What kind thing did they do?|How were {n} and {fn} kind?", "They {deed}.")
        t.ask("How did {n} feel in the evening?|How did {n} feel at the end?", "{n} felt happy.")
        end = "it asked them to do one kind thing"
    else:
        t.pick("bring", "a cake|a song|something sweet|a drum|a lamp")
        middle = t.say(
            '{n} read it out loud. "[To everyone|Hello|Dear neighbor]! [I am having a party|There will be a '
            "party|Come to my party] when "
            'the moon is full. Please bring {bring}. {mn} the {mk}." Under it was a little map. "[The moon is full '
            "tonight|But that is "
            'tonight|That is this very night]!" cried {fn}. "[Quick|Hurry|Come on]! [You get {bring}, and I get the '
            "boat|I will get the "
            'boat, and you get {bring}]." They [rowed and rowed|rowed around the bend|rowed as fast as they could]. '
            "{fn} held the map, "
            "and {n} kept {bring} [dry|safe]. [Soon they saw lights on the water.|Soon they heard music over the "
            "water.]"
        )
        if s["bring"] == "a song":
            middle = middle.replace("You get a song", "You think of a song").replace(
                "you get a song", "you think of a song"
            )
            middle = middle.replace("kept a song dry", "sang a song again and again").replace(
                "kept a song safe", "sang a song"
            )
        last = t.say(
            '{mn} [stood on the shore and waved|ran to the boat]. "[You came|Guests! Real guests|You found my '
            'bottle]!" {mhe} cried. "I '
            'sent out [ten bottles|twenty bottles|so many bottles], and you are the first who came!" [~They ate, '
            "sang and danced until "
            "the moon went down.|They danced on the sand in the light of the moon.|There were games and good things "
            "to eat until late at "
            'night.] {n} had made a new friend. [~"Let us do it again next month," said {mn}, and they did.|And on '
            "the way home, {fn} fell "
            "asleep in the boat.|Now there is a party at every full moon.]"
        )
        t.ask(
            "Who wrote the message?|Who had a party?|Who was {mn}?", "{mn} the {mk} wrote the message and had a party."
        )
        t.ask("When was the party?", "The party was when the moon was full.")
        t.ask(
            "What did {mn} ask them to bring?|What did the message ask for?", "The message asked them to bring {bring}."
        )
        end = "it led them to the party of {mn} the {mk}"
    t.ask("What did {n} find?|What was in the {water}?", "{n} found a {color} bottle.")
    t.ask("What was in the bottle?", "There was a message in the bottle.")
    t.ask("What was {n} doing when {he} found the bottle?", "{n} was {doing}.")
    return t.story(
        "a message in a bottle|a {k} who finds a bottle with a message|a {color} bottle with a message in it",
        [start + " " + first, middle, last],
        "[{n} the {k} and {fn} the {fk} opened a bottle with a message|{n} found a message in a bottle, and {fn} "
        "helped {him} "
        "open it], and " + end + ".",
    )


@plot
@fitted
def moon_puzzle(rng: random.Random) -> Story:
    t = Tale(rng, avoid="island")
    t.pick("pond", "pond|well|lake")
    t.pick("out", "a walk|a drink of water|a look at the stars|some fresh air")
    start = t.start(
        "{n} loved the moon. {He} was a {adj} {k} who lived {inplace}, and every night {he} said good night to it.",
        "Good night, moon! That was what {n} said every evening. {n} was a {adj} {k} and lived {inplace}.",
        "{Inplace} lived a {adj} {k}. {n} was {his} name, and {he} did not like to go to bed early.",
    )
    how = t.branch("in the water", "cloud", "broken")
    if how == "in the water":
        t.pick("tool", "a net|a bucket|a long stick|a basket|a big spoon")
        first = t.say(
            "[One night|One summer night|One clear night], {n} went out for {out}. [{He} came to the {pond} and "
            "looked down.|{He} looked "
            'into the {pond}.] Down in the water lay the moon! "[Oh no|Help|Oh dear]! The moon fell into the '
            '{pond}!" cried {n}. "[It '
            'will get cold|It cannot swim|Now the nights will be dark]! I must get it out."'
        )
        middle = t.say(
            "{n} ran home and came back with {tool}. {He} [tried and tried|tried once, twice, three times]. Each time "
            "the moon [broke into "
            "little pieces|shook and slipped away|went away], and then it was back again. [~{n} got wet from head to "
            "foot.|Splash! {n} "
            "nearly fell in.|{n} was wet and tired.] {His} friend {fn} the {fk} [heard the noise|came by|woke up and "
            'came]. "What are you '
            'doing?" asked {fn}. "I want to save the moon!" said {n}. "[Hold this, and pull with me|Help me to '
            'pull]." {fn} [pulled a '
            'little and then|looked down, and then {fhe}|smiled and] looked up. "[Sit down|Lie on your back|Look '
            'up], {n}," {fhe} said. '
            '"What do you see?"'
        )
        last = t.say(
            '{n} looked up. There was the moon, high in the sky! "[We saved it|It is back]!" [cried|shouted] {n}. '
            '{fn} laughed. "[The '
            "moon was there all the time|It never fell at all]. In the water you saw only its picture. [Water is like "
            "a mirror|It is like "
            'your face in a mirror]." [{n} looked down and then up. "Then there are two," {he} said, "one for you '
            "and one for "
            'me."|{n} laughed too. "So I got wet for nothing!"|"Oh," said {n}. "Then it can stay there. It '
            'looks nice."] [~They sat by '
            "the water for a long time.|Then they went home to bed.|And {n} threw a kiss to both moons.]"
        )
        t.ask("What did {n} see in the {pond}?|What was in the {pond}?", "{n} saw the moon in the {pond}.")
        t.ask("What did {n} use to get the moon out?|What did {n} bring?", "{n} used {tool}.")
        t.ask(
            "Where was the moon really?|Did the moon fall into the {pond}?",
            "The moon was high in the sky all the time.",
        )
        t.ask(
            "What did {n} learn?|Why was there a moon in the water?",
            "Water is like a mirror.|It was only a picture of the moon.",
        )
        t.facts[-1] = (t.facts[-1][0][1:], [t.facts[-1][1][1]])
        topics = "a {k} who wants to save the moon|the moon in the {pond}|a {k} who thinks the moon fell into a {pond}"
        summary = (
            "{n} the {k} [tried to pull the moon out of the {pond}|thought the moon was in the {pond}] until {fn} the "
            "{fk} told {him} to "
        )
        summary += "look up."
    elif how == "cloud":
        t.pick("idea", "a lamp to show it the way|a big drum to wake it|a cake to call it back")
        t.pick("taker", "A giant|A thief|A big bird")
        first = t.say(
            "[One night|One autumn night|One windy night], {n} went out for {out}. [{He} looked up at the sky.|{He} "
            "turned {his} eyes to the "
            'sky.] There was no moon! [~It was as black as ink.|The sky was dark.|Everything was black.] "[The moon '
            "is gone|Someone took "
            'the moon|Where is the moon]!" cried {n}. {He} ran to {his} friend {fn} the {fk}. "[Wake up|Come '
            "quickly|{fn}, {fn}]! The moon "
            'is lost!"'
        ).replace("Where is the moon!", "Where is the moon?")
        middle = (
            t.say(
                "They looked [behind the hill|in the {pond}|behind the house]. They looked [in the trees|down the road|in "
                "the barn]. [~No moon!|"
                'It was not there.] "{taker} took it," said {n}. "[We need|Perhaps we need|I think we need] {idea}." '
                "So they [tried it|"
                "brought it and waited]. [But nothing happened.|But the sky stayed dark.] {n} [was very sad|wanted to "
                "cry|hung {his} head]. "
                'But {fn} [held up one finger in the air|felt the wind on {fhis} face|looked up for a long time]. "[Sit '
                "with me and wait|Let us "
                'wait a little|Wait and see]," said {fn}. "[Not everything that we cannot see is gone|A thing can be '
                "there when we do not see "
                'it]." They sat down [under a blanket|on a log|in the grass]. The wind began to blow.'
            )
            .replace("held up one finger in the air", "lifted {fhis} head")
            .replace("{fhis}", t.s["fhis"])
        )
        last = t.say(
            "[And then|Little by little|After a while], a big black cloud moved away. First there was a thin line of "
            "silver. Then [half|a "
            'piece] of the moon looked out, and then [all of it|the whole round moon]! "It was behind the cloud!" '
            'cried {n}. "[It was '
            'there all the time|It was only playing hide and seek|Nobody took it]," said {fn}. {n} [danced in the '
            "silver light|laughed "
            "and clapped {his} hands|jumped for joy], for {he} was so happy. [~When the next cloud came, {n} only "
            'waited.|"Good night, '
            'moon. I know you are there," {he} said.|And then they were both very sleepy.]'
        )
        t.ask(
            "Where was the moon?|Why was there no moon?|Why could {n} not see the moon?",
            "The moon was behind a big black cloud.",
        )
        t.ask("Who took the moon ?|What did {n} think about the moon?", "{n} thought: {taker} took it.")
        t.facts.pop()
        t.ask("What did {n} think they needed?", "{n} thought that they needed {idea}.")
        t.ask("What did {fn} tell {n} to do?", "{fn} told {n} to wait.")
        t.ask(
            "How did {n} feel at the end?|How did {n} feel when the moon came back?", "{n} was so happy.|{n} was happy."
        )
        topics = "a missing moon|a {k} who looks for the moon|a night without a moon"
        summary = (
            "[{n} the {k} thought the moon was lost|One night {n} the {k} could not find the moon], but {fn} the {fk} "
            "waited with {him} "
        )
        summary += "until the cloud moved away."
    else:
        t.pick("thrown", "a stone|a stick|an apple|a nut")
        first = t.say(
            "[One night|One still night|One warm night], {n} went to the {pond} for {out}. The moon lay on the water, "
            "[round and white|like a "
            'silver plate|as white as milk]. "[How beautiful|Hello, moon|There you are]!" said {n}. [Just for fun, '
            "{he} threw {thrown} "
            "into the water.|Without thinking, {he} threw {thrown} at it.] [Splash|Plop|Plip]! The moon broke into a "
            "hundred pieces!"
        )
        middle = t.say(
            '"[Oh no|What did I do|Oh dear]! I broke the moon!" cried {n}. {He} [put {his} hands into the water to '
            "catch the pieces|tried "
            "to put the pieces together with {his} hands|tried to push the pieces together]. But the more {he} "
            "[tried|moved the water], the "
            "more pieces there were. {n} sat down and cried. Then {his} friend {fn} the {fk} came [by|out of the "
            'dark|along the path]. "Why '
            'are you crying?" asked {fn}. "[I broke the moon, and everyone will be angry|I broke the moon, and I '
            'cannot mend it]," [said|'
            'sobbed] {n}. {fn} [did not laugh|put an arm around {n}|sat down next to {n}]. "I know how to mend it," '
            'said {fn}. "[We do '
            'nothing|We must do nothing at all]. We just sit very still."'
        )
        last = t.say(
            "So they sat [side by side|as still as two stones]. [~They heard the frogs sing.|An owl flew over "
            "them.|The wind went to sleep.] "
            "The water became quiet, and slowly the pieces came together, [one by one|more and more]. And there was "
            "the moon, [round and "
            'whole|as good as new]! "[It is whole again|You mended it|It is back]!" [whispered|said] {n}. "[The '
            "water did it by itself|It "
            'only needed time|Some things get well when you wait]," said {fn}. {n} was [so glad|very glad]. '
            '[~"Sorry, moon," {he} said, and '
            "the moon shone on.|Then {he} looked up and saw that the moon in the sky was whole, too.|They sat there "
            "until they were "
            "sleepy.]"
        )
        t.ask("What did {n} throw into the water?|What did {n} throw?", "{n} threw {thrown} into the water.")
        t.ask("Why did {n} cry?|Why was {n} sad?", "{n} thought that {he} had broken the moon.")
        t.ask("How did they mend the moon?|What did {fn} say to do?", "They sat very still until the water was quiet.")
        t.facts[-1] = (t.facts[-1][0][:1], t.facts[-1][1])
        t.ask("How did {n} feel at the end?", "{n} was glad.")
        topics = "a {k} who breaks the moon in the {pond}|a {k} and the moon in the {pond}|a broken moon"
        summary = (
            "{n} the {k} [broke the moon in the water with {thrown}|thought that {he} had broken the moon], but {fn} "
            "the {fk} showed {him} "
        )
        summary += "how to wait."
    return t.story(topics, [start + " " + first, middle, last], summary)


@plot
@fitted
def kite_that_flew_away(rng: random.Random) -> Story:
    t = Tale(rng, avoid="woods forest oak")
    s = t.s
    t.pick("color", "red|blue|yellow|green|orange|purple")
    t.pick("shape", "a fish|a star|a bird|a dragon|a big smile")
    t.pick("tail", "ten paper bows|a long white tail|a tail of old ribbons|little bells on its tail")
    start = t.start(
        "{n} lived {inplace}, where the wind liked to blow. {He} was a {adj} {k}.",
        "When the wind blew, {n} was happy. {He} was a {adj} {k} who lived {inplace}.",
        "Whoosh, went the wind. It blew all day {inplace}, and there lived {n}, a {adj} {k}.",
    )
    first = t.say(
        "[{n} had a {color} kite|{n} had made a {color} kite|For {his} birthday, {n} got a {color} kite] [that looked "
        "like|in the shape of] "
        "{shape}. It had {tail}. [One windy day|One autumn day|One morning in March], {n} [ran up the hill with "
        "it|went out to fly it|took it "
        "to the big field]. Up it went, higher and higher! [~It danced in the sky.|It was as high as the clouds.|It "
        "was the finest kite in "
        'the sky.] Then came a strong wind. [Snap! The string broke.|Snap, went the string.] "[Come back|Oh no, my '
        'kite|Stop]!" cried {n}. '
        "But the kite [flew away|flew on and on|grew smaller and smaller]."
    )
    comes = (
        '{His} friend {fn} the {fk} [saw it too|heard {him}|came running]. "[Quick, run|After it|We can still see '
        'it]!" said {fn}. They ran '
        "[over the fields|past the mill|through the long grass], [over a stream|around a pond|under a fence], and "
    )
    how = t.branch("tree", "roof", "child", "gone")
    if how == "tree":
        t.pick("tree", "an old oak tree|a tall apple tree|the highest tree of all|a tall pine tree")
        if t.friend.kind in FLYERS:
            s["fix"] = "{fn} flew up and pulled the kite free"
            help_line = (
                '"[I have wings|That is not too high for me|Let me do it]," said {fn}. {fn} flew up and pulled the '
                "kite free."
            )
        elif t.friend.kind in CLIMBERS:
            s["fix"] = "{fn} climbed up and got the kite"
            help_line = (
                '"[I can climb|I am good at climbing|Let me do it]," said {fn}. {fn} climbed up and got '
                "the kite. [It was easy for "
                "{fhim}.|{fhe} was not afraid at all.]"
            )
        else:
            s["fix"] = "{fn} shook the tree until the kite fell down"
            help_line = (
                '"[I cannot climb, but I am strong|Stand back|I have a plan]," said {fn}. {fn} shook the '
                "tree until the kite fell down. "
                "[~It landed on {n}'s head.|Many leaves came down too.]"
            )
        middle = t.say(
            comes + "there it was! The kite hung in {tree}, [high up|far over their heads|on the very top]. {n} "
            "jumped, but it was too high. {He} "
            "threw a stick, but [the stick got stuck too|it did not help|it came down on {his} own foot]. [~{n} "
            'wanted to cry.|"I will never '
            'get it back," {he} said.] ' + help_line + ' "[Thank you, thank you|Hooray|My kite]!" said {n}.'
        )
        last = t.say(
            "[~There was a small hole in it, but a bit of paper made it good again.|The kite was not even "
            "broken.|Only the tail was a little "
            "bent.] They [took a thicker string|made the string much stronger|tied a new string to it, with three "
            "knots], and then {fn} was the "
            'first to fly it. ["It pulls like a horse!" said {fn}.|Up it went, and this time the string held.] {n} '
            "was very happy. "
            '[~They flew it until the sun went down.|"It is better to fly a kite with a friend," {he} said.|And the '
            "wind laughed in the "
            "trees.]"
        )
        t.ask("Where was the kite?|Where did they find the kite?", "The kite hung in {tree}.")
        t.ask("How did {fn} help {n}?|How did they get the kite down?", "{fix}.")
        end = "they found it in {tree}"
    elif how == "roof":
        t.pick("roof", "the baker's house|the school|the old mill|the farmer's barn")
        t.pick("pay", "carry wood|sweep the yard|pick the apples|carry water")
        middle = t.say(
            comes
            + "there it was! It lay on the roof of {roof}. \"[How will we get it down|It is too high|I can't "
            'get up there]{end}" [said|asked] {n}. '
            '"[We ask|We must ask for help|Someone will help us]," said {fn}, and {fhe} knocked at the door. An old '
            "man with a [white|long "
            'gray|big] beard came out. "[My ladder is long, but my back is old|I have a ladder|You may have my '
            'ladder]," he said. "[First '
            'help me to {pay}|If you help me to {pay}, you may use it|Will you help me to {pay}{q}]." So they did '
            "it. Then {fn} held the ladder, "
            "and {n} went up, step by step, and [took|got] the kite.".replace("{end}", "##").replace("{q}", "??")
        )
        middle = (
            middle.replace("get it down##", "get it down?")
            .replace("##", ",")
            .replace("??.", "?")
            .replace('," asked', '," said')
        )
        last = t.say(
            '[~The old man smiled.|The old man looked at the kite for a long time.] "I had one like that when I was '
            'a boy," he said. "[May I '
            'try it|Can I hold it just once]?" So [they tied a new string to the kite|they made a new string], and '
            "[the old man ran over the "
            "field like a child|all three of them flew it]. {n} [laughed and was very happy|was very happy]. [~After "
            "that, they often came to "
            'see him.|"Come again when the wind blows!" said the old man.|It was the best windy day of all.]'
        )
        t.ask("Where was the kite?|Where did they find the kite?", "The kite lay on the roof of {roof}.")
        t.ask("Who had a ladder?|Whose ladder was it?", "An old man had a ladder.")
        t.ask("What did they do for the old man?", "They helped him to {pay}.")
        end = "they got it down from the roof of {roof}"
    elif how == "child":
        stranger(t, "m", ["mouse", "kitten", "puppy", "lamb", "mole", "hedgehog", "koala"])
        middle = (
            t.say(
                comes + 'there it was! A [small|very young|little] {mk} was holding it. "[Look what fell from the '
                "sky|The wind gave me a present|I have a "
                'kite! I have a kite]!" {mhe} said. [~{His} eyes shone.|{mhe} had never had a kite before.] "[But that '
                "is mine|Give it back|It is "
                'my kite]!" [said|cried] {n}. The little {mk} [began to cry|looked at the ground|became very quiet]. '
                "{His} name was {mn}. {fn} "
                'whispered to {n}, "[We can make another one|{Mhe} has never had a kite|You have paper at home, and I '
                "can tie knots]. [What do "
                'you think|Shall we]?"'
            )
            .replace("His eyes shone", "The little one's eyes shone")
            .replace("Her eyes shone", "The little one's eyes shone")
        )
        middle = middle.replace("His name was", "The little one's name was").replace(
            "Her name was", "The little one's name was"
        )
        last = t.say(
            '{n} thought about it. Then {he} [smiled|nodded]. "You may keep it, {mn}," {he} said. "[We will make a '
            "second one|And we will make "
            'one more]." {fn} [found sticks|cut the sticks], {n} brought paper, and {mn} held the string. By evening '
            "there were two kites in the "
            "sky! [~They danced side by side.|They looked like two friends.|The wind played with both of them.] "
            '"[Two are better than '
            'one|It is more fun with two|Now my kite is not alone]," said {n}, and {he} was very happy.'
        )
        t.ask("Who had the kite?|Who found the kite?", "A little {mk} named {mn} had the kite.")
        t.ask("What did {n} do with the kite?|Did {n} take the kite back?", "{n} let {mn} keep the kite.")
        t.ask(
            "How many kites were there by evening?|What did they make?",
            "By evening there were two kites.|They made a second kite.",
        )
        t.facts[-1] = (t.facts[-1][0][:1], t.facts[-1][1][:1])
        end = "a little {mk} had found it, and they made a second one"
    else:
        t.pick("paper", "an old map|a big brown bag|yesterday's newspaper|blue paper from a present")
        middle = t.say(
            comes + "then they could not run any more. The kite was only a dot, and then [it was gone|there was "
            "nothing]. {n} [sat down and cried|was "
            'very sad|looked at the empty sky]. "[It was the best kite in the world|It will never come back|I miss '
            'it already]," {he} said. {fn} '
            'sat down too. "[Where do you think it is going|Where will it go]?" asked {fn}. [{n} thought about '
            "it.|{n} dried {his} eyes.] "
            '"[Perhaps to the sea|Maybe over the mountains|Perhaps to the moon]," {he} said. "[Then it will see '
            "more than we do|How lucky it "
            'is|Then it has a great adventure]," said {fn}. "Come, I have {paper}."'
        )
        last = t.say(
            "All afternoon they [cut, glued and tied|worked at the table]. [~{n} painted a funny face on it.|{fn} "
            "made the tail, and {n} made the "
            "string.] Then the new kite was ready. It was made of {paper}, and it [was a bit crooked|was not as fine "
            "as the old one|had one ear]"
            ', but it flew! {n} was happy again. "[This one is ours|We made this one together|I like this one even '
            'more]," {he} said. [~And '
            "sometimes, when a bird flew by, {he} asked it about the old kite.|And far, far away, the old kite danced "
            "over the world.|And "
            "they held the string together, very tight.]"
        ).replace("had one ear", "was very small")
        t.ask("Did the kite come back?|What happened to the kite?", "The kite flew away and did not come back.")
        t.ask("What did they make?|What was the new kite made of?", "They made a new kite. It was made of {paper}.")
        end = "it never came back, so they made a new one"
    t.ask("What color was the kite?", "The kite was {color}.")
    t.ask("What did the kite look like?", "The kite looked like {shape}.")
    t.ask(
        "Why did the kite fly away?|How did {n} lose the kite?|What broke?",
        "The wind was strong, and the string broke.",
    )
    t.ask("How did {n} feel at the end?", "{n} was happy.")
    return t.story(
        "a kite that flew away|a {k} who loses a {color} kite|a {k} and a {color} kite",
        [start + " " + first, middle, last],
        "[{n} the {k} and {fn} the {fk} ran after a {color} kite|{n}'s {color} kite flew away, and {fn} the {fk} "
        "helped {him} look]; "
        + end + ".",
    )  # fmt: skip


@plot
@fitted
def sled_day(rng: random.Random) -> Story:
    t = Tale(rng, avoid="island")
    t.pick("color", "red|blue|green|wooden|yellow")
    t.pick("drink", "hot chocolate|warm milk|hot apple juice|warm soup")
    t.pick("wear", "a red hat|a blue scarf|two pairs of socks|a thick coat|warm green gloves")
    start = t.start(
        "{n} was a {adj} {k} who lived {inplace}. All autumn {he} waited for snow.",
        "{Inplace} lived a {adj} {k}. {His} name was {n}, and winter was {his} favorite time.",
        "Snow, snow, snow! That was the wish of {n}, a {adj} {k} who lived {inplace}.",
    )
    first = t.say(
        "[One morning|One day|One day in winter], {n} looked out of the window. [Everything was white!|It was "
        "snowing!|The whole world "
        'was white!] "[Snow|Hooray|It snowed]!" {he} [shouted|cried]. {He} put on {wear} and ran outside. {His} '
        "friend {fn} the {fk} [was "
        "waiting|stood in the snow|was already there]. "
    )
    how = t.branch("runaway", "deliver", "no sled")
    if how == "runaway":
        t.pick(
            "stop", "a big pile of snow|a soft snowbank|a snowman|a hay cart full of snow".replace("hay cart", "cart")
        )
        middle = t.say(
            'They pulled {n}\'s {color} sled up the [high|big|long] hill. "[Hold tight|Ready|Here we go]!" called '
            "{n}. [Whoosh! Down they flew.|"
            'Down they went, fast as the wind.|Whee! The sled flew down the hill.] Faster and faster! "[Where is the '
            "brake|How do we stop|Can you "
            'stop it]?" shouted {fn}. "[I do not know|I can\'t|I forgot to think of that]!" shouted {n}. [A fence '
            "came nearer.|In front of them was "
            'the stream.|There was a tree right in front of them!] "Lean left!" cried {fn}. They both leaned left, '
            "the sled turned, and bump! "
            "They flew into {stop}. [~Only their feet could be seen.|For a moment, all was quiet.|Snow flew "
            "everywhere.]"
        )
        last = t.say(
            "{fn} put {fhis} head out. {n} put {his} head out. [~They were white from top to toe.|They looked like "
            "two snowmen.] They looked at each "
            'other and [began to laugh|laughed until they could not stand]. "[Are you all right|Did you hurt '
            'yourself]?" asked {fn}. "[I am '
            'fine, and you saved us|I am fine, thanks to you]," said {n}. "[Again|One more time]?" "Again," said '
            '{fn}, "but [from lower '
            'down|with our feet on the ground to stop|slowly this time]!" [~They went down ten more times.|So they '
            "went again and again, until it "
            "was dark.] Then they drank {drink} by the fire, and {n} was [tired and happy|happy]."
        )
        t.ask("What did they fly into?|Where did the sled stop?", "They flew into {stop}.")
        t.ask(
            "How did {fn} help?|What did {fn} cry?|How did the sled turn?",
            '{fn} cried, "Lean left!" and the sled turned.',
        )
        t.ask("Whose sled was it?|What color was the sled?|What sled did they have?", "It was {n}'s {color} sled.")
        t.facts[-1] = ([t.facts[-1][0][0], t.facts[-1][0][2]], t.facts[-1][1])
        end = "they went down the hill so fast that they flew into {stop}"
    elif how == "deliver":
        t.pick_kind("old", "goat badger donkey goose owl")
        t.pick("goods", "wood and bread|a pot of soup|bread and honey|apples and wood|a warm blanket and some soup")
        middle = t.say(
            "They went down the hill on {n}'s {color} sled, [again and again|five times|all morning]. Then {fn} "
            'stopped. "[Look at the house of the '
            'old {old}|Do you see the house of the old {old}]. [There is no smoke|No smoke comes from the chimney]," '
            '{fhe} said. "[The snow is so '
            'high that no one can get out|The old {old} cannot walk in such deep snow]." "[Then we will go there|We '
            'must help|We have a sled]," said '
            "{n}. They put {goods} on the sled. {n} pulled in front, and {fn} pushed from behind. [~The snow was "
            "deep, and the way was long.|The "
            "wind blew snow in their faces.|Twice the sled fell over.] But they did not [stop|give up]."
        )
        last = t.say(
            '[Knock, knock!|They knocked at the door.] "[Who comes in such snow|Is somebody there]?" asked the old '
            '{old}. "[{n} and {fn}, with the '
            'sled|Your friends, {n} and {fn}]!" they called. [~How glad the old {old} was!|The old {old} was so '
            "happy.] They brought everything in, "
            "and soon [the room was warm|the house was warm and bright]. Then they all drank {drink}, and the old "
            "{old} told them about [the great "
            "snow of long ago|the winters of long ago]. [On the way home, the stars came out, and {n} felt warm "
            "inside.|{n} felt warm inside, even "
            'on the cold way home.] [~"That was better than sledding," {he} said.|"Tomorrow we will go again," '
            "said {fn}.|It was a very good snow "
            "day.]"
        )
        t.ask("Whom did they help?|Whose house had no smoke?|Who needed help?", "They helped the old {old}.")
        t.facts[-1] = ([t.facts[-1][0][0], t.facts[-1][0][2]], t.facts[-1][1])
        t.ask("What did they put on the sled?|What did they bring?", "They put {goods} on the sled.")
        t.ask("How did {n} feel on the way home?|How did {n} feel at the end?", "{n} felt warm inside.")
        end = "they took {goods} to the old {old} in the deep snow"
    else:
        t.pick("thing", "an old door|a kitchen tray|a big wooden box|a tin bathtub|the lid of a barrel")
        middle = t.say(
            'But they had a problem. [Everyone had a sled, but they had none.|They had no sled.|"We have no sled," '
            "said {n}.] They [stood and watched "
            'the others|looked sadly at the big hill]. "[Who says that we need a sled|There must be something '
            'else|We need something that slides]," said '
            "{fn}. They looked [in the shed|in the barn|under the stairs|behind the house]. [~Too small! Too heavy! "
            "Too soft!|Nothing was right.|They "
            'tried this and that.] Then {fn} found {thing}. "[Will that work|Is that a good idea|Can we sit on '
            'that]?" asked {n}. "[Let us try|We will '
            'see|Come and sit down]," said {fn}. They pulled it up the hill and sat down, {n} in front and {fn} '
            "behind.".replace("Who says that we need a sled", "We do not need a sled")
        )
        last = t.say(
            "One, two, three! Off they went! [~It turned around and around like a top.|It went fast, and it sang on "
            "the snow.|It jumped, it turned, and "
            "it flew.] [~They were faster than all the sleds.|Everyone stopped and looked.|All the others clapped.] "
            '"[May we try it too|Can I have a '
            'turn|Where can we get one of those]?" asked the others. So everyone had a turn on it. [When it was '
            "dark, they all drank {drink}.|In the "
            'evening, there was {drink} for all.] "[It was the best sled of all|We made the best of it|That was my '
            'best snow day]," said {n}, and {he} '
            "was very happy."
        )
        t.ask("What did they use for a sled?|What did {fn} find?", "They used {thing} for a sled.|{fn} found {thing}.")
        t.ask("What was the problem?|Why were they sad?", "They had no sled.")
        t.facts[-1] = (t.facts[-1][0][:1], t.facts[-1][1])
        t.ask("What did the others ask?|What did the others want?", "The others wanted to try it too.")
        t.facts[-1] = (t.facts[-1][0][1:], t.facts[-1][1])
        t.facts.pop()
        t.ask("How did {n} feel at the end?", "{n} was very happy.")
        end = "they had no sled, so they used {thing}"
    t.ask("What did {n} put on?|What did {n} wear in the snow?", "{n} put on {wear}.")
    t.ask(
        "What did they drink?|What did they drink at the end?",
        "They drank {drink}." if how != "no sled" else "There was {drink}.",
    )
    t.ask("What did {n} see out of the window?|What was the weather like?", "{n} saw snow.")
    return t.story(
        "a snow day|a {k} and a {fk} in the snow|" + (
            "a {k} without a sled" if how == "no sled" else "a trip on a {color} sled"
        ),
        [start + " " + first, middle, last],
        "[On a snow day, {n} the {k} and {fn} the {fk} had an adventure|{n} the {k} went out in the snow with {fn} "
        "the {fk}]: " + end + ".",
    )  # fmt: skip
