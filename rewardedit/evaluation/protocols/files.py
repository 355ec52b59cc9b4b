"""Files of ratings, as benchmarks publish them."""

from pathlib import Path
from typing import Any

from rewardedit.data.hub import HubTable
from rewardedit.data.table import read_records
from rewardedit.untrusted import read_json_file

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json")


class BenchTable(HubTable):
    """A table of the hub, of which the columns without images can be read by themselves."""

    def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]
        return self.at(index)

    def texts_of_rows(self) -> Any:
        """The rows without their images."""
        names = [name for name in self.rows.column_names if name not in self.pictures]
        return self.rows.select_columns(names)


def is_ratings(path: str) -> bool:
    """True for a file of texts and numbers, without images."""
    return Path(path).suffix.lower() in SUFFIXES and Path(path).is_file()


def read_ratings(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV, TSV, JSONL or JSON file.

    Raises:
        ValueError: if it is none, or a JSON file holds no list of objects.
    """
    if path.suffix.lower() != ".json":
        return read_records(path)
    values = read_json_file(path)
    if not isinstance(values, list) or not values:
        raise ValueError(f"{path}: expected a list of objects; got another value")
    return [value if isinstance(value, dict) else {} for value in values]


def require_columns(path: Path | str, record: dict[str, Any], columns: tuple[str, ...]) -> None:
    """Raises ValueError if a table lacks columns."""
    missing = [name for name in columns if name not in record]
    if missing:
        raise ValueError(f"{path}: lacks the columns {', '.join(missing)}; it has {', '.join(record)}")
