"""JSON as the program reads it (src/core/json.cc): strict, with complaints in its words."""

import json
import os
from pathlib import Path
from typing import Any, NoReturn

from ._errors import bad_file


def cannot_open(file: str | Path, error: OSError) -> NoReturn:
    """In the program's words; the kind of error stays what it was, FileNotFoundError for one."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    raise type(error)(f"file '{file}': cannot open it: {reason}") from None


def parse_json(text: str, file: str | Path) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                bad_file(file, "every key once", f"a second {json.dumps(key)}")
            found[key] = value
        return found

    def constant(name: str) -> NoReturn:
        bad_file(file, "JSON", name)

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=constant)
    except json.JSONDecodeError as error:
        bad_file(file, "JSON", str(error))
    except RecursionError:
        bad_file(file, "JSON of fewer levels", "more")


def read_json(file: Path) -> Any:
    try:
        text = file.read_bytes()
    except OSError as error:
        cannot_open(file, error)
    try:
        return parse_json(text.decode("utf-8"), file)
    except UnicodeDecodeError as error:
        bad_file(file, "JSON in UTF-8", f"an error at byte {error.start}")


def shown_json(value: Any) -> str:
    """A value for a complaint; an object or a long list by its size."""
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, list) and len(value) > 8:
        return f"a list of {len(value)} values"
    return json.dumps(value)[:80]
