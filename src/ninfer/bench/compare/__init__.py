"""What may be concluded from records of runs.

Owns: differences of settings, pairing, effects with their uncertainty, exact splits, the audit.
Does not own: how records are written, how conclusions are worded.
Read first: comparison.py.
"""
