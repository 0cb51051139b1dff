"""The report as text."""

from __future__ import annotations

from tempo.report.facts import Facts
from tempo.schedule.looptree import show


def explain(facts: Facts) -> str:
    """All sections, one after the other."""
    sections = {
        "program": str(facts.source),
        "after simplification": str(facts.graph),
        "plan": str(facts.plan),
        "loop tree": show(facts.schedule.trees),
        "stores": str(facts.storage),
    }
    if facts.programs is not None:
        sections["XLA programs"] = programs(facts)
    sections["seconds"] = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in facts.seconds.items())
    return "\n\n".join(f"-- {title} --\n{text}" for title, text in sections.items())


def programs(facts: Facts) -> str:
    """XLA's programs and kernels."""
    return "\n".join([str(facts.programs), *facts.kernels])
