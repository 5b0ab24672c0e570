"""What an MLX folder's config.json says is what memory is priced with."""

from __future__ import annotations

import json
from pathlib import Path

from gezelctl.catalog.servers import Resolved
from gezelctl.catalog.types import Origin, Payload, PayloadFile
from gezelctl.observe.mlxfolder import read_shapes
from gezelctl.observe.types import MlxShape
from tests.launchmake import request


def wanted(folder: Path) -> Resolved:
    whole = PayloadFile(name="", role="file", origin=Origin("path", path=str(folder)))
    return Resolved(server=request().server, payload=Payload("mlx", "tiny", "", (whole,)))


def test_layers_heads_and_window_are_read_from_the_source_folder(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    shapes = read_shapes([wanted(tmp_path)], [])
    assert shapes == {str(tmp_path): MlxShape(context_tokens=512, kv_bytes_per_token=2 * 2 * 2 * 2 * 16)}


def test_a_folder_that_cannot_be_read_has_no_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert read_shapes([wanted(tmp_path)], []) == {}
