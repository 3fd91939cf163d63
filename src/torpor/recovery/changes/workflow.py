"""How a change goes, as a durable workflow. Imported only when one is needed: it imports DBOS.

Every step is written down by DBOS when it is done; a daemon that comes later goes on behind the last one. Whatever
goes wrong after the snapshot leads to the machine being put back: what was not verified is not kept.
"""

from __future__ import annotations

import logging
from typing import Any

from dbos import DBOS

from torpor.recovery.durable import Durable

log = logging.getLogger(__name__)

ACTS = "changes"
WORDS = "word"
_TRIES = 40
"""How often the machine is put back, and the end is written down, until that counts as impossible."""
_TRY_AGAIN_S = 30.0
_LOOK_UP_S = 30.0


class _Undo(Exception):
    """Raised when the change is to be undone."""

    def __init__(self, why: str, ending: str) -> None:
        super().__init__(why)
        self.why = why
        self.ending = ending


class _Unchanged(Exception):
    """Raised when nothing was begun that could be undone."""


class _Gone(Exception):
    """Raised when the sandbox was deleted."""


class _Change:
    """One change's workflow: its steps, its words, its waiting."""

    def __init__(self, workflow_id: str, change_id: str) -> None:
        self._durable = Durable.active()
        self._workflow_id = workflow_id
        self._change_id = change_id

    def step(self, name: str, *args: Any) -> dict[str, Any]:
        """Do a step, or return what it returned before."""
        acts = self._durable.acts[ACTS]

        def work() -> dict[str, Any]:
            found: dict[str, Any] = self._durable.run(acts.call(name, self._change_id, *args))
            return found

        found = self._durable.recorded(lambda: DBOS.run_step({"name": name}, work))
        if found.get("gone"):
            raise _Gone
        return found

    def last(self, name: str, *args: Any) -> None:
        """Do the step that ends the change; what hinders it, such as a full disk, is waited for."""
        for left in reversed(range(_TRIES)):
            try:
                self.step(name, *args)
            except _Gone:
                raise
            except Exception:
                if not left:
                    raise
                log.exception("change %s: its end could not be written down", self._change_id)
                self.wait(_TRY_AGAIN_S)
            else:
                return

    def word(self, *wanted: str) -> dict[str, Any] | None:
        """Return the next word that is `wanted`; a rejection undoes the change."""
        while True:
            found: dict[str, Any] | None = self._durable.recorded(
                lambda: DBOS.recv(WORDS, timeout_seconds=0)
            )
            if found is None or found["say"] in wanted:
                return found
            if found["say"] == "reject":
                raise _Undo(found["why"], found.get("ending", "rejected"))

    def wait(self, seconds: float) -> None:
        """Wait, or until there may be a word."""
        self._durable.wait(self._workflow_id, seconds)

    # ---- the way ----

    def carry_out(self) -> None:
        """Go the whole way."""
        for name in ("quiesce", "snapshot"):
            found = self.step(name)
            if not found["ok"]:
                self.last("fail", f"{found['why']}; nothing was changed", "none")
                return
        try:
            self.word()
        except _Undo as turn:
            self.last("fail", f"{turn.why}; nothing was changed", turn.ending)
            return
        try:
            self._make_it()
            self._verify_it()
        except _Unchanged as turn:
            self.last("fail", f"{turn}; nothing was changed", "none")
        except _Undo as turn:
            self.undo(turn.why, turn.ending)

    def _make_it(self) -> None:
        kind = self.step("begin")["kind"]
        if kind == "block":
            while self.word("done") is None:
                left = self.step("lease")["left"]
                if left <= 0:
                    raise _Undo("whoever made the change was not heard of any more", "client")
                self.wait(min(left, _LOOK_UP_S))
            return
        found = self.step("command")
        if found["outcome"] == "refused":
            raise _Unchanged(found["why"])
        if found["outcome"] != "ok":
            endings = {"unknown": "machine", "rejected": "rejected", "unstarted": "none"}
            ending = endings.get(found["outcome"], "command")
            raise _Undo(found["why"], ending)
        self.word()

    def _verify_it(self) -> None:
        options = self.step("options")
        if options["reboot"]:
            found = self.step("reboot")
            if not found["ok"]:
                raise _Undo(found["why"], "machine")
        verdict, why = self._look("after")
        self.word()
        if options["probation"]:
            verdict, why = self._on_probation()
        if verdict == "inconclusive":
            self.last("keep", "inconclusive", f"nothing speaks against it, but: {why}")
        else:
            self.last("keep", "kept", why)

    def _look(self, phase: str) -> tuple[str, str]:
        found = self.step("verify", phase)
        if found["verdict"] == "fail":
            raise _Undo(found["why"], found["ending"])
        return found["verdict"], found["why"]

    def _on_probation(self) -> tuple[str, str]:
        terms = self.step("probation")
        look_at = self.step("clock")["now"] + terms["interval"]
        while True:
            confirmed = self.word("confirm")
            clock = self.step("clock")
            now, deadline = clock["now"], clock.get("deadline", terms["deadline"])
            look_at = min(look_at, now + terms["interval"])
            is_over = now >= deadline
            if is_over and confirmed is None:
                confirmed = self.word("confirm")  # said before the clock was read: in time
            if confirmed is not None:
                return "kept", f"confirmed by {confirmed['by']}"
            if is_over:
                break
            if now >= look_at:
                self._look("probation")
                look_at = self.step("clock")["now"] + terms["interval"]
                continue
            self.wait(min(look_at, deadline) - now)
        if terms["confirm"]:
            raise _Undo("nobody confirmed it in time", "silence")
        return self._look("probation")

    def undo(self, why: str, ending: str) -> None:
        """Put the machine back; as long as that fails it is tried again."""
        if self.step("doom", why, ending)["unchanged"]:
            self.last("fail", f"{why}; nothing was changed", ending)
            return
        self.step("keep_failed")
        found = self.step("put_back")
        for _ in range(_TRIES):
            if found["ok"]:
                break
            self.wait(_TRY_AGAIN_S)
            found = self.step("put_back")
        else:
            self.last("fail", f"{why}; and it could not be put back: {found['why']}", ending)
            return
        self.step("look_back")
        self.last("rolled_back")


def _safely(change: _Change, way: Any) -> None:
    """Go a way; whatever goes wrong, what was begun is undone."""
    try:
        try:
            way()
        except _Gone:
            raise
        except Exception as exc:
            log.exception("change: a step failed")
            change.undo(f"it could not be carried on: {exc}", "daemon")
    except _Gone:
        change.last("forget")


@DBOS.workflow(name="change", max_recovery_attempts=None)
def change(change_id: str) -> None:
    """Carry out a change."""
    durable = Durable.active()
    with durable.working(change_id):
        one = _Change(change_id, change_id)
        _safely(one, one.carry_out)
        durable.forget(change_id)


@DBOS.workflow(name="change.abandon", max_recovery_attempts=None)
def abandon(workflow_id: str) -> None:
    """Undo a change whose own workflow is not there any more; `workflow_id` begins with the change's id."""
    durable = Durable.active()
    with durable.working(workflow_id):
        one = _Change(workflow_id, workflow_id.partition(".")[0])
        _safely(one, lambda: one.undo("the daemon lost track of it", "daemon"))
        durable.forget(workflow_id)
