"""Owns: token memory: KV pages and the state of one sequence.
Does not own: what is stored in a page.
Read first: pages.py.
"""
