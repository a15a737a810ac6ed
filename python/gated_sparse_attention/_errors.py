"""Complaints in the words of the C++ side: who, which argument, what was expected, what came."""

from typing import Any, NoReturn

import torch


def bad_argument(where: str, argument: str, expected: str, got: Any) -> NoReturn:
    raise ValueError(f"{where}: argument '{argument}': expected {expected}, got {got}")


class NotAFile(str):
    """Where what is read like a file comes from: a configuration that was made by hand."""


def origin(file: Any) -> str:
    return str(file) if isinstance(file, NotAFile) else f"file '{file}'"


def bad_file(file: Any, expected: str, got: Any) -> NoReturn:
    raise ValueError(f"{origin(file)}: expected {expected}, got {got}")


def shown(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def require_one_of(where: str, argument: str, value: Any, names: tuple[str, ...]) -> None:
    if value not in names:
        bad_argument(where, argument, f"{', '.join(names[:-1])} or {names[-1]}", repr(value))
