"""Text to checked tree. Uses Python's own grammar and accepts a closed subset of it; needs no numpy."""

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from healer.detection.language.expr import (
    FUNCTIONS,
    LONGEST_WINDOW_S,
    OVER_PARTS,
    Expr,
    ExpressionError,
    finer,
)
from healer.detection.language.units import (
    COUNT,
    DURATION,
    PLAIN,
    RATIO,
    SECONDS,
    UNIT_WORDS,
    Unit,
    common_unit,
    fits,
    unit_hint,
    unit_of_name,
)
from healer.model import OF_DEVICES, Scope, Signal, SignalKind
from healer.model.vocabulary import did_you_mean
from healer.text import say

LONGEST_TEXT = 2000
_DEEPEST = 40

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Strings are matched first, so that nothing inside them is read as a duration or a share.
_MEASURE = re.compile(r"\"[^\"]*\"|'[^']*'|(?<![\w.])(\d+(?:\.\d+)?)(?:(ms|s|m|h)\b|(%))")
_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_GAUGES_ONLY = frozenset({"avg_over", "min_over", "max_over", "median_over"})


def duration_s(text: str) -> float:
    """`2m` -> 120. Raises ValueError with a sentence."""
    found = _MEASURE.fullmatch(text.strip())
    if found is None or found[2] is None:
        raise ValueError(say("expressions.not_a_duration", text=text))
    return float(found[1]) * _SECONDS[found[2]]


def condition(
    text: str, signals: Mapping[str, Signal], scope: Scope, specs: Collection[str] | None = None
) -> Expr:
    """The condition of a rule over rows of `scope`; with `specs` None any spec is accepted. Raises
    ExpressionError."""
    reader = _Reader(text, signals, scope, specs)
    root = reader.truth(reader.tree)
    if not root.signals:
        raise ExpressionError(1, say("expressions.no_signal"))
    return reader.on_axis(root, reader.tree)


def number(
    text: str, signals: Mapping[str, Signal], scope: Scope, specs: Collection[str] | None = None
) -> Expr:
    """An expression that is a number (a threshold). Raises ExpressionError."""
    reader = _Reader(text, signals, scope, specs)
    found = reader.number(reader.tree)
    if found.scope is not None and finer(scope, found.scope):
        return _down(found, scope)
    return reader.on_axis(found, reader.tree)


