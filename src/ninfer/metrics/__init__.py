"""Owns: clocks, request timelines and every derived number, each defined once.
Does not own: who measures or prints.
Read first: timeline.py.
"""
