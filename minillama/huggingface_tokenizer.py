"""A SentencePiece tokenizer written for transformers: `tokenizer.json` and `tokenizer_config.json`.

The latter has the chat template as well, of Llama 2's chat models: what `chat.encode_dialog` makes, in Jinja.

transformers reads `tokenizer.model` too, but only where protobuf is installed. In a tokenizer.json a BPE is its pieces
and its merges, the best first. A SentencePiece model keeps no merges: two pieces beside each other may be joined
whenever the two together are a piece, and the one with the best score goes first. So that is the list of merges.

The class is named PreTrainedTokenizerFast, which does what the file says. LlamaTokenizer of transformers 5 puts its own
rules in the file's place, and loses a space at the beginning of a text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minillama.chat import B_INST, B_SYS, E_INST, E_SYS, SPECIAL_TAGS
from minillama.tokenizer import Tokenizer

SPACE = "\u2581"  # what SentencePiece writes for a space
PROBE = "  Two  words, \ufb01\u212b\t\n "  # with things that normalizations would change: spaces, a ligature, a sign

# BOS, EOS and <unk> are words of the text here, so no message may hold them; in `encode_dialog` they are ids.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
    {%- for tag in TAGS + [bos_token, eos_token, unk_token] -%}
        {%- if tag in message['content'] -%}
            {{- raise_exception('special tags are not allowed as part of the prompt') -}}
        {%- endif -%}
    {%- endfor -%}
{%- endfor -%}
{%- set has_system = messages[0]['role'] == 'system' -%}
{%- set opening = B_SYS + messages[0]['content'] + E_SYS if has_system else '' -%}
{%- if messages | length == 1 and has_system -%}
    {{- raise_exception('a user message comes after the system message') -}}
{%- endif -%}
{%- for message in (messages[1:] if has_system else messages) -%}
    {%- set asked = loop.index0 % 2 == 0 -%}
    {%- if message['role'] != ('user' if asked else 'assistant') -%}
        {{- raise_exception('an optional system message comes first, then user and assistant in turn') -}}
    {%- elif asked -%}
        {%- set text = (opening if loop.first else '') + message['content'] -%}
        {{- bos_token + B_INST + ' ' + text.strip() + ' ' + E_INST -}}
    {%- else -%}
        {{- ' ' + message['content'].strip() + ' ' + eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""


def write_tokenizer(folder: Path, tokenizer: Tokenizer, max_seq_len: int) -> str | None:
    """Write both files. Returns why not, in words, where transformers would not split text as `tokenizer` does."""
    unk = tokenizer.sp_model.unk_id()
    if reason := not_writable(tokenizer):
        return reason
    spelled = {name: tokenizer.sp_model.id_to_piece(i) for name, i in special_ids(tokenizer).items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", **{f"{name}_token": piece for name, piece in spelled.items()},
        "clean_up_tokenization_spaces": False, "model_max_length": max_seq_len, "chat_template": chat_template(),
    }  # fmt: skip
    for name, said in (("tokenizer.json", as_json(tokenizer, unk)), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps(said, ensure_ascii=False, indent=2), encoding="utf-8")
    return None


def chat_template() -> str:
    """The template, with the tags of `chat` put before it: Jinja writes texts as Python does."""
    tags = dict(B_INST=B_INST, E_INST=E_INST, B_SYS=B_SYS, E_SYS=E_SYS, TAGS=SPECIAL_TAGS)
    return "".join(f"{{%- set {name} = {tag!r} -%}}\n" for name, tag in tags.items()) + CHAT_TEMPLATE


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "unk": tokenizer.sp_model.unk_id()}


def not_writable(tokenizer: Tokenizer) -> str | None:
    """What this SentencePiece model does that the files could not say; None: nothing."""
    model = tokenizer.sp_model
    if model.unk_id() < 0 or not any(model.is_byte(i) for i in range(tokenizer.n_words)):
        return "it has no byte pieces, or no <unk>"
    if not all(model.get_score(i).is_integer() for i in _ordinary(tokenizer)):
        return "it is no BPE model: the scores of its pieces are no order of merges"
    if model.normalize(PROBE) != SPACE + PROBE.replace(" ", SPACE):
        return "it changes the text before it splits it"
    return None


def as_json(tokenizer: Tokenizer, unk: int) -> dict[str, Any]:
    """The content of tokenizer.json."""
    pieces = [tokenizer.sp_model.id_to_piece(i) for i in range(tokenizer.n_words)]
    bos = pieces[tokenizer.bos_id]
    special = sorted(set(special_ids(tokenizer).values()))
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": pieces[i], **flags} for i in special],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {bos: {"id": bos, "ids": [tokenizer.bos_id], "tokens": [bos]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE", "unk_token": pieces[unk], "fuse_unk": True, "byte_fallback": True,
            "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges(tokenizer),
        },
    }  # fmt: skip


def merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Every pair of pieces that together are a piece; the best piece first, and of its pairs the best first."""
    ordinary = _ordinary(tokenizer)
    rank = {tokenizer.sp_model.id_to_piece(i): n for n, i in enumerate(ordinary)}
    found = []
    for piece in rank:
        pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [pair for pair in pairs if pair[0] in rank and pair[1] in rank]
        found += sorted(known, key=lambda pair: (rank[pair[0]], rank[pair[1]]))
    return found


def _ordinary(tokenizer: Tokenizer) -> list[int]:
    """Ids of pieces that are text, neither control nor byte nor <unk>: those with the best score first."""
    model = tokenizer.sp_model
    text = [i for i in range(tokenizer.n_words) if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))]
    return sorted(text, key=lambda i: (-model.get_score(i), i))  # Llama 2's runs of spaces come early, with -10^9
