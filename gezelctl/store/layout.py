"""Where everything stands: store, state and cache of one stack on one host; and which names may be joined to them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gezelctl.catalog.names import STORE_ID, is_device, name_fault
from gezelctl.config.source import is_text
from gezelctl.errors import GezelctlError

APP: Final = "gezelctl"
MANIFEST_NAME: Final = "manifest.json"
PENDING_MANIFEST_NAME: Final = ".manifest.next.json"
"""The manifest of a publish under way: it stands from before the first rename until it becomes `manifest.json`."""
PARTIAL_SUFFIX: Final = ".partial"
DIGEST_CHARS: Final = 12


class UnsafePathError(GezelctlError):
    """A name that would leave its folder, or a path that runs over a symbolic link inside the store."""

    def __init__(self, message: str, *, cure: str) -> None:
        super().__init__(message, cure=cure, code="UNSAFE_PATH")


def safe_join(root: Path, name: str) -> Path:
    """`root / name` for a contained POSIX relative name; no component below `root` may be a symbolic link.

    `root` itself is the person's choice and may be a link. Components that do not exist yet are fine.
    Raises UnsafePathError.
    """
    fault = name_fault(name)
    if fault:
        raise UnsafePathError(f"`{name}` {fault}", cure="use a relative name that stays in its folder")
    path = root
    parts = name.split("/")
    for index, part in enumerate(parts):
        path = path / part
        _check_component(path, last=index == len(parts) - 1)
    return path


def _check_component(path: Path, *, last: bool) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        raise UnsafePathError(
            f"{path} is a symbolic link",
            cure="replace it with a real file or folder; links inside the store are not followed",
        )
    if not last and not stat.S_ISDIR(mode):
        raise UnsafePathError(f"{path} is not a folder", cure="move it away")


def _segment(root: Path, name: str, what: str, suffix: str = "") -> Path:
    if not STORE_ID.match(name) or is_device(name):
        raise UnsafePathError(
            f"`{name}` is no {what}: 1 to 64 of a-z 0-9 . _ -, beginning with a letter or digit", cure="rename it"
        )
    return safe_join(root, name + suffix)


@dataclass(frozen=True)
class Paths:
    """The three roots of one stack: `store` (payloads and engines), `state` (this stack's own folder), `cache`."""

    store: Path
    state: Path
    cache: Path

    @property
    def models(self) -> Path:
        return self.store / "models"

    def payload_dir(self, engine: str, model_id: str) -> Path:
        """`models/<engine>/<model-id>`. Raises UnsafePathError for a name that may not touch the disk."""
        return _segment(_segment(safe_join(self.store, "models"), engine, "engine"), model_id, "model id")

    def engine_dir(self, name: str, sha256: str) -> Path:
        """`engines/<name>/<first 12 digits>`; it exists only when the archive was unpacked completely."""
        return _segment(
            _segment(safe_join(self.store, "engines"), name, "engine name"), sha256[:DIGEST_CHARS], "digest"
        )

    @property
    def lock(self) -> Path:
        return self.state / "lock"

    @property
    def lock_holder(self) -> Path:
        return self.state / "lock.json"

    @property
    def state_file(self) -> Path:
        return self.state / "state.json"

    @property
    def events(self) -> Path:
        return self.state / "events.jsonl"

    @property
    def hmac_key(self) -> Path:
        return self.state / "hmac.key"

    @property
    def plans(self) -> Path:
        """One empty file for each saved plan that was carried out."""
        return self.state / "plans"

    @property
    def broken_drafters(self) -> Path:
        """Draft models that took an engine build down, by build and digest."""
        return self.state / "broken-drafters.json"

    @property
    def starved(self) -> Path:
        """Starts that ran out of device memory, by build and weights."""
        return self.state / "out-of-memory.json"

    @property
    def measured(self) -> Path:
        """Measured memory by engine build and architecture."""
        return self.state / "measured.json"

    @property
    def runs(self) -> Path:
        return self.state / "runs"

    def run_record(self, server: str) -> Path:
        return _segment(self.runs, server, "server name", ".json")

    def log(self, server: str) -> Path:
        return _segment(self.state / "logs", server, "server name", ".log")

    def config(self, server: str) -> Path:
        """The sidecar configuration of an MLX server."""
        return _segment(self.state / "config", server, "server name", ".json")

    def slots(self, server: str) -> Path:
        """The folder for saved slots (`--slot-save-path`)."""
        return _segment(self.state / "slots", server, "server name")


def default_paths(stack: str, store: str | None, env: Mapping[str, str], *, root: bool | None = None) -> Paths:
    """The folders of `stack` for this user.

    A user gets the platform's folders (XDG on Linux); root, and a unit with systemd's STATE_DIRECTORY, get
    /var/lib/gezelctl/{state,store} and /var/cache/gezelctl. GEZELCTL_STATE_DIR and GEZELCTL_CACHE_DIR win.
    `store` is `store.path` of models.yaml. `root` says whether the user is root; None asks the system.
    """
    is_root = os.geteuid() == 0 if root is None else root
    unit = env.get("STATE_DIRECTORY", "").split(":")[0]
    base = Path(unit) if unit else Path("/var/lib", APP) if is_root else None
    state = (
        Path(env["GEZELCTL_STATE_DIR"])
        if env.get("GEZELCTL_STATE_DIR")
        else base / "state"
        if base
        else _user_state(env)
    )
    data = Path(store).expanduser() if store else (base or _user_data(env)) / "store"
    paths = Paths(
        store=data.absolute(),
        state=_segment(state.absolute(), stack, "stack name"),
        cache=_cache(env, is_root=is_root).absolute(),
    )
    for path in (paths.store, paths.state, paths.cache):
        if not is_text(str(path)):
            cure = "name another folder in store.path, GEZELCTL_STATE_DIR or GEZELCTL_CACHE_DIR"
            raise UnsafePathError(f"{path} is not UTF-8 text", cure=cure)
    return paths


def _cache(env: Mapping[str, str], *, is_root: bool) -> Path:
    named = env.get("GEZELCTL_CACHE_DIR") or env.get("CACHE_DIRECTORY", "").split(":")[0]
    if named:
        return Path(named)
    if is_root:
        return Path("/var/cache", APP)
    from platformdirs import user_cache_path

    return _xdg(env, "XDG_CACHE_HOME") or user_cache_path(APP)


def _user_state(env: Mapping[str, str]) -> Path:
    from platformdirs import user_state_path

    path = _xdg(env, "XDG_STATE_HOME") or user_state_path(APP)
    # macOS keeps state and data in one folder: a stack must not meet the store there
    return path / "state" if sys.platform == "darwin" else path


def _user_data(env: Mapping[str, str]) -> Path:
    from platformdirs import user_data_path

    return _xdg(env, "XDG_DATA_HOME") or user_data_path(APP)


def _xdg(env: Mapping[str, str], name: str) -> Path | None:
    value = env.get(name, "")
    return Path(value, APP) if value.startswith("/") else None


def find_program(directory: Path, name: str) -> Path | None:
    """The executable regular file `name` in an unpacked engine, the one nearest to the top; None when there is none.

    `name` may also be a relative path inside the folder (`bin/llama-server`).
    """
    direct = directory / name
    if "/" in name:
        return direct if not name_fault(name) and _runs(direct) else None
    found = [path for path in directory.rglob(name) if _runs(path)]
    return min(found, key=lambda path: (len(path.parts), str(path)), default=None)


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
