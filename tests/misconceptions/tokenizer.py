"""Chapter 07's classic wrong answers, as people write them."""

import re
from collections import defaultdict


def _table(words):
    counts = defaultdict(int)
    for pieces, count in words:
        for i in range(len(pieces) - 1):
            counts[pieces[i], pieces[i + 1]] += count
    return counts


def _largest(counts):
    best, most = None, 0
    for thing, count in counts.items():
        if count > most:
            best, most = thing, count
    return best


def pair_unweighed(words):
    counts = {}
    for pieces, _ in words:
        for a, b in zip(pieces, pieces[1:]):
            counts[a, b] = counts.get((a, b), 0) + 1
    return _largest(counts)


def pair_across(words):
    everything = []
    for pieces, count in words:
        everything += pieces * count
    counts = {}
    for i in range(len(everything) - 1):
        pair = everything[i], everything[i + 1]
        counts[pair] = counts.get(pair, 0) + 1
    return _largest(counts)


def pair_row(words):
    row = [(piece, count) for pieces, count in words for piece in pieces]
    counts = {}
    for (a, count), (b, _) in zip(row, row[1:]):
        counts[a, b] = counts.get((a, b), 0) + count
    return _largest(counts)


def pair_sorted(words):
    return sorted(_table(words).items(), key=lambda item: (-item[1], item[0]))[0][0]


def pair_max_of_both(words):
    return max((count, pair) for pair, count in _table(words).items())[1]


def pair_joined(words):
    a, b = _largest(_table(words))
    return a + b


def pair_count(words):
    return sorted(_table(words).values())[-1]


def pair_and_count(words):
    counts = _table(words)
    pair = _largest(counts)
    return [(pair, counts[pair])]


def pair_beside_count(words):
    counts = _table(words)
    best = _largest(counts)
    return best, counts[best]


def pair_last(words):
    best, most = None, 0
    for pair, count in _table(words).items():
        if count >= most:
            best, most = pair, count
    return best


def pair_letters(words):
    counts = {}
    for pieces, count in words:
        word = "".join(pieces)
        for i in range(1, len(word)):
            counts[word[i - 1], word[i]] = counts.get((word[i - 1], word[i]), 0) + count
    return _largest(counts)


def pair_piece(words):
    counts = {}
    for pieces, count in words:
        for piece in pieces:
            counts[piece] = counts.get(piece, 0) + count
    return _largest(counts)


def pair_steps(words):
    counts = {}
    for pieces, count in words:
        for i in range(0, len(pieces) - 1, 2):
            counts[pieces[i], pieces[i + 1]] = counts.get((pieces[i], pieces[i + 1]), 0) + count
    return _largest(counts)


def pair_presence(words):
    counts = {}
    for pieces, count in words:
        seen = []
        for pair in zip(pieces, pieces[1:]):
            if pair not in seen:
                seen.append(pair)
                counts[pair] = counts.get(pair, 0) + count
    return _largest(counts)


def pair_unordered(words):
    counts = {}
    for pieces, count in words:
        for a, b in zip(pieces, pieces[1:]):
            key = (a, b) if a <= b else (b, a)
            counts[key] = counts.get(key, 0) + count
    return _largest(counts)


def pair_rarest(words):
    best, least = None, float("inf")
    for pair, count in _table(words).items():
        if count < least:
            best, least = pair, count
    return best


def pair_loops(words):
    return _largest(_table(words))


def merge_twice_used(pieces, pair):
    places = [i for i in range(len(pieces) - 1) if (pieces[i], pieces[i + 1]) == pair]
    covered = set(places) | {i + 1 for i in places}
    return [
        pieces[i] + pieces[i + 1] if i in places else pieces[i]
        for i in range(len(pieces))
        if i in places or i not in covered
    ]


def merge_first(pieces, pair):
    for i in range(len(pieces) - 1):
        if pieces[i] == pair[0] and pieces[i + 1] == pair[1]:
            return pieces[:i] + [pair[0] + pair[1]] + pieces[i + 2 :]
    return list(pieces)


def merge_in_text(pieces, pair):
    a, b = pair
    return re.sub(re.escape(f"{a} {b}"), a + b, " ".join(pieces)).split(" ")


