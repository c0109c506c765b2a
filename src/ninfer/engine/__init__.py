"""Owns: requests, the plan, the step loop, commit and rollback, events.
Does not own: any HTTP word.
Read first: engine.py.
"""

from ninfer.engine.config import EngineConfig
from ninfer.engine.engine import Engine
from ninfer.engine.events import Delta, Failed, Finished, GenerationEvent
from ninfer.engine.hardware import Hardware, detect_hardware
from ninfer.engine.loading import load_engine
from ninfer.engine.plan import Choice, EnginePlan, MemoryItem
from ninfer.engine.planning import largest_contexts, plan_engine
from ninfer.engine.request import GenerationRequest, StopRules, Thinking

__all__ = [
    "Choice",
    "Delta",
    "Engine",
    "EngineConfig",
    "EnginePlan",
    "Failed",
    "Finished",
    "GenerationEvent",
    "GenerationRequest",
    "Hardware",
    "MemoryItem",
    "StopRules",
    "Thinking",
    "detect_hardware",
    "largest_contexts",
    "load_engine",
    "plan_engine",
]
