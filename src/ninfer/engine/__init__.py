"""Owns: requests, the plan, the step loop, commit and rollback, events.
Does not own: any HTTP word.
Read first: engine.py.
"""
