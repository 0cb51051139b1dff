"""Random programs, and what is checked of them."""
from tempo.testing.programs import data
