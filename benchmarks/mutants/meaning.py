"""Which changes to a module cannot change what it computes: two sources that differ only by them mean the same."""

from __future__ import annotations

import ast
from operator import eq, ge, gt, le, lt, ne
from typing import Literal, get_args, get_origin, get_type_hints

from storage.pointer import Switch
from storage.results.tables import MEASUREMENTS
from tasks.judgement import GateDecision
from tasks.workload.gate import CONSTANT, RULES, Gate, Rule, RuleOutcome

_COMPARISONS = {ast.Eq: eq, ast.NotEq: ne, ast.Lt: lt, ast.LtE: le, ast.Gt: gt, ast.GtE: ge}
# How often something is tried, how long is waited, and how much is read, written or drawn at a time.
_BUDGETS = ("_TRIES", "_PAUSE_S", "_ABANDONED_S", "_LONGEST", "_ROW_GROUP", "_DRAWN_AT_ONCE")


def meaning_of(source: str) -> str:
    """Return a text that sources with the same meaning share; "" for a source that is not valid Python.

    Sources mean the same if they differ only in

    - annotations, docstrings, the texts of errors and their hints;
    - two comparisons of a field with a string, if both are true of the same values that the field can have;
    - comparing with None by equality or by identity;
    - joining different flags of the operating system by a sum or by a union;
    - caches, and the numbers in `_BUDGETS`;
    - what only mypy can tell, which checks every call and assignment: whether arguments are given by name or by
      position, and whether a class is frozen.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    return ast.dump(_Meaning().visit(tree))


def _values() -> dict[str, tuple[str, ...]]:
    """Return the values of every field and column that has a fixed set of them, by name; `name` is a rule's."""
    owners = (Gate, Rule, RuleOutcome, GateDecision, Switch)
    fields = [item for owner in owners for item in get_type_hints(owner).items()]
    found = {name: get_args(hint) for name, hint in fields if get_origin(hint) is Literal}
    found |= {column.name: column.choices for column in MEASUREMENTS.columns if column.choices}
    return found | {"name": ("status", CONSTANT, *RULES)}


_VALUES = _values()


class _Meaning(ast.NodeTransformer):
    """Brings syntax trees with the same meaning into the same form."""

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the node in that form."""
        self.generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
        match node:
            case ast.AnnAssign():
                node.annotation = ast.Constant(None)
            case ast.arg():
                node.annotation = None
            case ast.arguments():
                node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
                node.defaults += [default for default in node.kw_defaults if default]
                node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
            case ast.FunctionDef():
                node.returns = None
                node.decorator_list = [
                    each for each in node.decorator_list if not (isinstance(each, ast.Name) and each.id == "lru_cache")
                ]
            case ast.keyword(arg="frozen" | "hint"):
                node.value = ast.Constant(None)
            case ast.Assign(targets=[ast.Name(id=name)]) if name in _BUDGETS:
                node.value = ast.Constant(None)
            case ast.Raise(exc=ast.Call(args=[ast.JoinedStr(), *_] as arguments)):
                arguments[0] = ast.Constant("")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr="sleep")):
                node.args = []
            case ast.BinOp(op=ast.Add() | ast.BitXor() | ast.BitOr()) if _is_flag(node.left) or _is_flag(node.right):
                node.op = ast.BitOr()
                if isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.BitOr):  # grouped otherwise
                    node.left = ast.BinOp(node.left, ast.BitOr(), node.right.left)
                    node.right = node.right.right
            case ast.Compare(ops=[ast.Is() | ast.IsNot() as way], comparators=[ast.Constant(value=None)]):
                node.ops = [ast.Eq() if isinstance(way, ast.Is) else ast.NotEq()]
            case ast.Compare(ops=[way], comparators=[ast.Constant(value=str() as text)]):
                compare, values = _COMPARISONS.get(type(way)), _VALUES.get(_name_of(node.left), ())
                if compare and text in values:
                    node.ops = [ast.In()]
                    node.comparators = [ast.Constant(tuple(value for value in values if compare(value, text)))]
        return node


def _is_flag(node: ast.AST) -> bool:
    """Whether an expression consists of flags of the operating system, such as ``os.O_EXCL``."""
    match node:
        case ast.Attribute(value=ast.Name(id="os" | "fcntl"), attr=name):
            return name.isupper()
        case ast.IfExp(body=one) | ast.BinOp(op=ast.BitOr(), left=one):
            return _is_flag(one)
    return False


def _name_of(node: ast.AST) -> str:
    """Return the name of the field, column or variable that an expression reads; "" for other expressions."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name
    return ""
