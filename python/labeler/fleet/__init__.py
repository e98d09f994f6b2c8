"""A warehouse floor to label for: robots, their sensors, the right labels, and faults.

The simulator needs numpy alone and knows no service. Importing this package starts nothing.
"""

from labeler.fleet.controller import LABELS, WIDTH, label_of
from labeler.fleet.faults import Faults
from labeler.fleet.floor import Floor, make_floor
from labeler.fleet.simulator import Fleet, Readings, sample

__all__ = [
    "LABELS",
    "WIDTH",
    "Faults",
    "Fleet",
    "Floor",
    "Readings",
    "label_of",
    "make_floor",
    "sample",
]
