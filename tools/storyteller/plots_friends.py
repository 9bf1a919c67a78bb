"""Plots about friends: finding one, sharing, quarrelling, being honest, helping and giving."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

from grammar import expand
from world import Plot, Story, cast, opening, plot, usual_facts

Say = Callable[[str], str]
Fact = tuple[list[str], list[str]]

COLOURS = ["red", "blue", "yellow", "green", "white", "brown", "orange"]
TOYS = ["ball", "kite", "drum", "boat", "train", "wagon"]
GAMES = ["hide and seek", "catch", "tag", "ball"]
HAPPY = ["happy", "very happy", "warm and happy", "glad"]


def setup(rng: random.Random, adjectives: str = "") -> tuple[list[Fact], dict[str, str], Say]:
    """The facts that always hold, the slots of a hero and a friend who both live on land, and the teller."""
    while True:
        hero, friend, s = cast(rng)
        if not {hero.kind, friend.kind} & {"whale", "seal", "crab"}:
            break
    if adjectives:
        s["adj"] = rng.choice(adjectives.split())
    s["colour"], s["game"], s["feel"] = rng.choice(COLOURS), rng.choice(GAMES), rng.choice(HAPPY)
    facts = usual_facts(hero, None, s)
    if friend.kind not in ("girl", "boy"):
        facts.append(([f"What kind of animal was {friend.name}?"], [expand(rng, "{fn} was a {fk}.", s)]))
    return facts, s, lambda template: expand(rng, template, s)


def fitting(function: Plot) -> Plot:
    """The same plot, told again as long as it comes out with more than 190 words."""

    @functools.wraps(function)
    def told(rng: random.Random) -> Story:
        while True:
            story = function(rng)
            if len(story.text.split()) <= 190:
                return story

    return told


def begin(rng: random.Random, s: dict[str, str], own: str) -> str:
    """The shared opening, or the plot's own."""
    return opening(rng, s) if rng.random() < 0.5 else expand(rng, own, s)


def fact(say: Say, questions: str, answers: str) -> Fact:
    """Questions and answers, each list written as `one|another`."""
    return [say(one) for one in questions.split("|")], [say(one) for one in answers.split("|")]


def friend_fact(say: Say) -> Fact:
    return fact(say, "Who was {n}'s friend?|What was the name of {n}'s friend?", "{n}'s friend was {fn} the {fk}.")


def feel_fact(say: Say) -> Fact:
    return fact(say, "How did {n} feel at the end?|How did {n} feel in the end?", "{n} felt {feel}.")


