"""The public face of the package: growth shows in review, and each name is documented."""

import os
import types

import labeler
from tests.support.public_api import public_api
from tests.support.repo import ROOT

LIST = ROOT / "tests" / "contract" / "public_api.txt"
UPDATE = 'UPDATE=1 make test-python ARGS="-k public_api"'


def test_names_and_signatures_are_those_of_the_committed_list() -> None:
    found = "\n".join(public_api(labeler)) + "\n"
    if os.environ.get("UPDATE") == "1":
        LIST.write_text(found)
    assert found.splitlines() == LIST.read_text().splitlines(), f"if it was meant: {UPDATE}"


def test_every_public_name_says_what_to_rely_on() -> None:
    documented = {
        name: getattr(labeler, name).__doc__ for name in labeler.__all__ if name[0] != "_"
    }
    assert not [name for name, text in documented.items() if not text]


def test_a_new_parameter_changes_the_list() -> None:
    module = types.ModuleType("sample")
    exec("__all__ = ['f']\ndef f(a: int, *, b: str = 'x') -> None: ...", module.__dict__)
    assert public_api(module) == ["def f(a: int, *, b: str = 'x') -> None"]
