"""What PandaStack has and this daemon does not: an answer that says so, for every method and path of it."""

from __future__ import annotations

import re

from torpor.errors import NotFound, NotOffered, TorporError
from torpor.server.compat.dispatch import PREFIX

WHOLE = {
    "apps": "apps; run the program in a sandbox and keep it with persistent=True",
    "functions": "functions; run the code in a sandbox: exec or run_code",
    "preview-repos": "previews of repositories",
    "repos": "previews of repositories",
    "schedules": "schedules; let your own scheduler call the API",
}
"""By the first part of the path."""
_PATH = re.compile(rf"{PREFIX}/v1/([^/]+)(/.*)?")


def not_there(path: str) -> TorporError:
    """Return the error for a path below the prefix that no route has."""
    found = _PATH.fullmatch(path)
    what = WHOLE.get(found.group(1)) if found else None
    if what is not None:
        return NotOffered(f"this daemon does not offer {what}", path=path)
    return NotFound(f"there is no {path.removeprefix(PREFIX)} in PandaStack's API here", path=path)
