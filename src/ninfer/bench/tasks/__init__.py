"""Owns: whether an answer is right, for prompts that say how that is checked; code of answers in a locked room.
Does not own: asking (`bench.load`), records.
Read first: checks.py.
"""
