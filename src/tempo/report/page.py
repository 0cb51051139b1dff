"""The report as a page: one file of HTML, with all that it takes to show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tempo.report.dependences import dependences
from tempo.report.drawing import drawing
from tempo.report.facts import Facts
from tempo.report.look import SCRIPT, STYLE
from tempo.report.loops import loop_tree
from tempo.report.marks import Marks
from tempo.report.markup import Markup, joined, tag
from tempo.report.memory import chart, stores
from tempo.report.text import programs
from tempo.schedule.decisions import Decision
from tempo.schedule.planning import show_bytes


def page(facts: Facts) -> str:
    """The whole page."""
    marks = Marks()
    sections = {
        "Dependences": _dependences(facts, marks),
        "Loop tree": _loops(facts, marks),
        "Plan": _plan(facts),
        "Memory": _memory(facts),
        "Stores": _stores(facts),
        "As text": _texts(facts),
    }
    links = tag("nav", *(tag("a", title, href=f"#{_anchor(title)}") for title in sections))
    body = [tag("h2", title, id=_anchor(title)) + content for title, content in sections.items()]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{facts.source.name}: what the compiler made of it"),
        tag("style", Markup(STYLE)),
    )
    main = tag("body", _summary(facts), links, *map(Markup, body), tag("script", Markup(SCRIPT)))
    return f"<!DOCTYPE html>\n{tag('html', head, main, lang='en')}\n"


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _summary(facts: Facts) -> Markup:
    storage = facts.storage
    rows = {
        "bounds": ", ".join(f"{name} = {number:,}" for name, number in facts.bounds.items()) or "none",
        "backend": facts.backend if facts.backend == facts.device else f"{facts.backend} on {facts.device}",
        "tensors": f"{len(facts.source.nodes):,} written, {len(facts.graph.nodes):,} after simplification",
    }
    if facts.programs is not None:
        rows["XLA programs"] = str(facts.programs.count or "compiled when they run")
    rows["planned peak"] = show_bytes(storage.peak)
    if storage.library:
        rows["planned peak"] += f" ({show_bytes(storage.library)} less without XLA's library of matrix products)"
    if facts.programs is not None and facts.programs.memory:
        parts = ", ".join(f"{name} {show_bytes(size)}" for name, size in facts.programs.memory.items())
        rows["XLA's memory"] = f"{show_bytes(sum(facts.programs.memory.values()))}: {parts}"
    host = sum(store.bytes for store in storage.stores.values() if store.host)
    if host:
        rows["in host memory"] = show_bytes(host)
    cells = (tag("div", tag("dt", name), tag("dd", text)) for name, text in rows.items())
    return joined(
        tag("h1", facts.source.name or "program"),
        tag("p", "What the compiler made of this program, and where its time and memory go.", class_="faint"),
        tag("dl", *cells),
        _phases(facts.seconds),
    )


def _phases(seconds: Mapping[str, float]) -> Markup:
    """How long each phase of the compilation took."""
    total = sum(seconds.values())
    bar = (
        tag("i", class_=f"c{n % 6}", style=f"width:{100 * each / (total or 1):.2f}%", title=phase)
        for n, (phase, each) in enumerate(seconds.items())
    )
    legend = (
        tag("span", tag("i", class_=f"c{n % 6}"), f"{phase} {each:.3f} s")
        for n, (phase, each) in enumerate(seconds.items())
    )
    return joined(
        tag("p", f"Compiled in {total:.2f} s:"),
        tag("div", *bar, class_="phases"),
        tag("div", *legend, class_="legend"),
    )


def _dependences(facts: Facts, marks: Marks) -> Markup:
    found = dependences(facts.source)
    about = (
        "The program as it was written: an arrow goes from a tensor to one that reads it, with the index if that is "
        "not at the same step. Dashed arrows go back up: they close recurrences."
    )
    if found.left_out:
        about += (
            f" Of {len(facts.source.nodes):,} tensors {found.left_out:,} are not drawn: operations without a name "
            "that are read at their own step only. What is read through them has an arrow."
        )
    kinds = {"input": "input", "recurrent": "defined by cases", "operation": "operation", "host": "host call"}
    there = {tensor.kind for tensor in found.tensors}
    keys = [
        tag("span", text, class_=f"key {kind}") for kind, text in {**kinds, "result": "result"}.items() if kind in there
    ]
    return joined(
        tag("p", about),
        tag("p", *(joined(key, " ") for key in keys), tag("span", "Point at a tensor, or click it.", class_="faint")),
        tag("div", drawing(found, marks), class_="frame"),
    )


def _loops(facts: Facts, marks: Marks) -> Markup:
    about = (
        "What is not inside of a loop over a dim is computed for all of its steps at once. On the right, the line of "
        "the program that a statement comes from."
    )
    return joined(tag("p", about), loop_tree(facts.schedule.trees, facts.graph, marks))


def _plan(facts: Facts) -> Markup:
    rows = []
    for row in facts.plan.decisions:
        texts = (row.few, row.steps, row.reason) if isinstance(row, Decision) else (str(row), "", "")
        rows.append(tag("tr", *(tag("td", text) for text in texts)))
    columns = tag("thead", tag("tr", *(tag("th", name) for name in ("tensors", "steps at once", "because"))))
    return joined(
        tag("pre", str(replace(facts.plan, decisions=()))), tag("table", columns, tag("tbody", *rows)) if rows else ""
    )


def _memory(facts: Facts) -> Markup:
    about = (
        "What the plan takes on the device while each statement of the loop tree runs, from left to right, in one "
        f"iteration of the loops below it. The dashed line is the planned peak, {show_bytes(facts.storage.peak)}."
    )
    taken = facts.storage.over_time()
    if max(taken) < facts.storage.peak:
        about += " For it, stores that grow from piece to piece of a loop are as large as they get."
    return joined(tag("p", about), chart(facts.schedule.trees, taken, facts.storage.peak))


def _stores(facts: Facts) -> Markup:
    total = show_bytes(sum(store.bytes for store in facts.storage.stores.values()))
    about = (
        f"Values that are kept for later, {total} if all of them were there at once: of each dim all steps, a window "
        "of the last ones, or one value."
    )
    return joined(tag("p", about), stores(facts.storage))


def _texts(facts: Facts) -> Markup:
    texts = {"The program": str(facts.source), "After simplification": str(facts.graph)}
    if facts.programs is not None:
        texts["XLA programs"] = programs(facts)
    return joined(*(tag("details", tag("summary", name), tag("pre", text)) for name, text in texts.items()))
