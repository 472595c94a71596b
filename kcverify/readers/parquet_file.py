"""Parquet files with one request a row: columns of lists, read in batches of rows. Needs the extra `kcverify[parquet]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from kcverify.readers import tensors
from kcverify.readers.faults import Place, shown
from kcverify.readers.model import Found, Opening

_ROWS = 64


def columns(path: Path) -> dict[str, str]:
    """Column -> type. Raises InputError: `stream_invalid`."""
    try:
        schema = pyarrow.parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise Place(str(path)).invalid(f"it is no parquet file that can be read: {_first(error)}") from None
    return {field.name: str(field.type) for field in schema}


def read(opening: Opening) -> Found:
    """Rows of the columns that the project's row names."""
    path, there = opening.head.path, list(opening.head.first)
    scalars = [
        n for n, t in opening.head.first.items() if not t.startswith(("list", "large_list", "struct", "map", "fixed"))
    ]
    names = [n for n in there if n in tensors.wanted(opening.format.name) or n in scalars]

    def rows() -> Iterator[Any]:
        try:
            with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
                for batch in file.iter_batches(batch_size=_ROWS, columns=names, use_threads=False):
                    yield from batch.to_pylist()
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise Place(str(path)).invalid(f"it is damaged: {_first(error)}") from None

    return tensors.read_rows(opening, there, rows)


def _first(error: Exception) -> str:
    return shown(str(error).splitlines()[0] if str(error) else type(error).__name__)
