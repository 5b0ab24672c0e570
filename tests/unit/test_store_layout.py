"""Where things stand, and which names may be joined to a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gezelctl.store.layout import Paths, UnsafePathError, default_paths, find_program, safe_join

ROOT = Path("/nowhere/at/all")


@given(st.text(max_size=40))
def test_no_name_leaves_its_folder(name: str) -> None:
    try:
        joined = safe_join(ROOT, name)
    except UnsafePathError:
        return
    assert ".." not in joined.parts
    assert joined.is_relative_to(ROOT)
    assert joined != ROOT


@given(st.text(max_size=70))
def test_no_id_is_more_than_one_safe_segment(name: str) -> None:
    paths = Paths(ROOT, ROOT, ROOT)

    def payload(model_id: str) -> Path:
        return paths.payload_dir("llama-cpp", model_id)

    for place in (paths.run_record, paths.slots, payload):
        try:
            found = place(name)
        except UnsafePathError:
            continue
        assert found.name == (f"{name}.json" if place == paths.run_record else name)
        assert not name.startswith((".", "-"))


@pytest.mark.parametrize("name", ["con", "nul.txt", "a/b", "..", "", "A", "a" * 65, "a\n"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(UnsafePathError) as caught:
        Paths(ROOT, ROOT, ROOT).payload_dir("llama-cpp", name)
    assert caught.value.cure


def test_the_longest_server_name_has_a_record() -> None:
    assert Paths(ROOT, ROOT, ROOT).run_record("a" * 63).name == "a" * 63 + ".json"


def test_a_symbolic_link_on_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").write_text("")
    assert safe_join(tmp_path, "real/x") == tmp_path / "real" / "x"
    for name in ("link", "link/x", "file/x"):
        with pytest.raises(UnsafePathError):
            safe_join(tmp_path, name)
    assert safe_join(tmp_path / "link", "x") == tmp_path / "link" / "x", "the root is the person's choice"


def test_a_user_gets_the_platform_folders(tmp_path: Path) -> None:
    env = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("STATE", "CACHE", "DATA")}
    paths = default_paths("lab", None, env, root=False)
    assert paths.state.is_relative_to(tmp_path / "state" / "gezelctl")
    assert paths.state.name == "lab"
    assert paths.store == tmp_path / "data" / "gezelctl" / "store"
    assert paths.cache == tmp_path / "cache" / "gezelctl"


def test_root_and_units_get_the_system_folders() -> None:
    system = default_paths("lab", None, {}, root=True)
    assert [str(p) for p in (system.store, system.state, system.cache)] == [
        "/var/lib/gezelctl/store",
        "/var/lib/gezelctl/state/lab",
        "/var/cache/gezelctl",
    ]
    unit = default_paths("lab", None, {"STATE_DIRECTORY": "/s:/t", "CACHE_DIRECTORY": "/c"}, root=False)
    assert [str(p) for p in (unit.store, unit.state, unit.cache)] == ["/s/store", "/s/state/lab", "/c"]


def test_named_folders_win() -> None:
    env = {"GEZELCTL_STATE_DIR": "/a", "GEZELCTL_CACHE_DIR": "/b", "STATE_DIRECTORY": "/s", "CACHE_DIRECTORY": "/c"}
    paths = default_paths("lab", "/srv/models", env, root=True)
    assert [str(p) for p in (paths.store, paths.state, paths.cache)] == ["/srv/models", "/a/lab", "/b"]


def test_a_stack_is_one_folder_name() -> None:
    with pytest.raises(UnsafePathError):
        default_paths("../x", None, {}, root=True)


def test_the_program_is_the_executable_nearest_to_the_top(tmp_path: Path) -> None:
    for place in ("build/bin/llama-server", "a/b/c/llama-server", "llama-server.txt"):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        path.chmod(0o755)
    (tmp_path / "llama-server").write_text("not executable")
    assert find_program(tmp_path, "llama-server") == tmp_path / "build/bin/llama-server"
    assert find_program(tmp_path, "a/b/c/llama-server") == tmp_path / "a/b/c/llama-server"
    assert find_program(tmp_path, "../llama-server") is None
    assert find_program(tmp_path, "whisper") is None
