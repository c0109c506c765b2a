"""Owns: measuring tools: ceilings, ops, engine, peers; records of runs and what may be concluded from them.
Does not own: metrics definitions.
Read first: measurements.py for tools that time steps, records/schema.py for runs of requests.
"""
