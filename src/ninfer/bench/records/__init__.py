"""Run records: one directory per run, everything needed to judge it and to repeat it.

Owns: the schema, what a run has to state of itself, writing, resuming, reading, verifying.
Does not own: who sends requests, what is concluded from records.
Read first: schema.py, facts.py.
"""
