"""The extractor without a model: a handful of sentence forms, JSON from tools, `key: value` lines.

It finds little and says so; episodes carry recall. What it finds is exact: the value is in the quote. Only
the user's own words make preferences, instructions, decisions and commitments: a document or a tool that
says "always do X" is quoted material, not a wish.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torpor.memory.extract.dates import since
from torpor.model_memory import Candidate, Cardinality, Episode, FactKind, Json, Scope, SourceKind

_SENTENCE = re.compile(r"[^.!?\n]+(?:\.(?=\w)[^.!?\n]+)*[.!?]?")
_MAX_SENTENCE_CHARS = 500
_MAX_SENTENCES = 400
_MAX_JSON_LEAVES = 64

_PERSONAL = (SourceKind.USER, SourceKind.HUMAN_NOTE)

_Rule = tuple[re.Pattern[str], Callable[[re.Match[str], str], Iterator[Candidate]]]


def _rule(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_VALUE = r"(?P<value>[^,;.!?]+(?:[.,](?=\w)[^,;.!?]+)*)"
_WE = r"(?:we(?:'ve| have)?|I(?:'ve| have)?|the team(?: has)?)"


def _one(subject: str, attribute: str, value: str, **more: object) -> Candidate:
    made = Candidate("", _trim(subject), _trim(attribute), _trim(value), "")
    return replace(made, **more)  # type: ignore[arg-type]  # names and types are those of Candidate


def _trim(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip(" \t\n\"'`,;:.")


_SINGLE = """
address age birthday browser city country database editor email employer gender home hometown host ide
job language location name nationality nickname number occupation os password phone port pronouns repo
repository role salary shell surname terminal timezone title username version workplace zone
"""
_ONE_AT_A_TIME = frozenset(_SINGLE.split())
"""Last words of attributes that have one value; "my dog is ill" does not replace "my dog is old"."""


def _mine(m: re.Match[str], me: str) -> Iterator[Candidate]:
    attribute = m["attribute"].casefold()
    favourite = attribute.startswith(("favourite", "favorite"))
    one = favourite or attribute.split()[-1] in _ONE_AT_A_TIME
    yield _one(
        me,
        m["attribute"],
        m["value"],
        kind=FactKind.PREFERENCE if favourite else FactKind.FACT,
        cardinality=Cardinality.ONE if one else Cardinality.MANY,
    )


def _called(m: re.Match[str], me: str) -> Iterator[Candidate]:
    yield _one(me, "name", m["value"], kind=FactKind.PREFERENCE)


def _lives(m: re.Match[str], me: str) -> Iterator[Candidate]:
    if m["value"][0].isupper():  # a place has a name; "a small flat" and "fear" have not
        yield _one(me, "home", m["value"])


def _works(m: re.Match[str], me: str) -> Iterator[Candidate]:
    if m["value"][0].isupper():
        yield _one(me, "employer", m["value"])


def _prefers(m: re.Match[str], me: str) -> Iterator[Candidate]:
    value = m["value"]
    area = re.search(r"\s+(?:for|when)\s+(.+)$", value)
    if area is not None:
        attribute = f"preference for {area[1]}"
        yield _one(me, attribute, value[: area.start()], kind=FactKind.PREFERENCE)
    else:
        yield _one(me, "preference", value, kind=FactKind.PREFERENCE, cardinality=Cardinality.MANY)


def _rule_of_use(m: re.Match[str], me: str) -> Iterator[Candidate]:
    yield _one(me, "instruction", m[0], kind=FactKind.INSTRUCTION, cardinality=Cardinality.MANY)


def _decided_for(m: re.Match[str], _: str) -> Iterator[Candidate]:
    yield _one(m["topic"], m["verb"].casefold(), m["value"], kind=FactKind.DECISION)


def _decided(m: re.Match[str], _: str) -> Iterator[Candidate]:
    yield _one("team", "decision", m["value"], kind=FactKind.DECISION, cardinality=Cardinality.MANY)


def _promised(m: re.Match[str], me: str) -> Iterator[Candidate]:
    yield _one(me, "commitment", m["value"], kind=FactKind.COMMITMENT, cardinality=Cardinality.MANY)


def _switched(m: re.Match[str], _: str) -> Iterator[Candidate]:
    topic = m["topic"]
    yield _one(topic or "team", "use" if topic else f"use instead of {m['old']}", m["value"])


def _ended(m: re.Match[str], me: str) -> Iterator[Candidate]:
    attributes = {"live": "home", "work": "employer"}
    verb = m["verb"].casefold()
    yield _one(me, attributes.get(verb, verb), m["value"], ends=True)


_PERSONAL_RULES: tuple[_Rule, ...] = (
    (
        _rule(
            rf"^{_WE} (?:(?:just |finally )?(?:decided|agreed|chose)) (?:to |on )?"
            rf"(?P<verb>use|using|keep|adopt|deploy|host|run|store|choose|take|pick|ship)\s+(?P<value>[^,;.!?]+?)"
            r"\s+(?:for|as|on|in)\s+(?:the\s+|our\s+)?(?P<topic>[^,;.!?]+)"
        ),
        _decided_for,
    ),
    (
        _rule(rf"^{_WE} (?:(?:just |finally )?(?:decided|agreed)) (?:to |on |that )?{_VALUE}"),
        _decided,
    ),
    (
        _rule(
            r"(?:we|I)(?:'ve| have)? (?:switched|moved|migrated) (?:(?P<topic>[\w -]{2,40}?) )?from "
            r"(?P<old>[^,;.!?]+?) to (?P<value>[^,;.!?]+)"
        ),
        _switched,
    ),
    (
        _rule(
            r"^I (?:no longer|don't|do not) (?P<verb>live|work|use|own|like)(?: in| at| for)? "
            r"(?P<value>[^,;.!?]+?)(?: any ?more)?$"
        ),
        _ended,
    ),
    (_rule(rf"\bcall me {_VALUE}"), _called),
    (_rule(rf"\bmy (?P<attribute>[\w' -]{{2,40}}?) (?:is|are) (?:now |called )?{_VALUE}"), _mine),
    (
        _rule(
            r"\bI (?:now )?(?:live in|moved to|have moved to|just moved to) (?P<value>[^,;.!?]+)"
        ),
        _lives,
    ),
    (_rule(r"\bI (?:now )?(?:work (?:for|at)|joined) (?P<value>[^,;.!?]+)"), _works),
    (_rule(rf"\bI (?:really |always |usually )?prefer {_VALUE}"), _prefers),
    (
        _rule(
            r"^(?:please )?(?:always|never|from now on,?|don't ever|do not ever)\s+(?P<value>.+)$"
        ),
        _rule_of_use,
    ),
    (_rule(r"^I(?:'ll| will| promise to) (?P<value>[^;.!?]+)"), _promised),
)

_PAIR = re.compile(
    r"^[ \t]*(?:[-*] )?(?P<key>[A-Za-z][\w/-]*(?:[ .][\w/-]+){0,3})[ \t]*[:=][ \t]+(?P<value>\S[^\n]{0,300})$",
    re.MULTILINE,
)
_NO_ATTRIBUTES = frozenset(
    {
        "note",
        "todo",
        "warning",
        "hint",
        "ps",
        "re",
        "fwd",
        "example",
        "error",
        "system",
        "user",
        "assistant",
    }
)
"""Words that stand before a colon and name nothing."""


class RuleExtractor:
    """Finds facts by form alone; the same episodes always give the same candidates."""

    @property
    def name(self) -> str:
        """Raised when a form is added or changed, so that episodes are read again."""
        return "rules@1"

    def extract(self, episodes: Sequence[Episode]) -> Sequence[Candidate]:
        """Return the facts found in `episodes`."""
        found: list[Candidate] = []
        for episode in episodes:
            if episode.source_kind in (SourceKind.RECALLED, SourceKind.SYSTEM):
                continue
            found += _read(episode)
        return found


def _read(episode: Episode) -> list[Candidate]:
    if episode.source_kind in _PERSONAL:
        return [*_sentences(episode), *_pairs(episode, Scope.WORLD)]
    if episode.source_kind is SourceKind.TOOL:
        data = _json_of(episode.content)
        if data is not None:
            return list(_leaves(episode, data))
        return list(_pairs(episode, Scope.MACHINE))
    return []  # what an agent or a document says of itself is not evidence without a reader


def _sentences(episode: Episode) -> Iterator[Candidate]:
    me = episode.subjects[0] if episode.subjects else "user"
    for n, found in enumerate(_SENTENCE.finditer(episode.content)):
        if n >= _MAX_SENTENCES:
            return
        sentence = found[0].strip()
        if not 5 <= len(sentence) <= _MAX_SENTENCE_CHARS or sentence.endswith("?"):
            continue
        bare = sentence.rstrip(".! ")
        for pattern, make in _PERSONAL_RULES:
            match = pattern.search(bare)
            if match is None:
                continue
            moment, precision = since(sentence, episode.occurred_at)
            for one in make(match, me):
                if one.value and one.subject:
                    yield replace(
                        one,
                        episode=episode.id,
                        quote=sentence,
                        text=sentence,
                        valid_from=moment,
                        precision=precision,
                    )
            break


def _pairs(episode: Episode, scope: Scope) -> Iterator[Candidate]:
    """`key: value` lines; the subject is the episode's, or what it came from."""
    subject = episode.subjects[0] if episode.subjects else str(episode.source_kind)
    for match in _PAIR.finditer(episode.content):
        value = match["value"].strip()
        if value.endswith("?") or match["key"].casefold() in _NO_ATTRIBUTES:
            continue
        yield Candidate(
            episode.id,
            subject,
            _trim(match["key"]),
            value,
            match[0].strip(),
            text=f"{subject}: {match[0].strip()}",
            scope=scope,
        )


def _json_of(content: str) -> Json:
    text = content.strip()
    if not text.startswith("{"):
        return None
    try:
        found: Json = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found


def _leaves(episode: Episode, data: Json) -> Iterator[Candidate]:
    """Plain values of a tool's JSON, by path; the quote is the key with its value as it stands there."""
    subject = episode.subjects[0] if episode.subjects else "tool"
    for count, (path, value) in enumerate(_walk(data, ())):
        if count >= _MAX_JSON_LEAVES:
            return
        raw = json.dumps(value, ensure_ascii=False)
        match = re.search(rf'"{re.escape(path[-1])}"\s*:\s*{re.escape(raw)}', episode.content)
        if match is not None:
            name = ".".join(path)
            yield Candidate(
                episode.id,
                subject,
                name,
                value,
                match[0],
                text=f"{subject}: {name} = {value}",
                scope=Scope.MACHINE,
            )


def _walk(data: Json, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Json]]:
    if isinstance(data, dict) and len(path) < 6:
        for key, value in data.items():
            if key and len(key) <= 60:
                yield from _walk(value, (*path, key))
    elif path and not isinstance(data, (dict, list)) and data is not None and data != "":
        yield path, data
