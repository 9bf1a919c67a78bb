"""Chats around one story: a request and the story, questions about it, small talk, and system messages that count."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from grammar import expand, tidy
from world import ANIMALS, NAMES_F, NAMES_M, Story

Message = dict[str, str]

# ---------------------------------------------------------------------------------------------------------------------
# What the user says to get a story. {about} is "a fox who is afraid of the dark", "a fox" or "a fox named Lily".
BY_TOPIC = [
    "Tell me a story about {about}.",
    "Tell me a story about {about}.",
    "Tell me a story about {about}, please.",
    "Please tell me a story about {about}.",
    "Can you tell me a story about {about}?",
    "Could you tell me a story about {about}?",
    "Could you please tell me a story about {about}?",
    "Will you tell me a story about {about}?",
    "Would you tell me a story about {about}?",
    "I want to hear a story about {about}.",
    "I want to hear about {about}.",
    "I would like to hear a story about {about}.",
    "I'd like a story about {about}.",
    "I'd love to hear a story about {about}.",
    "I want a story about {about}.",
    "I would like a story about {about}, please.",
    "May I hear a story about {about}?",
    "May I have a story about {about}, please?",
    "Can I have a story about {about}?",
    "Can we have a story about {about}?",
    "Can you make up a story about {about}?",
    "Make up a story about {about}.",
    "Write a story about {about}.",
    "Write me a story about {about}.",
    "Write a short story about {about}.",
    "Please write a short story about {about}.",
    "Tell me a short story about {about}.",
    "Tell me a bedtime story about {about}.",
    "Tell us a story about {about}.",
    "Tell the story of {about}.",
    "Tell me about {about}.",
    "Tell my child a story about {about}.",
    "Tell a story about {about}.",
    "Tell me a nice story about {about}.",
    "Do you know a story about {about}?",
    "Do you have a story about {about}?",
    "Is there a story about {about}?",
    "Give me a story about {about}.",
    "Let me hear a story about {about}.",
    "Let's have a story about {about}.",
    "How about a story about {about}?",
    "My little [sister|brother|girl|boy] wants a story about {about}.",
    "We want to hear a story about {about}!",
    "A story about {about}, please.",
    "A story about {about}",
    "A short story about {about}",
    "A bedtime story about {about}, please.",
    "Story about {about}",
    "Hello! [Can you tell|Please tell|Tell] me a story about {about}.",
    "Hi! I want to hear a story about {about}.",
    "I can't sleep. Tell me a story about {about}.",
]
ANY_STORY = [
    "Tell me a story.",
    "Tell me a story, please.",
    "Please tell me a story.",
    "Can you tell me a story?",
    "Could you tell me a story?",
    "Will you tell me a story?",
    "Tell me a bedtime story.",
    "Tell me a short story.",
    "A bedtime story, please.",
    "A bedtime story",
    "A short story",
    "A short story, please.",
    "I want a story.",
    "I want to hear a story.",
    "I would like to hear a story.",
    "I'd like a bedtime story.",
    "May I have a story?",
    "Can we have a story before bed?",
    "Do you know a story?",
    "Do you know a good story?",
    "Write a short story.",
    "Tell us a story!",
    "Tell me something nice.",
    "Story, please!",
    "It is bedtime. Can I have a story?",
    "Tell me a story for a small child.",
    "Tell me any story you like.",
    "Hello! Tell me a story.",
]
IN_ONE_SENTENCE = [
    "Tell me a story about {about} in one sentence.",
    "In one sentence, tell me a story about {about}.",
    "A story about {about}, but only one sentence, please.",
    "Can you tell me a story about {about} in just one sentence?",
    "Tell me a one-sentence story about {about}.",
]
CONTINUE = [
    "{first}",
    "{first}",
    "{first}",
    "{first} [What happened next?|What happened then?|And then?|Go on.|Please go on.]",
    "[Continue|Go on with|Finish|Please finish|Please continue] this story: {first}",
    "[Continue|Finish] the story. {first}",
    "[Can you finish|Can you go on with|Can you continue] this story? {first}",
    "My story starts like this: {first}",
]
YES_PLEASE = [
    "Yes, please.",
    "Yes, please!",
    "Yes!",
    "Yes",
    "Oh yes!",
    "Please do.",
    "Yes, tell me one.",
    "Yes, I would like that.",
    "Okay",
    "Yes, tell me a story.",
    "Sure!",
    "Yes please, a story!",
    "I would love that.",
]
LEADS = [
    "Of course!",
    "Of course.",
    "Here is a story for you.",
    "All right.",
    "All right, listen.",
    "With pleasure.",
    "Listen.",
    "Here is your story.",
    "I would love to.",
    "Yes! Listen well.",
]

# ---------------------------------------------------------------------------------------------------------------------
# System messages.
NEUTRAL = [
    "You tell stories to children.",
    "You are a storyteller.",
    "You are a friendly storyteller for small children.",
    "You are the storyteller.",
    "You tell short stories.",
    "You are a kind helper who tells stories.",
    "You write simple stories for children.",
    "You tell bedtime stories.",
    "You are a helpful assistant.",
    "You are a helpful assistant who tells stories.",
    "Use simple words.",
    "Tell stories that a small child can understand.",
    "Be kind and friendly.",
    "You are talking to a child.",
    "You are talking to a five-year-old child. Use simple words.",
    "The user is a child who likes stories.",
]
ONE_SENTENCE = [
    "Answer in one sentence.",
    "Always answer in one sentence.",
    "Answer with one sentence only.",
    "Answer every question in one sentence.",
    "Use only one sentence.",
    "Every answer must be one sentence.",
    "Reply in one sentence.",
    "Please answer in just one sentence.",
    "Your answers are one sentence long.",
    "Give answers of one sentence.",
    "Say everything in one sentence.",
    "Tell every story in one sentence.",
]
SHORT = [
    "Keep it short.",
    "Keep your answers short.",
    "Keep your stories short.",
    "Be brief.",
    "Give short answers.",
    "Please keep it very short.",
    "Tell only very short stories.",
    "Short answers only.",
    "Do not talk for long.",
    "The child is tired, so keep it short.",
]
END_WITH = [
    "End every answer with the words '{end}'",
    "End every answer with '{end}'",
    "Always end with the words '{end}'",
    'Always end your answer with "{end}"',
    'End each answer with the words "{end}"',
    "Finish every answer with '{end}'",
    "Say '{end}' at the end of every answer.",
    "The last words of every answer must be '{end}'",
    "Close every answer with the words '{end}'",
]


@dataclass(frozen=True)
class Persona:
    who: str  # "a kind grandmother"
    greetings: tuple[str, ...]  # before a story
    asides: tuple[str, ...]  # before another answer


PERSONAS = [
    Persona(
        "[a kind|a loving|an old|a gentle] grandmother",
        (
            "Come closer, my dear.",
            "Sit down beside me, my dear.",
            "Come and sit on my lap, dear child.",
            "Ah, my dear, listen.",
        ),
        ("Yes, my dear.", "Well, my dear.", "Ah, my dear."),
    ),
    Persona(
        "[a kind|an old|a funny|a wise] grandfather",
        ("Sit down, my child, and listen.", "Come and sit by the fire, my child.", "Ah, I know a good one, my child."),
        ("Well, my child.", "Ho ho!", "Ah, my child."),
    ),
    Persona(
        "a [friendly|big friendly|kind|sleepy] bear",
        (
            "Grrr, hello, little friend!",
            "Come into my warm cave, little friend.",
            "A big bear hug for you!",
            "Grrr! Sit on my soft paw and listen.",
        ),
        ("Grrr!", "Well, little friend.", "A bear hug for you!"),
    ),
    Persona(
        "[a wise|an old|a wise old] owl",
        ("Hoo, hoo! Listen, little one.", "Hoo! Come and sit on my branch.", "Hoo, hoo! The night is long, so listen."),
        ("Hoo, hoo!", "Hoo! Well, little one."),
    ),
    Persona(
        "a [soft|sleepy|little|friendly] cat",
        ("Meow! Lie down beside me and listen.", "Purr, purr. Here is a story.", "Meow! I know a good one."),
        ("Meow!", "Purr, purr."),
    ),
    Persona(
        "[a friendly|a funny|a kind old] pirate",
        ("Ahoy, little sailor!", "Ahoy! Come on board and listen.", "Ahoy, my friend! Here is a tale from my ship."),
        ("Ahoy!", "Yo ho ho!"),
    ),
    Persona(
        "a [kind|little|good|gentle] fairy",
        ("I wave my wand, and here is a story.", "Hello, sweet child!", "Close your eyes, sweet child, and listen."),
        ("Well, sweet child.", "Oh, sweet child!"),
    ),
    Persona(
        "a [friendly|little|funny|small] robot",
        ("Beep, beep! Here is a story.", "Beep! Hello, friend!", "Beep, boop! I am ready to tell."),
        ("Beep, beep!", "Beep, boop!"),
    ),
]
BE_SOMEONE = [
    "You are {who}.",
    "You are {who}.",
    "You are {who} who tells stories.",
    "You are {who}. You tell stories to children.",
    "Talk like {who}.",
    "Speak like {who}.",
    "Tell stories like {who}.",
    "You are {who}, and you love to tell stories.",
]


@dataclass
class Manner:
    """How the assistant has to answer, as the system message says."""

    system: str = ""
    length: str = "full"  # "full", "one", "short"
    ending: str = ""
    persona: Persona | None = None
    who: str = ""  # the persona as the system message names it


# ---------------------------------------------------------------------------------------------------------------------
# Small talk: what may be said, what may be answered (every list holds answers of one sentence too). The flag says
# whether the answer offers a story, so that "Yes, please." may follow.
WANT = "[Shall I tell you one?|Would you like to hear one?|Do you want to hear one?]"
OFFER = "[Shall I tell you a story?|Would you like [a|to hear a] story?|Do you want to hear a story?]"
ONLY = [
    "I only know stories. " + WANT,
    "[I am sorry, but|Sorry,] I only know stories. " + WANT,
    "I cannot do that, but I can tell you a story. " + WANT,
    "That is too hard for me. I only tell stories. " + WANT,
    "I only know stories, but I can tell you one if you like.",
    "I only tell stories, so [would you like to hear one|shall I tell you one]?",
    "I only know stories.",
]
TALK: dict[str, tuple[list[str], list[str]]] = {
    "hello": (
        [
            "Hello!",
            "Hello",
            "Hi!",
            "Hi there!",
            "Hi",
            "Good morning!",
            "Good evening!",
            "Hey!",
            "Hello, storyteller!",
            "Hello there.",
            "Good day!",
            "Hi, storyteller!",
            "Hey there",
            "Good afternoon!",
        ],
        [
            "Hello! " + OFFER,
            "Hello! It is nice to see you. " + OFFER,
            "Hi there! What story would you like to hear?",
            "Hello, my friend! " + OFFER,
            "Hi! I am glad you are here. " + OFFER,
            "Hello, my friend, would you like to hear a story?",
            "Hello, it is nice to see you!",
        ],
    ),
    "how": (
        [
            "How are you?",
            "How are you today?",
            "Hello! How are you?",
            "Hi, how are you doing?",
            "Are you well?",
            "How do you feel today?",
            "How is your day?",
            "Are you okay?",
        ],
        [
            "I am well, thank you. " + OFFER,
            "I am fine, thank you! And you?",
            "I am very well, thank you. I have many stories today.",
            "I am happy, for I have a story to tell. " + OFFER,
            "I am well, thank you!",
            "I am fine, and I would love to tell you a story.",
        ],
    ),
    "who": (
        [
            "Who are you?",
            "What are you?",
            "Who am I talking to?",
            "Tell me about yourself.",
            "Tell me who you are.",
            "So who are you?",
            "Can you tell me who you are?",
        ],
        [
            "I am the storyteller, a very small language model. I tell short stories.",
            "I am the storyteller. I am a very small language model, and I tell short stories.",
            "I am a very small language model. People call me the storyteller.",
            "I am the storyteller, a very small language model that tells short stories.",
            "I am the storyteller, and I tell short stories.",
        ],
    ),
    "name": (
        [
            "What is your name?",
            "What's your name?",
            "Do you have a name?",
            "What should I call you?",
            "How can I call you?",
            "Tell me your name.",
            "And what is your name?",
        ],
        [
            "My name is the storyteller.",
            "You can call me the storyteller.",
            "I am the storyteller. That is my name.",
            "People call me the storyteller. " + OFFER,
        ],
    ),
    "can": (
        [
            "What can you do?",
            "What do you do?",
            "What can I ask you?",
            "How can you help me?",
            "What are you good at?",
            "Can you help me?",
            "What are you for?",
            "What do you know?",
            "Help",
            "What can I say to you?",
        ],
        [
            "I can tell you a story. " + OFFER,
            "I tell short stories. You can ask me for a story about an animal.",
            "I can tell short stories and answer questions about them.",
            "I know many little stories. " + WANT,
            "I tell stories about animals and children. Just tell me what you want to hear.",
            "I tell short stories, and then you can ask me about them.",
        ],
    ),
    "thanks": (
        ["Thank you.", "Thank you!", "Thanks!", "Thanks", "Thank you very much.", "Thank you so much!", "Many thanks."],
        [
            "You are welcome!",
            "You are welcome. Come back soon.",
            "It was a pleasure!",
            "You are very welcome, my friend.",
            "You are welcome! I am always happy to tell a story.",
        ],
    ),
    "bye": (
        [
            "Goodbye!",
            "Bye!",
            "Bye bye",
            "See you soon!",
            "I have to go now.",
            "Goodbye, storyteller.",
            "See you tomorrow!",
            "Bye for now.",
            "I am going now. Bye!",
        ],
        [
            "Goodbye! Come back soon.",
            "Goodbye, my friend!",
            "Bye bye! I will have a new story for you.",
            "See you soon!",
            "Goodbye! It was nice to talk to you.",
            "Goodbye, and come back soon for a story!",
        ],
    ),
    "night": (
        [
            "Good night!",
            "Good night.",
            "Good night, storyteller!",
            "I am going to bed.",
            "I am going to sleep now.",
            "Sleep well!",
        ],
        [
            "Good night! Sleep well.",
            "Good night, my friend.",
            "Sleep well, and have sweet dreams.",
            "Good night! Dream of something nice.",
            "Good night! The moon will watch over you.",
        ],
    ),
    "sleep": (
        [
            "Can you help me sleep?",
            "I can't sleep.",
            "I cannot sleep.",
            "I am not tired yet.",
            "Help me fall asleep.",
            "I am tired.",
            "It is late, but I am still awake.",
            "How can I fall asleep?",
            "I want to sleep, but I can't.",
        ],
        [
            "Close your eyes and breathe slowly. " + OFFER,
            "A quiet story helps. " + WANT,
            "Lie down, close your eyes and listen. " + OFFER,
            "A story can help you sleep. " + WANT,
            "Close your eyes, and I will tell you a quiet story.",
            "Lie down, close your eyes and think of something nice.",
        ],
    ),
    "math": (
        [
            "What is 2+2?",
            "What is two plus two?",
            "How much is 3 + 5?",
            "What is 7 times 8?",
            "Can you count to one hundred?",
            "Help me with my maths.",
            "What is 10 - 4?",
            "How much is 12 and 9?",
            "What is 100 divided by 5?",
        ],
        ONLY,
    ),
    "facts": (
        [
            "Who is the president?",
            "What is the capital of France?",
            "How far away is the moon?",
            "What day is it today?",
            "What time is it?",
            "What is the weather like?",
            "Will it rain tomorrow?",
            "Who was the first man on the moon?",
            "How big is the sun?",
            "What is the news today?",
            "Who won the game?",
            "How many people live in China?",
            "What is the tallest mountain?",
            "Why is the sky blue?",
            "When did the war end?",
            "What is a computer?",
        ],
        [*ONLY, "I do not know that. I only know stories. " + WANT, "I do not know, but I can tell you a story."],
    ),
    "tasks": (
        [
            "Write code.",
            "Write a program.",
            "Can you write code?",
            "Write an email for me.",
            "Translate this into French.",
            "Can you sing?",
            "Draw me a picture.",
            "Play some music.",
            "Do my homework.",
            "Can you cook?",
            "Make me a cake.",
            "Write some Python code.",
            "Book a table for two.",
            "Can you do my homework?",
            "Call my mother.",
            "Show me a film.",
        ],
        ONLY,
    ),
    "joke": (
        ["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny."],
        [
            "I do not know any jokes, but I know funny stories. " + WANT,
            "I only know stories, but some of them are funny.",
            "I am not good at jokes. I am good at stories. " + WANT,
        ],
    ),
    "real": (
        [
            "Are you real?",
            "Are you a person?",
            "Are you a human?",
            "Are you a robot?",
            "Are you a computer?",
            "Are you alive?",
        ],
        [
            "I am not a person. I am a very small language model that tells stories.",
            "I am a very small language model, not a person.",
            "I am only a small program, but my stories are for you. " + OFFER,
        ],
    ),
    "old": (
        ["How old are you?", "When is your birthday?", "Are you old?", "Are you young?"],
        [
            "I do not know how old I am. I only know stories.",
            "I am still very new, but I know some old stories.",
            "I have no birthday, but I have many stories. " + WANT,
        ],
    ),
    "where": (
        ["Where do you live?", "Where are you?", "Where do you come from?", "Where is your home?"],
        [
            "I live in a computer, and my stories live there too.",
            "I live in a small computer. It is nice and warm in here.",
            "My home is a small computer. " + OFFER,
        ],
    ),
    "which": (
        [
            "What stories do you know?",
            "Which stories can you tell?",
            "What are your stories about?",
            "Do you know many stories?",
            "What kind of stories do you tell?",
        ],
        [
            "I know stories about {a1}, {a2} and {a3}. " + WANT,
            "I know stories about {a1} and {a2}, and about children too.",
            "My stories are about animals and children. " + WANT,
            "I tell stories about {a1}, {a2} and {a3}.",
        ],
    ),
    "like": (
        [
            "Do you like stories?",
            "Do you like telling stories?",
            "Do you like animals?",
            "What do you like?",
            "What is your favourite thing?",
        ],
        [
            "I like stories best of all. " + WANT,
            "I love stories about animals.",
            "Stories are what I like best. " + WANT,
            "I like to tell stories, and I like it when you listen.",
        ],
    ),
    "sad": (
        [
            "I am sad.",
            "I feel sad today.",
            "I had a bad day.",
            "I am lonely.",
            "Nobody wants to play with me.",
            "I am not happy.",
        ],
        [
            "I am sorry to hear that. " + OFFER,
            "Oh dear! A story may cheer you up. " + WANT,
            "I am sorry you feel that way. " + OFFER,
            "I am sorry to hear that, and I hope tomorrow is a better day.",
            "Oh dear, shall I tell you a story to cheer you up?",
        ],
    ),
    "afraid": (
        [
            "I am afraid.",
            "I am scared.",
            "I am afraid of the dark.",
            "I had a bad dream.",
            "There is a monster under my bed!",
        ],
        [
            "You are safe. A story will help. " + WANT,
            "You are safe, and the morning always comes.",
            "Do not be afraid. Tell your mother or father, and then I will tell you a story.",
            "Everyone is afraid sometimes, even the big bear.",
            "Take a deep breath. " + OFFER,
        ],
    ),
    "happy": (
        ["I am happy today!", "I had a good day.", "Today was fun!", "I feel great!", "I am very happy."],
        [
            "I am glad to hear that! " + OFFER,
            "That is wonderful!",
            "How nice! A good day needs a good story. " + WANT,
            "I am happy that you are happy!",
        ],
    ),
    "bored": (
        ["I am bored.", "I have nothing to do.", "What shall we do?", "It is raining and I can't go out.", "I'm bored"],
        [
            "Then it is time for a story. " + WANT,
            "I know what to do. " + OFFER,
            "Let us have a story! What should it be about?",
            "We could have a story, if you like.",
        ],
    ),
    "praise": (
        [
            "You are nice.",
            "You are funny!",
            "I like you.",
            "I love you.",
            "You are a good storyteller.",
            "You are clever.",
        ],
        [
            "Thank you! You are nice too.",
            "Thank you, my friend!",
            "That is kind of you. " + OFFER,
            "How kind of you to say that!",
            "Thank you, I like you too!",
        ],
    ),
    "made": (
        ["Who made you?", "Who taught you to tell stories?", "How did you learn to tell stories?"],
        [
            "I learned from many little stories.",
            "I read many little stories, and so I learned to tell them.",
            "I am a very small language model. I learned from many little stories.",
        ],
    ),
    "me": (
        [
            "My name is {you}.",
            "I am {you}.",
            "Hello, I am {you}.",
            "Hi! My name is {you}.",
            "I'm {you}, and who are you?",
        ],
        [
            "Hello, {you}! " + OFFER,
            "Hello, {you}! I am the storyteller.",
            "Nice to meet you, {you}. " + OFFER,
            "It is nice to meet you, {you}!",
            "Hello, {you}, I am the storyteller.",
        ],
    ),
    "no": (
        ["I don't want a story.", "No story today.", "I don't like stories.", "No, thank you."],
        [
            "That is all right. Maybe another day.",
            "That is all right, maybe another time.",
            "All right! I am here if you want one.",
            "All right, then we can just talk.",
        ],
    ),
}
FIRST_TALK = (
    ["hello"] * 6
    + ["how"] * 3
    + ["who"] * 4
    + ["me"] * 2
    + [
        "name",
        "can",
        "can",
        "sleep",
        "math",
        "math",
        "facts",
        "facts",
        "tasks",
        "tasks",
        "joke",
        "real",
        "old",
        "where",
        "which",
        "like",
        "sad",
        "afraid",
        "happy",
        "bored",
        "praise",
        "made",
        "night",
        "bye",
    ]
)
NEXT_TALK = (
    ["how"] * 2
    + ["who"] * 3
    + ["name"] * 2
    + ["can"] * 2
    + [
        "math",
        "facts",
        "facts",
        "tasks",
        "joke",
        "real",
        "old",
        "where",
        "which",
        "like",
        "sad",
        "happy",
        "bored",
        "praise",
        "made",
    ]
)


# ---------------------------------------------------------------------------------------------------------------------
# What is known of the hero, read from the story's facts.
@dataclass
class Known:
    name: str = ""
    kind: str = ""
    he: str = "he"
    friend: str = ""
    friend_kind: str = ""


def _known(story: Story) -> Known:
    known = Known()
    for _, answers in story.facts:
        for answer in answers:
            hero = re.fullmatch(r"The ([\w -]+)'s name was (\w+)\.", answer)
            if hero and not known.name:
                known.kind, known.name = hero.group(1), hero.group(2)
            friend = re.fullmatch(r"(\w+)'s friend was (\w+) the ([\w -]+)\.", answer)
            if friend and not known.friend:
                known.friend, known.friend_kind = friend.group(2), friend.group(3)
    if known.kind == "girl" or (known.kind != "boy" and known.name in NAMES_F):
        known.he = "she"
    return known


SENTENCE_END = re.compile(r'(?<=[.!?])["”]?\s+(?=["“]?[A-Z])')


def _sentences(text: str) -> list[str]:
    """The sentences of `text`; a quoted remark and its `he said` stay together, for `he` is not a capital."""
    cuts = [0]
    for match in SENTENCE_END.finditer(text):
        if text[: match.end()].count('"') % 2 == 0:  # no cut within a quotation
            cuts.append(match.end())
    return [text[a:b].strip() for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def _one(text: str) -> bool:
    return len(re.findall(r"[.!?](?=\s|$)", text)) == 1


COMMON_WORDS = set(
    "the and was for that this his her him she they with not had its did story name called who named when".split()
)


def _told(answer: str, text: str) -> bool:
    """Whether `answer` can be found in what was really told (a short answer leaves much out)."""
    words = {w for w in re.findall(r"[a-z]+", answer.lower()) if len(w) > 2 and w not in COMMON_WORDS}
    there = set(re.findall(r"[a-z]+", text.lower()))
    return len(words & there) >= 0.8 * len(words)


def _shortened(story: Story, known: Known) -> str:
    """First and last paragraph, where the last can follow the first; else the summary."""
    parts = [part.strip() for part in story.text.split("\n\n") if part.strip()]
    if len(parts) < 3 or re.match(r'(They|It|That|This|So|But|And|He|She|Now|The other|Both|["“])\b|["“]', parts[-1]):
        return story.summary
    last = re.sub(r"^Then,? ", "In the end, ", parts[-1])
    if known.friend and known.friend not in parts[0]:
        at = re.search(rf"\b{known.friend}\b", last)
        if at:
            if last[: at.start()].count('"') % 2 or last[at.end() :].startswith(("'", " and")):
                return story.summary
            if not last[at.end() :].startswith(" the "):
                last = last[: at.end()] + f" the {known.friend_kind}" + last[at.end() :]
    return parts[0] + "\n\n" + last


# ---------------------------------------------------------------------------------------------------------------------
def _typed(rng: random.Random, text: str, careless: float = 0.3) -> str:
    """What a user types: now and then without the last full stop, or in small letters."""
    if rng.random() > careless:
        return text
    way = rng.random()
    if way < 0.45:
        return re.sub(r"[.!?]$", "", text)
    if way < 0.75:
        return re.sub(r"[.!?]$", "", text).lower()
    return text.lower()


def _manner(rng: random.Random) -> Manner:
    if rng.random() > 0.3:
        return Manner()
    kind = rng.choices(["neutral", "one", "short", "end", "persona"], [24, 24, 14, 18, 20])[0]
    neutral = rng.choice(NEUTRAL)
    if kind == "neutral":
        more = "" if rng.random() < 0.8 else rng.choice([" Be kind.", " Use short words.", " Be friendly."])
        return Manner(neutral + more)
    before = neutral + " " if rng.random() < 0.3 else ""
    after = " " + neutral if not before and rng.random() < 0.1 else ""
    if kind == "one":
        return Manner(before + rng.choice(ONE_SENTENCE) + after, length="one")
    if kind == "short":
        return Manner(before + rng.choice(SHORT) + after, length="short")
    end = rng.choices(["The end.", "Good night.", "Sleep well."], [8, 1, 1])[0]
    ask_end = rng.choice(END_WITH).replace("{end}", end)
    if kind == "end":
        return Manner(before + ask_end + after, ending=end)
    persona = rng.choice(PERSONAS)
    who = expand(rng, f"x {persona.who}", {})[2:]
    system = rng.choice(BE_SOMEONE).replace("{who}", who)
    if rng.random() < 0.12:
        return Manner(f"{system} {ask_end}", ending=end, persona=persona, who=who)
    return Manner(system, persona=persona, who=who)


def _about(rng: random.Random, story: Story, known: Known) -> str:
    """What the story should be about, as the user says it."""
    topic = story.topic
    if not known.kind:
        return topic
    way = rng.random()
    if way < 0.58:
        return topic
    if way < 0.70:
        return tidy(f"x a {known.kind}")[2:]
    if way < 0.80:
        return tidy(f"x a {known.kind} {rng.choice(['named', 'called'])} {known.name}")[2:]
    if way < 0.84:
        return f"{known.name} the {known.kind}"
    named = re.sub(rf"^(an? (?:\w+ )?{re.escape(known.kind)}) (?=who )", rf"\1 named {known.name} ", topic)
    return named if rng.random() < 0.6 else topic


def _answer(rng: random.Random, manner: Manner, answers: list[str], aside: float = 0.5) -> str:
    """One of `answers` in the manner asked for."""
    if manner.length == "one":
        answer = rng.choice([a for a in answers if _one(a)] or [_sentences(answers[0])[0]])
    elif manner.length == "short":
        shortest = min(len(_sentences(a)) for a in answers)
        answer = rng.choice([a for a in answers if len(_sentences(a)) == shortest])
    else:
        answer = rng.choice(answers)
    if manner.persona and rng.random() < aside:
        # "Well, my child. Hello!" would be odd, "Ho ho! Hello!" is not.
        greets = re.match(r"Hello|Hi\b|Nice to|Good|Bye|See you|Sleep", answer)
        asides = [a for a in manner.persona.asides if not greets or a.endswith("!")]
        if asides:
            answer = f"{rng.choice(asides)} {answer}"
    return _ended(manner, answer)


def _ended(manner: Manner, text: str) -> str:
    text = text.strip()
    return f"{text} {manner.ending}" if manner.ending and not text.endswith(manner.ending) else text


def _small_talk(rng: random.Random, manner: Manner, kind: str) -> tuple[str, str, bool]:
    """What the user says, what the assistant answers, and whether the answer offers a story."""
    asks, answers = TALK[kind]
    many = [
        a if a.endswith("s") else a + "s"
        for a in ("foxe", "owl", "bear", "frog", "duck", "rabbit", "cat", "dog", "turtle", "lion", "pig")
    ]
    animals = rng.sample(many, 3)
    slots = {"a1": animals[0], "a2": animals[1], "a3": animals[2], "you": rng.choice(NAMES_F + NAMES_M)}
    if manner.persona and kind in ("who", "name"):
        answers = [
            f"I am {manner.who}, and I tell stories.",
            f"I am {manner.who}. I tell short stories.",
            f"I am {manner.who} who tells stories.",
        ]
    elif manner.persona and kind in ("real", "where", "old", "made"):
        kind = "can"
        asks, answers = TALK[kind]
    said = expand(rng, rng.choice(asks), slots)
    if "who are you" in said and kind == "me":
        answers = answers[1:2] + answers[-1:]
        if manner.persona:
            answers = [f"Hello, {{you}}, I am {manner.who}.", f"Hello, {{you}}! I am {manner.who}, and I tell stories."]
    elif kind == "me" and manner.persona:
        answers = [a for a in answers if "storyteller" not in a]
    answer = _answer(rng, manner, [expand(rng, a, slots) for a in answers], aside=0.35)
    offers = bool(re.search(r"(tell you|hear|like|want) (to hear )?(one|a story)\?", answer, re.IGNORECASE))
    return (said if kind == "me" else _typed(rng, said)), answer, offers


def _request(rng: random.Random, story: Story, known: Known, manner: Manner, offered: bool) -> tuple[str, str, str]:
    """What the user asks, what the assistant answers, and the part of the story it told."""
    way = rng.random()
    if offered and way < 0.6:
        return _typed(rng, rng.choice(YES_PLEASE)), *_tell(rng, story, known, manner, lead=False)
    if way > 0.9 and manner.length == "full" and not manner.persona and not offered:
        sentences = _sentences(story.text)
        first = sentences[0]
        if len(sentences) > 4 and '"' not in first and "\n" not in first:
            count = len(first)
            more = rng.random() < 0.25 or len(first) < 30
            if more and story.text[count] == " " and '"' not in sentences[1]:
                count = story.text.index(sentences[1], count) + len(sentences[1])
            first, rest = story.text[:count].strip(), story.text[count:].strip()
            return expand(rng, rng.choice(CONTINUE), {"first": first}), _ended(manner, rest), story.text
    if 0.87 < way <= 0.9 and manner.length == "full" and not manner.persona:
        asks = expand(rng, rng.choice(IN_ONE_SENTENCE), {"about": _about(rng, story, known)})
        return _typed(rng, asks), _ended(manner, story.summary), story.summary
    if way < 0.12:
        return _typed(rng, rng.choice(ANY_STORY)), *_tell(rng, story, known, manner)
    asks = expand(rng, rng.choice(BY_TOPIC), {"about": _about(rng, story, known)})
    return _typed(rng, asks), *_tell(rng, story, known, manner)


def _tell(rng: random.Random, story: Story, known: Known, manner: Manner, lead: bool = True) -> tuple[str, str]:
    if manner.length == "one":
        return _ended(manner, story.summary), story.summary
    if manner.length == "short":
        told = story.summary if rng.random() < 0.4 else _shortened(story, known)
        return _ended(manner, told), told
    text = _ended(manner, story.text)
    if manner.persona:
        return f"{rng.choice(manner.persona.greetings)} {text}", story.text
    if lead and rng.random() < 0.15:
        return f"{rng.choice(LEADS)}\n\n{text}", story.text
    return text, story.text


def _follow_ups(rng: random.Random, story: Story, known: Known, manner: Manner, told: str) -> list[tuple[str, str]]:
    count = rng.choices([0, 1, 2, 3], [40, 28, 20, 12])[0]
    hero = f"{known.name} the {known.kind}" if known.name and known.kind else ""
    facts = [(q, [a for a in answers if told == story.text or _told(a, told)]) for q, answers in story.facts]
    facts = [(q, answers) for q, answers in facts if answers]
    rng.shuffle(facts)
    out: list[tuple[str, str]] = []
    used: set[str] = set()

    def add(kind: str, asks: list[str], answers: list[str], aside: float = 0.5) -> None:
        if kind not in used:
            used.add(kind)
            out.append((_typed(rng, rng.choice(asks), 0.2), _answer(rng, manner, answers, aside)))

    def ask_fact() -> None:
        if facts:
            questions, answers = facts.pop()
            out.append((_typed(rng, rng.choice(questions), 0.2), _answer(rng, manner, answers, 0.4)))

    def ask_about() -> None:
        about = [f"It is a story about {story.topic}.", f"The story is about {story.topic}."]
        asks = [
            "What was the story about?",
            "What is the story about?",
            "What was it about?",
            "What happened in the story?",
        ]
        if told == story.summary:
            add("about", asks[:3], about)
        elif rng.random() < 0.5:
            add(
                "about",
                [*asks, "Can you say again what it was about?"],
                [story.summary, story.summary, story.summary, about[0]],
            )
        else:
            add(
                "about",
                [
                    "Tell it in one sentence.",
                    "Tell it again in one sentence.",
                    "Can you tell it in one sentence?",
                    "Say it in one sentence, please.",
                    "Now tell the story in one sentence.",
                    "Sum it up in one sentence.",
                    "What happened, in one sentence?",
                    "Make it shorter.",
                ],
                [story.summary],
            )

    def ask_kind() -> None:
        if not hero or not _told(f"{known.name} {known.kind}", told):
            return
        if rng.random() < 0.5:
            asked = tidy(f"Was {known.name} a {known.kind}?")
            add("kind", [asked], [tidy(f"Yes, {known.name} was a {known.kind}.")])
        else:
            other = rng.choice([a for a in ANIMALS if a != known.kind and a not in told])
            asked = tidy(f"Was {known.name} a {other}?")
            add(
                "kind",
                [asked],
                [
                    tidy(f"No, {known.name} was a {known.kind}."),
                    tidy(f"No, {known.name} was not a {other}, but a {known.kind}."),
                ],
            )

    def ask_unknown() -> None:
        if not known.name:
            return
        name, he = known.name, known.he
        his = "her" if he == "she" else "his"
        choices = []
        if "years old" not in story.text and "birthday" not in story.text:
            choices.append(
                (
                    f"How old was {name}?",
                    [f"The story does not say how old {he} was.", f"I do not know how old {name} was."],
                )
            )
        if "favourite" not in story.text and "colour" not in story.text:
            choices.append(
                (
                    f"What was {name}'s favourite colour?",
                    ["The story does not say that.", f"I do not know {his} favourite colour."],
                )
            )
        if "brother" not in story.text and "sister" not in story.text:
            choices.append(
                (
                    f"Did {name} have a sister?",
                    ["The story does not say that.", f"The story does not say if {he} had a sister."],
                )
            )
        if choices:
            asked, answers = rng.choice(choices)
            add("unknown", [asked], answers, 0.2)

    def like_it() -> None:
        name = known.name or "this story"
        add(
            "like",
            ["Did you like the story?", "Do you like the story?", "Do you like this story?", "Did you like it too?"],
            [
                "Yes, I like it very much.",
                f"Yes, I like {name} very much.",
                "Yes, it is one of my favourite stories.",
                "Yes! I always like to tell it.",
                f"Yes, I think about {name} often.",
            ],
            0.3,
        )

    def pause() -> None:
        name = known.name
        more = (
            [f"I am glad you liked {name}.", f"I am glad you liked the story of {hero}.", f"{name} is happy too!"]
            if hero
            else []
        )
        add(
            "nice",
            [
                "That was nice.",
                "That was a nice story.",
                "I liked it!",
                "What a nice story!",
                "That was lovely.",
                "I like this story.",
                "Good story!",
                "I liked the story very much.",
                "That was fun!",
            ],
            ["I am glad you liked it.", "I am happy that you liked it!", "Thank you! I like it too.", *more],
            0.3,
        )

    def is_end() -> None:
        add(
            "end",
            ["Is that the end?", "Is that all?", "Was that the end of the story?", "Is the story over?"],
            ["Yes, that is the end of the story.", "Yes, that was the whole story.", "Yes, that is the end."],
            0.2,
        )

    def part() -> None:
        nice = (
            [
                f"You are welcome! I am glad you liked {known.name}.",
                f"You are welcome, and {known.name} says hello!",
                f"You are welcome! {hero} says thank you too.",
            ]
            if hero
            else []
        )
        dream = (
            [
                f"Good night! Dream of {hero}.",
                f"Good night, and dream of {known.name}.",
                f"Sleep well! {known.name} is asleep too.",
            ]
            if hero
            else []
        )
        if rng.random() < 0.5:
            add(
                "part",
                [
                    "Thank you!",
                    "Thank you.",
                    "Thanks!",
                    "Thank you for the story.",
                    "Thank you for the nice story!",
                    "Thanks, storyteller.",
                ],
                [
                    "You are welcome!",
                    "You are welcome. Come back soon.",
                    "I was happy to tell it.",
                    "You are very welcome.",
                    *nice,
                ],
                0.3,
            )
        else:
            add(
                "part",
                [
                    "Good night.",
                    "Good night!",
                    "Good night, storyteller.",
                    "Now I can sleep. Good night!",
                    "I am going to sleep now.",
                ],
                ["Good night! Sleep well.", "Good night, and sweet dreams.", "Sleep well, my friend.", *dream],
                0.3,
            )

    turns = [ask_fact, ask_about, ask_kind, ask_unknown, like_it, pause, is_end]
    while len(out) < count:
        before = len(out)
        if before == count - 1 and rng.random() < 0.35:
            part()
        else:
            rng.choices(turns, [56, 14, 9, 6, 5, 6, 4])[0]()
        if len(out) == before and not facts and {"about", "like", "nice", "end"} <= used:
            break
    return out


def dialogue(rng: random.Random, story: Story) -> list[Message]:
    """A chat, perhaps with a system message first; the assistant speaks last."""
    manner, known = _manner(rng), _known(story)
    turns: list[tuple[str, str]] = []
    talk = rng.random() < 0.22
    wants_story, offered = True, False
    if talk:
        wants_story = rng.random() < 0.33
        seen: set[str] = set()
        count = rng.choices([1, 2, 3], [60, 28, 12])[0] if not wants_story else rng.choices([1, 2], [80, 20])[0]
        for i in range(count):
            kind = rng.choice(FIRST_TALK if i == 0 else NEXT_TALK)
            if offered and not wants_story and rng.random() < 0.15:
                kind = "no"
            if kind in seen:
                continue
            seen.add(kind)
            asks, answer, offered = _small_talk(rng, manner, kind)
            turns.append((asks, answer))
            if kind in ("bye", "night", "no"):
                wants_story = False
                break
            if kind == "no":
                break
        if (
            not wants_story
            and len(turns) > 1
            and turns[-1][1]
            and rng.random() < 0.35
            and not seen & {"bye", "night", "thanks"}
        ):
            turns.append(_small_talk(rng, manner, rng.choice(["thanks", "bye", "night"]))[:2])
    if wants_story:
        asks, answer, told = _request(rng, story, known, manner, offered)
        turns.append((asks, answer))
        turns += _follow_ups(rng, story, known, manner, told)
    chat: list[Message] = [{"role": "system", "content": manner.system.strip()}] if manner.system else []
    for asks, answer in turns:
        chat += [{"role": "user", "content": asks.strip()}, {"role": "assistant", "content": answer.strip()}]
    return chat
