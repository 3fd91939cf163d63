"""The parts of scripts/bootstrap that decide: which mirror, which Python, what is missing."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
OS_RELEASE = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian 12"\n'
DEB822 = """Types: deb
# http://snapshot.example/archive/debian/20250520T000000Z
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
THIRD = "deb [signed-by=/etc/apt/keyrings/x.gpg] https://third.example/apt bookworm main\n"


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    (tmp_path / "os-release").write_text(OS_RELEASE)
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    return tmp_path / "apt"


def call(apt: Path, code: str, *, status: int = 0) -> str:
    """Run shell code after reading the script's functions."""
    done = subprocess.run(
        ["bash", "-c", f"source {REPO}/scripts/bootstrap; {code}"],
        env={
            "PATH": os.environ["PATH"],
            "APT_DIR": str(apt),
            "OS_RELEASE": str(apt.parent / "os-release"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_the_shell_can_read_all_scripts() -> None:
    for script in ("scripts/bootstrap", "scripts/lock", ".ci/run"):
        subprocess.run(["bash", "-n", str(REPO / script)], check=True)
        assert os.access(REPO / script, os.X_OK), script


def test_deb822_mirror(apt: Path) -> None:
    (apt / "sources.list.d/debian.sources").write_text(DEB822)
    (apt / "sources.list.d/third.list").write_text(THIRD)
    (apt / "sources.list.d/off.sources.disabled").write_text(DEB822.replace("mirror", "off"))
    found = call(apt, "debian_sources").split()
    assert found == ["http://mirror.example/debian|/usr/share/keyrings/debian-archive-keyring.gpg"]


def test_disabled_stanza(apt: Path) -> None:
    (apt / "sources.list.d/debian.sources").write_text("Enabled: no\n" + DEB822)
    assert call(apt, "debian_sources") == ""


def test_one_line_mirror(apt: Path) -> None:
    (apt / "sources.list").write_text(
        "deb-src http://src.example/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
        "http://one.example/debian bookworm main contrib\n"
        "deb http://one.example/debian bookworm-updates main # later\n"
        "# deb http://off.example/debian bookworm main\n"
    )
    found = call(apt, "debian_sources").split()
    assert found == ["http://one.example/debian|/usr/share/keyrings/debian-archive-keyring.gpg"]


def test_backports_come_from_the_mirror_in_use(apt: Path) -> None:
    (apt / "sources.list.d/third.list").write_text(THIRD)
    assert call(apt, "backports_stanza bookworm || echo none") == "none\n"
    (apt / "sources.list").write_text("deb http://one.example/debian bookworm main\n")
    stanza = call(apt, "backports_stanza bookworm")
    assert (
        "URIs: http://one.example/debian\nSuites: bookworm-backports\nComponents: main\n" in stanza
    )
    assert stanza.endswith("Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n")


def test_backports_that_are_there_are_seen(apt: Path) -> None:
    asks = "has_backports bookworm && echo yes || echo no"
    source = apt / "sources.list.d/x.list"
    source.write_text("# deb http://m.example/debian bookworm-backports main\n")
    assert call(apt, asks) == "no\n"
    source.write_text("deb http://m.example/debian bookworm-backports main\n")
    assert call(apt, asks) == "yes\n"


@pytest.mark.parametrize(
    ("found", "wanted", "is_enough"),
    [("8.2.2", "8.2", True), ("7.2", "8.2", False), ("10.0.2", "8.2", True), ("8.2", "8.2", True)],
)
def test_versions(apt: Path, found: str, wanted: str, *, is_enough: bool) -> None:
    assert call(apt, f"version_at_least {found} {wanted} && echo yes || echo no") == (
        "yes\n" if is_enough else "no\n"
    )


@pytest.mark.parametrize(
    ("name", "version", "is_known"),
    [
        ("debian", "12", True),
        ("debian", "13", True),
        ("debian", "11", False),
        ("ubuntu", "24.04", True),
        ("ubuntu", "22.04", False),
        ("fedora", "42", False),
    ],
)
def test_systems(apt: Path, name: str, version: str, *, is_known: bool) -> None:
    (apt.parent / "os-release").write_text(f'ID={name}\nVERSION_ID="{version}"\n')
    said = call(apt, 'SUPPORTED=yes; check_system; echo "$SUPPORTED"')
    assert said == ("yes\n" if is_known else "no\n")


def test_unknown_system_is_told_what_to_install(apt: Path) -> None:
    (apt.parent / "os-release").write_text('ID=fedora\nVERSION_ID=42\nPRETTY_NAME="Fedora 42"\n')
    said = call(
        apt,
        "missing_packages() { echo mmdebstrap; }; qemu_is_enough() { false; }; main --system",
        status=1,
    )
    assert "Fedora 42 is not a system that this script knows" in said
    assert "mmdebstrap qemu-system-x86 qemu-utils" in said


def test_a_host_with_kvm_gets_what_the_network_of_firecracker_takes(
    apt: Path, tmp_path: Path
) -> None:
    fakes = f"SYS_MODULE={tmp_path}; has_package() {{ return 1; }};"
    assert "nftables" not in call(apt, f"{fakes} missing_packages").split()
    (tmp_path / "kvm_amd").mkdir()
    assert {"iproute2", "nftables"} <= set(call(apt, f"{fakes} missing_packages").split())


def test_postgresql_is_installed_for_tests_without_a_cluster(apt: Path, tmp_path: Path) -> None:
    fakes = (
        f"POSTGRES_DIR={tmp_path}/pg; SUPPORTED=yes; command() {{ return 1; }}; update_lists() {{ :; }};"
        "find_sudo() { :; };"
        f'as_root() {{ echo "$*" >>{tmp_path}/calls; case $1 in tee) cat >>{tmp_path}/calls ;; env) '
        f"mkdir -p {tmp_path}/pg/15/bin; touch {tmp_path}/pg/15/bin/initdb ;; esac; }};"
    )
    call(apt, f"{fakes} install_postgres")
    calls = (tmp_path / "calls").read_text().splitlines()
    conf = "/etc/postgresql-common/createcluster.d/torpor.conf"
    assert [c.split()[0] for c in calls] == ["mkdir", "tee", "create_main_cluster", "env", "rm"]
    assert calls[1] == f"tee {conf}"
    assert calls[3].endswith("install --no-install-recommends postgresql")
    assert calls[4] == f"rm -f {conf}"
    call(apt, f"{fakes} install_postgres")  # and again at no cost
    assert (tmp_path / "calls").read_text().splitlines() == calls


def test_a_failed_install_of_postgresql_leaves_no_setting(apt: Path, tmp_path: Path) -> None:
    said = call(
        apt,
        f"POSTGRES_DIR={tmp_path}/pg; SUPPORTED=yes; command() {{ return 1; }}; update_lists() {{ :; }};"
        "find_sudo() { :; };"
        "as_root() { case $1 in tee) cat >/dev/null ;; env) return 1 ;; esac; echo $1 >&2; };"
        "install_postgres",
        status=1,
    )
    assert said.rstrip().endswith("rm")
    assert "apt-get could not install: postgresql" in said


def test_who_cannot_become_root_is_told_what_to_run(apt: Path) -> None:
    said = call(apt, "id() { echo 1000; }; sudo() { return 1; }; find_sudo 'a b'", status=1)
    assert f"as root run:\n    {REPO}/scripts/bootstrap --system" in said
    assert "(it installs: a b)" in said


def test_python_must_be_new_enough(apt: Path, tmp_path: Path) -> None:
    old = tmp_path / "bin"
    old.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        (old / name).write_text("#!/bin/sh\nexit 1\n")
        (old / name).chmod(0o755)
    assert call(apt, f"PATH={old}:/usr/bin:/bin find_python || echo none") == "none\n"
    (old / "python3.12").write_text("#!/bin/sh\nexit 0\n")
    assert call(apt, f"PATH={old}:/usr/bin:/bin find_python") == f"{old}/python3.12\n"


def test_pins_name_versions_and_no_place() -> None:
    lines = (REPO / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", pin), pin
