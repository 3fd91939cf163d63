"""A verb: one call of a space as data, the same over REST and from inside a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from torpor.memory.space import Space

T = TypeVar("T")


class Verb(BaseModel):
    """The parameters of a call; `run` makes it. Unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str]
    """In paths, messages and logs; of a file verb `files.view`."""
    answer: ClassVar[Any]
    """What `run` returns: a dataclass, or `Items` of one."""
    writes: ClassVar[bool] = True
    """Whether it changes memory; the log of recalls does not count."""
    reads_by_get: ClassVar[bool] = False
    """Whether REST has it as GET with a query."""
    from_inside: ClassVar[bool] = True
    """Whether the agent in a machine may ask for it; what cannot be undone or concerns the host it may not."""

    def run(self, space: Space) -> object:
        """Make the call. Blocks."""
        raise NotImplementedError


class Items(BaseModel, Generic[T]):
    """A list, in the order that the verb promises."""

    items: list[T]


class Text(BaseModel):
    """What a file verb answers to the agent."""

    text: str
