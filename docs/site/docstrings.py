"""Docstrings of this package, as griffe reads them."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod):`~?([^`]*)`")


class Docstrings(griffe.Extension):
    """``Example:`` becomes the section of that kind, with code blocks; roles of Sphinx become code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
            obj.docstring.value = ROLE.sub(r"`\1`", text)
