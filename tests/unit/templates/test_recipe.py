"""Recipes: what the shipped ones say, how parents merge, and what a malformed one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from torpor.errors import InvalidRequest, NotFound
from torpor.templates import recipe


def write(folder: Path, text: str, name: str = "own.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        recipe.load(write(folder, text))
    assert "own.toml" in caught.value.message
    return caught.value


def test_shipped_recipes_are_whole() -> None:
    assert recipe.shipped_names() == ("agent", "base", "code-interpreter", "postgres")
    base = recipe.load(recipe.find("base"))
    assert base.suite == "trixie"
    assert {"systemd-sysv", "python3", "git", "curl", "cron"} <= set(base.packages)
    assert [user.name for user in base.users] == ["agent"]
    assert (base.default_user, base.default_cwd) == ("root", "/workspace")


def test_agent_is_base_and_more() -> None:
    base, agent = (recipe.load(recipe.find(name)) for name in ("base", "agent"))
    assert agent.packages[: len(base.packages)] == base.packages
    assert {"build-essential", "ripgrep", "jq", "tmux"} <= set(agent.packages)
    assert agent.name == "agent"
    assert agent.ram_mib > base.ram_mib
    assert agent.env == base.env


def test_child_wins_lists_join_tables_merge(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
name = "parent"
packages = ["a", "b"]
run = ["one"]
vcpus = 2
env = {A = "1", B = "1"}
files = [{target = "/x", content = "old"}, {target = "/y", content = "y"}]
""",
        "parent.toml",
    )
    child = write(
        tmp_path,
        """
name = "child"
base = "./parent.toml"
packages = ["b", "c"]
run = ["two"]
default_user = "me"
users = [{name = "me", uid = 1001}]
env = {B = "2"}
files = [{target = "/x", content = "new", mode = "0755", owner = "me"}]
""",
    )
    found = recipe.load(child)
    assert found.packages == ("a", "b", "c")
    assert found.run == ("one", "two")
    assert found.vcpus == 2
    assert found.env == {"A": "1", "B": "2"}
    assert [(f.target, f.content) for f in found.files] == [("/x", "new"), ("/y", "y")]
    assert (found.files[0].mode, found.files[0].owner) == (0o755, "me:me")
    assert found.default_user == "me"


def test_unknown_key_names_the_near_one(tmp_path: Path) -> None:
    error = refused(tmp_path, 'name = "x"\npackage = ["git"]\n')
    assert "'package'" in error.message
    assert error.hint == "did you mean 'packages'?"


@pytest.mark.parametrize(
    ("text", "key", "wanted"),
    [
        ("", "name", "not empty"),
        ("name = 3", "name", "a string"),
        ('name = "Not A Name"', "name", "a template's name"),
        ('name = "x"\nvcpus = 0', "vcpus", "from 1 to 64"),
        ('name = "x"\nram_mib = true', "ram_mib", "a whole number"),
        ('name = "x"\ndisk_gib = 1.5', "disk_gib", "a whole number"),
        ('name = "x"\npackages = "git"', "packages", "a list of strings"),
        ('name = "x"\npackages = ["git", "rm -rf /"]', "packages[1]", "a Debian package"),
        ('name = "x"\npackages = ["--dpkgopt=x"]', "packages[0]", "a Debian package"),
        ('name = "x"\nrun = [""]', "run[0]", "not empty"),
        ('name = "x"\nenv = {"A-B" = "1"}', "env.A-B", "a variable's name"),
        ('name = "x"\nenv = {A = 1}', "env.A", "a string"),
        ('name = "x"\nsuite = "../x"', "suite", "a Debian suite"),
        ('name = "x"\ndefault_user = "me"', "default_user", "one of root"),
        ('name = "x"\ndefault_cwd = "here"', "default_cwd", "an absolute path"),
        ('name = "x"\nusers = [{name = "root", uid = 1000}]', "users[0].name", "other than root"),
        ('name = "x"\nusers = [{name = "me"}]', "users[0].uid", "from 1000"),
        (
            'name = "x"\nusers = [{name = "a", uid = 1000}, {name = "b", uid = 1000}]',
            "users",
            "a uid that a does not have",
        ),
        ('name = "x"\nfiles = [{target = "/x"}]', "files[0].content", "exactly one"),
        ('name = "x"\nfiles = [{target = "/../x", content = ""}]', "files[0].target", "without"),
        ('name = "x"\nfiles = [{target = "/x", source = "no"}]', "files[0].source", "a file or"),
        (
            'name = "x"\nfiles = [{target = "/x", content = "", mode = "rwx"}]',
            "files[0].mode",
            "octal digits",
        ),
        (
            'name = "x"\nfiles = [{target = "/x", content = "", owner = "a b"}]',
            "files[0].owner",
            "user or user:group",
        ),
        ('name = "x"\nbase = "nope"', "base", "a shipped recipe"),
    ],
)
def test_malformed_values_are_told_by_key(tmp_path: Path, text: str, key: str, wanted: str) -> None:
    error = refused(tmp_path, text)
    assert error.facts["key"] == key
    assert key in error.message
    assert wanted in error.message


def test_not_toml(tmp_path: Path) -> None:
    assert "is not TOML" in refused(tmp_path, "name = ").message


def test_circle_of_parents(tmp_path: Path) -> None:
    write(tmp_path, 'name = "b"\nbase = "./own.toml"', "b.toml")
    assert "circle" in refused(tmp_path, 'name = "a"\nbase = "./b.toml"').message


def test_unknown_recipe_lists_the_shipped() -> None:
    with pytest.raises(NotFound) as caught:
        recipe.find("bas")
    assert caught.value.hint is not None
    assert "agent, base, code-interpreter, postgres" in caught.value.hint
    with pytest.raises(NotFound):
        recipe.find("./nowhere.toml")
