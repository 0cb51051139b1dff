"""The primitives that are not functions of their operands' values alone.

The oracle and the compiler treat each of these by name; every other primitive is a plain array function.
"""

from tempo.graph.node import Primitive

INPUT = Primitive("input")
"""Data given at run time; one leading axis per dim."""

RECURRENT = Primitive("recurrent")
"""Defined by the cases that the graph holds for it."""

ACCUMULATE = Primitive("accumulate")
"""The sum of what its scatters add in; zero where nothing is added."""

HOST = Primitive("host")
"""A call of a Python function; its results are read by HOST_RESULT nodes. Attributes: function, out (specs),
sequence, batch."""

HOST_RESULT = Primitive("host_result")
"""One result of a host call. Attribute: position."""
