"""What a command imports is most of what it costs: one that changes nothing loads nothing that it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.lab import Lab

HEAVY = frozenset({"asyncio", "http", "httpx", "huggingface_hub", "jinja2", "jsonschema", "multiprocessing", "rich"})
UNUSED = frozenset(
    {
        "concurrent.futures",
        "gezelctl.catalog.gilde",
        "gezelctl.catalog.onefile",
        "gezelctl.engines.mlx.config",
        "gezelctl.gguf.header",
        "gezelctl.observe.helptext",
        "gezelctl.observe.hub",
        "json",
        "ssl",
        "subprocess",
        "tempfile",
    }
)
"""Parts of the plan of a catalog, of MLX, of a new file or build, and of a model that is still to be downloaded."""
_PROGRAM = """
import sys
from gezelctl.cli.main import run
code = run(sys.argv[1:])
print(*sorted(sys.modules), sep="\\n", file=sys.stderr)
sys.exit(code)
"""


def imported(lab: Lab, *args: str) -> set[str]:
    """The modules that a command line leaves loaded; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *args], cwd=lab.root, env=lab.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines())


def test_version_imports_the_command_line_and_nothing_of_ours_behind_it(lab: Lab) -> None:
    loaded = imported(lab, "--version")
    ours = {name for name in loaded if name.partition(".")[0] == "gezelctl"}
    assert ours == {"gezelctl", "gezelctl.cli", "gezelctl.cli.main", "gezelctl.errors"}
    assert not loaded & {"yaml", "msgspec"}


def test_a_warm_plan_imports_nothing_that_it_does_not_use(lab: Lab) -> None:
    lab.fake("one", "two")
    lab.ok("plan")  # hashes the file, reads its header, asks the engine for its options
    loaded = imported(lab, "plan")
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    assert not loaded & UNUSED
    assert not {name for name in loaded if name.startswith("gezelctl.execute")}
    assert sys.platform != "linux" or "psutil" not in loaded
    assert Path("/proc/driver/nvidia").exists() or "pynvml" not in loaded


def test_a_plan_of_running_servers_asks_them_and_imports_no_more(lab: Lab) -> None:
    lab.fake("one")
    lab.apply()
    loaded = imported(lab, "plan")
    assert "http.client" in loaded
    assert not {name.partition(".")[0] for name in loaded} & (HEAVY - {"http"})
    assert not loaded & {name for name in UNUSED if name.startswith("gezelctl")}
