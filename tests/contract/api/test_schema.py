"""Whatever the description allows, and much that it does not, gets an answer that is no fault of ours."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from requests.exceptions import ReadTimeout

from tests.fakes.serving import Tcp, serving_tcp
from torpor.base.home import Home
from torpor.errors import catalogue
from torpor.model_access import Scope
from torpor.server.openapi import document

ENDLESS = {"follow_events", "open_listener"}
"""They end with their client; their own tests look at them."""
DESCRIPTION = json.loads(document())
OPERATIONS = sorted(
    operation["operationId"]
    for methods in DESCRIPTION["paths"].values()
    for operation in methods.values()
    if operation["operationId"] not in ENDLESS
)
CODES = {found.code: found.http_status for found in catalogue()}


@pytest.fixture(scope="module")
def _own_randomness() -> Iterator[None]:
    """Give what the server draws from in its threads a source of its own.

    Hypothesis seeds the global one for its strategies, and rightly complains of whoever draws from it meanwhile: the
    workflows' queue does, between two looks.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dbos._queue.random", random.Random())
        patch.setattr("dbos._scheduler.random", random.Random())
        yield


@pytest.fixture(scope="module")
def tcp(_own_randomness: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tcp]:
    with serving_tcp(Home(tmp_path_factory.mktemp("schema") / "home"), per_s=1e6) as found:
        yield found


@pytest.fixture(scope="module")
def headers(tcp: Tcp) -> dict[str, str]:
    return {"authorization": f"Bearer {tcp.token('all', Scope.ADMIN)}"}


@pytest.fixture(scope="module")
def schema() -> Any:
    return schemathesis.openapi.from_dict(DESCRIPTION)


def _real_ids(tcp: Tcp, headers: dict[str, str]) -> dict[str, str]:
    import httpx

    with httpx.Client(base_url=tcp.url, headers=headers) as http:
        sandbox = http.post("/v1/sandboxes", json={"template": "base"}).json()["id"]
        snapshot = http.post(f"/v1/sandboxes/{sandbox}/snapshots").json()["id"]
    return {
        "sandbox": sandbox,
        "sandbox_id": sandbox,
        "snap": snapshot,
        "snapshot_id": snapshot,
    }


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_is_a_fault_of_ours(
    tcp: Tcp, headers: dict[str, str], schema: Any, name: str
) -> None:
    operation = schema.find_operation_by_id(name)
    ids = _real_ids(tcp, headers)
    pick = random.Random(name)

    @settings(
        max_examples=8,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        for key, value in ids.items():
            if key in (case.path_parameters or {}) and pick.random() < 0.7:
                case.path_parameters[key] = value
        try:
            reply = case.call(base_url=tcp.url, headers=headers, timeout=0.5)
        except ReadTimeout:
            return  # a stream that goes on
        if reply.status_code >= 400:
            body = json.loads(reply.content)
            assert set(body) == {"error", "code", "hint", "retryable", "facts"}, body
            assert body["code"] != "internal", body
            assert body["code"] in CODES, body

    ask()