def merge_short_loop(pieces, pair):
    out = []
    skip = False
    for i in range(len(pieces) - 1):
        if skip:
            skip = False
        elif pieces[i] == pair[0] and pieces[i + 1] == pair[1]:
            out.append(pieces[i] + pieces[i + 1])
            skip = True
        else:
            out.append(pieces[i])
    return out


def merge_no_skip(pieces, pair):
    out = []
    for i, piece in enumerate(pieces):
        following = pieces[i + 1] if i + 1 < len(pieces) else None
        out.append(piece + following if (piece, following) == pair else piece)
    return out


def merge_set(pieces, pair):
    out = []
    i = 0
    while i < len(pieces):
        if i + 1 < len(pieces) and {pieces[i], pieces[i + 1]} == set(pair):
            out.append(pieces[i] + pieces[i + 1])
            i += 1
        else:
            out.append(pieces[i])
        i += 1
    return out


def merge_backwards(pieces, pair):
    out = []
    i = len(pieces) - 1
    while i >= 0:
        if i > 0 and (pieces[i - 1], pieces[i]) == pair:
            out.insert(0, pieces[i - 1] + pieces[i])
            i -= 2
        else:
            out.insert(0, pieces[i])
            i -= 1
    return out


def merge_tuples(pieces, pair):
    out = []
    i = 0
    while i < len(pieces):
        if tuple(pieces[i : i + 2]) == pair:
            out.append(pair)
            i += 2
        else:
            out.append(pieces[i])
            i += 1
    return out


def merge_nothing(pieces, pair):
    out = []
    for piece in pieces:
        out.append(piece)
    return out


def merge_text(pieces, pair):
    return " ".join(merge_stack(pieces, pair))


def merge_joined_only(pieces, pair):
    out = []
    i = 0
    while i + 1 < len(pieces):
        if pieces[i] == pair[0] and pieces[i + 1] == pair[1]:
            out.append(pair[0] + pair[1])
            i += 1
        i += 1
    return out


def merge_stack(pieces, pair):
    out, whole = [], []
    for piece in pieces:
        if out and not whole[-1] and (out[-1], piece) == pair:
            out[-1] += piece
            whole[-1] = True
        else:
            out.append(piece)
            whole.append(False)
    return out


def bpe_leftmost(pieces, ranks):
    pieces = pieces[:]
    i = 0
    while i < len(pieces) - 1:
        if pieces[i] + pieces[i + 1] in ranks:
            pieces[i] += pieces.pop(i + 1)
            i = 0
        else:
            i += 1
    return pieces


def bpe_munch(pieces, ranks):
    word = "".join(pieces)
    out = []
    start = 0
    while start < len(word):
        end = len(word)
        while end > start + 1 and word[start:end] not in ranks:
            end -= 1
        out.append(word[start:end])
        start = end
    return out


def _bpe_by(pieces, ranks, better):
    pieces = pieces[:]
    while True:
        best = None
        for i in range(len(pieces) - 1):
            both = pieces[i] + pieces[i + 1]
            if both in ranks and (best is None or better(both, pieces[best] + pieces[best + 1])):
                best = i
        if best is None:
            return pieces
        pieces = pieces[:best] + [pieces[best] + pieces[best + 1]] + pieces[best + 2 :]


def bpe_longest(pieces, ranks):
    return _bpe_by(pieces, ranks, lambda new, old: len(new) > len(old))


def bpe_latest(pieces, ranks):
    return _bpe_by(pieces, ranks, lambda new, old: ranks[new] > ranks[old])


def bpe_single(pieces, ranks):
    found = {i: ranks[a + b] for i, (a, b) in enumerate(zip(pieces, pieces[1:])) if a + b in ranks}
    if found:
        i = min(found, key=found.get)
        return pieces[:i] + [pieces[i] + pieces[i + 1]] + pieces[i + 2 :]
    return pieces[:]


def bpe_sweep(pieces, ranks):
    pairs = sorted({(ranks[a + b], a, b) for a, b in zip(pieces, pieces[1:]) if a + b in ranks})
    for _, a, b in pairs:
        pieces = merge_stack(pieces, (a, b))
    return pieces


def bpe_short_loop(pieces, ranks):
    if len(pieces) < 2:
        return pieces[:]
    return [*_bpe_short(pieces[:-1], pieces[-1], ranks)]


