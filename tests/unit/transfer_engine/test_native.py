"""The hand-written types of the extension name what the extension has."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import mooncake_store
from mooncake_store._native import lib

STUB = Path(mooncake_store.__file__).with_name("_native.pyi")


def declared() -> dict[str, list[str] | None]:
    """Return the engine's names in the stub: a function's parameters, None for a constant."""
    found: dict[str, list[str] | None] = {}
    for node in ast.parse(STUB.read_text()).body:
        if not isinstance(node, ast.ClassDef) or node.name != "_TransferEngine":
            continue
        for member in node.body:
            if isinstance(member, ast.FunctionDef):
                found[member.name] = [argument.arg for argument in member.args.args[1:]]
            elif isinstance(member, ast.AnnAssign):
                found[ast.unparse(member.target)] = None
    return found


def test_stub_names_the_engines_functions_and_constants() -> None:
    own = {
        name
        for name in dir(lib)
        if name.startswith(("te_", "TE_")) and not name.lower().startswith("te_bench")
    }
    assert set(declared()) == own


def test_stub_has_as_many_parameters_as_c() -> None:
    for name, parameters in declared().items():
        if parameters is None:
            assert isinstance(getattr(lib, name), int)
            continue
        # "void te_x(te_engine *, int64_t);" is the first line of what cffi says about it.
        signature = (inspect.getdoc(getattr(lib, name)) or "").splitlines()[0]
        inside = signature[signature.index("(") + 1 : signature.rindex(")")]
        assert len(parameters) == (0 if inside in ("", "void") else inside.count(",") + 1), name
