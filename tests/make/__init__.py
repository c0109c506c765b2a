"""Builders of tiny checkpoints and hand-made files; nothing here is stored data."""
