"""Every message of a config error (exit code 2) or run error (1), found in the syntax trees of phoenix/ without importing it.

A message is a template: the fixed words of the code, and `<name>` for each part that is filled in. Where the code words a part
in several ways (`"empty" if ... else "not set"`), each way is a template of its own. One that begins with `…` follows the place:
`SOURCE: PATH = VALUE:`, as Problem writes it, or that of a bad record. Read are the calls of an error and of the classes below
it; for config errors also Problem, Refused, what becomes one (`_TextError`, `_OverrideError`), the ValueErrors of config classes'
validators and the table of words for pydantic's errors; for run errors also what functions answer that are asked for a cause.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product, takewhile
from pathlib import Path
from typing import Any, TypeAlias

PACKAGES = Path(__file__).resolve().parents[1] / "phoenix"
FIELD = "… "
"""Begins the message of a field or of a record: `SOURCE: PATH = VALUE:`, or which record it is, stands before it."""

PLACEHOLDER = re.compile(r"<[A-Za-z][^<>\n]*>")
_VALIDATORS = {"model_validator", "field_validator", "model_serializer"}
_PATH_READERS = {("xai_configlib/errors.py", "split_path")}
"""Functions whose ValueError some command passes on in its own words."""
_SPEAKERS = {"did_you_mean", "_usage"}
"""Functions whose words are read, besides those private ones that return nothing but sentences; of others, a placeholder."""
_SILENT = {"did_you_mean", "_fix"}
"""Those that may have nothing to say where a message is worded; callers of the others ask first."""
_READABLE = {"strerror": "reason", "error": "reason", "fault": "reason", "words of": "type", "len": "number"}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Kind:
    """A class of errors, with those below it, and how the code words them."""

    base: str
    before: Mapping[str, str] = field(default_factory=dict)
    """Error, of this class or one that becomes it -> what is put before its text."""
    place_in: frozenset[str] = frozenset()
    """Files that put it there themselves."""
    tables: frozenset[tuple[str, str]] = frozenset()
    """(file, name) of dicts whose values are messages of fields."""
    answers: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(file, function) whose every answer is the end of a message -> the words before it."""
    named: frozenset[tuple[str, str]] = frozenset()
    """(file, function) whose words are left to a placeholder: there are many, and the reader needs none of them."""
    has_fields: bool = False
    """Whether Problem, Refused and the validators of config classes word some of them."""


CONFIG_ERRORS = Kind(
    "ConfigError",
    before={"_TextError": "<source>: "},
    tables=frozenset({("xai_configlib/explain.py", "_WORDS")}),
    has_fields=True,
)
_KAFKA, _UNUSABLE = "xrex/data/log/kafka.py", "Kafka at <addresses> cannot be used: "
RUN_ERRORS = Kind(
    "RunError",
    before={"BadRecord": FIELD},
    place_in=frozenset({"xrex/data/batching.py"}),
    answers={
        (_KAFKA, "_cause"): _UNUSABLE,
        (_KAFKA, "_why_no_tls"): _UNUSABLE,
        (_KAFKA, "_why_not_authenticated"): _UNUSABLE,
        (_KAFKA, "_missing"): "",
    },
    named=frozenset({(_KAFKA, "_who")}),
)


