"""Owns: child processes that do the measured work, one engine each, all speaking the protocol of protocol.py.
Does not own: what is measured, how often, or what the numbers mean.
Read first: protocol.py.
"""
