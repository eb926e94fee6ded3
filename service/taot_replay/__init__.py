"""Would it help my job? Recorded routing, planned again by several algorithms and compared.

Pure but for `array_file`, which reads a file.
"""

from taot_replay.array_file import read_array_file
from taot_replay.recording import Recording, with_nodes
from taot_replay.replay import replay
from taot_replay.replay_case import SOURCES, ReplayCase, make_cases
from taot_replay.replay_figures import ReplayFigures

__all__ = [
    "SOURCES",
    "Recording",
    "ReplayCase",
    "ReplayFigures",
    "make_cases",
    "read_array_file",
    "replay",
    "with_nodes",
]
