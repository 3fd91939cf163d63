"""The documentation holds together: links lead somewhere, code compiles, what it lists is all there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.style.markdown import ROOT, Block, anchors, blocks, documents, links
from torpor.errors import catalogue

DOCUMENTS = documents()
NOT_RUN_MOST = 3
_INNER = {
    "TORPOR_TEST_FAULT_FILE",
    *("TORPOR_FAULT", "TORPOR_EXEC_ID", "TORPOR_RESTORE_REASON", "TORPOR_GENERATION"),
    *("TORPOR_QUIESCE_PHASE", "TORPOR_QUIESCE_NAME", "TORPOR_QUIESCE_TOKEN"),
    *("TORPOR_QUIESCE_LIMIT_SECONDS", "TORPOR_QUIESCE_HOLD_MAX_SECONDS"),
    *("TORPOR_QUIESCE_OUTCOME", "TORPOR_QUIESCE_FAILED_PHASE"),
    "TORPOR_MEMORY_SOCKET",
    "TORPOR_GENERATION_FILE",
}
"""Variables that nobody sets for the daemon or a client: they are for tests, or told to programs in a machine."""


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_lead_to_what_is_there(path: Path) -> None:
    broken = [link for link in links(path) if not _leads_somewhere(path, link)]
    assert not broken, f"{_name(path)} has links to what is not there: {broken}"


def _leads_somewhere(path: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True  # the tests ask no network
    place, _, anchor = link.partition("#")
    target = (path.parent / place).resolve() if place else path
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors(target))


def test_a_link_that_leads_nowhere_is_found() -> None:
    readme = ROOT / "README.md"
    assert _leads_somewhere(readme, "docs/how-it-works.md#a-snapshot")
    for wrong in ("docs/nothing.md", "docs/how-it-works.md#nothing", "../elsewhere", "#nothing"):
        assert not _leads_somewhere(readme, wrong), wrong


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (path.parent / link.partition("#")[0]).resolve()
        for path in DOCUMENTS
        for link in links(path)
        if not re.match(r"[a-z]+:|#", link)
    }
    linked |= {folder / "README.md" for folder in linked if folder.is_dir()}
    lonely = [_name(path) for path in DOCUMENTS if path not in linked]
    assert not lonely


def _python() -> list[Block]:
    return [b for path in DOCUMENTS for b in blocks(path) if b.language in ("python", "py")]


@pytest.mark.parametrize("block", _python(), ids=lambda block: block.place)
def test_python_in_the_docs_compiles(block: Block) -> None:
    compile("\n" * (block.line - 1) + block.text, str(block.path), "exec")


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_console_blocks_show_commands(path: Path) -> None:
    for block in blocks(path):
        if block.language == "console":
            assert block.text.startswith("$ "), block.place


def test_few_blocks_of_the_readme_are_not_run() -> None:
    found = blocks(ROOT / "README.md")
    assert len([b for b in found if b.not_run is not None]) <= NOT_RUN_MOST
    assert {b.language for b in found} <= {"python", "console", "text"}


def test_every_error_is_in_the_catalogue_for_people() -> None:
    text = (ROOT / "docs/how-to/troubleshoot.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `([\w.]+)` \| `(\w+)` \| (\d+) \| (\d+) \| (yes|no) \|", text, re.MULTILINE
    )
    wanted = {
        (e.code, e.__name__, str(e.exit_code), str(e.http_status), "yes" if e.retryable else "no")
        for e in catalogue()
    }
    assert set(rows) == wanted
    assert len(rows) == len(wanted)


def test_every_variable_is_in_the_list_for_people() -> None:
    used: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        used |= set(re.findall(r"\"(TORPOR_[A-Z_]+)\"", path.read_text(encoding="utf-8")))
    text = (ROOT / "docs/how-to/operate.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(TORPOR_[A-Z_]+)` \|", text, re.MULTILINE))
    prefixes = {"TORPOR_"}
    assert listed == used - _INNER - prefixes


def test_every_decision_is_listed_and_numbered() -> None:
    folder = ROOT / "docs/decisions"
    found = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    listed = [link for link in links(folder / "README.md") if not link.startswith("..")]
    assert listed == [path.name for path in found]
    for number, path in enumerate(found, 1):
        heading = path.read_text(encoding="utf-8").splitlines()[0]
        assert re.fullmatch(rf"{number:04}-[a-z-]+\.md", path.name)
        assert heading.startswith(f"# {number:04} "), path.name


def test_the_reader_in_the_format_reads_what_the_writer_wrote(tmp_path: Path) -> None:
    import numpy as np

    from torpor.layers.ram import PAGE, RamLayerWriter

    (block,) = [b for b in blocks(ROOT / "docs/formats/ram-layer.md") if b.language == "python"]
    names: dict[str, Any] = {}
    exec(compile(block.text, block.place, "exec"), names)
    content = {2: b"\x02" * PAGE, 3: b"\x03" * PAGE, 4: bytes(PAGE), 5: bytes(PAGE), 9: b"9" * PAGE}
    with RamLayerWriter(tmp_path / "layer", 16 * PAGE) as writer:
        writer.add(np.array(list(content), np.int64), memoryview(b"".join(content.values())))
        writer.finish()
    assert dict(names["read_ram_layer"](tmp_path / "layer")) == content

    damaged = bytearray((tmp_path / "layer").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    with pytest.raises(ValueError, match="the index is damaged"):
        list(names["read_ram_layer"](tmp_path / "damaged"))