@dataclass(frozen=True)
class _Names:
    """What the names of a function stand for, where it words a message."""

    assigned: Mapping[str, Sequence[ast.expr]]
    """Name -> the expressions that were assigned to it, or appended to it."""
    passed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Parameter -> the templates of what one caller passes."""
    caller: ast.Call | None = None
    """That caller, where it passes words: the message then stands there."""

    def without(self, name: str) -> "_Names":
        """The same, for what was assigned to this name: there it stands for its parameter alone."""
        assigned = {other: values for other, values in self.assigned.items() if other != name}
        return replace(self, assigned=assigned)


_NO_NAMES = _Names({})


@dataclass(frozen=True)
class Site:
    """A place in the code that makes a message."""

    place: str
    """FILE:LINE."""
    call: str
    """FILE: the call as its source writes it, on one line; the same wherever in the file it stands."""
    template: str

    @property
    def is_passed_on(self) -> bool:
        """Whether no word of the message stands here: it is made elsewhere."""
        return not _says_something(self.template.removeprefix(FIELD))


def sites(packages: Path = PACKAGES, kind: Kind = CONFIG_ERRORS) -> list[Site]:
    """Every place that makes a message of an error of this kind, in the order of files and lines."""
    modules = [_Module(packages, path) for path in sorted(packages.rglob("*.py"))]
    code = _Code({module.name: module for module in modules}, kind)
    return [site for module in modules for site in _Scan(code, module).sites()]


def stands_in(message: str, file: str, packages: Path = PACKAGES) -> bool:
    """Whether a file holds the fixed words of a message that no call of an error shows."""
    path = packages / file
    nodes = ast.walk(ast.parse(path.read_text("utf-8"))) if path.exists() else ()
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values]
    return all(any(words in text for text in texts) for words in PLACEHOLDER.split(message.removeprefix(FIELD)))


def same(template: str) -> str:
    """The template with its placeholders unnamed: two that differ in these names alone are one message."""
    return PLACEHOLDER.sub("<>", template)


def pattern(template: str) -> re.Pattern[str]:
    """What matches the lines that the template makes; a group for each placeholder."""
    fixed = PLACEHOLDER.split(template.removeprefix(FIELD))
    before = "(?:.+: )?" if template.startswith(FIELD) else ""
    return re.compile(before + "(.*)".join(map(re.escape, fixed)) + r"\Z")


class _Module:
    """A file, and what its top level defines."""

    def __init__(self, packages: Path, path: Path):
        self.file = path.relative_to(packages).as_posix()
        self.name = self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.tree = ast.parse(path.read_text("utf-8"))

    @cached_property
    def values(self) -> dict[str, ast.expr]:
        """Name -> the expression assigned to it."""
        return {
            target.id: node.value
            for node in self.tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Every function and method, by its name."""
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, Function)}

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Name -> (module, its name there)."""
        return {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }


class _Code:
    """All modules, and what a name in one of them stands for."""

    def __init__(self, modules: Mapping[str, _Module], kind: Kind):
        self.modules, self.kind = modules, kind
        nodes = (node for module in modules.values() for node in ast.walk(module.tree))
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        self.raisers = _and_below(kind.base, classes) | kind.before.keys()
        """Names of the errors that are made of a text."""

    def constant(self, module: _Module, node: ast.expr) -> Any:
        """The value of an expression of constants. Raises LookupError if it is none."""
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name) if name in module.values:
                return self.constant(module, module.values[name])
            case ast.Name(name) if name in module.imported:
                home, original = module.imported[name]
                return self._value_in(home, original)
            case ast.Attribute(ast.Name(alias), name) if alias in module.imported:
                return self._value_in(".".join(module.imported[alias]), name)
            case ast.JoinedStr(values):
                return "".join(str(self.constant(module, value)) for value in values)
            case ast.FormattedValue(value, -1, None):
                return self.constant(module, value)
            case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
                return _ARITHMETIC[type(operator)](self.constant(module, left), self.constant(module, right))
        raise LookupError

    def function(self, module: _Module, name: str) -> tuple[_Module, Function]:
        """The function that a name stands for, and its module. Raises LookupError if it is none of ours."""
        if name in module.functions:
            return module, module.functions[name]
        home, original = module.imported[name]
        return self.modules[home], self.modules[home].functions[original]

    def _value_in(self, home: str, name: str) -> Any:
        module = self.modules[home]
        return self.constant(module, module.values[name])


_ARITHMETIC: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Pow: lambda a, b: a**b,
}


class _Words:
    """The templates that expressions of one module make."""

    def __init__(self, code: _Code, module: _Module, speaking: frozenset[str] = frozenset()):
        self.code, self.module = code, module
        self.speaking = speaking
        """Functions that are being read: one that calls itself adds nothing."""

    def of(self, node: ast.expr, names: _Names) -> list[str]:
        """Every template of an expression."""
        try:
            return [str(self.code.constant(self.module, node))]
        except LookupError:
            pass
        match node:
            case ast.JoinedStr(values):
                return _joined("", [self._part(value, names) for value in values])
            case ast.BinOp(left, ast.Add(), right) if not isinstance(right, ast.Constant):
                return _joined("", [self.of(left, names), self.of(right, names)])
            case ast.IfExp(ast.Name(test), body, otherwise) if test in names.passed:
                return self.of(body if any(names.passed[test]) else otherwise, names)
            case ast.IfExp(_, body, otherwise):
                return _distinct([*self.of(body, names), *self.of(otherwise, names)])
            case ast.BoolOp(ast.Or(), values):
                return self._first(values, names)
            case ast.NamedExpr(_, value) | ast.GeneratorExp(value):
                return self.of(value, names)
            case ast.Call(ast.Name("next"), [inner, *_]) | ast.Call(ast.Name("filter"), [_, inner]):
                return self.of(inner, names)
            case ast.Name(name) if name in names.assigned:
                texts = _distinct(
                    [text for value in names.assigned[name] for text in self.of(value, names.without(name))]
                )
                return texts if any(map(_says_something, texts)) else [f"<{_name_of(node)}>"]
            case ast.Name(name) if name in names.passed:
                return list(names.passed[name])
            case ast.Call(
                ast.Attribute(ast.Constant(str(separator)), "join"),
                [ast.Call(ast.Name("filter"), [_, ast.Tuple(parts)])],
            ):
                return _joined(separator, [self.of(part, names) for part in parts])
            case ast.Call(ast.Name(name)) if name in _SPEAKERS:
                return self._spoken(node, name, names)
            case ast.Call(ast.Name(name)) if name.startswith("_") and self._speaks(name):
                texts = self._spoken(node, name, names)
                return texts if all(text == "" or _is_sentence(text) for text in texts) else [f"<{_name_of(node)}>"]
        return [f"<{_name_of(node)}>"]

    def _speaks(self, name: str) -> bool:
        return name in self.module.functions and (self.module.file, name) not in self.code.kind.named

    def _part(self, node: ast.expr, names: _Names) -> list[str]:
        """The templates of a part of an f-string."""
        if not isinstance(node, ast.FormattedValue):
            return self.of(node, names)
        match node.format_spec:
            case ast.JoinedStr([ast.Constant(str(form))]):
                try:
                    return [format(self.code.constant(self.module, node.value), form)]
                except LookupError:
                    return [f"<{_name_of(node.value)}>"]
        return self.of(node.value, names)

    def _first(self, values: Sequence[ast.expr], names: _Names) -> list[str]:
        """What `a or b` makes: b too, unless a always has words."""
        found: list[str] = []
        for value in values:
            texts = self.of(value, names)
            found += [text for text in texts if text not in ("", "None") or value is values[-1]]
            if all(map(_says_something, texts)) and "None" not in texts:
                break
        return _distinct(found)

    def _spoken(self, call: ast.Call, name: str, names: _Names) -> list[str]:
        """What a call of a function returns."""
        module, function = self.code.function(self.module, name)
        if function.name in self.speaking:
            return []
        words = _Words(self.code, module, self.speaking | {function.name})
        returned = [node.value for node in _own(function) if isinstance(node, ast.Return) and node.value is not None]
        handed = {name: value.id for name, value in _bound(function, call) if isinstance(value, ast.Name)}
        passed = {name: names.passed[other] for name, other in handed.items() if other in names.passed}
        inner = _Names(_assigned(function), passed)
        texts = _distinct([text for value in returned for text in words.of(value, inner)])
        return [text for text in texts if text != "None" and (text or function.name in _SILENT)]


class _Scan:
    """The messages of one module."""

    def __init__(self, code: _Code, module: _Module):
        self.module = module
        self.code = code
        self.words = _Words(code, module)
        self.calls = list(_calls(module.tree))

    def sites(self) -> Iterator[Site]:
        """Every place, in the order of lines."""
        yield from sorted(self._found(), key=lambda site: int(site.place.rpartition(":")[2]))

    def _found(self) -> Iterator[Site]:
        for name in (name for file, name in self.code.kind.tables if file == self.module.file):
            table = self.module.values[name]
            assert isinstance(table, ast.Dict)
            for value in table.values:
                for words in self.words.of(value, _NO_NAMES):
                    yield Site(f"{self.module.file}:{value.lineno}", name, FIELD + re.sub(r"{(\w+)}", r"<\1>", words))
        for (file, name), before in self.code.kind.answers.items():
            if file == self.module.file:
                yield from self._answered(self.module.functions[name], before)
        for function, call in self.calls:
            if (make := self._maker(function, call)) is not None:
                for names in self._readings(function, call):
                    for template in _distinct(make(call, names)):
                        where = f"{self.module.file}:{(names.caller or call).lineno}"
                        yield Site(where, f"{self.module.file}: {ast.unparse(call)}", template)

    def _answered(self, function: Function, before: str) -> Iterator[Site]:
        """What a function returns, but for what another answers."""
        others = {name for file, name in self.code.kind.answers if file == self.module.file}
        answers = [node.value for node in _own(function) if isinstance(node, ast.Return) and node.value is not None]
        for answer in answers:
            if isinstance(answer, ast.Call) and _called(answer) in others:
                continue
            texts = [text for names in self._readings(function, answer) for text in self.words.of(answer, names)]
            for text in _distinct([text for text in texts if _is_sentence(text)]):
                yield Site(f"{self.module.file}:{answer.lineno}", f"{self.module.file}: {function.name}", before + text)

    def _maker(self, function: Function | None, call: ast.Call) -> Any:
        name = _called(call)
        if name in self.code.raisers:
            return self._raised
        if not self.code.kind.has_fields:
            return None
        if name == "ValueError" and function is not None and self._reaches_the_operator(function):
            return self._validated if _is_validator(function) else self._raised
        return {"Problem": self._problem, "Refused": self._refused, "_OverrideError": self._override}.get(name)

    def _reaches_the_operator(self, function: Function) -> bool:
        return _is_validator(function) or (self.module.file, function.name) in _PATH_READERS

    def _readings(self, function: Function | None, call: ast.expr) -> Iterator[_Names]:
        """What the names in a call, or an answer, stand for: once for each block, and each caller, that words it its own way."""
        if function is None:
            yield _NO_NAMES
            return
        used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        blocks = [{name: [value] for name, value in block.items() if name in used} for block in _blocks(function, call)]
        several = [block for block in blocks if len(block) > 1]  # wording and remedy chosen together
        assigned = _assigned(function, call)
        for passed, caller in self._worded(function) or [(self._named(function), None)]:
            for block in several or [{}]:
                yield _Names(assigned | block, passed, caller)

    def _worded(self, function: Function) -> list[tuple[dict[str, list[str]], ast.Call]]:
        """What each caller in this module passes, by parameter, if one of them passes words; else nothing."""
        passed = list(self._passed(function, self._named))
        texts = (text for given, _ in passed for texts in given.values() for text in texts)
        return passed if any(map(_is_sentence, texts)) else []

    def _named(self, function: Function) -> dict[str, list[str]]:
        """The parameters to which no caller passes nothing, each as its placeholder."""
        passed = [given for given, _ in self._passed(function, lambda caller: {})]
        common = set.intersection(*map(set, passed)) if passed else set()
        return {name: [f"<{name}>"] for name in common if all(all(given[name]) for given in passed)}

    def _passed(
        self, function: Function, known: Callable[[Function], dict[str, list[str]]]
    ) -> Iterator[tuple[dict[str, list[str]], ast.Call]]:
        """What each call of a function gives its parameters: sentences, "", or a placeholder for a name; nothing unknown."""
        for caller, call in self.calls:
            if _called(call) == function.name and caller is not None:
                names = _Names(_assigned(caller, call), known(caller))
                given = {name: self._text_of(name, value, names) for name, value in _bound(function, call)}
                yield {name: texts for name, texts in given.items() if texts}, call

    def _text_of(self, parameter: str, value: ast.expr, names: _Names) -> list[str]:
        is_known = isinstance(value, ast.Name) and value.id in names.passed and value.id not in names.assigned
        texts = self.words.of(value, names)
        if all(text == "" or _is_sentence(text) for text in texts):
            return texts
        return [f"<{parameter}>"] if is_known or all(map(_says_something, texts)) else []

    def _raised(self, call: ast.Call, names: _Names) -> list[str]:
        """ConfigError(text): one message, or several joined by line ends. Problems in it have their own place."""
        (text,) = _arguments(call, ("problems",))
        if _holds_problem(text, names):
            return []
        kind = self.code.kind
        before = "" if self.module.file in kind.place_in else kind.before.get(_called(call), "")
        messages = self._messages(text, names)
        return [before + message for message in messages if message or len(messages) == 1]  # "": it is not raised then

    def _validated(self, call: ast.Call, names: _Names) -> list[str]:
        return [FIELD + text for text in self._messages(call.args[0], names)]

    def _messages(self, node: ast.expr, names: _Names) -> list[str]:
        match node:
            case ast.Call(ast.Attribute(ast.Constant("\n" | "; "), "join"), [parts]):
                return [text for part, its in self._parts(parts, names) for text in self.words.of(part, its)]
        return self.words.of(node, names)

    def _parts(self, node: ast.expr, names: _Names) -> Iterator[tuple[ast.expr, _Names]]:
        """The texts that are gathered in a list, each with what its names stand for."""
        match node:
            case ast.List(items):
                yield from ((item, names) for item in items)
            case ast.Name(name) if name in names.assigned:
                for value in names.assigned[name]:
                    yield from self._parts(value, names)
            case ast.NamedExpr(_, value):
                yield from self._parts(value, names)
            case ast.Dict(_, values):
                yield from ((value, names) for value in values)
            case ast.DictComp(_, value):
                yield value, names
            case ast.GeneratorExp(item, [over]) | ast.ListComp(item, [over]):
                yield item, self._bound_over(over, names)
            case ast.Call(ast.Name("list"), [inner]) | ast.Call(ast.Attribute(inner, "values" | "items"), []):
                yield from self._parts(inner, names)
            case ast.Call(ast.Name(name)) if name in self.module.functions:
                function = self.module.functions[name]
                names = _Names(_assigned(function))
                for inner in _own(function):
                    if isinstance(inner, ast.Yield) and inner.value is not None:
                        yield inner.value, names
                    elif isinstance(inner, ast.YieldFrom | ast.Return) and not isinstance(
                        inner.value, ast.Constant | None
                    ):
                        yield from self._parts(inner.value, names)
            case _:
                yield node, names

    def _bound_over(self, over: ast.comprehension, names: _Names) -> _Names:
        """With what the name of a comprehension runs over; of `for key, value in x.items()` the value."""
        target = over.target.elts[-1] if isinstance(over.target, ast.Tuple) else over.target
        texts = [text for part, its in self._parts(over.iter, names) for text in self.words.of(part, its)]
        if not isinstance(target, ast.Name) or not all(map(_is_sentence, texts)):
            return names
        return replace(names, passed={**names.passed, target.id: texts}).without(target.id)

    def _problem(self, call: ast.Call, names: _Names) -> list[str]:
        source, path, value, expected, fix = _arguments(call, ("source", "path", "value", "expected", "fix"))
        where = self._where(source, path, value, names)
        return [where + text for text in self._expected(expected, fix, names)]

    def _where(self, source: Any, path: Any, value: Any, names: _Names) -> str:
        places, sources = self.words.of(path, names), self.words.of(source, names)
        if len(places) > 1 or PLACEHOLDER.search(places[0]):
            return FIELD
        shown = "" if isinstance(value, ast.Constant) else f" = {self.words.of(value, names)[0]}"
        return "".join(f"{part}: " for part in (sources[0], places[0] and places[0] + shown) if part)

    def _refused(self, call: ast.Call, names: _Names) -> list[str]:
        _, expected, fix = _arguments(call, ("value", "expected", "fix"))
        return [FIELD + text for text in self._expected(expected, fix, names)]

    def _override(self, call: ast.Call, names: _Names) -> list[str]:
        path, value, expected, fix = _arguments(call, ("path", "value", "expected", "fix"))
        where = self._where(ast.Constant("command line"), path, value, names)
        return [where + text for text in self._expected(expected, fix, names)]

    def _expected(self, expected: ast.expr, fix: ast.expr, names: _Names) -> list[str]:
        return _joined("; ", [self.words.of(expected, names), self.words.of(fix, names)])


def _calls(tree: ast.AST, function: Function | None = None) -> Iterator[tuple[Function | None, ast.Call]]:
    """Every call with the function that it stands in; not those whose result is only said, for the run goes on."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield function, node
            if _called(node) == "say":
                continue
        yield from _calls(node, node if isinstance(node, Function) else function)


