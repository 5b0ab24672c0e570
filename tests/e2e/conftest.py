"""Every test has its own lab, and fails when it leaves a process behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab whose servers are stopped by `destroy` at the end; whatever that misses fails the test."""
    found = Lab(tmp_path)
    yield found
    left = found.leave()
    assert not left, f"destroy left running: {left}"
