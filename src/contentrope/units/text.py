"""Text units over tokens: a character automaton compiled into one state map per token, scanned in parallel.

vocab: number of token ids. states: states of the automaton.
"""

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Int16
from torch import Tensor

from contentrope.errors import InputError
from contentrope.units.automata import Automaton, automaton_of
from contentrope.units.rules import fingerprint

_MOST_STATES = 512
_TOKENS_AT_ONCE = 4096  # compiling: bounds the temporaries
_BLOCK_COLUMNS = 256  # scanning: longer blocks cost more steps of doubling
_BLOCK_ELEMENTS = 2**20  # scanning: bounds batch x columns x states


class TextRule:
    """Ends of lines, sentences, paragraphs, records or documents, in the text that the tokens spell.

    `vocabulary[id]` is the text of a token; see `vocabulary_of`. A token ends its unit if the automaton fires
    on any of its characters; characters after that one count for the next unit. The rules: `automata.py`.

    >>> rule = TextRule("sentence", ["Mr", ".", " Fox", " ran"])
    >>> ids = torch.tensor([[0, 1, 2, 3, 1]])
    >>> ends, _ = rule.scan(ids, torch.ones_like(ids, dtype=torch.bool), rule.initial(1, "cpu"))
    >>> ends.int().tolist()
    [[0, 0, 0, 0, 1]]
    """

    def __init__(self, kind: str, vocabulary: Sequence[str], *, marker: str | None = None) -> None:
        automaton = automaton_of(kind, marker)
        _check_vocabulary(vocabulary)
        self.kind = kind
        self.marker = marker
        self.next_state, self.ends = compile_tokens(automaton, vocabulary)
        self._on_device: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def describe(self) -> dict[str, Any]:
        """The vocabulary by its size, and by what its texts do: another one of that size may cut other units."""
        return {
            "kind": self.kind,
            "marker": self.marker,
            "vocabulary": len(self.ends),
            "fingerprint": self._fingerprint,
        }

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.next_state, self.ends)

    def __repr__(self) -> str:
        return f"TextRule({self.kind!r}, {len(self.ends)} tokens, marker={self.marker!r})"

    def initial(self, batch_size: int, device: torch.device | str) -> Int[Tensor, "batch 1"]:
        return torch.zeros(batch_size, 1, dtype=torch.int64, device=device)

    def scan(
        self, ids: Int[Tensor, "batch seq"], valid: Bool[Tensor, "batch seq"], state: Int[Tensor, "batch 1"]
    ) -> tuple[Bool[Tensor, "batch seq"], Int[Tensor, "batch 1"]]:
        self._check_known(ids, valid)
        next_state, token_ends = self._tables(ids.device)
        ids = ids.masked_fill(~valid, 0)  # padding may hold any id
        columns = _BLOCK_ELEMENTS // max(1, ids.shape[0] * token_ends.shape[1])
        columns = min(max(columns, 1), _BLOCK_COLUMNS)
        ends = [valid[:, :0]]
        for block, block_valid in zip(ids.split(columns, 1), valid.split(columns, 1), strict=True):
            if block.shape[1]:
                before, state = scan_states(next_state[block].long(), block_valid, state)
                ends.append(token_ends[block, before] & block_valid)
        return torch.cat(ends, 1), state

    def _tables(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._on_device:
            self._on_device[device] = (self.next_state.to(device), self.ends.to(device))
        return self._on_device[device]

    def _check_known(self, ids: Tensor, valid: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        unknown = valid & ((ids < 0) | (ids >= len(self.ends)))
        if unknown.any():
            raise InputError(
                f"id {ids[unknown][0].item()} is outside the vocabulary of {len(self.ends)} tokens: "
                "give TextRule the whole vocabulary, added tokens included"
            )


def scan_states(
    maps: Int[Tensor, "batch seq states"], valid: Bool[Tensor, "batch seq"], state: Int[Tensor, "batch 1"]
) -> tuple[Int[Tensor, "batch seq"], Int[Tensor, "batch 1"]]:
    """The state before each token, and after the last, composing the maps in log2(seq) doublings."""
    identity = torch.arange(maps.shape[2], device=maps.device)
    maps = torch.where(valid[..., None], maps, identity)
    reach = 1  # maps[t] is the map of the last `reach` tokens up to t
    while reach < maps.shape[1]:
        later_after_earlier = maps[:, reach:].gather(2, maps[:, :-reach])
        maps = torch.cat([maps[:, :reach], later_after_earlier], 1)
        reach *= 2
    after = maps.gather(2, state[:, None].expand(-1, maps.shape[1], 1)).squeeze(2)
    return torch.cat([state, after[:, :-1]], 1), after[:, -1:]


def compile_tokens(
    automaton: Automaton, vocabulary: Sequence[str]
) -> tuple[Int16[Tensor, "vocab states"], Bool[Tensor, "vocab states"]]:
    """For each token and state: the state after the token's text, and whether the automaton fires in it."""
    text = "".join(vocabulary).encode("utf-32-le", "surrogatepass")
    alphabet, codes = np.unique(np.frombuffer(text, dtype="<u4"), return_inverse=True)
    next_by_character, fires_by_character = _compile_characters(automaton, [chr(c) for c in alphabet])
    lengths = np.array([len(token) for token in vocabulary])
    first = np.cumsum(lengths) - lengths
    states = next_by_character.shape[1]
    next_state = np.tile(np.arange(states, dtype=np.int16), (len(vocabulary), 1))
    ends = np.zeros((len(vocabulary), states), dtype=bool)
    longest_first = np.argsort(-lengths, kind="stable")
    for at in range(0, len(vocabulary), _TOKENS_AT_ONCE):
        tokens = longest_first[at : at + _TOKENS_AT_ONCE]
        for position in range(lengths[tokens[0]]):
            tokens = tokens[lengths[tokens] > position]
            character = codes[first[tokens] + position, None]
            before = next_state[tokens]
            ends[tokens] |= fires_by_character[character, before]
            next_state[tokens] = next_by_character[character, before]
    return torch.from_numpy(next_state), torch.from_numpy(ends)


def _compile_characters(automaton: Automaton, alphabet: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The same tables for single characters, over the states that can be reached."""
    number = {automaton.initial: 0}
    reached = [automaton.initial]
    next_rows, fires_rows = [], []
    for state in reached:  # grows while we walk it
        steps = [automaton.step(state, character) for character in alphabet]
        for new, _ in steps:
            if new not in number:
                number[new] = len(reached)
                reached.append(new)
        if len(reached) > _MOST_STATES:
            raise InputError(f"the rule has more than {_MOST_STATES} states: use a shorter marker")
        next_rows.append([number[new] for new, _ in steps])
        fires_rows.append([fires for _, fires in steps])
    return np.array(next_rows, dtype=np.int16).T, np.array(fires_rows, dtype=bool).T


def vocabulary_of(tokenizer: Any) -> list[str]:
    """The text of every token id of a tokenizer with `decode([id])` and `len()`, e.g. a Hugging Face one.

    A token that is only part of a character's bytes decodes to a replacement character, which ends no unit.

    >>> class Letters:
    ...     def __len__(self): return 3
    ...     def decode(self, ids): return "".join("ab\\n"[i] for i in ids)
    >>> vocabulary_of(Letters())
    ['a', 'b', '\\n']
    """
    accepted = inspect.signature(tokenizer.decode).parameters
    any_option = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    wanted = ("skip_special_tokens", "clean_up_tokenization_spaces")
    options = {name: False for name in wanted if any_option or name in accepted}
    texts = [tokenizer.decode([i], **options) for i in range(len(tokenizer))]
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        return texts
    # SentencePiece decoders drop the space of a sequence's first token; here every token is a first one.
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(texts))))
    return [
        f" {text}" if isinstance(piece, str) and piece.startswith("▁") and not text.startswith(" ") else text
        for piece, text in zip(pieces, texts, strict=True)
    ]


def _check_vocabulary(vocabulary: Sequence[str]) -> None:
    if not len(vocabulary):
        raise InputError("the vocabulary is empty: pass the decoded text of every token id")
    for i, text in enumerate(vocabulary):
        if not isinstance(text, str):
            raise InputError(f"vocabulary[{i}] is {text!r}: pass the decoded text of every token id as str")