@plot
@fitting
def lonely_finds_a_friend(rng: random.Random) -> Story:
    facts, s, say = setup(rng, "little small young kind quiet curious gentle clever brave")
    s["why"] = rng.choice(
        ["{his} house was far from all the others", "{he} was new there", "all the others were much older"]
    )
    s["alone"] = rng.choice(
        ["talked to the clouds", "sang songs to the birds", "built little houses of sticks", "threw a ball at a wall"]
    )
    s["snack"] = rng.choice(["bread and honey", "red berries", "warm bread", "apple cake"])
    start = begin(
        rng,
        s,
        "[Nobody ever knocked at {n}'s door.|Some days are very long when you are alone.|It is hard to play all "
        "alone.] [{n} was a {adj} {k} who lived {inplace}.|{n}, a {adj} {k}, lived {inplace}.]",
    )
    first = say(
        "{n} was lonely, because {why}. [Every day|All day long|Each morning], {he} {alone}[.| and wished for a "
        'friend.|, but it was no fun alone.] ["I wish I had a friend," {he} said.|"If only I had a friend!" said '
        '{n}.|"Where can I find a friend?" {he} asked the wind.]'
    )
    branch = rng.choice(["cry", "boat", "song"])
    if branch == "cry":
        s["stuck"] = rng.choice(["in the mud", "in a thick bush", "under a heavy branch"])
        middle = say(
            '[One day|One windy day|One afternoon], {n} heard someone call, "Help! [Please help me!|I am stuck!|Is '
            'anyone there?]" {He} [ran as fast as {he} could|followed the voice|hurried down the path] and saw a '
            '{fk} who was stuck {stuck}. ["Hold on to me!"|"Don\'t be afraid!"|"I will help you!"] said {n}. {n} '
            'pulled and pulled, [and at last|until, with a pop,] the {fk} was free. "[Thank you|Oh, thank you so '
            'much]!" said the {fk}. "My name is {fn}. [I am new here, and I have nobody to play with.|I have '
            'nobody to play with today.|Do you want to play with me?]"'
        )
        how = fact(
            say, "How did {n} meet {fn}?|Why did {fn} call for help?", "{fn} was stuck {stuck}, and {n} helped {fhim}."
        )
        end = "{n} the lonely {k} helped a {fk} who was stuck {stuck}, and they became friends."
    elif branch == "boat":
        s["boat"] = rng.choice(["a little paper boat", "a small wooden boat", "a boat made of a leaf"])
        middle = say(
            "[One day,|One sunny morning,|Then {he} had an idea.] {n} made {boat} and put a note in it. The note "
            'said, "[Will you be my friend?|I am looking for a friend.|Please come and play with me.]" {He} set '
            "the boat on the stream, and the water carried it [away|far away|around the bend]. [{n} waited one "
            "day, and then another.|For two days, nothing happened.|{n} waited and waited.] Then there was a knock "
            'at the door. A {fk} stood there [with a wet note|and held up the note]. "I am {fn}," said the {fk}. '
            '"[I found your boat, and I would love to be your friend|I read your note, and I want a friend too]."'
        )
        how = fact(
            say,
            "How did {fn} find {n}?|What did {n} put on the stream?",
            "{n} sent {boat} with a note, and {fn} found it.",
        )
        end = "{n} the {k} sent a note down the stream in a boat, and it brought {him} a friend named {fn}."
    else:
        s["spot"] = rng.choice(["behind the hill", "under an old tree", "by the stream", "behind a big rock"])
        middle = say(
            "[One day|One evening|One quiet afternoon], {n} heard a song. [It was a soft, sad song.|Someone was "
            "singing in a soft voice.|It was soft and a little sad.] {He} followed it and found a {fk} sitting "
            '{spot}. "[Why are you so sad|Why do you sing such a sad song]?" asked {n}. "[I am all alone|I have no '
            'one to sing with|Nobody plays with me]," said the {fk}. "My name is {fn}." {n} [smiled|sat down '
            'too|could not believe it]. "[I am all alone too|Me too]," {he} said. "[Let us be alone together!|Then '
            'we can be friends!|Shall we sing together?]"'
        )
        how = fact(
            say, "Where did {n} find {fn}?|Where was {fn} sitting?|Where did {n} meet {fn}?", "{fn} was sitting {spot}."
        )
        end = "{n}, a lonely {k}, followed a sad song and found a friend, {fn} the {fk}."
    last = say(
        "[So|And so] {n} [took|brought] {fn} home, and they [shared|ate] {snack}. [Then|After that], they played "
        '{game} until [the sun went down|it was dark|the stars came out]. "[Will you come again tomorrow?|Will I '
        'see you tomorrow?]" asked {n}. "[Every day!|Of course!|Yes, and the day after that too!]" said {fn}. '
        "[That night|When {he} went to bed], {n} felt {feel}. [{He} was not lonely any more.|Now {he} had a "
        "friend.|One good friend was all {he} needed.]"
    )
    return Story(
        topic=say(
            "[a lonely {k} who finds a friend|a {k} who has no friends|a {k} and a {fk} who become friends]"
        ).lower(),
        text="\n\n".join([start + " " + first, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            friend_fact(say),
            how,
            feel_fact(say),
            fact(say, "Why was {n} lonely?", "{n} was lonely because {why}."),
            fact(
                say,
                "What did {n} and {fn} eat?|What did the friends eat?",
                "They ate {snack}.|{n} and {fn} ate {snack}.",
            ),
            fact(say, "What did {n} wish for?|What did {n} want?", "{n} wished for a friend.|{n} wanted a friend."),
        ],
    )


@plot
@fitting
def sharing(rng: random.Random) -> Story:
    facts, s, say = setup(rng)
    s["food"] = rng.choice(
        ["apple pie", "honey cake", "basket of berries", "loaf of warm bread", "bag of nuts", "big cookie"]
    )
    s["whyhungry"] = rng.choice(
        ["{fhe} had lost {fhis} lunch", "{fhis} lunch had fallen in the mud", "{fhe} had walked a long way"]
    )
    s["toy"] = rng.choice(TOYS)
    s["giver"] = rng.choice(["mother", "grandmother", "father", "aunt"])
    branch = rng.choice(["gave", "hid", "toy"])
    s["thing"] = "{colour} {toy}" if branch == "toy" else "{food}"
    start = begin(
        rng,
        s,
        "[It was a [sunny|bright|warm|fine] day {inplace}, and|One [sunny|bright|warm|fine] morning {inplace},] a "
        "{adj} {k} named {n} [felt very lucky|was in a good mood|was smiling]. {He} lived there[ with {his} family|] "
        "and [loved it|was happy there].",
    )
    first = say(
        '[One day|One afternoon|After lunch], {his} {giver} gave {n} a {thing}. ["This is for you," said {his} '
        "{giver}. |]{n} [was so glad that {he} danced|jumped for joy|thanked {his} {giver} and ran outside]. "
    )
    if branch == "toy":
        middle = say(
            '[Soon|Then|After a while], {his} friend {fn} the {fk} came by. "[What a fine {toy}! May I play with '
            'it too?|Oh, how nice! May I have a turn?]" asked {fn}. "No," said {n}. "[It is mine|It is only for '
            'me|You will break it]." {fn} [went away|walked away slowly|sat down by {fhimself}] and [looked '
            "sad|did not say a word]. {n} played with the {toy} alone. [But soon it was no fun.|But nobody laughed "
            "and nobody clapped.|But the game was not fun without a friend.] {He} looked at {fn}, and {his} heart "
            'felt heavy. "[I am sorry|I was not kind], {fn}," {n} said. "[Come and play|Take a turn|Let us play '
            'together]!"'
        )
        last = say(
            "They took turns with the {toy} [all day|until evening|until it was time for supper]. {fn} [showed {n} "
            'a new trick|made up a funny new game], and they laughed [out loud|so hard that they fell over]. "[It '
            'is better with two|A {toy} is more fun with a friend]," said {n}. ["I told you so!" laughed '
            '{fn}.|"Much better!" said {fn}.] [When {n} went home|That evening], {he} felt {feel}.'
        )
        more = [
            fact(say, "Why was {fn} sad?|Why did {fn} look unhappy?", "{n} did not want to share the {toy}.")
            if "sad" in middle
            else fact(
                say, "What did {n} say at first?|Did {n} share at first?", "No, at first {n} did not want to share."
            ),
            fact(say, "What did {n} learn?|What did we learn?", "{n} learned that a {toy} is more fun with a friend."),
        ]
        end = "{n} the {k} did not want to share {his} {thing}, but found that playing with {fn} was more fun."
    else:
        meet = (
            "[Soon|Then|Just then], {his} friend {fn} the {fk} came [by|down the path|along]. {fn} was hungry, "
            "because {whyhungry}. "
        )
        if branch == "gave":
            middle = say(
                meet
                + "{n} looked at the {food}. [It was not very big.|{He} was hungry too.|It smelled so good.] [Then "
                '{he} smiled.|But {he} did not think for long.] "[Half for you, and half for me|Sit down, and we '
                'will share it|Come and eat with me]," said {n}. "[Are you sure?|Really?]" asked {fn}. "[Of '
                'course|Yes]," said {n}. "[Food tastes better with a friend|You are my friend]." They [sat under '
                "a tree|sat side by side in the grass] and ate it all."
            )
        else:
            middle = say(
                meet + '{n} [wanted to keep it all|did not want to share]. {He} hid the {food} behind {his} back. "[I '
                'have nothing to eat|There is nothing here]," {he} said. {fn} [walked away slowly|sighed and '
                "went on]. {n} took one bite, but it [did not taste good|stuck in {his} throat]. [{He} thought "
                'of {fn}, who was still hungry.|"Poor {fn} is so hungry," {he} thought.] {He} jumped up and ran '
                'after {his} friend. "[Wait!|Stop, {fn}!] [I am sorry.|I was wrong.] [Let us share it|Half of '
                'this is for you]!" called {n}. [And so they ate together|They sat down and ate together], and '
                "now it tasted [wonderful|so good]."
            )
        s["later"] = rng.choice(["a jar of honey", "a bag of red apples", "a bowl of hot soup", "a plate of pancakes"])
        last = say(
            "[The next day|A few days later|One rainy day, not long after], {n} had nothing to eat, and {his} "
            'tummy was empty. There was a knock at the door. It was {fn}, with {later}! "[You shared with me, and '
            'now I will share with you|You were kind to me, and I did not forget|Now it is my turn to share]," '
            "said {fn}. {n} felt {feel}. [They ate and talked until the moon came up.|They ate it all and told "
            "funny stories.|And from then on, they always shared.]"
        )
        more = [
            fact(say, "Why was {fn} hungry?", "{fn} was hungry because {whyhungry}."),
            fact(say, "What did {fn} bring to {n}?|What did {fn} bring?", "{fn} brought {later}."),
        ]
        if branch == "gave":
            end = "{n} the {k} shared a {food} with hungry {fn}, and later {fn} shared with {him}."
        else:
            more.append(fact(say, "What did {n} hide?|What was behind {n}'s back?", "{n} hid the {food}."))
            end = "{n} the {k} hid a {food} from {his} hungry friend {fn}, but then was sorry and shared it."
    topics = ["a {k} who learns to share", "a {k} who shares with a friend"]
    topics.append("a {k} with a {colour} {toy}" if branch == "toy" else "a {k} who meets a hungry {fk}")
    return Story(
        topic=say(rng.choice(topics)).lower(),
        text="\n\n".join([start + " " + first, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            friend_fact(say),
            feel_fact(say),
            *more,
            fact(
                say,
                "What did {n} get?|What did {n}'s {giver} give {him}?",
                "{n} got a {thing}.|{n}'s {giver} gave {him} a {thing}.",
            ),
            fact(say, "Who gave {n} the {thing}?|Who gave something to {n}?", "{n}'s {giver} gave it to {him}."),
        ],
    )


@plot
@fitting
def quarrel(rng: random.Random) -> Story:
    facts, s, say = setup(rng)
    cause = rng.choice(["game", "tower", "late"])
    s["game2"] = rng.choice(["fly a kite", "swim in the pond", "pick berries", "climb a tree"])
    s["stuff"] = rng.choice(["stones", "sticks", "boxes", "wood"])
    s["spot"] = rng.choice(["the old bridge", "the tall tree", "the well", "the garden gate"])
    s["gift"] = rng.choice(["a bunch of yellow flowers", "a little cake", "a bag of nuts", "a pretty stone"])
    start = (
        begin(
            rng,
            s,
            "[Even the best of friends have a bad day.|Do you know what happened to two good friends one day?] "
            "[This is the story of {n}, a {adj} {k} who lived {inplace}.|There was a {adj} {k} named {n}, whose home "
            "was "
            "{inplace}.]",
        )
        if rng.random() < 0.7
        else say("{inplace} lived two best friends. One was {n}, a {adj} {k}, and the other was {fn}.")
    )
    first = say(
        "{n} and {fn} the {fk} were [best friends|the best of friends|good friends]. [They played together every "
        "day.|They did everything together.|You never saw one without the other.] [But one day, they had a "
        "quarrel.|Then, one day, they had a big quarrel.]"
    )
    if cause == "game":
        s["about"] = "what to play"
        quarrelled = say(
            '{n} wanted to play {game}, but {fn} wanted to {game2}. "[We always do what you want|You never listen '
            'to me]!" said {n}. "[That is not true|No, you always choose]!" said {fn}. '
        )
        because = "{n} wanted to play {game}, but {fn} wanted to {game2}."
    elif cause == "tower":
        s["about"] = "a tower that fell down"
        quarrelled = say(
            "They had built a tall tower of {stuff}, and [crash, it fell down|suddenly it fell down with a crash]. "
            '"[You pushed it|That was you]!" said {n}. "[No, you did it|It was not me, it was you]!" said {fn}. '
        )
        because = "Their tower of {stuff} fell down, and each said that the other had done it."
    else:
        s["about"] = "being late"
        quarrelled = say(
            "{fn} had said that {fhe} would come [at noon|in the morning|after lunch], but {fhe} came [very "
            'late|very, very late]. "[I waited and waited for you|I was all alone for hours]!" said {n}. "[Why are '
            'you so angry|Is that so bad]?" said {fn}. '
        )
        because = "{fn} came very late, and {n} had to wait."
    quarrelled += " " + say(
        '[They shouted and then went home.|Then they both went home.] "[I will never play with you again|I do not '
        'want to see you any more]," [{n} said|said {n}].'
    )
    makeup = rng.choice(["gift", "rain", "same"])
    if makeup == "gift":
        middle = say(
            "At home, {n} [sat by the window|lay on {his} bed|looked at {his} toys]. [It was so quiet.|Nothing was "
            'fun.|The house felt empty.] "[I miss {fn}|It is no fun without {fn}]," {he} said. So {n} took {gift} '
            'and went to {fn}\'s house. "[I am sorry that I shouted|I am sorry, {fn}]," said {n}. "[This is for '
            'you|I brought you this]." "I am sorry too," said {fn}.'
        )
        how = fact(say, "What did {n} bring to {fn}?|What did {n} take to {fn}'s house?", "{n} brought {gift}.")
        end = "{n} the {k} and {fn} the {fk} quarrelled about {about}, and {n} made peace with {gift}."
    elif makeup == "rain":
        middle = say(
            "The next [day|morning], {n} [went for a walk|walked about] alone. [Suddenly|Then] it began to rain, "
            "and {he} ran under a big tree. [But somebody was there already.|Who was standing there?] It was {fn}! "
            "[At first, nobody spoke.|For a while, they only looked at the rain.|At first they looked the other "
            'way.] Then {fn} said, "[You are all wet.|You look cold.] [Come closer.|Here, take half of my scarf.]" '
            '{n} [smiled a little|moved closer]. "I am sorry," said {n}. "I am sorry too," said {fn}.'
        )
        how = fact(
            say,
            "Where did {n} and {fn} meet in the rain?|Where did {n} run in the rain?",
            "{n} ran under a big tree, and {fn} was there.",
        )
        end = "After a quarrel about {about}, {n} and {fn} met under a tree in the rain and said sorry."
    else:
        middle = say(
            'That night, {n} could not sleep. "[I was wrong to shout|I miss my friend|{fn} is my best friend]," '
            "{he} thought. [In the morning|As soon as the sun came up], {n} set out to say sorry. At {spot}, {he} "
            'met {fn}, who was [in a hurry too|coming the other way]. "I was coming to say sorry!" said {n}. "[So '
            'was I|I was coming to say the same]!" said {fn}. [They looked at each other and began to laugh.|They '
            "both laughed.]"
        )
        how = fact(
            say, "Where did {n} and {fn} meet?|Where did {n} meet {fn}?", "They met at {spot}.|{n} met {fn} at {spot}."
        )
        end = "{n} and {fn} had a quarrel about {about}, but they met at {spot} and both said sorry."
    finish = {
        "game": "[That day|Then|So] they played {game} first, and after that they went to {game2}. [There was time "
        "for both.|Both were fun.]",
        "tower": "[That day|Then|So] they built a new tower of {stuff}, [even taller than the first|twice as tall "
        "as the old one]. When it fell down, they only laughed.",
        "late": '["Next time I will be on time," said {fn}.|"I will not be late again," said {fn}.] [Then|So] they '
        "played {game} until evening.",
    }[cause]
    last = say(
        finish
        + ' {n} felt {feel}. ["Friends again?" asked {fn}. "Friends forever!" said {n}.|"Let us never be angry for '
        'long," said {n}.|"A quarrel is small, but a friend is big," said {fn}.] [And they stayed friends for a '
        "long, long time.|And they walked home side by side.|]"
    )
    return Story(
        topic=say(
            "[a {k} and a {fk} who have a quarrel|a {k} who quarrels with a friend|two friends who make up after a "
            "quarrel]"
        ).lower(),
        text="\n\n".join([start + " " + first + " " + quarrelled, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            friend_fact(say),
            how,
            feel_fact(say),
            fact(
                say,
                "What was the quarrel about?|What did {n} and {fn} quarrel about?",
                "The quarrel was about {about}.",
            ),
            fact(say, "Why did {n} and {fn} have a quarrel?|Why was {n} angry?", because),
            fact(say, "Who had a quarrel?|Who had a big quarrel?", "{n} and {fn} had a quarrel."),
        ],
    )


@plot
@fitting
def telling_the_truth(rng: random.Random) -> Story:
    facts, s, say = setup(rng, "little small young kind cheerful quiet curious clever playful funny")
    s["owner"], s["ohe"], s["ohim"], s["ohis"] = rng.choice(
        [
            ("mother", "she", "her", "her"),
            ("grandmother", "she", "her", "her"),
            ("aunt", "she", "her", "her"),
            ("father", "he", "him", "his"),
            ("grandfather", "he", "him", "his"),
        ]
    )
    s["thing"] = rng.choice(["cup", "plate", "bowl", "lamp", "clock", "flower pot"])
    s["doing"] = rng.choice(
        ["playing with a ball", "dancing around the room", "running through the house", "jumping up and down"]
    )
    start = begin(
        rng,
        s,
        "[Crash! Something had fallen on the floor.|What was that noise? It came from the kitchen.|Have you ever "
        "broken something?] [This is the story of {n}, a {adj} {k} who lived {inplace}.|{n}, a {adj} {k} who lived "
        "{inplace}, was in trouble.]",
    )
    first = say(
        "[One day|One rainy day|One morning], {n} was {doing}. [Crash!|Bang!|Oh no!] {He} bumped the table, and the "
        "{colour} {thing} fell down and broke. It was {his} {owner}'s [best|favourite] {thing}. {n}'s heart [beat "
        'fast|grew heavy|sank]. "[What have I done?|What shall I do now?]" {he} [whispered|said].'
    )
    branch = rng.choice(["hide", "blame", "once"])
    if branch == "hide":
        s["hiding"] = rng.choice(["under the bed", "in a box", "behind the door", "under a bush"])
        middle = say(
            "{n} hid the broken {thing} {hiding}. [But all day long, {he} could not play or eat.|But {he} could "
            "not think of anything else.|But {his} tummy hurt, and {he} could not smile.] {His} friend {fn} the "
            '{fk} saw {his} sad face. "[What is the matter|What is wrong|Why are you so sad], {n}?" asked {fn}. '
            '{n} told {fhim} everything. "[The truth is hard for a minute, but a lie is heavy all day|You will '
            'feel better when you tell the truth]," said {fn}. "[I will come with you|Come, I will go with you]." '
            'So they went to {n}\'s {owner}. "I broke your {thing}," said {n}, "and I hid it. I am sorry."'
        )
        how = fact(
            say,
            "Where did {n} hide the {thing}?|Where was the broken {thing}?",
            "{n} hid it {hiding}.|The {thing} was hidden {hiding}.",
        )
        end = "{n} the {k} broke a {colour} {thing} and hid it, but {fn} helped {him} to tell the truth."
    elif branch == "blame":
        middle = say(
            "[Just then|At that moment], {his} friend {fn} the {fk} came in. Then {n}'s {owner} came in too and "
            'saw the broken {thing}. "[Did you do this|Did you break my {thing}], {fn}?" {ohe} asked. {fn} [shook '
            "{fhis} head|looked down|did not know what to say]. {n} [could keep quiet, and nobody would "
            "know|wanted to run away|was afraid to speak]. But {fn} was {his} friend. [{n} took a deep breath.|{n} "
            'stood up.] "[No, {fn} did not do it|It was not {fn}]," {he} said. "I broke it. I am sorry." {fn} '
            "[looked at {him} with big eyes|smiled at {n}|took a step closer to {n}]."
        )
        how = fact(
            say,
            "Who was asked about the broken {thing}?|Who did not break the {thing}?",
            "{fn} was asked, but {fn} did not break it.",
        )
        end = "When {fn} was asked about a broken {thing}, {n} the {k} told the truth: {he} had broken it."
    else:
        middle = say(
            '{His} friend {fn} the {fk} [had seen it all|was there too|was with {him}]. "[We can hide it|We can '
            'say it was the wind|We can run away]," said {fn}. {n} thought about it. [It would be easy.|Nobody '
            'else had seen it.] But then {he} shook {his} head. "No," {he} said. "[I broke it, so I must say it|I '
            'want to tell the truth]." {fn} [was surprised|nodded slowly]. "[You are right|You are brave]," said '
            '{fn}. "I will come with you." [Together they went|They walked slowly] to {n}\'s {owner}. "I broke '
            'your {thing}," said {n}. "I am so sorry."'
        )
        how = fact(
            say,
            "Did {n} tell the truth?|What did {n} do after the {thing} broke?",
            "{n} told the truth.|{n} told {his} {owner} the truth.",
        )
        end = "{n} the {k} broke {his} {owner}'s {thing}, and {he} was brave and told the truth at once."
    s["mend"] = (
        rng.choice(["with glue", "with strong glue and a ribbon"]) if s["thing"] in ("lamp", "clock") else "with glue"
    )
    last = say(
        "{His} {owner} [was quiet for a moment|looked at the {thing} and then at {n}]. Then {ohe} [gave {him} a "
        'hug|smiled|sat down next to {him}]. "[I loved that {thing}, but I love the truth more|A {thing} can be '
        'mended. Thank you for telling me|I am a little sad, but I am proud of you]," {ohe} said. [That '
        "evening|After supper], {n} and {fn} mended the {thing} {mend}. [It was not perfect, but it stood on the "
        "table again.|You could see the cracks, but nobody minded.|It looked a little funny, and they all "
        "laughed.] {n} felt {feel}[.|, and that night {he} slept well.]"
    )
    return Story(
        topic=say(
            "[a {k} who breaks a {thing} and tells the truth|a {k} who breaks something|a {k} who tells the truth]"
        ).lower(),
        text="\n\n".join([start + " " + first, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            friend_fact(say),
            how,
            feel_fact(say),
            fact(
                say,
                "What did {n} break?|What was broken?",
                "{n} broke a {colour} {thing}.|{n} broke {his} {owner}'s {thing}.",
            ),
            fact(
                say,
                "What was {n} doing when the {thing} broke?|How did the {thing} break?",
                "{n} was {doing} and bumped the table.",
            ),
            fact(say, "Whose {thing} was it?", "It was {n}'s {owner}'s {thing}."),
            fact(say, "How did they mend the {thing}?|Who mended the {thing}?", "{n} and {fn} mended it {mend}."),
        ],
    )


@plot
@fitting
def old_neighbour(rng: random.Random) -> Story:
    facts, s, say = setup(rng)
    s["fk"] = {"boy": "man", "girl": "woman"}.get(s["fk"], s["fk"])
    s["pain"] = rng.choice(
        ["{fhis} back hurt", "{fhis} legs were weak", "{fhis} eyes were weak", "{fhe} was very tired"]
    )
    s["task"], s["did"], s["done"] = rng.choice(
        [
            ("carry water from the well", "carried water from the well", "the big pot was full of water"),
            ("bring in the wood for the fire", "brought in the wood", "there was wood for the whole winter"),
            ("pick the apples in the garden", "picked the apples", "all the apples lay in the baskets"),
            ("clean the house", "cleaned the house", "the whole house was clean and bright"),
            ("dig the garden", "dug the garden", "the garden was ready for the seeds"),
            ("paint the fence", "painted the fence", "the fence was white and new"),
        ]
    )
    s["gift"] = rng.choice(
        ["an old flute", "a jar of plum jam", "a warm scarf", "a little wooden horse", "a book with pictures"]
    )
    start = begin(
        rng,
        s,
        "[There was once a little house with a crooked roof.|There was a small old house with a green door.] [Beside "
        "it, {inplace}, lived {n}, a {adj} {k}.|{n}, a {adj} {k}, lived next to it, {inplace}.]",
    )
    first = say(
        "[In the next house|Next door] lived an old {fk} named {fn}. {fn} was kind[, but very old|, but {fhe} "
        'could not walk fast], and {pain}. ["I used to {task}," said {fn}, "but now I cannot do it alone."|"Oh '
        'dear," said {fn}, "I have to {task}, but I am too old."|"How shall I {task}?" said {fn} one morning. "I '
        'am not strong any more."]'
    )
    branch = rng.choice(["alone", "many", "back"])
    if branch == "alone":
        s["when"] = rng.choice(["every morning", "every day after lunch", "every evening"])
        middle = say(
            '{n} heard this [over the fence|from the path|through the window]. "[I am not very big, but I can '
            'help|I can do that for you|Let me help you]," said {n}. "[Would you really?|Do you have the time?]" '
            'asked {fn}. "[Of course|Yes, I do not mind]," said {n}. So {n} came {when} and {did}. [It was hard '
            "work, but {n} sang a song.|It was hard, but {he} did not give up.] {fn} [sat in a chair and told "
            "{him} stories of long ago|sat near by and told funny stories]. At last, {done}."
        )
        how = fact(say, "When did {n} help?|When did {n} come to {fn}?", "{n} came {when}.")
        end = "{n} the {k} came {when} to help an old {fk} named {fn}."
    elif branch == "many":
        s["count"] = rng.choice(["three", "four", "five", "six"])
        middle = say(
            "{n} heard this and wanted to help. {He} began at once, [but the work was too much for one|but it was "
            'too hard for {him} alone|but soon {he} was tired]. [{n} sat down and thought.|"What can I do?" {n} '
            "asked {himself}.] Then {he} had an idea. {n} [ran from door to door|called all {his} friends|told "
            'everyone]. "[Old {fn} needs us!|Who will help old {fn}?]" {he} called. [Soon|After a while] {count} '
            "helpers came. [They worked side by side and sang.|Everyone did a little bit.|Some were big and some "
            "were small, but all of them helped.] [Before dark|By evening], {done}."
        )
        how = fact(say, "How many helpers came?|Who helped {n}?", "There were {count} helpers.|{count} helpers came.")
        end = "When the work was too much for one {k}, {n} called {count} helpers for {his} old neighbour {fn}."
    else:
        s["fun"] = rng.choice(["to swim in the pond", "to play ball", "to fly a kite", "to pick berries"])
        middle = say(
            '{n} heard this, but {he} was on {his} way {fun}. "[I have no time|I am in a hurry|Someone else will '
            "help],\" {he} thought, and {he} ran on. But [on the way, {he} could not forget {fn}'s tired face|with "
            'every step, {he} thought of {fn}]. {n} stopped. "[If I were old and alone, I would want help too|I '
            'can play tomorrow, but {fn} needs me today]," {he} said. So {n} turned around and went back. "I am '
            'here to help," {he} said. {fn} [smiled from ear to ear|was so glad]. {n} {did} [all afternoon|until '
            "evening], and at last {done}."
        )
        how = fact(say, "Where was {n} going?|Why did {n} not help at first?", "{n} was on {his} way {fun}.")
        end = "{n} the {k} was on {his} way {fun}, but turned back to help old {fn} the {fk}."
    last = say(
        '"[How can I thank you?|You have such a good heart, {n}!|What a good neighbour you are!]" said {fn}. "[I '
        'have something for you|Wait, this is for you]." {Fhe} [opened an old box|went to a high shelf|went into '
        'the house and came back] and gave {n} {gift}. ["Oh, thank you!" said {n}.|{n} had never had such a fine '
        'present.|"For me?" asked {n} in surprise.] {He} felt {feel}. [After that, the two often sat together in '
        "the evening.|From that day on, they were good friends.|{n} still visits {fn}, and they drink tea and "
        "laugh.]"
    )
    return Story(
        topic=say("[a {k} who helps an old neighbour|an old {fk} and a kind {k}|a {k} who helps an old {fk}]").lower(),
        text="\n\n".join([start + " " + first, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            how,
            feel_fact(say),
            fact(
                say, "Who was {fn}?|Who lived next door?|Who needed help?", "{fn} was an old {fk} who lived next door."
            ),
            fact(say, "What did {fn} give to {n}?|What did {n} get?", "{fn} gave {n} {gift}."),
            fact(say, "What did {n} do for {fn}?|How did {n} help {fn}?", "{n} {did}."),
            fact(say, "Why did {fn} need help?|Why was it hard for {fn}?", "{fn} was old, and {pain}."),
        ],
    )


@plot
@fitting
def forgotten_birthday(rng: random.Random) -> Story:
    facts, s, say = setup(rng)
    s["cake"] = rng.choice(
        ["a honey cake", "a big apple cake", "a cake with berries", "a carrot cake", "a chocolate cake"]
    )
    s["gift"] = rng.choice(
        ["a {colour} kite", "a {colour} hat", "a little drum", "a {colour} ball", "a book of songs", "a silver bell"]
    )
    s["where"] = rng.choice(["in the barn", "under the apple tree", "by the pond", "on the top of the hill"])
    s["busy"] = rng.choice(['"I am too busy today', '"I have no time now', '"I must go at once'])
    branch = rng.choice(["home", "basket", "trail"])
    if branch == "home":
        s["where"] = "at {n}'s house"
    start = begin(
        rng,
        s,
        '["It is my birthday!" said {n}.|Today was a great day, or so {n} thought.|The sun came up, and {n} jumped '
        "out of bed.] {n} was a {adj} {k} who lived {inplace}[.|, and {he} had waited for this day for a long "
        "time.]",
    )
    first = say(
        "[It was {n}'s birthday.|One day, it was {n}'s birthday.] [{He} put on {his} best hat and went out.|{He} went "
        'out to see {his} friends.|{He} was very excited.] But nobody said, "Happy birthday!" {He} met {his} '
        'friend {fn} the {fk}. "Do you know what day it is?" asked {n}. "[Yes, it is Monday|It is a fine day for '
        'washing|It is a nice, sunny day]," said {fn}. {busy}." [And off {fhe} went.|And {fhe} hurried away.]'
    )
    sad = (
        '["Everyone has forgotten me,"|"They all forgot my birthday,"|"Nobody thinks of me,"] {n} [said '
        "sadly|sighed|said, and a tear ran down {his} face]. "
    )
    if branch == "home":
        middle = say(
            sad + "{He} [walked around all alone|went for a long walk|sat by the water and threw stones] [until "
            "the sun went down|until it was almost dark|all afternoon]. Then {he} went home. The house was dark "
            "and very quiet. {n} opened the door. [Suddenly|All at once], a hundred little lights shone. "
            '"Surprise!" [shouted many voices|called all {his} friends]. "Happy birthday, {n}!" And in front '
            "stood {fn} with {cake}."
        )
        how = fact(
            say,
            "What was {n}'s house like?|What did {n} see when {he} came home?",
            "The house was dark and very quiet.",
        )
        end = "{n} the {k} thought everyone forgot {his} birthday, but at home there was a surprise party."
    elif branch == "basket":
        middle = say(
            sad + '[In the afternoon|After a while|Later], {fn} came back. "[Can you help me|Will you help me], {n}?" '
            'asked {fn}. "I have to carry this [heavy|big] basket." {n} [was sad, but {he} helped|did not feel '
            'like it, but {he} came]. They carried the basket [over the field|up the path|down the road]. "What '
            'is in it?" asked {n}. "[You will see|Just wait]," said {fn}. [At last they stopped|Then they '
            'stopped], and there, {where}, stood all {n}\'s friends. "Surprise!" they shouted. And in the basket '
            "was {cake}!"
        )
        how = fact(say, "What was in the basket?", "In the basket was {cake}.")
        end = "On {his} birthday, sad {n} helped {fn} with a basket that led {him} to {his} own party."
    else:
        s["trail"] = rng.choice(["ribbon", "flower", "feather", "paper star"])
        middle = say(
            sad + "Then {he} saw a {colour} {trail} on the ground. [A little farther lay another one.|A few steps on, "
            'there was one more.] "[How strange|How funny]!" said {n}. {He} followed them, one after the other, '
            "[past the well and over the bridge|along the fence and around the corner|down the path and through "
            "the gate]. [At last|At the end of the trail], {he} heard [someone giggle|a soft laugh|whispers]. The "
            'sound came from friends who were hiding {where}. "Surprise!" they shouted and jumped up. {fn} was there '
            "too, with {cake}."
        )
        how = fact(say, "What did {n} follow?|What lay on the ground?", "{n} followed a trail of {colour} {trail}s.")
        end = "{n} thought that {his} birthday was forgotten, until a trail of {colour} {trail}s led {him} to a party."
    last = say(
        '"[We did not forget you!|How could we forget you?|Of course we knew!]" said {fn}. [|{n} laughed and '
        "cried.|{n}'s eyes grew big.] Then {fn} gave {him} {gift}. [They ate and danced until late.|They sang, they "
        "ate, and they played {game}.|There were games and songs, and everyone had two pieces of cake.] {n} felt "
        '{feel}. "[This is my best birthday ever|Nobody has such good friends as I have]," {he} said.'
    )
    return Story(
        topic=say(
            "[a {k} whose birthday seems to be forgotten|a surprise party for a {k}|a {k} who thinks that everyone "
            "forgot {his} birthday]"
        ).lower(),
        text="\n\n".join([start + " " + first, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            friend_fact(say),
            how,
            feel_fact(say),
            fact(say, "Where was the party?|Where were {n}'s friends waiting?", "The party was {where}."),
            fact(say, "What did {fn} give to {n}?|What present did {n} get?", "{fn} gave {n} {gift}.|{n} got {gift}."),
            fact(
                say, "Why was {n} sad?|What did {n} think?", "{n} thought that everyone had forgotten {his} birthday."
            ),
            fact(say, "What kind of cake was there?|What was there to eat?", "There was {cake}."),
        ],
    )


@plot
@fitting
def new_neighbour(rng: random.Random) -> Story:
    facts, s, say = setup(rng)
    s["odd"], s["oddly"] = rng.choice(
        [
            ("slept all day and was awake all night", "{fhe} slept all day"),
            ("wore a tall hat, even in bed", "{fhe} wore a tall hat, even in bed"),
            ("spoke with strange words", "{fhe} spoke with strange words"),
            ("ate flowers for breakfast", "{fhe} ate flowers for breakfast"),
            ("walked backwards up the stairs", "{fhe} walked backwards"),
            ("talked to the trees", "{fhe} talked to the trees"),
        ]
    )
    s["taught"], s["learn"] = rng.choice(
        [
            ("a song from far away", "sang it"),
            ("a new game with stones", "played it"),
            ("a dance from far away", "danced it"),
        ]
    )
    start = begin(
        rng,
        s,
        "[For a long time, the house next door was empty.|Who would come to live in the empty house next door?] {n}, "
        "a {adj} {k} who lived {inplace}, [looked at it every day|often wondered about it|wished for a new neighbour].",
    )
    first = say(
        "[One day|One morning|One sunny day], a {fk} named {fn} moved in next door. {fn} was different. {Fhe} "
        '{odd}! ["How strange," said the other neighbours.|The others whispered and laughed.|"Do not go near that '
        'house," said the others.] [{n} did not know what to think.|{n} was a little afraid.|{n} only looked over '
        "the fence.]"
    )
    branch = rng.choice(["ball", "cake", "storm"])
    if branch == "ball":
        middle = say(
            "One afternoon, {n}'s {colour} ball flew over the fence [and landed in {fn}'s garden|and rolled right up "
            "to {fn}'s door]. [What now?|{n} waited, but the ball did not come back.] {He} [took a deep "
            'breath|counted to three] and knocked. {fn} opened the door with the ball. "[Is this yours?|I think this '
            'is yours.] [I would love to play too|It is a very good ball|Please let me play with you]!" said {fn}.'
        )
        how = fact(
            say,
            "Why did {n} knock at {fn}'s door?|What flew over the fence?",
            "{n}'s {colour} ball flew over the fence.",
        )
        end = "{n}'s ball flew into the garden of a strange new neighbour, {fn} the {fk}, and they became friends."
    elif branch == "cake":
        s["bake"] = rng.choice(["a warm apple cake", "a basket of eggs", "a loaf of fresh bread", "a jar of honey"])
        middle = say(
            '"[It must be hard to be new|I was new here once|Nobody has said hello to {fn}]," thought {n}. So {he} '
            "took {bake} and knocked at {fn}'s door. [It opened very slowly.|For a while, nothing moved.] Then "
            '{fn} looked out. "[Welcome!|Hello!] [This is for you|I brought you this]," said {n}. {fn}\'s eyes '
            '[shone|grew wide]. "[You are the first one who came to see me|I thought nobody liked me]," {fhe} '
            'said. "[Please come in|Come in and sit down]!"'
        )
        how = fact(say, "What did {n} bring to {fn}?|What did {n} take to the new neighbour?", "{n} brought {bake}.")
        end = "While others stayed away, {n} the {k} brought {bake} to a new neighbour who was different."
    else:
        middle = say(
            "One night there was a [big|terrible] storm. [The wind broke {n}'s window|A branch fell on {n}'s "
            "roof], and the rain came in. {n} was cold and wet. [Then came a knock|Then someone knocked]. It was "
            '{fn} with a lamp! "[Come to my house|You can stay with me|My house is warm and dry]," said {fn}. "[I '
            'saw that you were in trouble|Neighbours must help each other]." [Soon|A little later] {n} sat by '
            "{fn}'s fire with [a cup of hot milk|a bowl of soup|a warm blanket]."
        )
        how = fact(
            say,
            "Who helped {n} in the storm?|Who knocked in the night of the storm?",
            "{fn} the {fk} helped {n} in the storm.",
        )
        end = "{n} was unsure about the strange new neighbour, until {fn} the {fk} helped {him} in a storm."
    last = say(
        '"[Why do you do things in your own way?|May I ask you something? Why are you so different?]" asked {n}. '
        '{fn} laughed. "[Where I come from, everyone does it|At home, we all do it|My whole family is like that]," '
        'said {fn}. "[To me, you are the strange one|I think you are funny too]!" Then {n} laughed too. {fn} '
        "taught {him} {taught}, and they {learn} [together|again and again|until it was late]. {n} felt {feel}. "
        "[Soon all the others came to learn it too.|{fn} was still different, and {n} liked {fhim} just like "
        'that.|"How dull it would be if we were all the same," said {n}.]'
    )
    return Story(
        topic=say(
            "[a {k} and a new neighbour|a new neighbour who is different|a {k} who has a strange new neighbour]"
        ).lower(),
        text="\n\n".join([start + " " + first, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            how,
            feel_fact(say),
            fact(
                say,
                "Who moved in next door?|Who was the new neighbour?",
                "{fn} the {fk} moved in next door.|The new neighbour was {fn} the {fk}.",
            ),
            fact(
                say,
                "How was {fn} different?|What was strange about {fn}?|What did {fn} do that was different?",
                "{fn} {odd}.",
            ),
            fact(say, "What did {fn} teach {n}?|What did {n} learn from {fn}?", "{fn} taught {n} {taught}."),
        ],
    )


@plot
@fitting
def a_promise_kept(rng: random.Random) -> Story:
    facts, s, say = setup(rng)
    s["job"], s["jobs"], s["result"] = rng.choice(
        [
            ("water {fn}'s flowers", "watered the flowers", "all the flowers were open"),
            ("feed {fn}'s fish", "fed the fish", "the fish was round and happy"),
            ("water {fn}'s little tree", "watered the little tree", "the little tree had new leaves"),
            ("look after {fn}'s garden", "looked after the garden", "the garden was green and full of beans"),
        ]
    )
    s["ask"] = s["job"].replace("{fn}'s", "my")
    s["trip"] = rng.choice(["grandmother", "aunt by the sea", "brother in the hills", "cousins"])
    s["days"] = rng.choice(["three days", "five days", "a week"])
    start = begin(
        rng,
        s,
        "[A promise is a small word, but it can be hard to keep.|Have you ever made a promise?] {n}, a {adj} {k} who "
        "lived {inplace}, [made one to a good friend|once made one].",
    )
    first = say(
        '[One day|One morning|One summer day], {his} friend {fn} the {fk} came to say goodbye. "I am going to see '
        'my {trip} for {days}," said {fn}. "[Will you|Can you please] {ask} every evening[, {n}|]?" "[I '
        'promise|Yes, I promise|You have my promise]," said {n}. [And {fn} went away.|{fn} was glad and went '
        "away.|{fn} waved, and off {fhe} went.]"
    )
    branch = rng.choice(["fun", "forgot", "flood"])
    if branch == "fun":
        s["fun"] = rng.choice(["a fair with music", "a dance in the barn", "a game by the lake", "a puppet show"])
        middle = say(
            '[The next day|Two days later|One evening] there was {fun}, and everyone went. "[Come with us|Come '
            'along], {n}!" the others called. {n} wanted to go [very much|so much]. "[First I must keep my '
            'promise|I made a promise]," {he} said. ["Nobody will know," said the others. "I will know," said '
            '{n}.|"You can do it tomorrow," said the others. "I said every evening," said {n}.] [{He} went to '
            "{fn}'s house alone|Alone {he} went to {fn}'s house] and {jobs}. Then {he} ran to the others, and "
            "there was still time for some fun."
        )
        how = fact(say, "Where did the others go?", "The others went to {fun}.")
        end = "Everyone went to {fun}, but first {n} the {k} kept {his} promise to {fn}."
    elif branch == "forgot":
        middle = say(
            "[The next day|Two days later], {n} played {game} [all day|from morning till night] and came home "
            "tired. {He} was already in bed [when {he} sat up|with {his} eyes closed]. \"Oh no! {fn}'s house! [I "
            'forgot my promise|I have not been there today]!" {he} cried. [It was dark and cold outside.|Outside, '
            "the wind was loud.|It was raining hard.] The bed was so warm. [But a promise is a promise.|But {n} "
            "had given {his} word.] {He} put on {his} [coat|boots], took a lamp, and [walked|ran] through the "
            "night. {He} {jobs} and [came home|went back to bed] with a light heart."
        )
        how = fact(
            say,
            "What did {n} do at night?|Why did {n} get out of bed?",
            "{n} remembered {his} promise and went to {fn}'s house at night.",
        )
        end = "{n} the {k} remembered {his} promise in bed and went out into the night to keep it."
    else:
        s["way"] = rng.choice(["over the hill", "around the lake", "through the woods"])
        middle = say(
            "[That night|The next day] a storm came, and the water took the bridge away. [What now?|How could {n} "
            'get to {fn}\'s house?] "[Stay at home|Nobody can get across]," said the others. "[But I promised|{fn} '
            'trusts me]," said {n}. So {he} went the long way, {way}. [It took two hours.|{His} feet hurt.|It was '
            "long and muddy.] At last {he} came to {fn}'s house and {jobs}. {He} went that way every day."
        )
        how = fact(
            say,
            "Which way did {n} go?|How did {n} get to {fn}'s house without the bridge?",
            "{n} went the long way, {way}.",
        )
        end = "When a storm took the bridge away, {n} the {k} went the long way {way} to keep {his} promise."
    last = say(
        'After {days}, {fn} came home and found that {result}. "[You kept your promise|You did it every day|I knew '
        'that I could trust you]!" said {fn}. [{n} told {fhim} everything.|"It was not easy," said {n}.|"Of '
        'course," said {n}.] {fn} had brought {him} [a shiny shell|a bag of sweets|a little red box|a funny hat]. '
        '{n} felt {feel}. ["Next time you go away, I will look after your house," said {fn}.|"And now I promise '
        'you something too," said {fn}. "I will be your friend forever."|That evening, they sat together until the '
        "stars came out.]"
    )
    return Story(
        topic=say("[a {k} who keeps a promise|a promise that is kept|a {k} who makes a promise to a {fk}]").lower(),
        text="\n\n".join([start + " " + first, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            friend_fact(say),
            how,
            feel_fact(say),
            fact(say, "What did {n} promise?|What was the promise?", "{n} promised to {job}."),
            fact(
                say,
                "How long was {fn} away?|When did {fn} come home?",
                "{fn} was away for {days}.|{fn} came home after {days}.",
            ),
            fact(say, "Did {n} keep the promise?|Did {n} keep {his} promise?", "Yes, {n} kept {his} promise."),
            fact(
                say, "What did {fn} find at home?|What did {fn} see when {fhe} came home?", "{fn} found that {result}."
            ),
        ],
    )


@plot
@fitting
def the_shy_one(rng: random.Random) -> Story:
    facts, s, say = setup(rng, "shy")
    s["hide"] = rng.choice(["behind a tree", "behind a bush", "behind the fence", "behind a big stone"])
    start = begin(
        rng,
        s,
        "[Some are loud, and some are quiet.|Not everyone likes to talk.] {n}, a shy {k} who lived {inplace}, [was "
        "very quiet|was as quiet as the snow|almost never spoke].",
    )
    first = say(
        "When the others played {game}, {n} hid {hide} and watched. [{He} wanted to play too, but|{He} wished to "
        'join in, but] {his} [face grew hot|voice got lost|knees shook] when {he} tried to speak. "[What if they '
        'laugh at me?|What if they do not like me?|What if I say the wrong thing?]" {he} thought.'
    )
    branch = rng.choice(["lost", "shy", "talent"])
    if branch == "lost":
        s["toy"] = rng.choice(["ball", "hat", "kite", "ring"])
        middle = say(
            "One day, [something came down right next to {n}|something fell at {n}'s feet]. It was a {colour} "
            "{toy}! A {fk} named {fn} came to look for it. {fn} looked [here and there|in the grass and in the "
            'trees], but could not find it. [{n}\'s heart beat fast.|{n} took a deep breath.] "Is this yours?" '
            '{he} said in a very small voice. "[Thank you!|You found it!|Oh, well done!]" said {fn}. "[I have seen '
            'you here before|I did not know that you were here]. [Come and play with us|Please come and join us]!"'
        )
        how = fact(
            say,
            "What did {n} find?|What was {fn} looking for?",
            "{n} found {fn}'s {colour} {toy}.|{fn} was looking for a {colour} {toy}.",
        )
        end = "Shy {n} gave a {colour} {toy} back to {fn} the {fk}, and that is how {he} found a friend."
    elif branch == "shy":
        middle = say(
            "One day, someone was there already, {hide}. It was a {fk}, as shy as {n}. [They looked at each other "
            "and then at their feet.|Both of them looked at the ground.] [For a long time, nobody spoke.|It was "
            "quiet for a long time.] Then the {fk} [drew a little sun in the sand|put a small flower on the "
            'ground]. {n} [drew a moon next to it|put a leaf next to it]. The {fk} smiled. "I am {fn}," {fhe} '
            'whispered. "I am {n}," {he} whispered back. "[Shall we go and play together|Shall we ask the others '
            'together|Will you come with me to the others]?" asked {fn}.'
        )
        how = fact(
            say,
            "Where did {n} and {fn} meet?|How did {n} and {fn} meet?",
            "{n} and {fn} met {hide}, and they whispered their names.",
        )
        end = "{n} the shy {k} met {fn}, a {fk} who was just as shy, and together they were brave."
    else:
        s["art"], s["arts"] = rng.choice(
            [("sing", "sang a little song"), ("whistle", "whistled a tune"), ("draw", "drew a bird in the sand")]
        )
        middle = say(
            "But {n} could {art} very well. One day, {he} thought that {he} was alone and {arts}. A {fk} named "
            '{fn} [came up the path|was passing by] and stopped. "[That is beautiful!|How wonderful!|Oh, how '
            'lovely!]" said {fn}. {n} jumped and [wanted to run away|hid {his} face]. "[Please don\'t go.|Please '
            'stay.] [Will you show me how to do it|Can you teach me that]?" asked {fn}. {n} [looked up|nodded '
            'slowly]. {He} showed {fhim} how, and soon {he} forgot to be shy. "[The others must see this|Let us '
            'show the others]!" said {fn}.'
        )
        how = fact(say, "What could {n} do very well?|What did {n} teach {fn}?", "{n} could {art} very well.")
        end = "{n} was a shy {k} who could {art} very well, and {fn} the {fk} helped {him} to show it."
    last = say(
        "{n} [held on to {fn}|stayed close to {fn}], and they went to the others. [Nobody laughed.|Nobody said a "
        'bad word.] "[Hello, {n}|Come and join us|We are glad that you came]!" they called. They all played {game} '
        "until [the sun went down|supper time|it was dark]. {n} [even laughed out loud|laughed with the rest]. "
        '"Will [I see you|you come] tomorrow?" asked {fn}. "Yes," said {n}. {He} felt {feel}. [{He} was still a '
        "little shy, but now {he} had a friend.|{He} still liked to be quiet, and {fn} liked {him} that way.|That "
        "night, {he} could not wait for the morning.]"
    )
    return Story(
        topic=say("[a shy {k} who makes a friend|a {k} who is very shy|a shy {k} and a {fk}]").lower(),
        text="\n\n".join([start + " " + first, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            friend_fact(say),
            how,
            feel_fact(say),
            fact(say, "Where did {n} hide?|Where was {n} when the others played?", "{n} hid {hide}."),
            fact(say, "Why did {n} not play with the others?|Why did {n} hide?", "{n} was shy."),
            fact(say, "What did they all play?|What game did they play?", "They played {game}."),
        ],
    )


@plot
@fitting
def a_gift_made_by_hand(rng: random.Random) -> Story:
    facts, s, say = setup(rng)
    s["gift"], s["short"], s["stuff"], s["use"] = rng.choice(
        [
            ("a {colour} scarf", "scarf", "wool", "{fn} put it on at once and did not take it off all day"),
            ("a little wooden boat", "boat", "wood", "{fn} put it on the water, and it sailed like a real ship"),
            ("a necklace of shells", "necklace", "shells and string", "{fn} put it on and danced around the room"),
            ("a {colour} kite", "kite", "cloth and sticks", "{fn} ran outside, and it flew up to the clouds"),
            ("a small bird house", "bird house", "wood", "{fn} hung it in a tree, and soon a bird moved in"),
        ]
    )
    s["shop"] = rng.choice(["a big drum", "a silver bell", "a box of sweets", "a fine new hat"])
    start = begin(
        rng,
        s,
        "[The best presents do not come from a shop.|What do you give to a good friend?|It is nice to give a "
        "present.] {n}, a {adj} {k} who lived {inplace}, [thought about presents all day|had a lot to think about].",
    )
    first = say(
        "{His} friend {fn} the {fk} [had a birthday soon|would soon have a birthday], and {n} needed a present. In "
        'the shop, {he} saw {shop}. But {n} had no money[, not even one coin|]. ["What can I do?" {he} said.|{He} '
        "thought hard.|{He} walked home sadly.] Then {he} had an idea. {He} [found|looked for] some {stuff} and "
        "[began to make|started to make] {gift}."
    )
    branch = rng.choice(["fail", "proud", "rain"])
    if branch == "fail":
        middle = say(
            "It was not easy. The first {short} [fell to pieces|came out all wrong|looked like an old potato]. "
            '["Oh dear," said {n}.|{n} wanted to cry.] The second was [a little|not much] better. "[I will not '
            'give up|One more time|{fn} is worth it]," said {n}. {He} worked [until late at night|three evenings '
            "long|by the light of a lamp], and the third {short} was [just right|good and strong|as fine as can "
            "be]. [{He} tied a ribbon around it|{He} put it in a box with a ribbon] and took it to {fn}."
        )
        how = fact(say, "Which {short} was the good one?", "The third {short} was the good one.")
        end = "{n} the {k} had no money for a present, so {he} tried three times to make {gift} for {fn}."
    elif branch == "proud":
        middle = say(
            "{He} worked [all week|every evening] until it was done. On the birthday, {n} went to {fn}'s party. "
            "All the others had brought [big boxes with gold ribbons|big presents from the shop]. {n}'s present "
            'looked so small. {He} hid it behind {his} back. "[What do you have there|What is behind your back], '
            '{n}?" asked {fn}. "[Oh, nothing much|It is only a little thing]," {n} said. "I made it myself." '
            "[Slowly {he} held it out.|{He} gave it to {fn}.]"
        )
        how = fact(say, "Where did {n} hide the present?", "{n} hid it behind {his} back.")
        end = "{n}'s handmade present for {fn} looked small next to the others, but {fn} loved it most of all."
    else:
        middle = say(
            "{He} worked [all week|every evening] until it was done. But on the way to {fn}'s house, {n} slipped "
            "and [fell in the mud|fell into a puddle]. The {short} was wet and dirty! [{n} sat down and cried.|A "
            'tear ran down {n}\'s face.] "[Now it is spoiled|Now I have nothing to give]," {he} said. {fn} [heard '
            '{him} and came running|saw {him} from the window and ran out]. "[Don\'t cry|It is all right], {n}," '
            'said {fn}. "[We can wash it|A little water will help]." Together they washed it, and soon it [was as '
            "good as new|looked fine again]."
        )
        how = fact(
            say,
            "What happened on the way to {fn}'s house?|Why was the {short} dirty?",
            "{n} slipped and fell, and the {short} was wet and dirty.",
        )
        end = "{n} made {gift} for {fn}, fell with it on the way, and the two friends cleaned it together."
    last = say(
        '"[Did you really make this?|You made this for me?|You made it all by yourself?]" said {fn}. "[Nobody has '
        'ever made something for me|It is the best present of all|I love it more than {shop}]!" Then {use}. [{n} '
        'smiled.|"I am glad that you like it," said {n}.|"Happy birthday!" said {n}.] {He} felt {feel}. [After '
        'that, they ate cake until they were full.|And {fn} kept the {short} for many, many years.|"Will you teach '
        'me how to make one?" asked {fn}. And of course {n} did.]'
    )
    return Story(
        topic=say("[a {k} who makes a present for a friend|a present made by hand|a {k} who makes {gift}]").lower(),
        text="\n\n".join([start + " " + first, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            friend_fact(say),
            how,
            feel_fact(say),
            fact(
                say,
                "What did {n} make?|What was the present?|What did {n} give to {fn}?",
                "{n} made {gift}.|{n} made {gift} for {fn}.",
            ),
            fact(say, "Why did {n} not buy a present?|Why did {n} make the present?", "{n} had no money."),
            fact(
                say,
                "What did {n} use to make it?|What was the {short} made of?",
                "{n} made it of {stuff}.|It was made of {stuff}.",
            ),
            fact(say, "What did {n} see in the shop?", "{n} saw {shop} in the shop."),
        ],
    )


@plot
@fitting
def sorry_for_taking(rng: random.Random) -> Story:
    facts, s, say = setup(rng)
    s["thing"] = rng.choice(
        [
            "{colour} whistle",
            "{colour} marble",
            "silver bell",
            "silver flute",
            "little {colour} car",
            "little wooden horse",
        ]
    )
    s["place2"] = rng.choice(["on the table", "on a chair", "by the window", "on the shelf"])
    s["hidden"] = rng.choice(["under {his} pillow", "under a stone", "in an old shoe", "in a box under {his} bed"])
    start = begin(
        rng,
        s,
        "[This is a story about a small thing and a heavy heart.|Sometimes we want a thing too much.] {n}, a {adj} "
        "{k} who lived {inplace}, [wanted something that belonged to a friend|once did something that {he} was sorry "
        "for].",
    )
    first = say(
        "[One day|One afternoon], {n} was at the house of {his} friend {fn} the {fk}. There, {place2}, lay {fn}'s "
        "{thing}. [How beautiful it was!|{n} could not stop looking at it.|{n} wanted it so much.] When {fn} [went "
        "out of the room|was in the kitchen], {n} took it and ran home. {He} hid it {hidden}."
    )
    branch = rng.choice(["alone", "search", "kind"])
    if branch == "alone":
        middle = say(
            "But it was [strange|not fun at all]. {n} could not show the {thing} to anyone. That night, {he} [lay "
            "awake|dreamed of {fn}'s sad face|turned from side to side]. \"[It is not mine|I wish I had never "
            "taken it|It does not make me happy],\" {he} thought. In the morning, {n} took it back to {fn}'s "
            'house. "[I took this|I took your {thing}]," {he} said and held it out. "[It was wrong.|I should have '
            'asked.] I am very sorry."'
        )
        how = fact(say, "When did {n} take it back?|Did {n} give it back?", "{n} took it back in the morning.")
        end = "{n} the {k} took {fn}'s {thing}, could not be happy with it, and brought it back."
    elif branch == "search":
        middle = say(
            "The next day, {fn} came to {n}'s door. \"[My {thing} is gone|I have lost my {thing}]! Please help me "
            '[find it|look for it]!" {fhe} said. So they looked [under the bed and behind the door|in the grass '
            'and under the leaves] together. "[You are such a good friend to help me|I am so glad that you help '
            'me]," said {fn}. [{n} felt bad all over.|{n}\'s heart grew heavy as a stone.] "Stop, {fn}," {he} '
            'said. "It is not lost. I took it. I am very sorry." And {he} [ran to get it|brought it out].'
        )
        how = fact(
            say, "Who looked for the {thing}?|What did {n} and {fn} look for?", "{n} and {fn} looked for the {thing}."
        )
        end = "{n} the {k} had to help {fn} look for the {thing} that {he} had taken, and {he} told the truth."
    else:
        s["kind_gift"] = rng.choice(["half of {fhis} cake", "a warm scarf", "the biggest apple", "a bag of nuts"])
        middle = say(
            "The next day, {fn} came to see {n}. [Did {fn} know?|Was {fn} angry?] But {fn} only smiled and gave "
            '{him} {kind_gift}. "[I brought you this, because you are my best friend|This is for you, because I '
            'like you]," said {fn}. {n} [could not look at {fhim}|looked at the floor]. {He} went to get the '
            '{thing} and put it in front of {fn}. "I took this from you," {he} [said softly|whispered]. "[Please '
            'forgive me|I am very sorry]."'
        )
        how = fact(say, "What did {fn} give to {n}?", "{fn} gave {n} {kind_gift}.")
        end = "{n} the {k} took {fn}'s {thing}, but {fn} was so kind that {n} gave it back and said sorry."
    last = say(
        '{fn} [was quiet|said nothing] for a while. "[I am sad that you took it|That was not nice]," {fhe} said, '
        '"but [it was brave to tell me|I am glad that you told me]. [You are still my friend|I forgive you]. [If '
        'you want to play with it, just ask|Next time, you only have to ask]." {n} nodded. [Then they took turns '
        "with it all afternoon.|Then they played {game} together.|Then {fn} took {him} by the arm, and they went "
        "out to play.] [{n} felt {feel}.|That night, {n} felt {feel}.|At last {n} felt {feel} again.]"
    )
    return Story(
        topic=say("[a {k} who takes something and is sorry|a {k} who takes a {thing}|a {k} who says sorry]").lower(),
        text="\n\n".join([start + " " + first, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            friend_fact(say),
            how,
            feel_fact(say),
            fact(say, "What did {n} take?|What belonged to {fn}?", "{n} took {fn}'s {thing}."),
            fact(say, "Where did {n} hide it?|Where was the {thing} hidden?", "{n} hid it {hidden}."),
            fact(say, "Where was the {thing} at first?|Where did the {thing} lie?", "It lay {place2} at {fn}'s house."),
            fact(
                say,
                "What did {n} learn?|What is the lesson of the story?",
                "{n} learned to ask first and not to take what belongs to others.",
            ),
        ],
    )


@plot
@fitting
def a_sick_friend(rng: random.Random) -> Story:
    facts, s, say = setup(rng)
    s["ill"], s["illness"] = rng.choice(
        [
            ("{fhe} had a bad cold", "a bad cold"),
            ("{fhe} had a sore throat", "a sore throat"),
            ("{fhe} had a fever", "a fever"),
            ("{fhis} tummy hurt", "a tummy ache"),
        ]
    )
    s["spot"] = rng.choice(["at the bridge", "by the old tree", "at the garden gate", "by the well"])
    start = begin(
        rng,
        s,
        "[A good friend is a fine thing.|Every day is better with a friend.] {n}, a {adj} {k} who lived {inplace}, "
        "[had one|knew this well].",
    )
    first = say(
        "Every morning, {n} met {his} friend {fn} the {fk} {spot}. But [one day|one morning|one cold day] {fn} did "
        'not come. {n} waited [and waited|a long time]. ["Has {fn} forgotten me?" {he} asked.|"This is not like '
        '{fn}," {he} said.|"Where is {fn}?" said {n}.] {He} went to {fn}\'s house and heard that {fn} was sick in '
        "bed. {Ill}."
    )
    branch = rng.choice(["soup", "window", "many"])
    if branch == "soup":
        s["food"] = rng.choice(["hot soup", "tea with honey", "warm milk with honey"])
        middle = say(
            '"[Poor {fn}!|Oh, poor you!] [I will make you something good|I will be right back]," said {n}. {He} '
            "ran home and made some {food}. {He} carried the pot very carefully, [so that not one drop was "
            'lost|step by step]. {fn} [drank it all|drank it slowly]. "[That is so good|That feels warm inside]," '
            "{fhe} said. Then {n} sat by the bed and told {fhim} [a funny story|a story about a dragon who could "
            "not roar|a story about a king with no shoes]. {fn} laughed [for the first time that day|until the bed "
            "shook]. [Soon {fhe} fell asleep.|Then {fhe} closed {fhis} eyes and slept.]"
        )
        how = fact(say, "What did {n} make for {fn}?|What did {fn} drink?", "{n} made some {food}.|{fn} drank {food}.")
        end = "When {fn} the {fk} was sick with {illness}, {n} brought {food} and told a story."
    elif branch == "window":
        s["show"], s["shows"] = rng.choice(
            [
                ("put on a puppet show", "made two puppets of old socks"),
                ("did a funny dance", "put on a silly hat"),
                ("sang a happy song", "took {his} little drum"),
            ]
        )
        middle = say(
            '"You must not come in, [or you will be sick too|because you could get sick too]," said {fn}\'s '
            "mother. {n} was sad. [How could {he} help {his} friend?|But {he} did not give up.] Then {he} looked "
            "at {fn}'s window and had an idea. {n} {shows} and stood [outside, in front of the window|under the "
            "window]. There {he} {show}. [{fn} sat up in bed.|{fn} looked out in surprise.] {Fhe} [laughed and "
            'clapped|smiled from ear to ear]. "[Again, again|Please do it again]!" {fhe} called. {n} did it [every '
            "day|the next day too, and the next]."
        )
        how = fact(say, "What did {n} do at the window?|What did {fn} see outside the window?", "{n} {show}.")
        end = "{n} could not go in to {his} sick friend {fn}, so {he} {show} at the window."
    else:
        s["mine"] = rng.choice(["a picture of the sun", "a little bell", "a soft pillow"])
        middle = say(
            '{n} [thought and thought|sat down to think]. "[A sick friend needs something nice|{fn} must be so '
            'lonely]," {he} said. So {he} went [from house to house|to all their friends] with a basket. "[Do you '
            'have something for {fn}?|{fn} is sick. What can you give?]" {he} asked. One gave [an apple|a pear], '
            "one gave [a flower|a book], and one gave [a jar of honey|a funny letter]. {n} put in {mine}. Then "
            "{he} [took|carried] the basket to {fn}. [{fn}'s eyes grew big.|{fn} could not believe it.] \"[All "
            'this for me|Is this from all our friends]?" {fhe} asked. "[I feel better already|Now I must get '
            'well]."'
        )
        how = fact(say, "What did {n} put in the basket?|What was {n}'s own present for {fn}?", "{n} put in {mine}.")
        end = "{n} the {k} filled a basket with presents from all the friends for {fn}, who was sick."
    s["days"] = rng.choice(["two", "three", "four", "five"])
    ending = rng.choice(["turn", "spot", "plain"])
    last = say("After {days} days, {fn} was well again[.|, and {fhe} jumped out of bed.] ") + " "
    if ending == "turn":
        last += say(
            "But the next week, {n} was sick! [Who knocked at the door?|Then someone knocked.] It was {fn}, with "
            '[a pot of soup|a big red apple|flowers]. "[Now it is my turn|You came to me, and now I come to you]," '
            "said {fn}. {n} felt {feel}[.|, and soon {he} was well too.]"
        )
    elif ending == "spot":
        last += say(
            'In the morning, {n} stood {spot}, and [there came {fn}|who came running? It was {fn}]! "[I missed '
            'you|I am so glad that you are back]," said {n}. "[Your visit made me well|You were my best '
            'medicine]," said {fn}. {n} felt {feel}. [And they ran off to play {game}.|They played {game} all day '
            "long.]"
        )
    else:
        last += say(
            '"[Thank you for coming|You did not forget me], {n}," {fhe} said. "[That was better than any '
            'medicine|You made the long days short]." ["That is what friends are for," said {n}.|"I am just happy '
            'that you are well," said {n}.] {He} felt {feel}. [That afternoon, they went outside and played '
            "{game}.|Then they sat in the warm sun together.]"
        )
    return Story(
        topic=say(
            "[a {k} who visits a sick friend|a {fk} who is sick and a kind {k}|a {k} whose friend is sick]"
        ).lower(),
        text="\n\n".join([start + " " + first, middle, last]),
        summary=say(end),
        facts=[
            *facts,
            friend_fact(say),
            how,
            feel_fact(say),
            fact(say, "Why did {fn} not come?|Why was {fn} in bed?", "{fn} was sick.|{fn} was sick in bed."),
            fact(say, "What was wrong with {fn}?|What kind of illness did {fn} have?", "{fn} had {illness}."),
            fact(
                say,
                "Where did {n} meet {fn} every morning?|Where did {n} wait for {fn}?",
                "{n} met {fn} {spot}.|{n} waited {spot}.",
            ),
            fact(say, "When was {fn} well again?|How long was {fn} sick?", "{fn} was well again after {days} days."),
        ],
    )
