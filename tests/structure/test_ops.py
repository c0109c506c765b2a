"""Every op has one module, one contract, one test file, and runs on every backend."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from ninfer.backends.reference.nodes import RUN
from ninfer.ops import SPECS
from ninfer.ops.graph import Graph

ROOT = Path(__file__).resolve().parents[2]
NOT_OPS = {
    "__init__",
    "batch",
    "frequencies",
    "graph",
    "nvfp4_rows",
    "one_digit",
    "profiles",
    "registry",
    "spec",
    "two_digits",
}


def test_every_module_is_a_registered_op() -> None:
    modules = {path.stem for path in (ROOT / "src" / "ninfer" / "ops").glob("*.py")} - NOT_OPS
    assert modules == set(SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_every_op_has_the_same_parts(name: str) -> None:
    tree = ast.parse((ROOT / "src" / "ninfer" / "ops" / f"{name}.py").read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {name, "oracle", "cases"} <= functions
    assert ast.get_docstring(tree)
    assert (ROOT / "tests" / "ops" / f"test_{name}.py").is_file()
    assert name in RUN


@pytest.mark.parametrize("name", SPECS)
def test_cases_use_the_op_as_its_contract_says(name: str) -> None:
    spec = SPECS[name]
    labels = []
    for case in spec.cases(np.random.default_rng(0)):
        labels.append(case.label)
        graph = Graph()
        case.record(graph)
        nodes = [node for node in graph.nodes if node.op == name]
        assert nodes
        for node in nodes:
            assert set(node.params) == set(spec.params)
            assert len(node.inputs) <= len(spec.inputs)
            assert (node.output is None) == (spec.output is None)
            assert bool(node.weights) == bool(spec.weights)
    assert len(set(labels)) == len(labels)
