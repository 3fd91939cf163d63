"""Which Debian mirror a build uses: `TORPOR_DEBIAN_MIRROR`, else the host's own, else deb.debian.org.

Only sources that Debian's own keys sign are taken from the host; a third party's repository never is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from torpor.errors import InvalidRequest

DEFAULT = "http://deb.debian.org/debian"
DEFAULT_SECURITY = "http://deb.debian.org/debian-security"

_RELEASES = r"(bookworm|trixie|forky|duke|sid|unstable|testing|stable|oldstable)"
_SUITE = re.compile(rf"{_RELEASES}(-updates|-backports)?")
_SECURITY = re.compile(rf"{_RELEASES}-security")
_SCHEMES = ("http", "https", "file")


@dataclass(frozen=True, slots=True)
class Source:
    """One repository of an apt sources file."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


@dataclass(frozen=True, slots=True)
class Mirror:
    """Where Debian's packages are taken from."""

    main: str
    security: str | None
    """None: security updates are not read during the build (the mirror may not carry them)."""
    found: str
    """Where the choice comes from, in words."""

    @property
    def shown(self) -> str:
        """The main mirror without a password."""
        parts = urlsplit(self.main)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    def lines(self, suite: str, keyring: Path) -> list[str]:
        """Return the apt sources for a build of `suite`, signed by `keyring`."""
        signed = f"[signed-by={keyring}]"
        lines = [f"deb {signed} {self.main} {suite} main"]
        if suite not in ("sid", "unstable"):
            lines.append(f"deb {signed} {self.main} {suite}-updates main")
            if self.security is not None:
                lines.append(f"deb {signed} {self.security} {suite}-security main")
        return lines

    def for_guest(self) -> tuple[str, str]:
        """Return main and security mirror for the guest's own sources.

        They are the build's, unless the guest could not reach them (a file, this host's loopback) or they
        hold a password, which no guest may see; then Debian's own.
        """
        return (
            self.main if _guest_may_use(self.main) else DEFAULT,
            self.security if self.security and _guest_may_use(self.security) else DEFAULT_SECURITY,
        )


def choose(apt: Path = Path("/etc/apt")) -> Mirror:
    """Return the mirror to build from.

    Raises:
        InvalidRequest: `TORPOR_DEBIAN_MIRROR` is not a URL that apt can read.
    """
    named = os.environ.get("TORPOR_DEBIAN_MIRROR")
    if named:
        if urlsplit(named).scheme not in _SCHEMES or re.search(r"[\s\[\]]", named):
            raise InvalidRequest(
                f"TORPOR_DEBIAN_MIRROR is {named!r}; wanted a URL such as {DEFAULT}",
                hint="http, https and file are known",
            )
        return Mirror(named.rstrip("/"), None, "TORPOR_DEBIAN_MIRROR")
    sources = [s for s in host_sources(apt) if _is_debians(s)]
    main = next((s for s in sources if any(_SUITE.fullmatch(n) for n in s.suites)), None)
    if main is None:
        return Mirror(DEFAULT, DEFAULT_SECURITY, "the default; this host has no Debian sources")
    security = next((s for s in sources if any(_SECURITY.fullmatch(n) for n in s.suites)), None)
    return Mirror(
        main.uri.rstrip("/"),
        security.uri.rstrip("/") if security else None,
        f"this host's sources in {apt}",
    )


def host_sources(apt: Path) -> Iterator[Source]:
    """Yield the binary repositories of `sources.list` and `sources.list.d`, in apt's order."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for path in files:
        if path.suffix not in (".list", ".sources"):
            continue
        try:
            text = path.read_text("utf-8", "replace")
        except OSError:
            continue
        parse = parse_one_line if path.suffix == ".list" else parse_deb822
        for source in parse(text):
            yield _resolved(source)


def parse_one_line(text: str) -> Iterator[Source]:
    """Yield the `deb` lines of a one-line-style sources file."""
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        found = re.fullmatch(r"deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)\s*(.*)", line)
        if found is None:
            continue
        options, uri, suite, components = found.groups()
        signed = re.search(r"signed-by=(\S+)", options or "", re.IGNORECASE)
        yield Source(uri, (suite,), tuple(components.split()), signed.group(1) if signed else "")


def parse_deb822(text: str) -> Iterator[Source]:
    """Yield the enabled `deb` stanzas of a deb822-style sources file, one source a URI."""
    for stanza in re.split(r"\n[ \t]*\n", text.replace("\r", "")):
        fields = _fields(stanza)
        if fields.get("enabled", "yes").lower() in ("no", "false", "0", "off"):
            continue
        if "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            yield Source(
                uri,
                tuple(fields.get("suites", "").split()),
                tuple(fields.get("components", "").split()),
                fields.get("signed-by", ""),
            )


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line[0] in " \t":
            if name:
                fields[name] += "\n" + line.strip()
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def _resolved(source: Source) -> Source:
    """Return `source` with a `mirror+file:` list replaced by the first mirror in it."""
    if not source.uri.startswith("mirror+file:"):
        return source
    listed = Path("/" + source.uri.removeprefix("mirror+file:").lstrip("/"))
    try:
        first = next(iter(listed.read_text("utf-8", "replace").split()), source.uri)
    except OSError:
        return source
    return Source(first, source.suites, source.components, source.signed_by)


def _is_debians(source: Source) -> bool:
    return (
        urlsplit(source.uri).scheme in _SCHEMES
        and "main" in source.components
        and (not source.signed_by or "debian-archive" in source.signed_by)
        and "ubuntu" not in source.uri
    )


def _guest_may_use(uri: str) -> bool:
    parts = urlsplit(uri)
    host = parts.hostname or ""
    local = host == "localhost" or host.startswith("127.") or host == "::1"
    return parts.scheme in ("http", "https") and not local and "@" not in parts.netloc
