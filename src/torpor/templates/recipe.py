"""Recipes: what a template is made of, read from TOML. See docs/formats/recipe.md for the keys.

A recipe may name a parent in `base`. `load` returns the two as one: lists are joined, the parent's first;
tables are merged; a file with the same target and a user with the same name replace the parent's; every
other value of the child wins where it is given.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from torpor.base.ids import check_name
from torpor.errors import InvalidRequest, NotFound
from torpor.templates.fields import Table
from torpor.templates.oci.registry import check_reference

SHIPPED = Path(__file__).parent / "recipes"
"""Recipes that come with the package."""

T = TypeVar("T")

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 10
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9]+)?([=/][A-Za-z0-9.+:~-]+)?")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_OWNER = re.compile(r"[a-z_][a-z0-9_-]{0,31}|[0-9]{1,10}")
_SUITE = re.compile(r"[a-z][a-z0-9-]*")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYS = frozenset(
    {
        "name", "description", "base", "suite", "packages", "files", "run", "users",
        "default_user", "default_cwd", "env", "disk_gib", "ram_mib", "vcpus", "rootfs", "image",
        "dockerfile", "context",
    }
)  # fmt: skip
_ON_HOST = "paths are those of the daemon's host"
_SOURCES = {"rootfs": "root file system", "image": "image"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """A file or folder that is put into the image."""

    target: str
    """Absolute path in the guest."""
    content: str | None = None
    source: Path | None = None
    """A file or folder on the host; exactly one of `content` and `source` is set."""
    mode: int | None = None
    """None: 0644 for content, the source's own mode otherwise."""
    owner: str = "root:root"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeUser:
    """A user of the guest beside root."""

    name: str
    uid: int
    sudo: bool = False
    """May become root without a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe with its parents merged in."""

    name: str
    description: str = ""
    suite: str = "trixie"
    packages: tuple[str, ...] = ()
    files: tuple[RecipeFile, ...] = ()
    run: tuple[str, ...] = ()
    """Shell scripts, each run by `/bin/sh -e` as root in the image."""
    users: tuple[RecipeUser, ...] = ()
    default_user: str = "root"
    default_cwd: str = "/workspace"
    env: Mapping[str, str] = field(default_factory=dict)
    disk_gib: int = 8
    ram_mib: int = 512
    vcpus: int = 1
    rootfs: Path | None = None
    """A tar on the host that the image is made of, instead of Debian's packages."""
    image: Path | str | None = None
    """A container image that it is made of: a path on the host, or (text) a reference to one in a registry."""
    image_identity: str = ""
    """Of the container image, once it was looked at: see `torpor.templates.oci.image.Settings.identity`."""
    command: tuple[str, ...] = ()
    """What a container of the image would run; nothing starts it by itself."""

    dockerfile: Path | None = None
    """A Dockerfile that it is made by; `torpor.templates.planning` fills in what that says."""
    context: Path | None = None
    """The folder that the Dockerfile copies from; only with `dockerfile`."""

    @property
    def has_tree(self) -> bool:
        """Whether it is made of a root file system from elsewhere, not of Debian's packages."""
        return self.rootfs is not None or self.image is not None


