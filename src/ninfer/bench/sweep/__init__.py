"""Owns: grids of settings and work, running them, and what their records say: peaks, sustained rates, ceilings.
Does not own: sending and recording (`bench.load`, `bench.records`).
Read first: grids.py.
"""
