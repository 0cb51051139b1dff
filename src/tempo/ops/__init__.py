"""temporary"""

from tempo.ops.creation import *
from tempo.ops.elementwise import *
from tempo.ops.gathering import *
from tempo.ops.indexing import *
from tempo.ops.reduction import *
from tempo.ops.shaping import *

__all__ = [n for n in dir() if not n.startswith("_")]
