"""Loaders for conversation sets that a user supplies; nothing of them is part of Torpor.

All become the same shape: sessions of turns, and questions with the ids of the turns that answer them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from torpor.errors import DataDamaged, NotFound

_TURN_ID = re.compile(r"D(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance."""

    id: str
    session: str
    speaker: str
    text: str
    at: datetime
    is_user: bool = True


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the turns that hold its answer."""

    text: str
    gold: frozenset[str]
    category: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said, what is asked, and facts that came with the set (speaker, text, turn ids)."""

    name: str
    turns: list[Turn]
    questions: list[Question]
    facts: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)


def load_json(path: Path) -> Any:
    """Return a user's JSON file.

    Raises:
        NotFound: there is none.
        DataDamaged: it is not JSON.
    """
    if not path.is_file():
        raise NotFound(f"{path} does not exist", path=str(path))
    try:
        return json.loads(path.read_bytes())
    except ValueError as exc:
        raise DataDamaged(f"{path} is not JSON: {exc}") from exc


def locomo(folder: Path) -> Iterator[Conversation]:
    """Yield LoCoMo's conversations from `locomo10.json`, corrected by `locomo_errors.json` if it is there."""
    errata: dict[str, list[str]] = {}
    if (folder / "locomo_errors.json").exists():
        for entry in load_json(folder / "locomo_errors.json"):
            if entry.get("error_type") == "WRONG_CITATION" and entry.get("correct_evidence"):
                errata[entry["question_id"]] = entry["correct_evidence"]
    for number, sample in enumerate(load_json(folder / "locomo10.json")):
        turns = list(_locomo_turns(sample["conversation"]))
        known = {t.id for t in turns}
        questions = []
        for n, qa in enumerate(sample["qa"]):
            cited = errata.get(f"locomo_{number}_qa{n}", qa.get("evidence") or [])
            gold = frozenset(_turn_ids(cited)) & known
            if gold:
                questions.append(Question(qa["question"], gold, str(qa.get("category", ""))))
        facts = list(_locomo_facts(sample.get("observation", {}), known))
        yield Conversation(str(sample.get("sample_id", number)), turns, questions, facts)


def _turn_ids(cited: Any) -> list[str]:
    text = " ".join(cited) if isinstance(cited, list) else str(cited)
    return [f"D{int(a)}:{int(b)}" for a, b in _TURN_ID.findall(text)]


def _locomo_turns(conversation: dict[str, Any]) -> Iterator[Turn]:
    numbers = sorted(
        int(m[1]) for key in conversation if (m := re.fullmatch(r"session_(\d+)", key))
    )
    for number in numbers:
        said = conversation.get(f"session_{number}_date_time", "")
        start = _locomo_time(said) or datetime(2023, 1, 1, tzinfo=UTC) + timedelta(days=number)
        for n, turn in enumerate(conversation[f"session_{number}"]):
            text = str(turn.get("text", ""))
            if turn.get("blip_caption"):
                text = f"{text} [shares a picture: {turn['blip_caption']}]"
            yield Turn(
                turn["dia_id"],
                f"session-{number}",
                turn["speaker"],
                text,
                start + timedelta(seconds=20 * n),
            )


def _locomo_time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
    except ValueError:
        return None


def _locomo_facts(
    observation: dict[str, Any], known: set[str]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for session in observation.values():
        for speaker, entries in session.items():
            for text, cited in entries:
                turns = tuple(t for t in dict.fromkeys(_turn_ids(cited)) if t in known)
                if turns:
                    yield speaker, text, turns


def longmemeval(path: Path) -> Iterator[Conversation]:
    """Yield LongMemEval items (`longmemeval_s.json` and its kin): one haystack and one question each.

    Gold is the turns marked `has_answer`, else the first turn of each answer session.
    """
    for item in load_json(path):
        answers = set(item["answer_session_ids"])
        turns: list[Turn] = []
        gold: set[str] = set()
        for n, (name, session) in enumerate(
            zip(item["haystack_session_ids"], item["haystack_sessions"], strict=True)
        ):
            start = datetime(2023, 1, 1, tzinfo=UTC) + timedelta(days=n)
            marked = False
            for m, turn in enumerate(session):
                made = Turn(
                    f"{n}:{m}",
                    f"{n}:{name}",
                    turn["role"],
                    turn["content"],
                    start + timedelta(seconds=20 * m),
                    turn["role"] == "user",
                )
                turns.append(made)
                if turn.get("has_answer"):
                    gold.add(made.id)
                    marked = True
            if name in answers and not marked:
                gold.add(f"{n}:0")
        if gold:
            question = Question(item["question"], frozenset(gold), item.get("question_type", ""))
            yield Conversation(str(item["question_id"]), turns, [question])


def beam(folder: Path) -> Iterator[Conversation]:
    """Yield BEAM chats from a folder of chats, each with `chat.json` and `probing_questions*.json`."""
    for chat in sorted(folder.rglob("chat.json")):
        turns = list(_beam_turns(load_json(chat)))
        known = {t.id for t in turns}
        questions: list[Question] = []
        for path in sorted(chat.parent.rglob("probing_questions*.json")):
            for category, entries in load_json(path).items():
                for entry in entries:
                    gold = frozenset(map(str, _numbers(entry.get("source_chat_ids")))) & known
                    if gold:
                        questions.append(Question(entry["question"], gold, category))
        yield Conversation(str(chat.parent.name), turns, questions)


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from _numbers(part)


def _beam_turns(data: Any) -> Iterator[Turn]:
    count = 0
    for n, batch in enumerate(data):
        for group in batch.get("turns", []):
            for turn in group:
                at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=n, seconds=20 * count)
                count += 1
                role = turn.get("role", "user")
                yield Turn(str(turn["id"]), f"batch-{n}", role, turn["content"], at, role == "user")
