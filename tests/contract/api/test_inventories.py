"""Inventories and profiles over REST, in Python and on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.api.conftest import Rest
from tests.contract.api.test_cli import Cli
from tests.fakes.engine import FakeGuest
from tests.fakes.serving import ServerThread
from torpor import AsyncProfiles, AsyncSandbox, AsyncSnapshot, Profiles, Sandbox
from torpor.errors import HostNotReady, InvalidRequest, NotFound
from torpor.model_inventory import Entry
from torpor.server.wire_inventory import DetectedWire, InventoryDiffWire, InventoryWire

MINE = "format: 1\nname: mine\nwatch: [/srv]\n"


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def sandbox(rest: Rest) -> str:
    return rest.create()


@pytest.fixture
def guest(server: ServerThread, sandbox: str) -> FakeGuest:
    return server.guest(sandbox)


def test_over_rest(rest: Rest, sandbox: str, guest: FakeGuest) -> None:
    path = f"/v1/sandboxes/{sandbox}"
    found = rest.ok("GET", f"{path}/inventory")
    InventoryWire.model_validate(found)
    assert (found["profile"], found["key_id"]) == ("hermes", "0123456789abcdef")
    assert list(found["sections"]) == ["skills", "debian"]
    assert guest.plans[-1]["commands"] is False
    rest.ok("GET", f"{path}/inventory", params={"profile": "openclaw", "commands": "true"})
    assert guest.plans[-1]["commands"] is True
    assert "/root/.openclaw" in guest.plans[-1]["homes"]
    assert "/etc/apt" in guest.plans[-1]["watch"], "what holds for every machine is under it"
    mine = rest.ok("POST", f"{path}/inventory", json={"profile": MINE})
    assert mine["profile"] == "mine"
    assert "/srv" in guest.plans[-1]["watch"]
    rest.ok("POST", f"{path}/inventory")
    rest.fails(
        "GET",
        f"{path}/inventory",
        params={"profile": "nosuch"},
        status=404,
        code="object.not_found",
    )
    wrong = rest.fails(
        "POST",
        f"{path}/inventory",
        json={"profile": f"{MINE}x: 1\n"},
        status=400,
        code="request.invalid",
    )
    assert wrong["error"].startswith("profile:4:4: ")
    for words in ("/etc/passwd", "../x.yaml", "x.yaml"):  # never a file of the host
        rest.fails(
            "POST",
            f"{path}/inventory",
            json={"profile": words},
            status=404,
            code="object.not_found",
        )
    detected = rest.ok("GET", f"{path}/profile")
    DetectedWire.model_validate(detected)
    assert (detected["name"], detected["is_own"]) == ("hermes", False)


def test_snapshots_and_differences(rest: Rest, sandbox: str, guest: FakeGuest) -> None:
    first = rest.ok("POST", f"/v1/sandboxes/{sandbox}/snapshots", status=201)
    assert first["inventory"] == "taken"
    del guest.held["skills"]["mail"]
    second = rest.ok("POST", f"/v1/sandboxes/{sandbox}/snapshots", status=201)
    found = rest.ok("GET", f"/v1/snapshots/{first['id']}/inventory")
    InventoryWire.model_validate(found)
    names = [entry["name"] for entry in found["sections"]["skills"]["entries"]]
    assert names == ["mail", "notes"]
    refs = {"before": first["id"], "after": second["id"]}
    diff = rest.ok("GET", "/v1/inventory/diff", params=refs)
    InventoryDiffWire.model_validate(diff)
    assert diff["sentences"] == ["1 skill gone: mail"]
    live = rest.ok("GET", "/v1/inventory/diff", params={"before": first["id"], "after": sandbox})
    assert live["sentences"] == ["1 skill gone: mail"]
    rest.fails(
        "GET",
        "/v1/inventory/diff",
        params={"before": "x", "after": sandbox},
        status=400,
        code="request.invalid",
    )
    rest.fails(
        "GET",
        "/v1/snapshots/snap_00000000000000000000/inventory",
        status=404,
        code="object.not_found",
    )
    fork = rest.ok("POST", f"/v1/sandboxes/{sandbox}/fork", status=201)
    why = rest.fails(
        "GET", f"/v1/snapshots/{fork['snapshot_id']}/inventory", status=404, code="object.not_found"
    )
    assert "for a fork has none" in why["error"]


def test_profiles_over_rest(rest: Rest) -> None:
    found = rest.ok("GET", "/v1/profiles")["profiles"]
    assert [p["name"] for p in found] == ["agent-zero", "hermes", "machine", "openclaw"]
    assert rest.ok("GET", "/v1/profiles/hermes")["text"].startswith("# Hermes")
    rest.fails("GET", "/v1/profiles/nosuch", status=404, code="object.not_found")
    rest.fails("GET", "/v1/profiles/..%2Fmachine", status=404, code="object.not_found")


def test_in_python(sandbox: str, guest: FakeGuest, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MINE)
    found = Sandbox.inventory(sandbox)
    assert list(found.entries("skills")) == ["mail", "notes"]
    assert Sandbox.get(sandbox).inventory(profile=file).profile == "mine"
    assert Sandbox.inventory(sandbox, profile=str(file)).profile == "mine"
    assert Sandbox.inventory(sandbox, profile=MINE).profile == "mine"
    with pytest.raises(NotFound, match="no profile file"):
        Sandbox.inventory(sandbox, profile=tmp_path / "none.yaml")
    file.write_text("\n")
    with pytest.raises(InvalidRequest, match=r"profile:1:1: it is empty"):
        Sandbox.inventory(sandbox, profile=file)
    before = Sandbox.snapshot(sandbox)
    guest.held["skills"]["web"] = Entry(name="web")
    diff = before.inventory().diff(Sandbox.inventory(sandbox))
    assert diff.sentences() == ("1 skill new: web",)
    assert Sandbox.profile(sandbox).name == "hermes"
    guest.own_profile = MINE
    assert (Sandbox.profile(sandbox).name, Sandbox.profile(sandbox).is_own) == ("mine", True)
    assert Sandbox.inventory(sandbox).profile == "mine"
    guest.own_profile = "format: 9\n"
    detected = Sandbox.profile(sandbox)
    assert (detected.name, detected.is_own) == ("hermes", False)
    assert detected.problem == "/etc/torpor/profile.yaml:1:9: format: this version reads format 1"
    assert "own profile is not used" in Sandbox.inventory(sandbox).notes[0]
    guest.inventory_error = HostNotReady("too old", hint="build the template anew")
    with pytest.raises(HostNotReady):
        Sandbox.inventory(sandbox)
    assert [p.name for p in Profiles.list()] == ["agent-zero", "hermes", "machine", "openclaw"]
    assert "homes:" in Profiles.get("openclaw").text


@pytest.mark.anyio
async def test_in_python_asynchronously(sandbox: str, guest: FakeGuest) -> None:
    found = await AsyncSandbox.inventory(sandbox)
    taken = await AsyncSandbox.snapshot(sandbox)
    assert (await AsyncSnapshot.inventory(taken.id)).diff(found).is_empty
    assert (await AsyncSandbox.profile(sandbox)).title == "Hermes Agent"
    assert (await AsyncProfiles.get("hermes")).name == (await AsyncProfiles.list())[1].name


def test_on_the_command_line(cli: Cli, sandbox: str, guest: FakeGuest, tmp_path: Path) -> None:
    guest.held["skills"]["evil"] = Entry(
        name="evil\x1b[2J", shown={"files": 2}, hidden={"content": "0" * 32}
    )
    shown = cli("inventory", "show", sandbox[:10])
    assert "profile  hermes" in shown
    assert "skills   3" in shown
    assert "evil\\x1b[2J  files=2 content=hidden" in shown
    assert (
        cli("inventory", "show", sandbox, "--kind", "debian")
        == "debian:\n  base-files  version=13\n"
    )
    raw = cli.json("inventory", "show", sandbox)
    assert raw["sections"]["debian"]["entries"][0]["name"] == "base-files"
    taken = Sandbox.snapshot(sandbox, label="before").id
    del guest.held["skills"]["mail"]
    assert cli("inventory", "diff", taken, sandbox) == "1 skill gone: mail\n"
    assert cli("inventory", "diff", f"{sandbox}@before", taken) == ""
    assert "nothing that was compared differs" in cli.stderr
    diff = cli.json("inventory", "diff", taken, sandbox)
    assert (diff["before"], diff["after"], diff["sentences"]) == (
        taken,
        sandbox,
        ["1 skill gone: mail"],
    )
    assert "notes" in cli("inventory", "show", taken, "--kind", "skills")
    cli.fails("inventory", "show", sandbox, "--kind", "spells", code=64)
    cli.fails("inventory", "show", sandbox, "--profile", "nosuch", code=66)
    cli.fails("inventory", "diff", taken, "snap_00000000000000000000", code=66)
    file = tmp_path / "p.yaml"
    file.write_text(f"{MINE}colour: red\n")
    cli.fails("inventory", "show", sandbox, "--profile", str(file), code=64)
    assert "profile:4:9: colour: there is no key" in cli.stderr
    guest.cut_kinds.add("skills")
    assert "skills   2 (incomplete)" in cli("inventory", "show", sandbox)
    assert "skills: it took too long" in cli.stderr
    assert "torpor diff" in cli("inventory", "diff", "--help")
    assert "torpor inventory diff" in cli("diff", "--help")


def test_profiles_on_the_command_line(cli: Cli, sandbox: str, guest: FakeGuest) -> None:
    assert "Hermes Agent" in cli("profile", "list")
    assert [p["name"] for p in cli.json("profile", "list")][1] == "hermes"
    assert cli("profile", "show", "openclaw").startswith("# OpenClaw")
    cli.fails("profile", "show", "nosuch", code=66)
    assert cli("profile", "detect", sandbox) == "hermes\n"
    guest.fits = ("hermes", "openclaw")
    assert cli.json("profile", "detect", sandbox)["fits"] == ["hermes", "openclaw"]
    guest.fits = ()
    assert cli("profile", "detect", sandbox) == "machine\n"
