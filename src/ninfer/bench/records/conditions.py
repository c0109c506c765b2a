"""What a run states of itself, gathered: facts of our engine's plan, its build, the machine, and the circumstances."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import ninfer
from ninfer.artifact import Artifact
from ninfer.bench import page_cache
from ninfer.bench.machine import describe_machine, package_versions
from ninfer.bench.records.facts import Fact, Origin, Value
from ninfer.bench.records.schema import Circumstances, digest_of
from ninfer.engine import EngineConfig
from ninfer.errors import BackendError

DRAFT_SETTINGS = frozenset({"spec", "draft_tokens", "draft_rule", "lm_head_draft", "draft"})
"""Settings of the engine that are stated as facts of the draft; every other one is `settings.` and its own name."""

PLAN_NAMES = {"kv_dtype": "kv_format"}
"""Settings whose decided value has another name in the plan's options."""


def engine_facts(plan: Mapping[str, Any]) -> dict[str, Fact]:
    """Every setting of our engine as it was decided, and whether it was chosen, left at its default or planned.

    plan: `EnginePlan.to_dict`, of this process or as a server of ours tells it.
    """
    reasons = {choice["field"]: choice["reason"] for choice in plan["choices"]}
    defaults = EngineConfig().to_dict()
    facts = {}
    for name, asked in plan["config"].items():
        decided = _decided(plan, name, asked)
        origin: Origin = "default" if asked == defaults.get(name) else "chosen"
        if asked == "auto" or decided != asked:
            origin = "auto"
        if name not in DRAFT_SETTINGS:
            facts[f"settings.{name}"] = Fact(decided, origin, reasons.get(name))
    return {**facts, **_draft_facts(plan)}


def _draft_facts(plan: Mapping[str, Any]) -> dict[str, Fact]:
    """What drafts, as it was decided; null where it does not apply. Copied drafts have neither a head nor a file."""
    speculation, asked = plan["speculation"], plan["config"]
    if speculation is None:
        nothing = stated(dict.fromkeys(("adaptive", "rule", "head", "digest")), "default")
        drafts = {**stated({"backend": "off", "tokens": 0}, "default"), **nothing}
    else:
        is_auto = asked["draft_tokens"] == "auto"
        drafts = {
            "backend": Fact(speculation["method"], "chosen"),
            "tokens": Fact(speculation["window"], "auto" if is_auto else "chosen"),
            "adaptive": Fact(speculation["adaptive"], "auto" if is_auto else "chosen"),
            "rule": Fact(speculation["rule"], "chosen"),
        }
        if speculation["method"] == "ngram":
            drafts |= stated({"head": None, "digest": None}, "default")
        else:
            head = "full" if speculation["shortlist"] is None else "optimized"
            drafts |= {"head": Fact(head, "chosen"), "digest": _observed(speculation["draft_digest"])}
    return {f"draft.{name}": fact for name, fact in drafts.items()}


def build_facts() -> dict[str, Fact]:
    """Which program this is: version, and a digest over its sources and native module, so an edit is a difference."""
    package = Path(ninfer.__file__).parent
    digest = blake2b(digest_size=16)
    for path in sorted((*package.rglob("*.py"), *package.rglob("_native*.so"))):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + blake2b(path.read_bytes()).digest())
    return {
        "engine.name": _observed("ninfer"),
        "engine.version": _observed(ninfer.__version__),
        "engine.build": _observed(digest.hexdigest()),
        **{f"version.{name}": _observed(version) for name, version in package_versions(("numpy",)).items()},
    }


def artifact_facts(artifact: Artifact) -> dict[str, Fact]:
    """Identity and formats of an open `.ninfer` file."""
    formats = sorted({entry.format for entry in artifact.tensors.values()})
    return {
        "artifact.digest": _observed(artifact.digest),
        "artifact.model": _observed(f"{artifact.architecture} {digest_of(artifact.provenance.get('source'))[:16]}"),
        "artifact.name": _observed(artifact.path.stem),
        "artifact.container": _observed("ninfer safetensors"),
        "artifact.weights": _observed(", ".join(formats)),
        "artifact.bytes": _observed(artifact.file_bytes),
    }


def machine_facts(root: Path = Path("/")) -> dict[str, Fact]:
    """The machine, read below `root`."""
    machine = describe_machine(root)
    return {
        "machine.processor": _observed(machine.processor),
        "machine.architecture": _observed(machine.architecture),
        "machine.num_cpus": _observed(machine.num_cpus),
        "machine.memory_bytes": _observed(machine.memory_bytes),
        "machine.kernel": _observed(machine.kernel),
        "machine.transparent_huge_pages": _observed(machine.transparent_huge_pages),
        "machine.cpu_flags": _observed(list(machine.cpu_flags)),
        "machine.caches": _observed(list(machine.caches)),
        "machine.accelerators": _observed(None),
    }


def circumstances(model: Path | None = None, draft: Path | None = None, root: Path = Path("/")) -> Circumstances:
    """Load, clocks, memory and page cache now, None where the system does not tell; to be called before a load."""
    info = _text(root / "proc/cpuinfo")
    mhz = [float(line.partition(":")[2]) for line in info.splitlines() if line.startswith("cpu MHz")]
    available = [line.split()[1] for line in _text(root / "proc/meminfo").splitlines() if line.startswith("MemAvail")]
    load = _text(root / "proc/loadavg").split()[:3]
    boot = _text(root / "proc/sys/kernel/random/boot_id").strip()
    return Circumstances(
        load_average=[float(word) for word in load] or None,
        cpu_mhz=mhz or None,
        cpu_governor=_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
        memory_available_bytes=int(available[0]) * 1024 if available else None,
        boot=blake2b(boot.encode(), digest_size=8).hexdigest() if boot else None,
        model_bytes=None if model is None else model.stat().st_size,
        model_resident_bytes=_resident(model),
        draft_bytes=None if draft is None else draft.stat().st_size,
        draft_resident_bytes=_resident(draft),
    )


def stated(values: Mapping[str, Value], origin: Origin, reason: str | None = None) -> dict[str, Fact]:
    """Facts of one origin."""
    return {name: Fact(value, origin, reason) for name, value in values.items()}


def _observed(value: Value) -> Fact:
    return Fact(value, "observed")


def _decided(plan: Mapping[str, Any], name: str, asked: Any) -> Any:
    """The value of a setting in the plan; settings that planning leaves alone are as they were asked for."""
    if name == "prefix_reuse":
        return plan["prefix"] is not None
    for holder in (plan, plan["options"]):
        if PLAN_NAMES.get(name, name) in holder:
            return holder[PLAN_NAMES.get(name, name)]
    return asked


def _resident(path: Path | None) -> int | None:
    if path is None:
        return None
    try:
        return page_cache.resident_bytes(path)
    except BackendError:
        return None  # the kernel does not tell: unrecorded


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