def _bpe_short(front, last, ranks):
    pieces = [*front, last]
    while True:
        options = [
            (ranks[pieces[i] + pieces[i + 1]], i) for i in range(len(pieces) - 2) if pieces[i] + pieces[i + 1] in ranks
        ]
        if not options:
            return pieces
        i = sorted(options)[0][1]
        pieces[i] = pieces[i] + pieces.pop(i + 1)


def bpe_rightmost(pieces, ranks):
    pieces = pieces[:]
    while True:
        place = {ranks[a + b]: i for i, (a, b) in enumerate(zip(pieces, pieces[1:])) if a + b in ranks}
        if not place:
            return pieces
        i = place[min(place)]
        pieces[i] += pieces.pop(i + 1)


def bpe_numbers(pieces, ranks):
    return [ranks[p] if p in ranks else None for p in bpe_in_order(pieces, ranks)]


def bpe_untouched(pieces, ranks):
    return list(pieces)


def bpe_in_order(pieces, ranks):
    return _bpe_by(pieces, ranks, lambda new, old: ranks[new] < ranks[old])


def _size(first):
    return 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2


def _split(data):
    """Whole characters, and what is left at the end."""
    at = 0
    while at < len(data):
        if data[at] < 0xC0:
            at += 1
            continue
        end = at + 1
        while end < len(data) and end < at + _size(data[at]) and 0x80 <= data[end] < 0xC0:
            end += 1
        if end == len(data) and end < at + _size(data[at]) and data[at] < 0xF8:
            return data[:at], data[at:]
        at = end
    return data, b""


def wait_to_come(data):
    rest = _split(data)[1]
    return _size(rest[0]) - len(rest) if rest else 0


def wait_last(data):
    if not data or data[-1] < 0x80:
        return 0
    n = 1
    while n <= len(data):
        if data[-n] >= 0xC0:
            return n
        n += 1
    return 0


def wait_continuing(data):
    n = 0
    while n < len(data) and data[-1 - n] & 0xC0 == 0x80:
        n += 1
    return n


def wait_high(data):
    return len(data) - len(data.rstrip(bytes(range(128, 256))))


def wait_broken(data):
    return sum(1 for character in data.decode("utf-8", errors="surrogateescape") if "\udc80" <= character <= "\udcff")


def wait_one(data):
    return 1 if data[-1:] >= b"\xc0" else 0


def wait_bool(data):
    return len(_split(data)[1]) != 0


def wait_raw(data):
    return _split(data)[1]


def wait_shown(data):
    return len(_split(data)[0])


def wait_right(data):
    return len(_split(data)[1])


B, E = "[INST]", "[/INST]"


def _parts(dialog):
    system = dialog[0]["content"] if dialog[0]["role"] == "system" else None
    rest = dialog[1:] if system is not None else dialog
    return system, [m["content"] for m in rest]


def turns_system_apart(dialog):
    out = []
    for message in dialog:
        text = message["content"]
        if message["role"] == "system":
            out.append("[INST] <<SYS>>\n" + text + "\n<</SYS>>\n\n [/INST]")
        elif message["role"] == "user":
            out.append(B + " " + text.strip() + " " + E)
        else:
            out[-1] = out[-1] + " " + text.strip() + " "
    return out


def _said(dialog, first="", rest="", strip=str.strip):
    """Turns with `first` before the first question, `rest` before the others."""
    out = []
    for i, text in enumerate(_parts(dialog)[1]):
        if i % 2:
            out[-1] += " " + strip(text) + " "
        else:
            out.append(B + " " + strip((first if i == 0 else rest) + text) + " " + E)
    return out


def _sys(dialog):
    system = _parts(dialog)[0]
    return "" if system is None else "<<SYS>>\n" + system + "\n<</SYS>>\n\n"


def turns_system_before(dialog):
    out = _said(dialog)
    out[0] = _sys(dialog) + out[0]
    return out


def turns_system_always(dialog):
    return _said(dialog, _sys(dialog), _sys(dialog))


def turns_no_system(dialog):
    return _said([m for m in dialog if m["role"] != "system"])


def turns_no_breaks(dialog):
    return _said(dialog, _sys(dialog).replace("<<SYS>>\n", "<<SYS>>").replace("\n<</SYS>>\n\n", "<</SYS>>"))


