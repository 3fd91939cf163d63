"""Says what a machine is like now, for a first checks file: reads only, and stops in time. Prints JSON."""

from __future__ import annotations

import glob
import json
import os
import pwd
import stat
import subprocess
import sys
import time

ROOTS = (
    "/root",
    "/home",
    "/workspace",
    "/opt",
    "/srv",
    "/var/lib",
    "/usr/local/etc",
    "/etc/systemd/system",
)
SKIP = {
    "node_modules", ".git", "__pycache__", ".cache", "site-packages", "dist-packages", ".venv", "venv",
    ".npm", ".cargo", ".rustup", "logs", "log", "tmp",
}  # fmt: skip
SKIP_PATHS = {
    "/opt/torpor",
    "/var/lib/torpor",
    "/var/lib/dpkg",
    "/var/lib/apt",
    "/var/lib/systemd",
    "/var/lib/docker",
}
CONFIG_NAMES = ("config", "settings", "agent", "openclaw", "gateway")
CONFIG_ENDS = (".yaml", ".yml", ".json", ".toml", ".ini", ".conf", ".env")
DEPTH_MOST = 6
ENTRIES_MOST = 200_000
OPENED_MOST = 20_000
FILES_MOST = 60
DATABASES_MOST = 20
SQLITE = b"SQLite format 3\x00"
LISTEN = "0A"
OUR_UNITS = ("systemd-", "torpor", "getty@", "serial-getty@", "user@", "dbus", "console-getty")


def run(*argv: str) -> str:
    """Return what a command writes; nothing if it cannot be run."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def services() -> list[dict]:  # type: ignore[type-arg]
    """Return the services that run and are enabled, with the times that systemd has restarted each."""
    listed = run(
        "systemctl", "list-units", "--type=service", "--state=running", "--no-legend", "--plain", "--no-pager"
    )  # fmt: skip
    names = [line.split()[0] for line in listed.splitlines() if line.split()]
    found = []
    for name in names:
        if name.startswith(OUR_UNITS):
            continue
        said = run("systemctl", "show", name, "--property=UnitFileState,NRestarts")
        facts = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        if facts.get("UnitFileState") == "enabled":
            short = name.removesuffix(".service")
            found.append({"name": short, "restarts": int(facts.get("NRestarts") or 0)})
    return found


def sockets() -> dict:  # type: ignore[type-arg]
    """Return the inodes of the TCP sockets that listen, each with its port and address."""
    found = {}
    for name, family in (("tcp", 4), ("tcp6", 6)):
        try:
            with open("/proc/net/" + name) as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTEN:
                address, _, port = fields[1].partition(":")
                found[fields[9]] = (int(port, 16), address, family)
    return found


def owners(inodes: set) -> dict:  # type: ignore[type-arg]
    """Return the process that has each socket, by inode."""
    found: dict = {}  # type: ignore[type-arg]
    for pid in (name for name in os.listdir("/proc") if name.isdecimal()):
        try:
            for fd in os.listdir("/proc/%s/fd" % pid):
                link = os.readlink("/proc/%s/fd/%s" % (pid, fd))
                if link.startswith("socket:[") and link[8:-1] in inodes:
                    found.setdefault(link[8:-1], int(pid))
        except OSError:
            continue
    return found


def ports() -> list[dict]:  # type: ignore[type-arg]
    """Return the ports that something listens at; those that the kernel gave out by itself are left out."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, last = map(int, file.read().split())
    listening = sockets()
    held = owners(set(listening))
    by_port: dict = {}  # type: ignore[type-arg]
    for inode, (port, _address, _family) in listening.items():
        entry = by_port.setdefault(port, {"port": port, "program": None, "path": None})
        pid = held.get(inode)
        if pid is not None and pid != 1:
            entry["program"], entry["path"] = program(pid)
    return [
        by_port[port]
        for port in sorted(by_port)
        if not first <= port <= last or by_port[port]["program"]
    ]


def program(pid: int) -> tuple:  # type: ignore[type-arg]
    """Return the name and the file of a process's program."""
    try:
        with open("/proc/%d/comm" % pid) as file:
            name = file.read().rstrip("\n")
        return name, os.readlink("/proc/%d/exe" % pid)
    except OSError:
        return None, None


