"""Grammars over the scripted model's byte vocabulary, and random answers drawn from them."""

import json
import random
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from turing_engine.grammar.compiler import Compiler
from turing_engine.grammar.matcher import Matcher
from turing_engine.grammar.vocabulary import Vocabulary
from turing_engine.plan.grammar import Verdict
from turing_engine.plan.sequence import Sequence
from turing_engine.run.masks import allowed, make_words
from turing_engine.run.scripted import EOS, VOCAB_SIZE, scripted_files
from turing_protocol.sampling import Constraint, Sampling

PROMPT = [72, 105]


class Drawn(msgspec.Struct):
    """A whole answer, how it ended, and what happened on the way."""

    ids: list[int]
    verdict: Verdict | None
    """The last one; ``None`` when the tokens ran out."""
    retries: int
    warnings: tuple[str, ...]

    @property
    def text(self) -> str:
        """The answer."""
        return bytes(self.ids).decode()

    @property
    def ended(self) -> bool:
        """Whether the grammar ended the answer."""
        return self.verdict in (Verdict.DONE, Verdict.END)


@cache
def compiler() -> Compiler:
    """Return one compiler for all tests."""
    files = scripted_files()
    return Compiler(Vocabulary(files["tokenizer.json"].decode(), VOCAB_SIZE, (EOS,)))


def schema_of(schema: Any, *, strict: bool = True) -> Constraint:
    return Constraint("json_schema", json.dumps(schema), strict)


def sequence(sampling: Sampling, output: Iterable[int] = ()) -> Sequence:
    """Return a sequence of the scripted model that has generated ``output``."""
    ends = () if sampling.ignore_eos else (EOS,)
    return Sequence(
        owner=(b"g", 1),
        tokens=[*PROMPT, *output],
        prompt_len=len(PROMPT),
        sampling=sampling,
        stop_ids=frozenset((*sampling.stop_ids, *ends)),
        limit=len(PROMPT) + sampling.max_tokens,
        root=b"",
    )


def matcher(constraint: Constraint, sampling: Sampling, output: Iterable[int] = ()) -> Matcher:
    """Return the matcher of a sequence that has generated ``output``."""
    return compiler().matcher(constraint, sequence(sampling, output))


def legal(matcher: Matcher, left: int) -> list[int]:
    """Return the ids that may come next."""
    words = make_words(1, VOCAB_SIZE)[0]
    matcher.mask(words.data, left)
    ids: list[int] = allowed(words, VOCAB_SIZE).nonzero()[0].tolist()
    return ids


def draw(
    constraint: Constraint, sampling: Sampling, seed: int, output: Iterable[int] = ()
) -> Drawn:
    """Generate with a model that takes any legal id, each draw depending on its position only."""
    ids = list(output)
    follower = matcher(constraint, sampling, ids)
    drawn = Drawn(ids, None, 0, ())
    while len(ids) < sampling.max_tokens:
        left = sampling.max_tokens - len(ids)
        choices = legal(follower, left)
        assert choices
        token = choices[random.Random(seed * 1000 + len(ids)).randrange(len(choices))]
        verdict = follower.accept(token, left - 1)
        if verdict is Verdict.RETRY:
            drawn.retries += 1
            continue
        assert verdict is not Verdict.BROKEN, follower.error
        if verdict is not Verdict.END:
            ids.append(token)
        if verdict is not Verdict.GO:
            drawn.verdict = verdict
            break
    drawn.warnings = follower.warnings
    return drawn


def schemas(depth: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """Return random schemas whose answers are bounded."""
    text = st.builds(
        lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
        st.integers(0, 3),
        st.integers(0, 8),
    )
    number = st.builds(
        lambda least, more: {"type": "integer", "minimum": least, "maximum": least + more},
        st.integers(-50, 50),
        st.integers(0, 200),
    )
    words = st.lists(st.text(max_size=6), min_size=1, max_size=4, unique=True)
    leaf = st.one_of(
        text,
        number,
        words.map(lambda values: {"enum": values}),
        st.sampled_from(
            [
                {"type": "boolean"},
                {"type": "null"},
                {"const": 'a "b" \\ é'},
                {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
                {"type": ["string", "null"], "maxLength": 4},
            ]
        ),
    )
    return st.recursive(leaf, _nested, max_leaves=2 * depth)


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.text("abcxyz_é ", min_size=1, max_size=5)
    objects = st.builds(
        lambda properties, keep: {
            "type": "object",
            "properties": properties,
            "required": [name for at, name in enumerate(properties) if keep >> at & 1],
            "additionalProperties": False,
        },
        st.dictionaries(names, inner, min_size=1, max_size=4),
        st.integers(0, 15),
    )
    arrays = st.builds(
        lambda items, least, more: {
            "type": "array",
            "items": items,
            "minItems": least,
            "maxItems": least + more,
        },
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    either = st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options})
    return st.one_of(objects, arrays, either)