def turns_one_break(dialog):
    return _said(dialog, _sys(dialog)[:-1] if _sys(dialog) else "")


def turns_unstripped(dialog):
    return _said(dialog, _sys(dialog), strip=lambda text: text)


def turns_system_stripped(dialog):
    system = _parts(dialog)[0]
    return _said(dialog, "" if system is None else f"<<SYS>>\n{system.strip()}\n<</SYS>>\n\n")


def turns_early_strip(dialog):
    out = _said(dialog)
    if _sys(dialog):
        out[0] = out[0].replace("[INST] ", "[INST] " + _sys(dialog), 1)
    return out


def turns_tight(dialog):
    return [turn.replace("[INST] ", "[INST]").replace(" [/INST]", "[/INST]") for turn in turns_right(dialog)]


def turns_answer_open(dialog):
    return [turn.removesuffix(" ") for turn in turns_right(dialog)]


def turns_answer_tight(dialog):
    return [turn.replace("[/INST] ", "[/INST]") for turn in turns_right(dialog)]


def turns_text(dialog):
    text = ""
    for turn in turns_right(dialog):
        text += turn
    return text


def turns_zip(dialog):
    _, texts = _parts(dialog)
    texts[0] = _sys(dialog) + texts[0]
    return [f"[INST] {q.strip()} [/INST] {a.strip()} " for q, a in zip(texts[::2], texts[1::2])]


def turns_open_space(dialog):
    turns = turns_right(dialog)
    turns[-1] = turns[-1] + " "
    return turns


def turns_controls(dialog):
    turns = ["<s>" + turn + "</s>" for turn in turns_right(dialog)]
    turns[-1] = turns[-1][:-4]
    return turns


def turns_right(dialog):
    return _said(dialog, _sys(dialog))


