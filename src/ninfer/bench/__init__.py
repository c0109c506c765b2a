"""Owns: measuring tools: ceilings, ops, engine, peers.
Does not own: metrics definitions.
Read first: records.py.
"""