def _and_below(base: str, classes: Sequence[ast.ClassDef]) -> set[str]:
    """A class and all that derive from it, by name."""
    found = {base}
    while more := {c.name for c in classes if any(isinstance(b, ast.Name) and b.id in found for b in c.bases)} - found:
        found |= more
    return found


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _arguments(call: ast.Call, names: Sequence[str]) -> list[Any]:
    """The arguments by these names, in their order; an empty text for one that is left out."""
    given: dict[Any, ast.expr] = dict(zip(names, call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords}
    return [given.get(name, ast.Constant("")) for name in names]


def _holds_problem(node: ast.expr, names: _Names) -> bool:
    items = node.elts if isinstance(node, ast.List) else [node]
    for item in items:
        values = names.assigned.get(item.id, []) if isinstance(item, ast.Name) else [item]
        if any(
            _called(call) == "Problem" for value in values for call in ast.walk(value) if isinstance(call, ast.Call)
        ):
            return True
    return False


def _is_validator(function: Function) -> bool:
    calls = [node for node in function.decorator_list if isinstance(node, ast.Call)]
    return any(_called(call) in _VALIDATORS for call in calls)


def _bound(function: Function, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Parameters of a function, and what a call gives them; the defaults of those that it leaves out."""
    parameters = function.args
    positional = [argument.arg for argument in (*parameters.posonlyargs, *parameters.args) if argument.arg != "self"]
    names = [*positional, *(argument.arg for argument in parameters.kwonlyargs)]
    defaults = [None] * (len(positional) - len(parameters.defaults)) + parameters.defaults + parameters.kw_defaults
    given: dict[str | None, ast.expr] = {name: value for name, value in zip(names, defaults, strict=True) if value}
    given |= dict(
        takewhile(lambda pair: not isinstance(pair[1], ast.Starred), zip(positional, call.args, strict=False))
    )
    given |= {keyword.arg: keyword.value for keyword in call.keywords}
    return ((name, given[name]) for name in names if name in given)


def _is_sentence(text: str) -> bool:
    return _says_something(text) and " " in PLACEHOLDER.sub("", text)


def _own(function: Function, call: ast.expr | None = None) -> Iterator[ast.AST]:
    """Every node of a function, without those of functions in it, in the order of the source.

    call  only what can come before it: not what ends in a raise or a return of its own
    """

    def below(node: ast.AST) -> Iterator[ast.AST]:
        for _, value in ast.iter_fields(node):
            children = [
                child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)
            ]
            if call is not None and children and isinstance(children[-1], ast.Raise | ast.Return):
                children = children if any(call is inner for child in children for inner in ast.walk(child)) else []
            for child in children:
                if not isinstance(child, Function | ast.Lambda):
                    yield child
                    yield from below(child)

    return below(function)


def _assigned(function: Function, call: ast.expr | None = None) -> dict[str, list[ast.expr]]:
    """Name -> every expression that the function assigns to it, or appends to the list of that name, before the call."""
    found: dict[str, list[ast.expr]] = {}
    for node in _own(function, call):
        for name, value in _assignments(node):
            if call is None or getattr(node, "lineno", 0) <= call.lineno:
                found.setdefault(name, []).append(value)
    return found


def _blocks(function: Function, call: ast.expr) -> Iterator[dict[str, ast.expr]]:
    """What each block of statements that can come before the call assigns by itself."""
    for node in (function, *_own(function, call)):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                before = [statement for statement in statements if statement.lineno <= call.lineno]
                yield {name: value for statement in before for name, value in _assignments(statement)}


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Assign([ast.Name(name)], value) | ast.NamedExpr(ast.Name(name), value):
            yield name, value
        case ast.AnnAssign(ast.Name(name), _, ast.expr() as value) | ast.AugAssign(ast.Name(name), ast.Add(), value):
            yield name, value
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
            for target, value in zip(targets, values, strict=False):
                if isinstance(target, ast.Name):
                    yield target.id, value
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [value])) | ast.Assign(
            [ast.Subscript(ast.Name(name))], value
        ):
            yield name, ast.List([value])
        case ast.AugAssign(ast.Name(name), ast.BitOr(), value):
            yield name, value


def _says_something(template: str) -> bool:
    """Whether a template has a word of its own."""
    return re.search(r"\w", PLACEHOLDER.sub("", template)) is not None


def _joined(separator: str, parts: Sequence[Sequence[str]]) -> list[str]:
    """Every way to join one text of each part, without the empty ones; neighbouring placeholders become one."""
    texts = (separator.join(filter(None, chosen)) for chosen in product(*parts))
    return _distinct([re.sub(rf"({PLACEHOLDER.pattern})({PLACEHOLDER.pattern})+", r"\1", text) for text in texts])


def _distinct(texts: Sequence[str]) -> list[str]:
    """Each once; a number, where the same part may be any, is none of its own."""
    if any(map(PLACEHOLDER.fullmatch, texts)):
        texts = [text for text in texts if not text.isdecimal()]
    return list({same(text): text for text in reversed(texts)}.values())[::-1]


def _name_of(node: ast.expr) -> str:
    """A name for what an expression fills in."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            words = name.strip("_").replace("_", " ")
            return _READABLE.get(words, words) or "value"
        case ast.Call(ast.Attribute(ast.Constant(), "join"), [inner]) | ast.Call(ast.Name("map"), [_, inner]):
            return _name_of(inner)
        case ast.Call(ast.Name("str" | "repr" | "shown" | "sorted"), [inner, *_]):
            return _name_of(inner)
        case ast.Call(ast.Attribute(ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call() as whose, _)):
            return _name_of(whose)
        case ast.Call(function):
            return _name_of(function)
        case ast.Subscript(value) | ast.BinOp(value) | ast.GeneratorExp(value) | ast.Starred(value):
            return _name_of(value)
    return "value"


if __name__ == "__main__":
    for kind in (CONFIG_ERRORS, RUN_ERRORS):
        print(f"{kind.base}s")
        for site in sites(kind=kind):
            print(f"{site.place}: {'(passed on) ' if site.is_passed_on else ''}{site.template!r}")
