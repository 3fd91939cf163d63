"""A machine's own network namespace, which is there as long as its Firecracker is and goes with it.

Firecracker is started by a shell in a new namespace, which waits until what the machine is to have is made in it: a tap
with the addresses that QEMU's user network has, and, with `user`, a way out through a veth and NAT. The kernel removes
namespace, tap and veth with the last process in it; the one thing that outlives it is a table of nftables on the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Literal

from torpor.base import proc
from torpor.errors import HostNotReady, VmmFailed
from torpor.vmm.confine import User

TAP = "tap0"
MAC = "52:54:00:12:34:56"
"""The same in all machines, which are each alone in their network."""
_HOST_MAC = "52:55:0a:00:02:02"
"""The tap's own: a guest that goes on from a snapshot remembers it."""

_WAYS_OUT = IPv4Network("10.212.0.0/14")
"""Four addresses of it are a machine's way out; the guest never sees them."""
_NOTE = "network"
_TOOLS = {
    "ip": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
_TRIES = 20
_LIMIT_S = 30.0

_GATED = 'echo >"$1"; {}read -r go <"$2" && shift 2 && exec "$@" </dev/null'
"""Says that the namespace is there, waits to be told to go on, and becomes Firecracker; if nobody is left to tell it, it ends."""


def offered() -> frozenset[str]:
    """Return the networks that machines can have here."""
    return frozenset({"none", "user"} if no_way_out() is None else {"none"})


def no_way_out() -> str | None:
    """Return why machines can reach no network here; None: they can."""
    if os.geteuid() != 0:
        return "machines of Firecracker reach a network only where the daemon is root"
    missing = sorted({package for name, package in _TOOLS.items() if _tool(name) is None})
    if missing:
        packages = " ".join(missing)
        return f"machines of Firecracker reach no network without: sudo apt-get install {packages}"
    return None


def check() -> None:
    """Raise `HostNotReady` when a tool is missing that every machine needs."""
    missing = sorted({_TOOLS[name] for name in ("ip", "nsenter", "unshare") if not _tool(name)})
    if missing:
        raise HostNotReady(
            f"a machine's network needs {', '.join(missing)}",
            hint=f"run: sudo apt-get install {' '.join(missing)}",
        )


@dataclass(frozen=True, slots=True)
class Gate:
    """What a machine's process waits at: two pipes, and our ends of them."""

    said: int
    tell: int
    theirs: list[int]
    """The process's ends, to be passed on; empty once it has them."""

    def argv(self, user: User | None, program: Sequence[str]) -> list[str]:
        """Return what starts `program` as `user` in a network of its own, once it is told to go on."""
        become: list[str] = []
        if user is None:
            into = [_path("unshare"), "--user", "--map-root-user", "--net", "--"]
        else:
            into = [_path("unshare"), "--net", "--"]
            groups = ",".join(map(str, user.groups))
            become = [_path("setpriv"), f"--reuid={user.uid}", f"--regid={user.gid}"]
            become += [f"--groups={groups}", "--inh-caps=-all", "--no-new-privs", "--"]
        return [*into, *self._gated([]), *become, *program]

    def argv_of_jailer(self, program: Sequence[str], mounts: Sequence[Sequence[str]]) -> list[str]:
        """Return what starts `program` as root in a network of its own, with these mounts, once it is told to go on."""
        return [_path("unshare"), "--net", "--mount", "--", *self._gated(mounts), *program]

    def _gated(self, first: Sequence[Sequence[str]]) -> list[str]:
        script = _GATED.format("".join(f"{shlex.join(command)} && " for command in first))
        ends = [f"/proc/self/fd/{fd}" for fd in self.theirs]
        return ["/bin/sh", "-c", script, "sh", *ends]

    async def until_there(self) -> None:
        """Return when the process has entered its namespace.

        Raises:
            VmmFailed: it ended, or has not for long.
        """
        self._let_go()
        try:
            async with asyncio.timeout(_LIMIT_S):
                is_there = await readable_bytes(self.said)
        except TimeoutError as exc:
            raise VmmFailed(f"a network namespace was not made within {_LIMIT_S:g} s") from exc
        if not is_there:
            raise VmmFailed("a network namespace could not be made")

    def close(self) -> None:
        """Close all; a process that was not told to go on ends."""
        self._let_go()
        os.close(self.said)
        os.close(self.tell)

    def _let_go(self) -> None:
        while self.theirs:
            os.close(self.theirs.pop())

    def open(self) -> None:
        """Let the process go on."""
        os.write(self.tell, b"go\n")


@contextlib.contextmanager
def gate() -> Iterator[Gate]:
    """Enter with a new gate; on leaving, whoever was not told to go on ends."""
    said, their_said = os.pipe()
    their_tell, tell = os.pipe()
    made = Gate(said, tell, [their_said, their_tell])
    try:
        yield made
    finally:
        made.close()


async def make(folder: Path, pid: int, user: User | None, network: Literal["user", "none"]) -> None:
    """Make the network of process `pid`, which is in a namespace of its own.

    Raises:
        HostNotReady: this host cannot do it.
        VmmFailed: it did not work.
    """
    owner = 0 if user is None else user.uid
    script = [
        f"ip tuntap add dev {TAP} mode tap user {owner}",
        f"ip link set {TAP} address {_HOST_MAC} up",
    ]
    if network == "user":
        outer, inner = await _way_out(folder, pid)
        script += [
            f"ip addr add 10.0.2.2/24 dev {TAP}",
            "ip link set lo up",
            f"ip addr add {inner}/30 dev out",
            "ip link set out up",
            f"ip route add default via {outer}",
            f"echo 1 >{_FORWARD}",
            f"nft -f - <<'END'\n{_inside(_resolver())}\nEND",
        ]
    enter = [_path("nsenter"), f"--target={pid}", "--net"]
    if user is None:
        enter += ["--user", "--preserve-credentials"]
    await _run([*enter, "/bin/sh", "-es"], "\n".join(script))


async def remove(folder: Path) -> None:
    """Remove what a machine's network left on the host when its process had ended; nothing happens if there is nothing."""
    note, tool = folder / _NOTE, _tool("nft")
    if note.exists():
        if tool is not None:
            await _run([tool, "-f", "-"], _without_table(_noted_table(folder)))
        note.unlink(missing_ok=True)


async def _way_out(folder: Path, pid: int) -> tuple[IPv4Address, IPv4Address]:
    """Connect the namespace to the host; return the addresses of the host's end and of the other."""
    await remove(folder)
    table = _table(folder)
    (folder / _NOTE).write_text(table)  # before there is anything to remove
    for _ in range(_TRIES):
        number = secrets.randbelow(_WAYS_OUT.num_addresses // 4)
        net, name = _WAYS_OUT[number * 4], f"tpr{number}"
        outer, inner = net + 1, net + 2
        batch = (
            f"link add {name} type veth peer name out netns {pid}\n"
            f"addr add {outer}/30 dev {name}\nlink set {name} up\n"
        )
        try:
            await _run([_path("ip"), "-batch", "-"], batch)
        except VmmFailed as exc:
            if "File exists" in exc.message:  # another machine's
                continue
            raise
        _let_host_forward()
        await _run([_path("nft"), "-f", "-"], _without_table(table) + _outside(table, inner))
        return outer, inner
    raise VmmFailed(f"no free network for a machine in {_WAYS_OUT}")


def _let_host_forward() -> None:
    if _FORWARD.read_text().strip() != "1":
        _FORWARD.write_text("1")


def _outside(table: str, inner: IPv4Address) -> str:
    return (
        f"table ip {table} {{\n"
        "chain leaving {\ntype nat hook postrouting priority srcnat\n"
        f"ip saddr {inner} masquerade\n}}\n}}\n"
    )


def _inside(resolver: str | None) -> str:
    """Return the rules of the namespace: the guest is one address outside, and finds a resolver where QEMU has it."""
    dns = "".join(
        f"ip daddr 10.0.2.3 {protocol} dport 53 dnat to {resolver}\n"
        for protocol in ("udp", "tcp")
        if resolver
    )
    return (
        "table ip torpor {\n"
        f"chain asking {{\ntype nat hook prerouting priority dstnat\n{dns}}}\n"
        "chain leaving {\ntype nat hook postrouting priority srcnat\n"
        'oifname "out" masquerade\n}\n}'
    )


def _without_table(table: str) -> str:
    """Return the commands that remove a table, if there is one."""
    return f"table ip {table}\ndelete table ip {table}\n"


def _table(folder: Path) -> str:
    """Return the name for the table of a folder: templates that are built all have the same folder's name."""
    known = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]
    return f"{_old_table(folder)}_{known}"


def _noted_table(folder: Path) -> str:
    """Return the name of a machine's table as it was noted; earlier versions of Torpor noted none."""
    noted = (folder / _NOTE).read_text()
    return noted if re.fullmatch("torpor_[0-9a-zA-Z_]{1,200}", noted) else _old_table(folder)


def _old_table(folder: Path) -> str:
    return f"torpor_{re.sub('[^0-9a-zA-Z]', '_', folder.name)}"


def _resolver(places: Sequence[Path] = _RESOLVERS) -> str | None:
    """Return a name server of the host that can be reached from another namespace; None: it has none."""
    for place in places:
        try:
            lines = place.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) == 2 and words[0] == "nameserver":
                with contextlib.suppress(ValueError):
                    if not (found := IPv4Address(words[1])).is_loopback:
                        return str(found)
    return None


def _tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _path(name: str) -> str:
    found = _tool(name)
    if found is None:
        raise HostNotReady(
            f"{name} is not installed", hint=f"run: sudo apt-get install {_TOOLS[name]}"
        )
    return found


async def readable_bytes(fd: int) -> bytes:
    """Return what comes through a pipe first; nothing when its other end was closed."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
    return os.read(fd, 64)


async def _run(argv: Sequence[str], script: str) -> None:
    try:
        await proc.run(argv, timeout_s=_LIMIT_S, stdin=script.encode() + b"\n")
    except proc.HostCommandFailed as exc:
        raise VmmFailed(
            f"a machine's network could not be made: {exc.facts.get('stderr')}"
        ) from exc
