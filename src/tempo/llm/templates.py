"""Chat templates: a conversation in the words of a checkpoint, which it has in Jinja's language.

Templates are written for transformers; what they are given here is what they are given there. This needs the package
``jinja2``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from tempo.errors import ModelError

Message = Mapping[str, str]
"""One turn of a conversation: its "role" ("system", "user" or "assistant") and its "content"."""


def rendered(template: str, messages: Sequence[Message], special: Mapping[str, str]) -> str | None:
    """A conversation by a template, with the special tokens by name; None without jinja2."""
    try:
        environment = _environment()
    except ImportError:
        warnings.warn(
            "the checkpoint has a chat template, which needs the package 'jinja2': a plain form is used in its place",
            stacklevel=3,
        )
        return None
    given = {"messages": [dict(message) for message in messages], "tools": None, "documents": None, **special}
    try:
        return str(environment.from_string(template).render(add_generation_prompt=True, **given))
    except Exception as error:  # a template can fail in every way that a Python expression can
        raise ModelError(f"the checkpoint's chat template does not take this conversation: {error}") from None


def _environment() -> Any:
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):  # type: ignore[misc]
        """``{% generation %}`` marks for training what a model has said; here, only its content matters."""

        tags: ClassVar[set[str]] = {"generation"}

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    # Sandboxed, since a template comes with a download. The options are those that templates are written for.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = _json
    return environment


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not Jinja's own, which escapes what is special in HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
