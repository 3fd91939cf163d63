"""Application snapshots over REST, in both faces of the SDK, and on the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.conftest import Rest
from tests.contract.api.test_cli import Cli
from torpor import AsyncSandbox, Sandbox, Snapshot
from torpor.errors import InvalidRequest, QuiesceFailed, WrongState
from torpor.model_quiesce import HookSpec, QuiesceReport, QuiesceSpec
from torpor.server.wire_quiesce import QuiesceWire
from torpor.server.wire_snapshots import SnapshotWire

GOOD: dict[str, Any] = {
    "hooks": [{"name": "app", "hold": "true", "required": False}],
    "versions": {"tool": "tool --version"},
    "cursor": "cat cursor",
}
BAD: dict[str, Any] = {"hooks": [{"name": "app", "hold": "false"}]}


class TestRest:
    def test_a_snapshot_with_hooks(self, rest: Rest) -> None:
        path = f"/v1/sandboxes/{rest.create()}/snapshots"
        body = {"consistency": "application", "quiesce": GOOD}
        taken = rest.ok("POST", path, json=body, status=201)
        SnapshotWire.model_validate(taken)
        assert taken["consistency"] == "application"
        report = taken["quiesce"]
        assert (report["held"], report["confirmed"], report["cursor"]) == (True, "after", "42")
        assert [(h["name"], h["state"]) for h in report["hooks"]] == [
            ("app", "held"),
            ("sqlite", "held"),
        ]
        assert rest.ok("GET", f"/v1/snapshots/{taken['id']}")["quiesce"] == report
        assert rest.ok("POST", path, status=201)["quiesce"] is None

    def test_failures(self, rest: Rest) -> None:
        path = f"/v1/sandboxes/{rest.create()}/snapshots"
        body = {"consistency": "application", "quiesce": BAD}
        failure = rest.fails("POST", path, 502, "guest.quiesce_failed", json=body)
        assert failure["facts"]["hook"] == "app"
        lesser = rest.ok("POST", path, json=body | {"on_quiesce_failure": "downgrade"}, status=201)
        assert lesser["consistency"] == "filesystem"
        assert lesser["quiesce"]["reason"] == "hook app: hold ended with status 1"
        for wrong in (
            {"consistency": "application", "quiesce": {"hooks": [{"name": "x"}]}},
            {"consistency": "application", "on_quiesce_failure": "ignore"},
            {"consistency": "filesystem", "quiesce": GOOD},
            {"quiesce": GOOD},
        ):
            rest.fails("POST", path, 400, "request.invalid", json=wrong)

    def test_hibernate_and_try(self, rest: Rest) -> None:
        sandbox = rest.create()
        path = f"/v1/sandboxes/{sandbox}/quiesce/test"
        tried = rest.ok("POST", path, json={"quiesce": BAD})
        QuiesceWire.model_validate(tried)
        assert (tried["held"], tried["reason"]) == (False, "hook app: hold ended with status 1")
        assert rest.ok("POST", path)["held"] is True
        asleep = rest.ok(
            "POST", f"/v1/sandboxes/{sandbox}/hibernate", json={"consistency": "application"}
        )
        assert asleep["consistency"] == "application"
        rest.fails("POST", path, 409, "object.wrong_state")


@pytest.mark.usefixtures("server")
class TestSdk:
    def test_values_and_mappings(self) -> None:
        sbx = Sandbox.create()
        spec = QuiesceSpec(
            hooks=(HookSpec(name="app", hold="true", required=False),),
            versions={"tool": "tool --version"},
            cursor="cat cursor",
        )
        taken = sbx.snapshot(consistency="application", quiesce=spec)
        assert taken.consistency == "application"
        assert isinstance(taken.quiesce, QuiesceReport)
        assert taken.quiesce == sbx.snapshot(consistency="application", quiesce=GOOD).quiesce
        assert Snapshot.get(taken.id).quiesce == taken.quiesce
        assert sbx.snapshot().quiesce is None
        assert sbx.test_quiesce(quiesce=spec).held
        assert not Sandbox.test_quiesce(sbx.id, quiesce=BAD).held

    def test_refuse_and_downgrade(self) -> None:
        sbx = Sandbox.create()
        with pytest.raises(QuiesceFailed, match="hook app") as caught:
            sbx.snapshot(consistency="application", quiesce=BAD)
        assert caught.value.facts["hook"] == "app"
        assert sbx.snapshots() == []
        lesser = sbx.snapshot(
            consistency="application", quiesce=BAD, on_quiesce_failure="downgrade"
        )
        assert lesser.consistency == "filesystem"
        assert lesser.quiesce is not None
        assert not lesser.quiesce.held
        with pytest.raises(InvalidRequest, match="'speed'"):
            sbx.snapshot(consistency="application", quiesce={"speed": 1})

    def test_async(self) -> None:
        async def scene() -> None:
            sbx = await AsyncSandbox.create()
            assert (await sbx.test_quiesce()).held
            taken = await sbx.snapshot(consistency="application")
            assert taken.quiesce is not None
            asleep = await sbx.hibernate(
                consistency="application", quiesce=BAD, on_quiesce_failure="downgrade"
            )
            assert asleep.consistency == "filesystem"
            with pytest.raises(WrongState):
                await sbx.test_quiesce()

        asyncio.run(scene())


@pytest.mark.usefixtures("server")
class TestCli:
    @pytest.fixture
    def cli(self) -> Cli:
        return Cli()

    @pytest.fixture
    def sandbox(self) -> str:
        return Sandbox.create().id

    def test_taking_one(self, cli: Cli, sandbox: str, tmp_path: Path) -> None:
        good, bad = tmp_path / "good.yaml", tmp_path / "bad.json"
        good.write_text("hooks:\n  - {name: app, hold: 'true', order: 7}\nversions: {tool: x}\n")
        bad.write_text(json.dumps(BAD))
        application = ("snapshot", sandbox, "--consistency", "application")
        found = cli.json(*application, "--quiesce", str(good))
        assert (found["consistency"], found["quiesce"]["held"]) == ("application", True)
        assert "hook app: hold ended" in cli.fails(*application, "--quiesce", str(bad), code=92)
        cli(*application, "--quiesce", str(bad), "--on-quiesce-failure", "downgrade")
        assert "note: it is filesystem-consistent: hook app: hold ended" in cli.stderr
        listed = cli("snapshots", sandbox)
        assert "application (app, sqlite)" in listed
        assert "filesystem (not application)" in listed
        shown = cli("snapshot", "show", found["id"])
        assert "version of tool" in shown
        assert "app" in shown.splitlines()[-2]
        cli.fails(*application, "--on-quiesce-failure", "maybe", code=64)

    def test_files_that_are_refused(self, cli: Cli, sandbox: str, tmp_path: Path) -> None:
        file = tmp_path / "q.yaml"
        for content, what in (
            ("hooks: [\n", "q.yaml:2:1 is no YAML"),
            ("- a list\n", "holds no object"),
            ("hooks: [{name: x, kind: oracle}]", "of kind 'oracle'"),
        ):
            file.write_text(content)
            assert what in cli.fails("quiesce", "test", sandbox, "--quiesce", str(file), code=64)
        file.unlink()
        assert "cannot be read" in cli.fails(
            "quiesce", "test", sandbox, "--quiesce", str(file), code=64
        )

    def test_trying(self, cli: Cli, sandbox: str, tmp_path: Path) -> None:
        said = cli("quiesce", "test", sandbox)
        assert "held       yes" in said
        assert "sqlite" in said
        bad = tmp_path / "bad.json"
        bad.write_text(json.dumps(BAD))
        said = cli("quiesce", "test", sandbox, "--quiesce", str(bad), code=92)
        assert "no: hook app: hold ended with status 1" in said
        assert cli.json("quiesce", "test", sandbox)["hooks"][0]["state"] == "held"
        assert cli.json("hibernate", sandbox, "--consistency", "application")
        cli.fails("quiesce", "test", sandbox, code=65)
