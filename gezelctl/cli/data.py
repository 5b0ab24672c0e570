"""Files that ship with the package: inside an installed wheel, or beside it in a checkout."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import gezelctl


def data_text(name: str) -> str:
    """The text of `templates/…`. Raises FileNotFoundError when the installation is incomplete."""
    packed = resources.files("gezelctl").joinpath("_data", *name.split("/"))
    if packed.is_file():
        return packed.read_text(encoding="utf-8")
    return Path(gezelctl.__file__).parents[1].joinpath(name).read_text(encoding="utf-8")
