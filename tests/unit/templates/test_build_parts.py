"""What a build is made of: digests, the command, its progress, and what its failures are told as."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from tests.fakes.templates import write_agent
from torpor.errors import BuildFailed, HostNotReady, InsufficientResources, InvalidRequest
from torpor.templates import debian, inside, namespace, plan
from torpor.templates.mirror import Mirror
from torpor.templates.plan import BuildPlan
from torpor.templates.progress import PackagesProgress
from torpor.templates.recipe import Recipe, RecipeFile, RecipeUser, find, load, shipped_names

RECIPE = Recipe(name="own", packages=("git", "curl"), env={"B": "2", "A": "1"})


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    return write_agent(tmp_path / "torpor_guest")


def make_plan(agent: Path, recipe: Recipe = RECIPE) -> BuildPlan:
    return BuildPlan(
        recipe=recipe,
        recipe_digest=plan.digest(recipe, agent),
        agent=agent,
        mirror=Mirror("http://m.example/debian", None, "a test"),
    )


def test_a_recipe_that_cannot_boot_is_refused_before_anything_is_fetched(agent: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        debian.check_packages(make_plan(agent))
    assert "a kernel (linux-image-cloud-amd64), an init (systemd-sysv), the guest" in str(
        caught.value
    )
    assert 'base = "base"' in str(caught.value.hint)
    enough = ("linux-image-6.12.1-amd64", "systemd-sysv", "python3=3.13.5-1", "git")
    debian.check_packages(make_plan(agent, dataclasses.replace(RECIPE, packages=enough)))
    few = dataclasses.replace(RECIPE, packages=enough[:2])
    with pytest.raises(InvalidRequest, match="no package for: the guest agent's Python"):
        debian.check_packages(make_plan(agent, few))
    for name in shipped_names():
        debian.check_packages(make_plan(agent, load(find(name))))


def test_equal_things_have_equal_digests_anywhere(agent: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(agent, copy)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "x.pyc").write_bytes(b"x")
    same = dataclasses.replace(RECIPE, env={"A": "1", "B": "2"})
    assert plan.digest(RECIPE, agent) == plan.digest(same, copy)


def test_all_that_goes_in_changes_the_digest(agent: Path, tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    (source / "a").write_text("1")
    with_file = dataclasses.replace(RECIPE, files=(RecipeFile(target="/d", source=source),))
    seen = {plan.digest(RECIPE, agent), plan.digest(with_file, agent)}
    (source / "a").write_text("2")
    seen.add(plan.digest(with_file, agent))
    (source / "a").chmod(0o755)
    seen.add(plan.digest(with_file, agent))
    (source / "b").symlink_to("a")
    seen.add(plan.digest(with_file, agent))
    (agent / "__main__.py").write_text("print('other')\n")
    seen.add(plan.digest(with_file, agent))
    seen.add(plan.digest(dataclasses.replace(RECIPE, ram_mib=256), agent))
    assert len(seen) == 7


def test_sudo_comes_with_a_user_who_may(agent: Path) -> None:
    recipe = dataclasses.replace(RECIPE, users=(RecipeUser(name="me", uid=1000, sudo=True),))
    assert make_plan(agent, recipe).packages() == ("git", "curl", "sudo")
    assert make_plan(agent).packages() == ("git", "curl")


def test_what_inside_is_told(agent: Path) -> None:
    told = make_plan(agent).for_inside()
    assert told["image"] == {
        "env": {"A": "1", "B": "2"},
        "default_user": "root",
        "default_cwd": "/workspace",
    }
    assert told["disk_bytes"] == 8 << 30
    masked = told["masked"]
    assert isinstance(masked, list)
    assert {"apt-daily.timer", "getty@tty1.service", "tmp.mount"} <= set(masked)
    assert "URIs: http://m.example/debian\nSuites: trixie trixie-updates" in str(
        told["apt_sources"]
    )


def test_command(agent: Path) -> None:
    argv = debian.mmdebstrap_argv(make_plan(agent), Path("/w/root"), "hook", Path("/k.gpg"))
    assert "--include=git,curl" in argv
    assert "--customize-hook=hook" in argv
    assert argv[-4:-2] == ["trixie", "/w/root"]
    assert "deb [signed-by=/k.gpg] http://m.example/debian trixie main" in argv
    assert not any("allow-insecure" in part or "trusted" in part for part in argv)


def test_namespaces_die_with_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    argv = namespace.wrapped(["x"])
    assert argv[:3] == ["setpriv", "--pdeathsig", "KILL"]
    assert {"--map-root-user", "--map-auto", "--pid", "--mount", "--kill-child=KILL"} <= set(argv)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "--map-root-user" not in namespace.wrapped(["x"])


def test_progress_is_counted_and_never_goes_back() -> None:
    progress = PackagesProgress()
    lines = [
        "I: downloading packages with apt...",
        "Get:1 http://m.example trixie InRelease [140 kB]",
        "0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.",
        "Get:1 http://m.example/debian trixie/main amd64 gcc-14-base amd64 14.2.0-19 [49.4 kB]",
        "Get:2 http://m.example/debian trixie/main amd64 libc6 amd64 2.41 [2 MB]",
        "Unpacking libc6:amd64 (2.41) ...",
        "Setting up libc6:amd64 (2.41) ...",
        "0 upgraded, 1 newly installed, 0 to remove and 0 not upgraded.",
        "Get:1 http://m.example/debian trixie/main amd64 git amd64 1:2.47 [8 MB]",
        "Unpacking git (1:2.47) ...",
        "Setting up git (1:2.47) ...",
    ]
    shares, messages = [], []
    for line in lines:
        progress.feed(line)
        shares.append(progress.share)
        messages.append(progress.message)
    assert shares == sorted(shares)
    assert shares[1] == 0.0  # package lists are not packages
    assert shares[-1] == pytest.approx(0.99)
    assert messages[3] == "fetching gcc-14-base"
    assert messages[6] == "setting up libc6"
    assert messages[-1] == "setting up git"
    assert not progress.feed("something else")


@pytest.mark.parametrize(
    ("tail", "kind", "text"),
    [
        (["dpkg: error: No space left on device"], InsufficientResources, "disk is full"),
        (["E: Unable to locate package gti"], InvalidRequest, "'gti'"),
        (["mke2fs: Could not allocate block in ext2 filesystem"], InvalidRequest, "does not fit"),
        (["W: GPG error: NO_PUBKEY 6ED0E7B82643E131"], HostNotReady, "keys are too old"),
        (["E: Failed to fetch http://m.example/x  404"], BuildFailed, "Failed to fetch"),
        (["noise", "run step 2 ended with status 3: false"], BuildFailed, "run step 2"),
        ([], BuildFailed, "status 1"),
    ],
)
def test_failures_are_told_apart(tail: list[str], kind: type[Exception], text: str) -> None:
    error = debian.explain("packages", tail, "mmdebstrap exited with status 1")
    assert type(error) is kind
    assert text in error.message
    assert error.facts["step"] == ("run" if "run step" in text else "packages")


def test_missing_tools_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "find_tool", lambda name: None)
    with pytest.raises(HostNotReady) as caught:
        debian._check_tools()
    assert caught.value.hint == "run: sudo apt-get install e2fsprogs mmdebstrap util-linux"


def test_staging_copies_what_the_chroot_would_hide(agent: Path, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    source.mkdir()
    (source / "f").write_text("f")
    (source / "link").symlink_to("f")
    recipe = dataclasses.replace(
        RECIPE,
        files=(RecipeFile(target="/a", content="text"), RecipeFile(target="/t", source=source)),
    )
    stage = tmp_path / "root" / inside.STAGE
    inside.stage(make_plan(agent, recipe).for_inside(), stage)
    assert (stage / "agent" / "__main__.py").is_file()
    assert (stage / "system/etc/systemd/system/torpor-network.service").is_file()
    assert (stage / "files/0").read_text() == "text"
    assert (stage / "files/1/link").readlink() == Path("f")


def test_keyring_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plan, "_KEYRINGS", (tmp_path / "none",))
    with pytest.raises(HostNotReady, match="keys of Debian"):
        plan.find_keyring()
