"""Owns: one contract per op: formula, shapes, effects and a float64 oracle; the graph that models record.
Does not own: any fast implementation.
Read first: graph.py, then linear.py.
"""

from ninfer.ops.registry import SPECS

__all__ = ["SPECS"]