def package_of(path: str) -> str | None:
    """Return the Debian package that a file belongs to."""
    for name in (path, path[4:] if path.startswith("/usr/") else path):  # dpkg knows /bin/x as that
        said = run("dpkg-query", "-S", name).partition("\n")[0]
        if said and not said.startswith("diversion"):
            return said.partition(": ")[0].partition(",")[0].partition(":")[0]
    return None


def packages(units: list, listening: list) -> list[str]:  # type: ignore[type-arg]
    """Return the packages of what runs as a service or listens."""
    paths = [entry["path"] for entry in listening if entry["path"]]
    for unit in units:
        said = run("systemctl", "show", unit["name"], "--property=FragmentPath", "--value").strip()
        if said.startswith("/"):
            paths.append(said)
    names = {package_of(path) for path in dict.fromkeys(paths)}
    return sorted(name for name in names if name)


class Walk:
    """Goes through the folders where agents live, and stops at its limits."""

    def __init__(self, until: float) -> None:
        self.files: list = []  # type: ignore[type-arg]
        self.databases: list = []  # type: ignore[type-arg]
        self.notes: list = []  # type: ignore[type-arg]
        self._until = until
        self._entries = self._opened = 0

    def go(self, root: str) -> None:
        """Look at everything below a folder."""
        pending = [(root, 0)]
        device = os.stat(root).st_dev
        while pending:
            folder, depth = pending.pop()
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                self._entries += 1
                if self._entries > ENTRIES_MOST or time.monotonic() > self._until:
                    self.notes.append("%s was not looked through to its end" % root)
                    return
                self._look(entry, depth, device, pending)

    def _look(self, entry: os.DirEntry, depth: int, device: int, pending: list) -> None:  # type: ignore[type-arg]
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:
            return
        if stat.S_ISDIR(facts.st_mode):
            is_wanted = entry.name not in SKIP and entry.path not in SKIP_PATHS
            if is_wanted and depth < DEPTH_MOST and facts.st_dev == device:
                pending.append((entry.path, depth + 1))
        elif stat.S_ISREG(facts.st_mode):
            if self._is_config(entry) and len(self.files) < FILES_MOST:
                self.files.append(described(entry.path, facts))
            elif (
                facts.st_size >= 512
                and len(self.databases) < DATABASES_MOST
                and self._is_database(entry.path)
            ):
                self.databases.append(entry.path)

    def _is_config(self, entry: os.DirEntry) -> bool:  # type: ignore[type-arg]
        name = str(entry.name).lower()
        if entry.path.startswith("/etc/systemd/system/"):
            return name.endswith((".service", ".timer")) and not name.startswith("torpor")
        if name == ".env":
            return True
        stem, _, _ = name.rpartition(".")
        is_named = name.endswith(CONFIG_ENDS) and stem.startswith(CONFIG_NAMES)
        return is_named and not str(entry.path).startswith("/var/lib/")

    def _is_database(self, path: str) -> bool:
        self._opened += 1
        if self._opened > OPENED_MOST:
            return False
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOATIME)
        except OSError:
            return False
        try:
            return os.read(fd, 16) == SQLITE
        except OSError:
            return False
        finally:
            os.close(fd)


def described(path: str, facts: os.stat_result) -> dict:  # type: ignore[type-arg]
    """Return what is checked of a file."""
    try:
        owner = pwd.getpwuid(facts.st_uid).pw_name
    except KeyError:
        owner = None
    return {"path": path, "mode": "%04o" % stat.S_IMODE(facts.st_mode), "owner": owner}


def main() -> None:
    """Print `{services, ports, packages, files, databases, notes}`."""
    asked = json.loads(sys.stdin.buffer.read())
    walk = Walk(time.monotonic() + asked["walk_seconds"])
    for pattern in ROOTS:
        for root in sorted(glob.glob(pattern)):
            if os.path.isdir(root) and not os.path.islink(root):
                walk.go(root)
    units, listening = services(), ports()
    found = {
        "services": units,
        "ports": listening,
        "packages": packages(units, listening),
        "files": walk.files,
        "databases": walk.databases,
        "notes": walk.notes,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
