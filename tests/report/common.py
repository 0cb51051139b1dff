"""A page as a browser would see it, as far as tests need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import tempo as tp

# What needs no end tag.
VOID = {"meta"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def find(self, tag: str, kind: str = "") -> list[Element]:
        """All elements of a tag, with a class if one is given, in the order of the page."""
        own = [self] if self.tag == tag and (not kind or kind in (self.attributes.get("class") or "").split()) else []
        return own + [e for child in self.children if isinstance(child, Element) for e in child.find(tag, kind)]


class Page(HTMLParser):
    """Well-formed, or it fails: every element is closed by its own end tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]
        self.feed(text)
        self.close()
        assert self.open == [self.root], "something is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(element := Element(tag, dict(attrs)))
        assert len(attrs) == len(element.attributes), "an attribute is there twice"
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def references(element: Element) -> list[str]:
    """Whatever a browser would fetch."""
    found = []
    for name, value in element.attributes.items():
        text = value or ""
        if name in ("href", "src", "srcset", "action", "data", "xlink:href") and not text.startswith("#"):
            found.append(text)
        found += [part for part in text.split("url(")[1:] if not part.startswith("#")]
    if element.tag in ("style", "script"):
        found += [word for word in ("url(", "@import", "http", "fetch(", "import(") if word in element.text]
    if element.tag in ("link", "iframe", "object", "embed", "img"):
        found.append(element.tag)
    return found + [text for child in element.children if isinstance(child, Element) for text in references(child)]


def network() -> tuple[tp.Program, dict[Any, int]]:
    """A recurrent network that is trained."""
    with tp.Program("rnn") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=t)
        U = prog.input("U", shape=(4, 3))
        W = prog.state("W", tp.zeros((4, 4)), over=i)
        h = prog.recurrent("h", shape=(4,), domain=(i, t))
        h[i, -1] = 0.0
        h[i, t] = tp.tanh(W @ h[i, t - 1] + U @ x[t])
        loss = tp.sum(tp.square(h[i, T - 1] - 0.5))
        W.next = W - 0.1 * tp.grad(loss, W)
        prog.output("loss", loss)
    return prog, {I: 10, T: 5}
