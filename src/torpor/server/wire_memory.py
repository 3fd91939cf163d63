"""The shapes of memory in JSON: the verbs of `torpor.memory.verbs`, with the space that is meant beside them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, create_model

from torpor.memory.verbs import Verb
from torpor.sandboxes.memories import Where
from torpor.server.wire import Wire


class SpaceSelector(Wire):
    """Which space is meant: exactly one of `agent` and `sandbox_id`."""

    agent: Annotated[str | None, Field(description="The space of this agent.")] = None
    sandbox_id: Annotated[str | None, Field(description="The space of this sandbox's agent.")] = (
        None
    )
    branch: Annotated[str | None, Field(description="null: the one that the agent is on.")] = None
    epoch: Annotated[
        int | None,
        Field(description="Refuse to write if the agent's machine was put back since this epoch."),
    ] = None
    actor: Annotated[
        str | None, Field(description="Who writes, for the history; null: `agent:NAME`.")
    ] = None


def request_model(verb: type[Verb]) -> type[BaseModel]:
    """Return the request of a verb: its parameters and the space."""
    title = "".join(part.title().replace("_", "") for part in verb.name.split("."))
    return create_model(
        f"Memory{title}Request", __base__=(verb, SpaceSelector), __doc__=verb.__doc__
    )


def where_of(request: Any) -> Where:
    """Return the space that a request means."""
    return Where(
        agent=request.agent,
        sandbox_id=request.sandbox_id,
        branch=request.branch,
        epoch=request.epoch,
        actor=request.actor,
    )


class EmbeddedWire(Wire):
    """How many texts were embedded now."""

    embedded: int