def tags_in_the_keys(dialog):
    return any(tag in message for message in dialog for tag in ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"))


def tags_split(dialog):
    for message in dialog:
        for word in message["content"].split():
            if word in ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"):
                return True
    return False


def tags_start(dialog):
    return any(re.match(r"\[/?INST\]|<</?SYS>>", m["content"]) is not None for m in dialog)


def tags_end(dialog):
    return any(re.search(r"(\[/?INST\]|<</?SYS>>)\Z", m["content"]) is not None for m in dialog)


def tags_one(dialog):
    for tag in ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"):
        for message in dialog:
            if tag in message["content"]:
                return True
        return False


def tags_overwritten(dialog):
    found = False
    for message in dialog:
        for tag in ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"):
            found = tag in message["content"]
    return found


def tags_every(dialog):
    holding = [m for m in dialog if re.search(r"\[/?INST\]|<</?SYS>>", m["content"])]
    return len(holding) == len(dialog)


def tags_else(dialog):
    for message in dialog:
        for tag in ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"):
            if tag in message["content"]:
                return True
            else:
                return False


def tags_first_message(dialog):
    for message in dialog:
        for tag in ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"):
            if tag in message["content"]:
                return True
        return False


def tags_but_answers(dialog):
    return tags_right([m for m in dialog if m["role"] in ("system", "user")])


def tags_but_system(dialog):
    return tags_right([m for m in dialog if m["role"] in ("user", "assistant")])


def tags_users(dialog):
    for message in dialog:
        if message["role"] == "user" and re.search(r"\[/?INST\]|<</?SYS>>", message["content"]):
            return True
    return False


def tags_last(dialog):
    content = dialog[-1]["content"]
    return "[INST]" in content or "[/INST]" in content or "<<SYS>>" in content or "<</SYS>>" in content


def tags_opening(dialog):
    return bool([m for m in dialog if "[INST]" in m["content"] or "<<SYS>>" in m["content"]])


def tags_inst(dialog):
    return bool([m for m in dialog if re.search(r"\[/?INST\]", m["content"])])


def tags_whole(dialog):
    return bool({"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"} & {m["content"] for m in dialog})


def tags_any_case(dialog):
    return any(re.search(r"\[/?INST\]|<</?SYS>>", m["content"], re.IGNORECASE) is not None for m in dialog)


def tags_controls(dialog):
    return any(re.search(r"\[/?INST\]|<</?SYS>>|</?s>", m["content"]) is not None for m in dialog)


def tags_words(dialog):
    return any("INST" in m["content"] or "SYS" in m["content"] for m in dialog)


def tags_safe(dialog):
    return all(re.search(r"\[/?INST\]|<</?SYS>>", m["content"]) is None for m in dialog)


def tags_all(dialog):
    text = " ".join(m["content"] for m in dialog)
    return "[INST]" in text and "[/INST]" in text and "<<SYS>>" in text and "<</SYS>>" in text


def tags_which(dialog):
    for tag in ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"):
        for message in dialog:
            if tag in message["content"]:
                return tag
    return None


def tags_right(dialog):
    for message in dialog:
        for tag in ("<</SYS>>", "<<SYS>>", "[/INST]", "[INST]"):
            if message["content"].find(tag) >= 0:
                return True
    return False


WRONG = {
    "most_common_pair": {
        "counts each word once": pair_unweighed,
        "across words": pair_across,
        "words in one row": pair_row,
        "joined": pair_joined,
        "the count": pair_count,
        "with its count": (pair_and_count, pair_beside_count),
        "the last of equals": pair_last,
        "equals by the alphabet": pair_sorted,
        "equals by the alphabet, backwards": pair_max_of_both,
        "letters": pair_letters,
        "pieces": pair_piece,
        "every second": pair_steps,
        "once in a word": pair_presence,
        "in any order": pair_unordered,
        "the rarest": pair_rarest,
    },
    "merge_pair": {
        "overlapping": merge_twice_used,
        "first only": merge_first,
        "inside a piece": merge_in_text,
        "the last lost": merge_short_loop,
        "keeps the second": merge_no_skip,
        "either order": merge_set,
        "from the right": merge_backwards,
        "not joined": (merge_tuples, merge_nothing),
        "one text": merge_text,
        "only the joined": merge_joined_only,
    },
    "bpe": {
        "left to right": bpe_leftmost,
        "longest match": bpe_munch,
        "longest join": bpe_longest,
        "latest first": bpe_latest,
        "one merge": bpe_single,
        "one sweep": bpe_sweep,
        "the last pair": bpe_short_loop,
        "the rightmost of equals": bpe_rightmost,
        "ranks": bpe_numbers,
        "nothing joined": bpe_untouched,
    },
    "bytes_that_wait": {
        "still to come": wait_to_come,
        "the last character": wait_last,
        "continuations only": wait_continuing,
        "all high bytes": wait_high,
        "broken ones too": wait_broken,
        "only the last byte": wait_one,
        "yes or no": wait_bool,
        "the bytes": wait_raw,
        "what can be shown": wait_shown,
    },
    "chat_turns": {
        "system as a turn": turns_system_apart,
        "system before the tag": turns_system_before,
        "system in every turn": turns_system_always,
        "no system": turns_no_system,
        "no line breaks": turns_no_breaks,
        "one line break": turns_one_break,
        "not stripped": turns_unstripped,
        "system stripped": turns_system_stripped,
        "stripped too early": turns_early_strip,
        "no spaces": turns_tight,
        "no space behind the answer": turns_answer_open,
        "no space before the answer": turns_answer_tight,
        "one text": turns_text,
        "no open question": turns_zip,
        "a space behind the open question": turns_open_space,
        "control pieces written out": turns_controls,
    },
    "holds_tags": {
        "always False": tags_in_the_keys,
        "a word by itself": tags_split,
        "only at the beginning": tags_start,
        "only at the end": tags_end,
        "one tag only": tags_one,
        "overwritten": tags_overwritten,
        "every message": tags_every,
        "the first tag only": tags_else,
        "the first message only": tags_first_message,
        "answers trusted": tags_but_answers,
        "the system message trusted": tags_but_system,
        "users only": tags_users,
        "the last message only": tags_last,
        "opening tags only": tags_opening,
        "one kind of tags": tags_inst,
        "the whole message": tags_whole,
        "small letters too": tags_any_case,
        "control pieces": tags_controls,
        "the words alone": tags_words,
        "the other way round": tags_safe,
        "all of them": tags_all,
        "which tag": tags_which,
    },
}

RIGHT = {
    "most_common_pair": [pair_loops],
    "merge_pair": [merge_stack],
    "bpe": [bpe_in_order],
    "bytes_that_wait": [wait_right],
    "chat_turns": [turns_right],
    "holds_tags": [tags_right],
}
