"""Owns: suites of prompts, targets that answer them, load patterns, campaigns that record every sample.
Does not own: what a record is (`bench.records`), what may be concluded from one.
Read first: campaign.py.
"""
