"""Parts that we use are heard in the daemon's log only when they have something to say to its reader."""

from __future__ import annotations

import logging

import pytest

from torpor.server import daemon


def test_the_end_of_a_qemu_is_no_line_in_the_daemons_log(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("qemu.qmp.protocol.vm", "alembic.runtime.migration", "torpor.sandboxes")
    for name in ("qemu.qmp", "alembic"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "level", logger.level)
    daemon.quiet_logs()
    heard = {name: logging.getLogger(name).isEnabledFor(logging.ERROR) for name in names}
    assert heard == {names[0]: False, names[1]: True, names[2]: True}
    assert not logging.getLogger(names[1]).isEnabledFor(logging.INFO)
