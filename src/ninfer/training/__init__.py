"""Owns: training of draft heads: prompts, responses, captured hidden rows, module, loss, loop, evaluation, export.
Does not own: the target model, the engine, how a draft is run.
Read first: docs/training-drafts.md.
"""
