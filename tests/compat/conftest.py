"""Clients of other sandbox services, unmodified from PyPI, against this daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pandastack
import pytest
from blockbuster import blockbuster_ctx
from pandastack.sandbox import set_default_client

from tests.fakes.serving import Tcp, serving_tcp
from torpor.base.home import Home
from torpor.model_access import Scope


@pytest.fixture(autouse=True)
def clean_pandastack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Hide the user's own settings of that client, and let none be made."""
    for name in list(os.environ):
        if name.startswith("PANDASTACK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    set_default_client(None)


@pytest.fixture(scope="module")
def tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tcp]:
    """A daemon over a fake engine, on TCP."""
    home = Home(tmp_path_factory.mktemp("compat") / "home")
    with blockbuster_ctx("torpor.server"), serving_tcp(home, per_s=1e5) as found:
        yield found


@pytest.fixture(scope="module")
def tokens(tcp: Tcp) -> dict[Scope, str]:
    """One token of each scope."""
    return {scope: tcp.token(f"panda-{scope}", scope) for scope in Scope}


@pytest.fixture
def panda(
    tcp: Tcp, tokens: dict[Scope, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[pandastack.Client]:
    """The client as its users make one: from the environment. The engine knows nothing yet."""
    monkeypatch.setenv("PANDASTACK_API", tcp.url)
    monkeypatch.setenv("PANDASTACK_API_KEY", tokens[Scope.ADMIN])
    client = pandastack.Client(timeout=20)
    set_default_client(client)
    yield client
    client.session.close()
    tcp.server.run(tcp.server.engine.aclose())
    tcp.server.engine.reset()


@pytest.fixture
def box(panda: pandastack.Client) -> pandastack.Sandbox:
    """A sandbox."""
    return panda.sandboxes.create(template="base", metadata={"a": "b"})
