"""What became of a machine that ended by itself."""

from __future__ import annotations

from torpor.model import SandboxInfo, SandboxState
from torpor.sandboxes import folder as files
from torpor.sandboxes.parts import Parts
from torpor.vmm.console import of_the_last

_POWERED_DOWN = ("reboot: Power down", "reboot: Power off not available", "reboot: System halted")
"""The kernel's last words when a machine powers itself off; the later ones where there is no power to switch."""
_RESTARTED = "reboot: Restarting system"
"""And when it reboots, which ends a machine that went on from a snapshot."""


def verdict(parts: Parts, info: SandboxInfo) -> tuple[SandboxState, str | None]:
    """Return the state of a sandbox whose machine ended by itself, and the reason. Blocks."""
    folder = files.folder_of(parts.home, info.id)
    console = of_the_last(files.console_tail(parts.driver.console(folder)))
    if any(words in console for words in _POWERED_DOWN):
        return SandboxState.STOPPED, None
    if _RESTARTED in console:
        why = (
            "it rebooted itself, which ends a machine that went on from a snapshot; to boot one, "
            "take a snapshot while it runs and roll back to that with memory=cold (--cold)"
        )
        return SandboxState.STOPPED, why
    log = parts.driver.last_words(folder)
    text = ["the machine ended unexpectedly"]
    if log:
        text.append(f"VMM log:\n{log}")
    if console:
        text.append(f"console:\n{console}")
    return SandboxState.FAILED, "\n".join(text)
