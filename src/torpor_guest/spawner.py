"""Starts commands for the agent. Run as a program of its own, by the agent.

Fork is slow: in an emulated guest the copied page tables of even a small Python cost more than ten milliseconds.
posix_spawn copies nothing, but leaves no room to do anything between fork and exec. So whatever a command is to
have, its cgroup, user and folder, this process takes on itself for a moment, and a command inherits it. It does
one at a time. As the saved user id stays root's meanwhile, it can come back; in the command, exec makes the saved
id the command's own.

It is not the agent, since those who may signal the user of a command may for that moment also signal who starts it.
When it dies, its commands become the agent's children, and the agent starts another. When the agent goes away, it
ends too.
"""

from __future__ import annotations

import array
import marshal
import os
import select
import signal
import socket
import struct
import sys

RECORD = struct.Struct("!cii")
"""What it says: STARTED with the pid, FAILED with the errno and the step, or ENDED with the pid and the wait status."""
STARTED, FAILED, ENDED = b"+", b"-", b"."
STEPS = ("cgroup", "user", "cwd", "program")

_AS_USUAL = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
"""What Python ignores, and what whoever started the agent may have ignored."""
_FDS = 3
_PIECE = 1 << 16


def main(control_fd: int, home: str) -> None:
    """Serve the control socket `control_fd` until the agent closes it; `home` is the cgroup to come back to."""
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    control.setblocking(True)
    os.umask(0o022)
    _be_ordinary()
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    events = select.poll()
    events.register(control, select.POLLIN)
    events.register(ended, select.POLLIN)
    groups = os.getgroups()
    while True:
        for fd, _ in events.poll():
            if fd == ended:
                os.read(ended, 4096)
                _tell_ends(control)
            elif not _serve(control, home, groups):
                return


def _be_ordinary() -> None:
    """Have neither the agent's priority nor its protection from the OOM killer: commands inherit ours."""
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:  # noqa: SIM105  # contextlib is an import that this program does without
        _put("/proc/self/oom_score_adj", b"0")
    except OSError:
        pass  # not root: it was never lowered


def _tell_ends(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        control.sendall(RECORD.pack(ENDED, pid, status))


def _serve(control: socket.socket, home: str, groups: list[int]) -> bool:
    """Take one request and answer it; return whether there was one."""
    fds = array.array("i")
    data, extra, _, _ = control.recvmsg(
        _PIECE, socket.CMSG_LEN(_FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for _, _, content in extra:
        fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    try:
        size = int.from_bytes(data[:4], "big") + 4
        while data and len(data) < size:
            piece = control.recv(_PIECE)
            data = data + piece if piece else b""
        if not data:
            return False
        control.sendall(RECORD.pack(*_start(marshal.loads(data[4:]), list(fds), home, groups)))
    finally:
        for fd in fds:
            os.close(fd)
    return True


def _start(request: tuple, fds: list[int], home: str, groups: list[int]) -> tuple[bytes, int, int]:  # type: ignore[type-arg]
    cgroup, user, cwd, programs, argv, env, has_terminal = request
    step = 0
    try:
        try:
            if cgroup:
                os.mkdir(cgroup)
                _put(f"{cgroup}/cgroup.procs", b"0")
            step = 1
            if user is not None:
                uid, gid, their_groups = user
                os.setgroups(their_groups)
                os.setresgid(gid, gid, 0)
                os.setresuid(uid, uid, 0)
            step = 2
            os.chdir(cwd)
            step = 3
            pid = _spawn(programs, argv, env, _actions(fds, has_terminal))
        except OSError as exc:
            return FAILED, exc.errno or 0, step
        return STARTED, pid, 0
    finally:
        if user is not None:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
            os.setgroups(groups)
        os.chdir("/")
        if cgroup and step:
            _put(f"{home}/cgroup.procs", b"0")


def _actions(fds: list[int], has_terminal: bool) -> list[tuple]:  # type: ignore[type-arg]
    """Return what a command does with its descriptors before it is run.

    Who leads a session and opens a terminal has it as the one that controls it.
    """
    if not has_terminal:
        return [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(fds)]
    place = f"/proc/self/fd/{fds[0]}"
    return [
        (os.POSIX_SPAWN_OPEN, 0, place, os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
    ]


def _spawn(
    programs: list[bytes],
    argv: list[bytes],
    env: dict[bytes, bytes],
    actions: list[tuple],  # type: ignore[type-arg]
) -> int:
    """Start the first of `programs` that can be run, as execvp would choose."""
    failure = FileNotFoundError(2, "no such program")
    for program in programs:
        try:
            os.stat(program)  # far cheaper than a process that finds nothing to become
            return os.posix_spawn(
                program,
                argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigdef=_AS_USUAL,
            )
        except (FileNotFoundError, NotADirectoryError) as exc:
            if len(programs) == 1:
                failure = exc  # type: ignore[assignment]
        except PermissionError as exc:
            failure = exc  # type: ignore[assignment]
    raise failure


def _put(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
