"""How a drill goes, as a durable workflow. Imported only when one is needed: it imports DBOS.

Every step is written down by DBOS when it is done; a daemon that comes later goes on behind the last one. Whatever
happens, the last step removes the clones and keeps the evidence.
"""

from __future__ import annotations

import logging
from typing import Any

from dbos import DBOS

from torpor.recovery.durable import Durable

log = logging.getLogger(__name__)

ACTS = "drills"
_TRIES = 10
_TRY_AGAIN_S = 20.0


def _step(durable: Durable, drill_id: str, name: str, *args: Any) -> dict[str, Any]:
    acts = durable.acts[ACTS]

    def work() -> dict[str, Any]:
        found: dict[str, Any] = durable.run(acts.call(name, drill_id, *args))
        return found

    return durable.recorded(lambda: DBOS.run_step({"name": name}, work))


@DBOS.workflow(name="drill", max_recovery_attempts=None)
def drill(drill_id: str, boots: list[str]) -> None:
    """Carry out a drill."""
    durable = Durable.active()
    with durable.working(drill_id):
        try:
            if _step(durable, drill_id, "files").get("go_on"):
                for memory in boots:
                    _step(durable, drill_id, "boot", memory)
        except Exception as exc:
            log.exception("drill: a step failed")
            _step(durable, drill_id, "note_failure", str(exc))
        for _ in range(_TRIES):
            try:
                _step(durable, drill_id, "end")
            except Exception:
                log.exception("drill: its end failed")
                durable.wait(drill_id, _TRY_AGAIN_S)
            else:
                break
        durable.forget(drill_id)