class _Reader:
    """One expression. Columns of errors refer to the original text."""

    def __init__(
        self, text: str, signals: Mapping[str, Signal], scope: Scope, specs: Collection[str] | None
    ) -> None:
        self.signals, self.specs, self.scope = signals, specs, scope
        self.inside = ""  # the function over parts that is being read
        self.depth = 0
        if len(text) > LONGEST_TEXT:
            raise ExpressionError(1, say("expressions.too_long", most=LONGEST_TEXT))
        # `5m` and `80%` become numbers of the same length, so that all columns stay the same.
        self.durations: dict[int, float] = {}
        self.percents: set[int] = set()
        plain = _MEASURE.sub(self._remember, re.sub(r"[\n\t]", " ", text))
        self.text = plain
        try:
            self.tree = ast.parse(plain.strip(), mode="eval").body
        except SyntaxError as error:
            column = self._indent + (error.offset or len(plain.strip()) + 1)  # 0 at the end of the text
            raise ExpressionError(column, say("expressions.syntax", why=error.msg)) from None
        except (ValueError, RecursionError, MemoryError):
            raise ExpressionError(1, say("expressions.unreadable")) from None

    @property
    def _indent(self) -> int:
        return len(self.text) - len(self.text.lstrip())

    def _remember(self, match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        if match[3]:
            self.percents.add(match.start())
        else:
            self.durations[match.start()] = float(match[1]) * _SECONDS[match[2]]
        return match[1] + " " * len(match[2] or match[3])

    def _column(self, node: ast.AST) -> int:
        """0-based, in characters; the tree counts bytes."""
        offset = getattr(node, "col_offset", 0)
        stripped = self.text.lstrip().encode()
        return self._indent + len(stripped[:offset].decode(errors="ignore"))

    def wrong(self, node: ast.AST, text: str, hint: str = "") -> ExpressionError:
        return ExpressionError(self._column(node) + 1, text, hint)

    # --- kinds -------------------------------------------------------------------------------------------

    def truth(self, node: ast.AST) -> Expr:
        found = self.any(node)
        if found.truth:
            return found
        if found.unit == UNIT_WORDS["bool"]:
            return Expr("!=", (found, _constant(0.0)), found.scope, truth=True)
        raise self.wrong(node, say("expressions.wants_condition"), say("expressions.compare_it"))

    def number(self, node: ast.AST) -> Expr:
        found = self.any(node)
        if found.truth:
            raise self.wrong(node, say("expressions.wants_number"))
        return found

    def on_axis(self, found: Expr, node: ast.AST) -> Expr:
        """The whole expression, with one value per row of the rule's axis."""
        if found.scope is None or found.scope is self.scope:
            return found
        text = say("expressions.other_scope", measured=found.scope, scope=self.scope)
        raise self.wrong(
            node,
            text,
            say(
                "expressions.combine_or_scope" if finer(found.scope, self.scope) else "expressions.set_scope",
                measured=found.scope,
            ),
        )

    # --- nodes of the tree -------------------------------------------------------------------------------

    def any(self, node: ast.AST) -> Expr:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.wrong(node, say("expressions.nested_too_deep", most=_DEEPEST))
        try:
            return self._any(node)
        finally:
            self.depth -= 1

    def _any(self, node: ast.AST) -> Expr:
        match node:
            case ast.Constant():
                return self._constant(node)
            case ast.Name():
                return self._signal(node)
            case ast.UnaryOp(op=ast.USub()):
                arg = self._countable(node.operand)
                if arg.op == "number":
                    return Expr("number", number=-arg.number, unit=arg.unit)
                return Expr("neg", (arg,), arg.scope, unit=arg.unit)
            case ast.UnaryOp(op=ast.Not()):
                arg = self.truth(node.operand)
                return Expr("not", (arg,), arg.scope, truth=True)
            case ast.BinOp():
                return self._arithmetic(node)
            case ast.BoolOp():
                op = "and" if isinstance(node.op, ast.And) else "or"
                args = [self.truth(value) for value in node.values]
                for value, arg in zip(node.values, args, strict=True):
                    if arg.scope is None:
                        raise self.wrong(value, say("expressions.no_signal"))
                return self._unified(op, args, truth=True)
            case ast.Compare():
                return self._compare(node)
            case ast.Call():
                return self._call(node)
        shown = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
        raise self.wrong(
            node, say("expressions.not_supported", text=shown[:40]), say("expressions.see_rules_page")
        )

    def _constant(self, node: ast.Constant) -> Expr:
        value = node.value
        if isinstance(value, str):
            raise self.wrong(node, say("expressions.text_not_allowed", text=value))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(node, say("expressions.not_supported", text=str(value)))
        if (seconds := self.durations.get(self._column(node))) is not None:
            return Expr("number", number=seconds, unit=DURATION)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.wrong(node, say("expressions.too_large"))
        if self._column(node) in self.percents:
            return Expr("number", number=number, unit=UNIT_WORDS["%"])
        return _constant(number)

    def _signal(self, node: ast.AST) -> Expr:
        if not isinstance(node, ast.Name):
            raise self.wrong(node, say("expressions.wants_signal"))
        signal = self.signals.get(node.id)
        if signal is None:
            hint = did_you_mean(node.id, self.signals)
            if node.id in FUNCTIONS:
                hint = say("expressions.is_function", name=node.id)
            raise self.wrong(node, say("expressions.unknown_signal", name=node.id), hint)
        if (signal.scope in OF_DEVICES) is not (self.scope in OF_DEVICES):
            raise self.wrong(
                node,
                say("expressions.device_or_node", name=node.id, measured=signal.scope, scope=self.scope),
            )
        unit = UNIT_WORDS.get(signal.unit, PLAIN)  # one that healer does not know is reported in its own file
        return Expr("signal", scope=signal.scope, unit=unit, name=signal.name)

    def _countable(self, node: ast.AST) -> Expr:
        """A number for arithmetic: neither a word nor a bit mask."""
        found = self.number(node)
        if found.op == "signal" and self.signals[found.name].kind in (SignalKind.enum, SignalKind.bits):
            kind = self.signals[found.name].kind
            hint = say("expressions.compare_words" if kind is SignalKind.enum else "expressions.use_has")
            raise self.wrong(node, say("expressions.not_a_number", name=found.name, kind=kind), hint)
        return found

    def _arithmetic(self, node: ast.BinOp) -> Expr:
        op = _ARITHMETIC.get(type(node.op))
        if op is None:
            raise self.wrong(node, say("expressions.operators"))
        left, right = self._countable(node.left), self._countable(node.right)
        if op in "+-":
            self._same_unit(node, left, right)
            unit = common_unit(left.unit, right.unit)
        else:
            if op == "/" and right.op == "number" and right.number == 0:
                raise self.wrong(node.right, say("expressions.by_zero"))
            unit = left.unit * right.unit if op == "*" else left.unit / right.unit
        made = self._unified(op, [left, right], unit=unit)
        if made.scope is None:
            return self._folded(node, op, left.number, right.number, unit)
        return made

    def _folded(self, node: ast.AST, op: str, left: float, right: float, unit: Unit) -> Expr:
        reckon: dict[str, Callable[[float, float], float]] = {
            "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
        }  # fmt: skip
        value = reckon[op](left, right)
        if not math.isfinite(value):
            raise self.wrong(node, say("expressions.too_large"))
        return Expr("number", number=value, unit=unit)

    def _compare(self, node: ast.Compare) -> Expr:
        parts: list[Expr] = []
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            parts.append(self._one_comparison(left, op, right))
            left = right
        return parts[0] if len(parts) == 1 else self._unified("and", parts, truth=True)

    def _one_comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Expr:
        if isinstance(op, ast.In | ast.NotIn):
            found = self._in(left, right)
            return found if isinstance(op, ast.In) else Expr("not", (found,), found.scope, truth=True)
        word = _COMPARISONS.get(type(op))
        if word is None:
            raise self.wrong(right, say("expressions.no_is"), say("expressions.use_equals"))
        if _is_word(left) or _is_word(right):
            if _is_word(left) and _is_word(right):
                raise self.wrong(left, say("expressions.two_texts"))
            if word not in ("==", "!="):
                raise self.wrong(right, say("expressions.text_order", operator=word))
            named, word_node = (right, left) if _is_word(left) else (left, right)
            value = self.number(named)
            return self._unified(word, [value, _constant(self._code(value, word_node))], truth=True)
        left_number, right_number = self.number(left), self.number(right)
        self._same_unit(right, left_number, right_number)
        if left_number.scope is None and right_number.scope is None:
            raise self.wrong(left, say("expressions.no_signal"))
        return self._unified(word, [left_number, right_number], truth=True)

    def _in(self, left: ast.expr, right: ast.expr) -> Expr:
        if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
            raise self.wrong(right, say("expressions.in_list"), say("expressions.in_example"))
        value = self.number(left)
        if value.scope is None:
            raise self.wrong(left, say("expressions.no_signal"))
        numbers: list[float] = []
        for element in right.elts:
            if _is_word(element):
                numbers.append(self._code(value, element))
                continue
            literal = self.number(element)
            if literal.op != "number":
                raise self.wrong(element, say("expressions.in_constants"))
            self._same_unit(element, value, literal)
            numbers.append(literal.number)
        return Expr("in", (value,), value.scope, truth=True, numbers=tuple(numbers))

    def _code(self, value: Expr, node: ast.AST) -> float:
        """The number of an enum's word."""
        assert isinstance(node, ast.Constant)
        word = str(node.value)
        words = self.signals[value.name].words if value.op == "signal" else {}
        if not words:
            raise self.wrong(node, say("expressions.text_of_enum", text=word))
        if word not in words:
            hint = did_you_mean(word, words) or say("rulebook.one_of", words=", ".join(words))
            raise self.wrong(node, say("expressions.unknown_word", name=value.name, text=word), hint)
        return float(words[word])

    def _same_unit(self, node: ast.AST, left: Expr, right: Expr) -> None:
        if not fits(left.unit, right.unit):
            text = say("expressions.units_differ", left=str(left.unit), right=str(right.unit))
            raise self.wrong(node, text, unit_hint(left.unit, right.unit))

    # --- axes --------------------------------------------------------------------------------------------

    def _unified(self, op: str, args: Sequence[Expr], *, truth: bool = False, unit: Unit = RATIO) -> Expr:
        """One node over arguments, on the finest of their axes."""
        scopes = [arg.scope for arg in args if arg.scope is not None]
        finest = scopes[0] if scopes else None
        for scope in scopes[1:]:
            if finest is not None and finer(scope, finest):
                finest = scope
        return Expr(op, tuple(_down(arg, finest) for arg in args), finest, truth=truth, unit=unit)

    # --- functions ---------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        function = FUNCTIONS.get(name)
        if function is None:
            shown = ast.unparse(node.func)[:40]
            raise self.wrong(
                node, say("expressions.unknown_function", name=shown), did_you_mean(shown, FUNCTIONS)
            )
        least = len(function.takes)
        if node.keywords or not (len(node.args) == least or (function.more and len(node.args) > least)):
            takes = ", ".join(function.takes) + (", …" if function.more else "")
            raise self.wrong(node, say("expressions.takes", name=name, takes=takes))
        if name in OVER_PARTS:
            return self._over_parts(node, name)
        made: Callable[[ast.Call, str], Expr] = {
            "spec": self._spec, "has": self._has, "known": self._is_known, "age": self._age,
            "peers": self._peers, "peer_z": self._peers, "rack_peers": self._peers, "abs": self._plain,
            "node_peers": self._peers, "peers_at": self._peers_at,
            "min": self._plain, "max": self._plain, "first": self._first, "count_over": self._ticks,
            "share": self._ticks,
        }.get(name, self._over_time)  # fmt: skip
        return made(node, name)

    def _window(self, node: ast.AST) -> float:
        seconds = self.durations.get(self._column(node))
        if not isinstance(node, ast.Constant) or seconds is None:
            raise self.wrong(node, say("expressions.wants_duration"))
        if not 0 < seconds <= LONGEST_WINDOW_S:
            raise self.wrong(node, say("expressions.window"))
        return seconds

    def _over_time(self, node: ast.Call, name: str) -> Expr:
        found, seconds = self._signal(node.args[0]), self._window(node.args[1])
        signal = self.signals[found.name]
        counter = signal.kind is SignalKind.counter
        if name == "rate" and not counter:
            raise self.wrong(node.args[0], say("expressions.not_a_counter", name=signal.name), _use("delta"))
        if name in _GAUGES_ONLY and signal.kind is not SignalKind.gauge:
            text = say("expressions.not_a_gauge", name=signal.name, kind=signal.kind, function=name)
            raise self.wrong(node.args[0], text, _use("rate" if counter else "changed"))
        if name == "delta" and signal.kind in (SignalKind.enum, SignalKind.bits):
            raise self.wrong(
                node.args[0],
                say("expressions.not_a_number", name=signal.name, kind=signal.kind),
                _use("changed"),
            )
        if name == "changed" and not counter:
            return Expr(name, scope=found.scope, truth=True, name=signal.name, seconds=seconds)
        unit = found.unit / SECONDS if name == "rate" else found.unit
        op = "increase" if counter and name != "rate" else name
        made = Expr(op, scope=found.scope, unit=unit, name=signal.name, seconds=seconds)
        if name == "changed":
            return Expr(">", (made, _constant(0.0)), made.scope, truth=True)
        return made

    def _ticks(self, node: ast.Call, name: str) -> Expr:
        arg, seconds = self.truth(node.args[0]), self._window(node.args[1])
        if arg.scope is None or any(part.op in ("share", "count_over") for part in arg.walk()):
            raise self.wrong(node.args[0], say("expressions.ticks_of_constant", function=name))
        unit = RATIO if name == "share" else COUNT
        return Expr(name, (arg,), arg.scope, unit=unit, seconds=seconds)

    def _spec(self, node: ast.Call, name: str) -> Expr:
        word = self._word(node.args[0])
        if self.scope in OF_DEVICES:
            raise self.wrong(node, say("expressions.spec_of_device"))
        if self.specs is not None and word not in self.specs:
            raise self.wrong(
                node.args[0], say("expressions.unknown_spec", text=word), did_you_mean(word, self.specs)
            )
        # Models belong to nodes, which is enough for links, jobs and nodes too.
        scope = Scope.gpu if self.scope is Scope.gpu else Scope.node
        return Expr(name, scope=scope, unit=unit_of_name(word), name=word)

    def _has(self, node: ast.Call, name: str) -> Expr:
        found, word = self._signal(node.args[0]), self._word(node.args[1])
        bits = self.signals[found.name].bits
        if word not in bits:
            hint = did_you_mean(word, bits) or (say("rulebook.one_of", words=", ".join(bits)) if bits else "")
            raise self.wrong(node.args[1], say("expressions.unknown_bit", name=found.name, text=word), hint)
        return Expr(name, (found,), found.scope, truth=True, number=float(bits[word]))

    def _word(self, node: ast.AST) -> str:
        if not _is_word(node):
            raise self.wrong(node, say("expressions.wants_quoted"))
        assert isinstance(node, ast.Constant)
        return str(node.value)

    def _is_known(self, node: ast.Call, name: str) -> Expr:
        arg = self.any(node.args[0])
        if arg.scope is None:
            raise self.wrong(node.args[0], say("expressions.known_constant"))
        return Expr(name, (arg,), arg.scope, truth=True)

    def _age(self, node: ast.Call, name: str) -> Expr:
        found = self._signal(node.args[0])
        return Expr(name, scope=found.scope, unit=SECONDS, name=found.name)

    def _peers(self, node: ast.Call, name: str) -> Expr:
        arg = self._countable(node.args[0])
        if arg.scope not in (Scope.link, Scope.gpu, Scope.node):
            raise self.wrong(node.args[0], say("expressions.no_peers"))
        if name == "node_peers" and arg.scope is not Scope.gpu:
            raise self.wrong(node.args[0], say("expressions.node_peers_gpus"))
        return Expr(name, (arg,), arg.scope, unit=RATIO if name == "peer_z" else arg.unit)

    def _peers_at(self, node: ast.Call, name: str) -> Expr:
        value, at = (self._countable(arg) for arg in node.args)
        made = self._unified(name, (value, at), unit=value.unit)
        if value.scope is None or at.scope is None or made.scope not in (Scope.link, Scope.gpu, Scope.node):
            raise self.wrong(node, say("expressions.no_peers"))
        return made

    def _first(self, node: ast.Call, name: str) -> Expr:
        """For numbers or conditions: a signal used as a condition may come before another condition."""
        if not any(self.any(arg).truth for arg in node.args):
            return self._plain(node, name)
        return self._unified(name, [self.truth(arg) for arg in node.args], truth=True)

    def _plain(self, node: ast.Call, name: str) -> Expr:
        args = [self._countable(arg) for arg in node.args]
        unit = args[0].unit
        for position, arg in enumerate(args[1:], start=1):
            self._same_unit(node.args[position], args[0], arg)
            unit = common_unit(unit, arg.unit)
        made = self._unified(name, args, unit=unit)
        if made.scope is None:
            raise self.wrong(node, say("expressions.constants_only", function=name))
        return made

    def _over_parts(self, node: ast.Call, name: str) -> Expr:
        if self.inside:
            raise self.wrong(node, say("expressions.inside", inner=name, outer=self.inside))
        self.inside = name
        read = self.truth if FUNCTIONS[name].takes == ("condition",) else self._countable
        arg = read(node.args[0])
        self.inside = ""
        if arg.scope is None or not finer(arg.scope, self.scope):
            text = say("expressions.finer_scope", function=name, scope=self.scope)
            raise self.wrong(node.args[0], text)
        if name == "any_of":
            return Expr(name, (arg,), self.scope, truth=True)
        unit = {"count_of": COUNT, "share_of": RATIO}.get(name, arg.unit)
        return Expr(name, (arg,), self.scope, unit=unit)


def _use(function: str) -> str:
    return say("expressions.use", function=function)


def _constant(value: float) -> Expr:
    return Expr("number", number=value, unit=PLAIN)


def _is_word(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _down(arg: Expr, scope: Scope | None) -> Expr:
    if arg.scope is None or arg.scope is scope:
        return arg
    return Expr("down", (arg,), scope, truth=arg.truth, unit=arg.unit)