def shipped_names() -> tuple[str, ...]:
    """Return the names of the recipes that come with the package."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def find(name_or_recipe: str | Path) -> Path:
    """Return the recipe file for a shipped name or a path; text with a `/` or `.toml` is a path.

    Raises:
        NotFound: there is none.
    """
    text = str(name_or_recipe)
    if isinstance(name_or_recipe, Path) or "/" in text or text.endswith(".toml"):
        path = Path(name_or_recipe)
        if not path.is_file():
            raise NotFound(f"there is no recipe file {path}", path=path)
        return path
    path = SHIPPED / f"{text}.toml"
    if text not in shipped_names():
        raise NotFound(
            f"no recipe is called {text!r}",
            hint=f"shipped: {', '.join(shipped_names())}; for one of your own give the path of its file",
        )
    return path


def load(path: Path) -> Recipe:
    """Read a recipe and its parents.

    Raises:
        NotFound: the file or a parent does not exist.
        InvalidRequest: it is malformed; the message has file and key, what was found and what was wanted.
    """
    return _load(path, ())


def _load(path: Path, seen: tuple[Path, ...]) -> Recipe:
    path = path.absolute()
    if path in seen or len(seen) >= _MAX_DEPTH:
        chain = " -> ".join(str(step) for step in (*seen, path))
        raise InvalidRequest(f"{path}: base goes in a circle: {chain}", file=path, key="base")
    table = Table(_read(path), file=path)
    table.only(_KEYS)
    parent_name = table.text("base")
    if table.text("dockerfile") is not None:
        return _of_dockerfile(table, path)
    for source in ("rootfs", "image"):
        if table.text(source) is not None:
            return _of_tree(table, path, source)
    if parent_name is None:
        return _parse(table, path, None)
    at = path.parent / parent_name if _is_path(parent_name) else parent_name
    try:
        parent = _load(find(at), (*seen, path))
    except NotFound as exc:
        raise table.wrong(
            "base", parent_name, "a shipped recipe or a path", hint=exc.hint or exc.message
        ) from exc
    return _parse(table, path, parent)


def _of_tree(table: Table, path: Path, source: str) -> Recipe:
    """Return the recipe of a template that is made of a root file system or a container image."""
    others = ("base", "suite", "packages", "run", "users", "rootfs", "image")
    given = sorted(name for name in others if name in table and name != source)
    if given:
        raise table.wrong(
            given[0],
            "given",
            f"not given beside {source}",
            hint="what the image is to have, put into it before it is written",
        )
    name = _name(table)
    given_text = table.required(source)
    at = path.parent / given_text
    is_there = at.is_file() or (source == "image" and at.is_dir())
    if source == "rootfs" and at.is_dir():
        raise InvalidRequest(
            f"{at} is a folder; a tar with a root file system is wanted",
            hint="an image's layout folder is given with --image",
            path=at,
        )
    if not is_there and (source == "rootfs" or given_text.startswith(("/", "./", "../"))):
        raise InvalidRequest(f"there is no {_SOURCES[source]} {at}", hint=_ON_HOST, path=at)
    base = Recipe(name=name)
    of_image = source == "image"
    return Recipe(
        name=name,
        description=table.text("description") or "",
        rootfs=None if of_image else at,
        image=(at if is_there else check_reference(given_text)) if of_image else None,
        files=_by_key(tuple(_file(t, path) for t in table.tables("files")), "target"),
        # what is not given is the image's to say: `image_recipe.with_settings`
        default_user=_match(table, "default_user", _USER, "a user's name")
        or ("" if of_image else base.default_user),
        default_cwd=_guest_path(table, "default_cwd") or ("" if of_image else base.default_cwd),
        env=_env(table),
        disk_gib=table.number("disk_gib", 1, 4096) or base.disk_gib,
        ram_mib=table.number("ram_mib", 128, 1 << 20) or base.ram_mib,
        vcpus=table.number("vcpus", 1, 64) or base.vcpus,
    )


def _of_dockerfile(table: Table, path: Path) -> Recipe:
    """Return the recipe of a template that a Dockerfile makes; sizes of 0 are its base's to say."""
    known = {"name", "description", "dockerfile", "context", "disk_gib", "ram_mib", "vcpus"}
    for key in sorted(_KEYS - known):
        if key in table:
            raise table.wrong(
                key, "given", "not given beside dockerfile", hint="write it into the Dockerfile"
            )
    at = path.parent / table.required("dockerfile")
    if not at.is_file():
        raise InvalidRequest(f"there is no Dockerfile {at}", hint=_ON_HOST, path=at)
    given = table.text("context")
    context = path.parent / given if given else at.parent
    if not context.is_dir():
        raise InvalidRequest(f"the context {context} is no folder", hint=_ON_HOST, path=context)
    return Recipe(
        name=_name(table),
        description=table.text("description") or "",
        dockerfile=at,
        context=context,
        disk_gib=table.number("disk_gib", 1, 4096) or 0,
        ram_mib=table.number("ram_mib", 128, 1 << 20) or 0,
        vcpus=table.number("vcpus", 1, 64) or 0,
    )


def _is_path(text: str) -> bool:
    return "/" in text or text.endswith(".toml")


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as exc:
        raise NotFound(f"cannot read recipe {path}: {exc.strerror}", path=path) from exc
    if len(data) > _MAX_BYTES:
        raise InvalidRequest(
            f"{path} is over {_MAX_BYTES} bytes; a recipe is a small TOML file", file=path
        )
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise InvalidRequest(f"{path} is not TOML: {exc}", file=path) from exc


def _parse(table: Table, path: Path, parent: Recipe | None) -> Recipe:
    name = _name(table)
    base = parent or Recipe(name=name)
    users = _by_key((*base.users, *(_user(t) for t in table.tables("users"))), "name")
    _no_twin_uids(table, users)
    recipe = Recipe(
        name=name,
        description=table.text("description") or "",
        suite=_match(table, "suite", _SUITE, "a Debian suite such as trixie") or base.suite,
        packages=tuple(dict.fromkeys((*base.packages, *_packages(table)))),
        files=_by_key((*base.files, *(_file(t, path) for t in table.tables("files"))), "target"),
        run=(*base.run, *table.texts("run")),
        users=users,
        default_user=_match(table, "default_user", _USER, "a user's name") or base.default_user,
        default_cwd=_guest_path(table, "default_cwd") or base.default_cwd,
        env={**base.env, **_env(table)},
        disk_gib=table.number("disk_gib", 1, 4096) or base.disk_gib,
        ram_mib=table.number("ram_mib", 128, 1 << 20) or base.ram_mib,
        vcpus=table.number("vcpus", 1, 64) or base.vcpus,
    )
    known = {"root", *(user.name for user in recipe.users)}
    if recipe.default_user not in known:
        raise table.wrong("default_user", recipe.default_user, f"one of {', '.join(sorted(known))}")
    return recipe


