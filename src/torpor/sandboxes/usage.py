"""What a sandbox's machine has used: its process, as the host counts it, and its devices, as its driver does."""

from __future__ import annotations

import asyncio
import dataclasses

from torpor.errors import VmmFailed, WrongState
from torpor.model import SandboxState
from torpor.model_usage import MachineUsage
from torpor.sandboxes.machine import SandboxMachine

_HINTS = {SandboxState.HIBERNATED: "it counts from its wake on: torpor wake {}"}


async def usage_of(m: SandboxMachine) -> MachineUsage:
    """Return what the machine has used since its VMM was started.

    Raises:
        WrongState: it has no machine now.
        VmmFailed: the machine ended meanwhile, or its VMM does not answer.
    """
    vmm, info = m.vmm, m.info
    if vmm is None:
        raise WrongState(
            f"sandbox {info.id} is {info.state}; it has no machine that uses anything",
            hint=_HINTS.get(info.state, "see why: torpor get {}").format(info.id),
            sandbox_id=info.id,
            state=info.state,
        )
    figures = await vmm.figures()
    process = await asyncio.to_thread(vmm.process.usage)
    if process is None:
        raise VmmFailed(f"the machine of sandbox {info.id} ended", sandbox_id=info.id)
    return MachineUsage(
        **dataclasses.asdict(figures),
        since=process.started_at,
        cpu_seconds=process.cpu_s,
        memory_bytes=process.private_bytes,
    )
