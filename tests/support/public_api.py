"""Writes the public face of `labeler` down: every promised name with its signature, one a line."""

import inspect
from enum import Enum
from types import ModuleType, NoneType, UnionType
from typing import Literal, Union, Unpack, get_args, get_origin


def public_api(module: ModuleType) -> list[str]:
    """Names of `module.__all__` with signatures; of classes also bases and public members."""
    lines: list[str] = []
    for name in sorted(module.__all__):
        lines += _lines(name, getattr(module, name))
    return lines


def _lines(name: str, value: object) -> list[str]:
    if inspect.isclass(value):
        bases = "".join(f"({base.__name__})" for base in value.__bases__ if base is not object)
        members = [line for member in _members(value) for line in _member(name, value, member)]
        return [f"class {name}{bases}: {_signature(value)}", *members]
    if callable(value):
        return [f"def {name}{_signature(value)}"]
    return [f"{name}: {type(value).__name__}"]


def _members(value: type) -> list[str]:
    own = {m for base in value.__mro__ if base.__module__.startswith("labeler") for m in vars(base)}
    annotated = set(inspect.get_annotations(value))
    return sorted(member for member in own | annotated if not member.startswith("_"))


def _member(name: str, owner: type, member: str) -> list[str]:
    found = inspect.getattr_static(owner, member, None)
    if isinstance(found, property):
        return [f"  {name}.{member} -> {_annotation(found.fget)}"]
    if isinstance(found, classmethod | staticmethod):
        return [f"  {name}.{member}{_signature(found.__func__)}"]
    if inspect.isfunction(found):
        keyword = "async def " if inspect.iscoroutinefunction(found) else ""
        return [f"  {keyword}{name}.{member}{_signature(found)}"]
    if isinstance(found, Enum):
        return [f"  {name}.{member} = {found.value!r}"]
    annotation = inspect.get_annotations(owner).get(member)
    return [f"  {name}.{member}: {_plain(annotation)}"] if annotation is not None else []


def _annotation(function: object) -> str:
    annotations = getattr(function, "__annotations__", {})
    return _plain(annotations.get("return", "?"))


def _signature(value: object) -> str:
    assert callable(value)
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(?)"
    parameters = [
        parameter.replace(annotation=_Plain(parameter.annotation))
        if parameter.annotation is not inspect.Parameter.empty
        else parameter
        for parameter in found.parameters.values()
    ]
    returned = found.return_annotation
    if returned is not inspect.Signature.empty:
        returned = _Plain(returned)
    return str(found.replace(parameters=parameters, return_annotation=returned))


class _Plain:
    """An annotation that shows as its plain text, the same on every version of Python."""

    __module__ = "builtins"

    def __init__(self, annotation: object) -> None:
        self.text = _plain(annotation)

    def __repr__(self) -> str:
        return self.text


def _plain(annotation: object) -> str:
    if annotation is None or annotation is NoneType:
        return "None"
    if isinstance(annotation, str):
        return annotation
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None:
        return str(getattr(annotation, "__name__", annotation))
    if origin in (Union, UnionType):
        return " | ".join(_plain(argument) for argument in arguments)
    if origin is Unpack:
        return _plain(arguments[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    return f"{origin.__name__}[{', '.join(map(_plain, arguments))}]"