def _name(table: Table) -> str:
    name = table.required("name")
    try:
        return check_name(name, "template")
    except InvalidRequest as exc:
        raise table.wrong("name", name, "a template's name", hint=exc.hint) from exc


def _by_key(items: tuple[T, ...], key: str) -> tuple[T, ...]:
    return tuple({getattr(item, key): item for item in items}.values())


def _match(table: Table, name: str, pattern: re.Pattern[str], wanted: str) -> str | None:
    found = table.text(name)
    if found is not None and pattern.fullmatch(found) is None:
        raise table.wrong(name, found, wanted)
    return found


def _packages(table: Table) -> tuple[str, ...]:
    names = table.texts("packages")
    for number, name in enumerate(names):
        if _PACKAGE.fullmatch(name) is None:
            raise table.wrong(f"packages[{number}]", name, "the name of a Debian package")
    return names


def _env(table: Table) -> dict[str, str]:
    env = table.mapping("env")
    for name in env:
        if _ENV.fullmatch(name) is None:
            raise table.wrong(
                f"env.{name}", env[name], "a variable's name of letters, digits and _"
            )
    return env


def _guest_path(table: Table, name: str) -> str | None:
    found = table.text(name)
    if found is None:
        return None
    if not found.startswith("/") or ".." in found.split("/"):
        raise table.wrong(name, found, "an absolute path in the guest without '..'")
    return posixpath.normpath(found)


def _user(table: Table) -> RecipeUser:
    table.only({"name", "uid", "sudo"})
    name = table.required("name")
    if _USER.fullmatch(name) is None or name == "root":
        raise table.wrong("name", name, "a user's name other than root")
    uid = table.number("uid", 1000, 59999)
    if uid is None:
        raise table.wrong("uid", None, "a whole number from 1000 to 59999")
    return RecipeUser(name=name, uid=uid, sudo=table.flag("sudo", default=False))


def _no_twin_uids(table: Table, users: tuple[RecipeUser, ...]) -> None:
    seen: dict[int, str] = {}
    for user in users:
        if user.uid in seen:
            raise table.wrong(
                "users", user.name, f"a uid that {seen[user.uid]} does not have already"
            )
        seen[user.uid] = user.name


def _file(table: Table, recipe: Path) -> RecipeFile:
    table.only({"target", "content", "source", "mode", "owner"})
    target = _guest_path(table, "target")
    if target in (None, "/"):
        raise table.wrong("target", target, "an absolute path in the guest")
    assert target is not None
    content, source = table.text("content"), table.text("source")
    if (content is None) == (source is None):
        raise table.wrong("content", content, "exactly one of content and source")
    at = None
    if source is not None:
        at = recipe.parent / source
        if not at.is_file() and not at.is_dir():
            raise table.wrong("source", source, f"a file or folder ({at} is neither)")
    return RecipeFile(
        target=target, content=content, source=at, mode=_mode(table), owner=_owner(table)
    )


def _mode(table: Table) -> int | None:
    found = table.text("mode")
    if found is None:
        return None
    if re.fullmatch(r"0?[0-7]{3,4}", found) is None:
        raise table.wrong("mode", found, 'octal digits in quotes, such as "0644"')
    return int(found, 8)


def _owner(table: Table) -> str:
    found = table.text("owner", "root:root")
    assert found is not None
    user, _, group = found.partition(":")
    for part in (user, group or user):
        if _OWNER.fullmatch(part) is None:
            raise table.wrong("owner", found, "user or user:group")
    return f"{user}:{group or user}"


def as_plain(recipe: Recipe) -> dict[str, object]:
    """Return the recipe as JSON can hold it; host paths stay out, so it is the same on every host."""
    plain = dataclasses.asdict(recipe)
    plain["files"] = [
        {"target": f.target, "content": f.content, "mode": f.mode, "owner": f.owner}
        for f in recipe.files
    ]
    if plain.pop("rootfs") is not None:
        plain["rootfs"] = True  # its content is hashed apart
    del plain["image"]  # where it lies does not count, only its identity
    del plain["dockerfile"], plain["context"]  # what they say is hashed apart
    for name in ("image_identity", "command"):  # so that other recipes keep their digests
        if not plain[name]:
            del plain[name]
    plain["env"] = dict(sorted(recipe.env.items()))
    return plain
