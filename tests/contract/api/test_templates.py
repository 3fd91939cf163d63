"""/v1/templates."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.contract.api.conftest import Rest
from torpor.server.routes.templates import tree_recipe
from torpor.server.wire import BuildEventWire, BuildRequest, TemplateListWire, TemplateWire


def test_list_get_delete(rest: Rest) -> None:
    found = rest.ok("GET", "/v1/templates")
    TemplateListWire.model_validate(found)
    assert [t["name"] for t in found["items"]] == ["agent", "base"]
    one = rest.ok("GET", "/v1/templates/base")
    TemplateWire.model_validate(one)
    assert (one["cpu"], one["memory_mb"]) == (one["vcpus"], one["ram_mib"])
    rest.create(template="base")
    rest.fails("DELETE", "/v1/templates/base", 409, "object.conflict")
    rest.ok("DELETE", "/v1/templates/agent", status=204)
    rest.fails("GET", "/v1/templates/agent", 404, "object.not_found")
    rest.fails("DELETE", "/v1/templates/agent", 404, "object.not_found")


def test_build_by_name(rest: Rest) -> None:
    events = rest.events("POST", "/v1/templates/build", json={"name": "fresh"})
    assert [name for name, _ in events] == ["progress", "progress", "done"]
    for _, data in events:
        BuildEventWire.model_validate(data)
    assert events[-1][1]["template"]["name"] == "fresh"
    assert rest.ok("GET", "/v1/templates/fresh")["name"] == "fresh"


def test_build_from_a_recipe(rest: Rest, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("by-path")
    body = {"recipe_path": str(tmp_path / "r.toml")}
    assert rest.events("POST", "/v1/templates/build", json=body)[-1][0] == "done"
    assert rest.events("POST", "/v1/templates/build", json={"recipe": "by-text"})[-1][0] == "done"
    names = [t["name"] for t in rest.ok("GET", "/v1/templates")["items"]]
    assert names == ["agent", "base", "by-path", "by-text"]


def test_build_from_a_root_file_system(rest: Rest) -> None:
    body = {"name": "tree", "rootfs_path": '/a "quoted"\\path\u00e9.tar', "disk_gib": 4}
    recipe = tomllib.loads(tree_recipe(BuildRequest.model_validate(body)) or "")
    assert recipe == {"name": "tree", "rootfs": body["rootfs_path"], "disk_gib": 4}
    assert rest.events("POST", "/v1/templates/build", json=body)[-1][0] == "done"
    assert rest.ok("GET", "/v1/templates/tree")["name"] == "tree"


def test_build_from_a_container_image(rest: Rest) -> None:
    body = {"name": "boxed", "image": "docker://registry.test/a:1", "disk_gib": 4}
    recipe = tomllib.loads(tree_recipe(BuildRequest.model_validate(body)) or "")
    assert recipe == {"name": "boxed", "image": body["image"], "disk_gib": 4}
    assert rest.events("POST", "/v1/templates/build", json=body)[-1][0] == "done"
    assert rest.ok("GET", "/v1/templates/boxed")["command"] == []


def test_build_from_a_dockerfile(rest: Rest) -> None:
    body = {"name": "made", "dockerfile_path": "/d/Dockerfile", "context_path": "/c"}
    recipe = tomllib.loads(tree_recipe(BuildRequest.model_validate(body)) or "")
    assert recipe == {"name": "made", "dockerfile": "/d/Dockerfile", "context": "/c"}
    assert rest.events("POST", "/v1/templates/build", json=body)[-1][0] == "done"


@pytest.mark.parametrize(
    "body",
    [
        {"rootfs_path": "/x.tar"},
        {"name": "x", "rootfs_path": "x.tar"},
        {"name": "no name", "rootfs_path": "/x.tar"},
        {"name": "base", "rootfs_path": "/x.tar"},
        {"name": "x", "disk_gib": 4},
        {"recipe": "x", "rootfs_path": "/x.tar"},
        {"image": "/x.tar"},
        {"name": "x", "image": "./x.tar"},
        {"name": "x", "image": "no image!"},
        {"name": "x", "image": "/x.tar", "rootfs_path": "/x.tar"},
        {"name": "x", "dockerfile_path": "Dockerfile"},
        {"name": "x", "dockerfile_path": "/Dockerfile", "context_path": "here"},
        {"name": "x", "dockerfile_path": "/Dockerfile", "image": "a"},
        {"name": "x", "context_path": "/"},
        {"dockerfile_path": "/Dockerfile"},
    ],
)
def test_root_file_systems_that_make_no_sense(rest: Rest, body: dict[str, object]) -> None:
    rest.fails("POST", "/v1/templates/build", 400, "request.invalid", json=body)


def test_a_build_that_fails_on_the_way(rest: Rest) -> None:
    events = rest.events("POST", "/v1/templates/build", json={"name": "broken"})
    assert [name for name, _ in events] == ["progress", "error"]
    assert events[-1][1]["code"] == "template.build_failed"
    assert events[-1][1]["facts"] == {"step": "run", "log": "boom"}


def test_builds_that_cannot_begin(rest: Rest) -> None:
    rest.fails("POST", "/v1/templates/build", 404, "object.not_found", json={"name": "unheard-of"})


@pytest.mark.parametrize(
    "body", [{}, {"name": "a", "recipe": "b"}, {"recipe_path": "relative.toml"}, {"name": 5}]
)
def test_builds_that_make_no_sense(rest: Rest, body: dict[str, object]) -> None:
    rest.fails("POST", "/v1/templates/build", 400, "request.invalid", json=body)
