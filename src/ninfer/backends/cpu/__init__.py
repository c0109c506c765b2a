"""Owns: the native backend: the only importer of the compiled module.
Does not own: the kernels themselves, which live in native/.
Read first: executable.py.
"""

from __future__ import annotations


def available_isas() -> list[str]:
    """Instruction-set targets that this build and this CPU can run, slowest first; the last is the default."""
    return [name for name, missing in isa_targets() if not missing]


def isa_targets() -> list[tuple[str, str]]:
    """All targets as (name, empty or the reason why it cannot run here)."""
    from ninfer.backends.cpu import _native

    return list(_native.targets())
