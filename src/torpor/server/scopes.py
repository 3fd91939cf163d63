"""Which scope each route needs, in one place. A route that is not listed is for `admin` alone.

`READ` is for what shows no content of a machine, wakes none and changes nothing. `USE` is all that is done with
sandboxes and snapshots. `ADMIN` is what acts on the host: a template's recipe runs there.
"""

from __future__ import annotations

from collections.abc import Iterable

from torpor.model_access import Scope

READ = frozenset(
    [
        "follow_events",
        "get_lifecycle",
        "get_me",
        "get_profile",
        "get_sandbox",
        "get_snapshot",
        "get_template",
        "get_volume",
        "get_tree",
        "health",
        "list_holds",
        "list_layers",
        "list_profiles",
        "list_sandboxes",
        "list_snapshots",
        "list_snapshots_of_sandbox",
        "list_templates",
        "list_volume_snapshots",
        "list_volumes",
        "list_volumes_of_sandbox",
        "memory_space",
        "memory_spaces",
        "memory_verify_chain",
        "version",
    ]
)
USE = frozenset(
    [
        "abort_change",
        "attach_exec",
        "attach_volume",
        "clone_volume",
        "begin_change",
        "confirm_change",
        "create_sandbox",
        "create_volume",
        "delete_sandbox",
        "delete_snapshot",
        "delete_volume",
        "delete_volume_snapshot",
        "detach_volume",
        "detect_profile",
        "diff_inventories",
        "exec_command",
        "exec_stream",
        "finish_change",
        "follow_change",
        "fork_sandbox",
        "fork_snapshot",
        "fork_tree",
        "get_change",
        "get_exec",
        "get_inventory",
        "get_logs",
        "get_snapshot_inventory",
        "grow_volume",
        "hibernate_sandbox",
        "init_checks",
        "keep_volume",
        "list_changes",
        "list_changes_of_sandbox",
        "list_dir",
        "list_execs",
        "list_processes",
        "make_dir",
        "memory_apply",
        "memory_conflicts",
        "memory_consolidate",
        "memory_correct",
        "memory_diff",
        "memory_effect",
        "memory_effects",
        "memory_episode",
        "memory_episodes",
        "memory_erase",
        "memory_expire",
        "memory_explain",
        "memory_fact",
        "memory_facts",
        "memory_files_create",
        "memory_files_delete",
        "memory_files_files",
        "memory_files_insert",
        "memory_files_rename",
        "memory_files_str_replace",
        "memory_files_view",
        "memory_finish_effect",
        "memory_fork",
        "memory_history",
        "memory_merge",
        "memory_on_restore",
        "memory_pin",
        "memory_plan_merge",
        "memory_recall",
        "memory_record",
        "memory_record_many",
        "memory_remember",
        "memory_remember_many",
        "memory_resolve",
        "memory_restore",
        "memory_retract",
        "memory_revert",
        "memory_supersede",
        "memory_switch",
        "memory_timeline",
        "memory_unread",
        "memory_verify_erasure",
        "memory_watermark",
        "memory_why_not",
        "pack_dir",
        "pause_sandbox",
        "promote_fork",
        "read_file",
        "reject_change",
        "release_hold",
        "remove_file",
        "rename_file",
        "renew_change",
        "renew_hold",
        "report_change",
        "restore_snapshot",
        "resume_sandbox",
        "rollback_sandbox",
        "run_checks",
        "send_signal",
        "set_lifecycle",
        "stat_file",
        "stream_checks",
        "take_inventory",
        "take_snapshot",
        "take_volume_snapshot",
        "try_quiesce",
        "unpack_dir",
        "verify_snapshot",
        "wake_sandbox",
        "walk_dir",
        "write_file",
        "write_stdin",
    ]
)
ADMIN = frozenset(
    [
        "build_template",
        "create_token",
        "delete_template",
        "delete_token",
        "list_tokens",
        "memory_embed_missing",
        "memory_export",
        "memory_import",
        "open_listener",
    ]
)

HOST = frozenset({"doctor", "get_metrics"})
"""What shows the whole host: needs `read`, and the workspace `default`."""


def scope_of(route_name: str) -> Scope:
    """Return the least scope that may use a route."""
    if route_name in READ or route_name in HOST:
        return Scope.READ
    if route_name in USE:
        return Scope.USE
    return Scope.ADMIN


def listed() -> Iterable[str]:
    """Return all names above."""
    return READ | USE | ADMIN | HOST
