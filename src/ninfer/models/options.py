"""How a model is to be run, under the name by which the rooms above know it."""

from ninfer.backends.options import KVFormat, Numerics, RuntimeOptions, WeightsMemory

__all__ = ["KVFormat", "Numerics", "RuntimeOptions", "WeightsMemory"]
