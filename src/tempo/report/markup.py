"""HTML and SVG as text. Whatever is not markup already is escaped."""

from __future__ import annotations

from html import escape

# What ends by itself.
EMPTY = {"meta", "path", "rect", "line"}


class Markup(str):
    """Text with tags."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: object) -> Markup:
    """An element. Attributes that are None are left out; ``class_`` is ``class``, ``data_k`` is ``data-k``."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_shown(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in EMPTY:
        return Markup(f"<{name}{said}/>")
    return Markup(f"<{name}{said}>{joined(*children)}</{name}>")


def joined(*parts: str) -> Markup:
    """Some parts, one after the other."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def _shown(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
