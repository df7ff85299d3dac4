"""Shell completion: what the last word of a command line can become.

Completion must be fast and silent: it starts no hub, lists no root, and offers nothing on an error.
It does not import typer, which takes as long as all the rest: the options and arguments of a
command are read from typer once, and kept in the user's cache until the command line changes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from aboard.index import Index

BASH_SCRIPT = """
%(complete_func)s() {
    local IFS=$'\\n'
    mapfile -t COMPREPLY < <( env COMP_WORDS="${COMP_WORDS[*]}" \\
                              COMP_CWORD=$COMP_CWORD \\
                              %(autocomplete_var)s=complete_bash $1 )
    # More follows a directory or a group of fields: append no space.
    [[ ${COMPREPLY[0]} == *[./] ]] && compopt -o nospace 2> /dev/null
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
"""Typer's script, except for the space, and without the expansion of patterns in offers."""
_CACHE = "completion.json"
_BRACKETED = re.compile(r"""\b(hparams|metrics|tags)\[(["'])([^"']*)(?:\2\]\.(\w*))?$""")
_SPECIAL = re.compile(r"[^\w@%+=:,./~^-]")  # what a backslash must precede in Bash
_ESCAPED = r'[\\"$`]'  # what a backslash must precede in double quotes
_CONTROL = re.compile(r"[\0-\x1f\x7f]")  # no shell can complete them
_SIGNED = {"--sort"}  # options whose values may begin with a minus
_TO_ANSWER_SECONDS = 1.0
_MOST_OFFERED = 10_000
_MOST_TAGS = 1_000  # of a source; reading them takes about ten milliseconds

Offers = Sequence[tuple[str, str] | str]  # a text, perhaps with a description


class Context(NamedTuple):
    """The words before the one to complete: the command, and the values of its parameters."""

    command: str
    params: Mapping[str, Any]  # None for a parameter without a value
    choices: Sequence[str] = ()  # of the parameter that is completed


class Completer(NamedTuple):
    """What completes an option or argument, in the annotation of a command's parameter.

    `choices` are part of what is offered, and known without importing the command.
    """

    offers: Callable[[Context, str], Offers]
    choices: Sequence[str] = ()


class Parameter(NamedTuple):
    name: str
    options: Sequence[str]  # empty for an argument
    takes_value: bool
    is_many: bool
    choices: Sequence[str]
    completer: str  # the name of a function in this module
    help: str


class Command(NamedTuple):
    name: str  # empty for the command line itself
    help: str
    is_hidden: bool
    is_interspersed: bool  # options may follow arguments
    parameters: Sequence[Parameter]
    commands: Mapping[str, Command]
    default: str  # the command of a group that runs if none is named

    @classmethod
    def load(cls, row: Sequence[Any]) -> Command:
        name, about, is_hidden, is_interspersed, parameters, commands, default = row
        own = [Parameter(*one) for one in parameters]
        below = {key: cls.load(one) for key, one in commands.items()}
        return cls(name, about, is_hidden, is_interspersed, own, below, default)

    @property
    def arguments(self) -> list[Parameter]:
        return [one for one in self.parameters if not one.options]

    def option(self, name: str) -> Parameter | None:
        return next((one for one in self.parameters if name in one.options), None)


def answer(shell: str) -> int:
    """Print what the last word can become, as a shell expects it; return the exit code."""
    if shell not in _SHELLS:
        sys.stderr.write(f"aboard: completion does not support {shell!r}.\n")
        return 1
    try:
        words, last, kept = _from_bash() if shell == "bash" else _from_line(shell)
        offers = [one for one in offers_for(words[1:], last) if not _CONTROL.search(one[0])]
    except Exception:  # noqa: BLE001 - completion must be silent
        offers, kept = [], ""
    lines = [_SHELLS[shell](text.removeprefix(kept), about) for text, about in offers]
    if shell == "zsh":
        found = "\n".join(lines)
        lines = [f"_arguments '*: :(({found}))'" if lines else "_files"]
    if shell == "fish" and os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if lines else 1  # then the shell offers files
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def _from_bash() -> tuple[list[str], str, str]:
    """Return the words before the last, the last, and the beginning of it that Bash keeps."""
    given = os.environ["COMP_WORDS"].split("\n")
    words, kept = join_words(given[: int(os.environ["COMP_CWORD"]) + 1])
    *before, last = (_unquoted(word) for word in words)
    return [one.text for one in before], last.text, last.kept if last.quote else kept


class _Unquoted(NamedTuple):
    text: str
    quote: str  # that is still open
    kept: str  # the text before it: Bash replaces what follows


def _unquoted(word: str) -> _Unquoted:
    """Remove quotes and backslashes from a word as Bash does."""
    text, quote, kept = "", "", ""
    signs = iter(word)
    for sign in signs:
        if sign == "\\" and quote != "'":
            after = next(signs, "")
            text += after if not quote or re.match(_ESCAPED, after) else sign + after
        elif sign == quote:
            quote = ""
        elif not quote and sign in {"'", '"'}:
            quote, kept = sign, text
        else:
            text += sign
    return _Unquoted(text, quote, kept)


def _from_line(shell: str) -> tuple[list[str], str, str]:
    line = os.environ["_TYPER_COMPLETE_ARGS"]
    words = _split(line)
    if shell in {"powershell", "pwsh"}:
        last = os.environ.get("_TYPER_COMPLETE_WORD_TO_COMPLETE", "")
        return (words[:-1] if last else words), last, ""
    last = "" if line.endswith(" ") else words.pop()
    return words, last, ""


def _split(text: str) -> list[str]:
    """Split words as a shell does; a quote may still be open."""
    if not any(one in text for one in "'\"\\ \n"):
        return [text] if text else []
    import shlex

    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # the open quote
        words.append(lexer.token)
    return words


def _for_bash(text: str, _: str) -> str:
    word = os.environ["COMP_WORDS"].split("\n")[int(os.environ["COMP_CWORD"])]
    match _unquoted(word).quote:
        case "'":
            return text.replace("'", r"'\''")
        case '"':
            return re.sub(_ESCAPED, r"\\\g<0>", text)
        case _:
            return _SPECIAL.sub(r"\\\g<0>", text)


def _for_zsh(text: str, about: str) -> str:
    described = [_escaped(text), _escaped(about)] if about else [_escaped(text)]
    return ":".join(f'"{one}"' for one in described)


def _escaped(text: str) -> str:
    """Escape a text for Zsh, which evaluates it twice: within single, then within double quotes."""
    for before, after in (
        *(("\\", "\\\\"), ('"', '\\"'), ("'", r"'\''"), ("$", "\\$"), ("`", "\\`")),
        (":", "\\\\:"),
    ):
        text = text.replace(before, after)
    return text


_SHELLS: dict[str, Callable[[str, str], str]] = {
    "bash": _for_bash,
    "zsh": _for_zsh,
    "fish": lambda text, about: f"{text}\t{' '.join(about.split())}" if about else text,
    "powershell": lambda text, about: f"{text}:::{about or ' '}",
    "pwsh": lambda text, about: f"{text}:::{about or ' '}",
}


def join_words(given: Sequence[str]) -> tuple[list[str], str]:
    """Join the words that Bash split; also return the prefix of the last that Bash keeps."""
    words: list[str] = []
    kept = ""
    continues = False  # with the next part
    for part in given:
        is_colon = part != "" and not part.strip(":")
        if part == "=" and words and words[-1].startswith("--"):  # the value of an option
            words.append("")
            continues, kept = True, ""
        elif len(words) > 1 and part and (is_colon or continues):
            words[-1] += part
            continues, kept = is_colon, words[-1] if is_colon else kept
        else:
            words.append(part)
            continues, kept = False, ""
    return words, kept


def offers_for(words: Sequence[str], last: str) -> list[tuple[str, str]]:
    """Return what `last` can become after the words that follow `aboard`."""
    command = _known_command("")
    named: Mapping[str, Command] = {}
    while command.commands:
        at = _first_word(command, words)
        word = words[at] if at < len(words) else ""
        if word in command.commands:
            words = [*words[:at], *words[at + 1 :]]
            command = command.commands[word] if command.name else _known_command(word)
        elif (
            words and command.default and (not word or command.commands[command.default].arguments)
        ):
            group, command = command, command.commands[command.default]
            line = _Line(command, words)
            if not (word or line.waiting or line.has_ended):
                named = group.commands  # a command may follow options of the default
        elif word:
            return []
        else:
            named = command.commands
            break
    offers = [
        (name, one.help)
        for name, one in named.items()
        if name.startswith(last) and not one.is_hidden
    ]
    offers += _of_parameters(command, words, last)
    if command.default:
        offers += _of_parameters(command.commands[command.default], [], last)
    return list(dict(offers).items())


def _first_word(command: Command, words: Sequence[str]) -> int:
    """Return the position of the first word that is neither an option nor its value."""
    known = [command, *(command.commands.values() if command.default else ())]
    at = 0
    while at < len(words) and words[at].startswith("-"):
        options = [option for one in known if (option := one.option(words[at])) is not None]
        at += 2 if any(one.takes_value for one in options) else 1
    return at


class _Line:
    """The words before the last one, matched with the parameters of a command."""

    def __init__(self, command: Command, words: Sequence[str]) -> None:
        self.values: dict[str, Any] = {one.name: None for one in command.parameters}
        self.waiting: Parameter | None = None  # for its value
        self.has_ended = False  # options have: only arguments follow
        arguments: list[str] = []
        for word in words:
            if self.waiting is not None:
                self._put(self.waiting, word)
                self.waiting = None
            elif self.has_ended or word[:1] != "-":
                arguments.append(word)
                self.has_ended |= not command.is_interspersed
            elif word == "--":
                self.has_ended = True
            else:
                self._take_option(command, word)
        self.next: Parameter | None = None  # argument
        for one in command.arguments:
            taken = arguments if one.is_many else arguments[:1]
            arguments = arguments[len(taken) :]
            for word in taken:
                self._put(one, word)
            if self.next is None and (one.is_many or not taken):
                self.next = one

    def _take_option(self, command: Command, word: str) -> None:
        name, equals, value = word.partition("=")
        option = command.option(name)
        if option is None:
            return
        if not option.takes_value:
            self.values[option.name] = True
        elif equals:
            self._put(option, value)
        else:
            self.waiting = option

    def _put(self, parameter: Parameter, word: str) -> None:
        before = self.values[parameter.name]
        self.values[parameter.name] = [*(before or ()), word] if parameter.is_many else word


def _of_parameters(command: Command, words: Sequence[str], last: str) -> list[tuple[str, str]]:
    line = _Line(command, words)
    context = Context(command.name, line.values)
    option, equals, value = last.partition("=")
    is_option = last.startswith("-") and not line.has_ended
    if line.waiting is not None and (not is_option or _is_signed(line.waiting, last)):
        return _values(context, line.waiting, last)
    if not is_option:
        return _values(context, line.next, last) if line.next else []
    if equals:
        named = command.option(option)
        found = _values(context, named, value) if named and named.takes_value else []
        return [(f"{option}={text}", about) for text, about in found]
    return [
        (name, one.help)
        for one in command.parameters
        if one.is_many or line.values[one.name] is None
        for name in one.options
        if name.startswith(last)
    ]


def _is_signed(parameter: Parameter, value: str) -> bool:
    return value[:1] == "-" and value[:2] != "--" and not _SIGNED.isdisjoint(parameter.options)


def _values(context: Context, parameter: Parameter, last: str) -> list[tuple[str, str]]:
    sign = "-" if _is_signed(parameter, last) else ""
    last = last.removeprefix(sign)
    offers: Offers = parameter.choices
    if parameter.completer:
        choosing = context._replace(choices=parameter.choices)
        offers = globals()[parameter.completer](choosing, last)
    pairs = ((one, "") if isinstance(one, str) else one for one in offers)
    return [(sign + text, about) for text, about in pairs if text.startswith(last)]


# The cache of commands.


def _known_command(name: str) -> Command:
    """Return a command by name, the command line itself for an empty one."""
    from aboard.system import cache_place, make_private, write_private

    path = cache_place().directory / _CACHE
    stamp = _stamp()
    rows: dict[str, Any] = {}
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):
        make_private(path.parent)  # others may have put files into one that was not
        document = json.loads(path.read_bytes())
        rows = document["commands"] if document["stamp"] == stamp else {}
        if name in rows:
            return Command.load(rows[name])
    from aboard.cli.app import describe

    command = describe(name)
    with suppress(OSError):
        make_private(path.parent)
        write_private(path, json.dumps({"stamp": stamp, "commands": rows | {name: command}}))
    return command


def _stamp() -> str:
    """Return a text that changes with the command line."""
    from aboard import __version__

    with os.scandir(Path(__file__).parent) as entries:
        times = sorted((one.name, one.stat().st_mtime_ns) for one in entries if one.is_file())
    return f"{__version__} {times}"


# What completes a value.


def boards_like(_: Context, incomplete: str) -> Offers:
    try:
        from aboard.sdk.client import Client

        boards = Client(start=False, seconds=_TO_ANSWER_SECONDS).list()
        named = [(one.name, f"board of {one.owner}, {one.state}") for one in boards]
        named += [(one.id, one.name) for one in boards]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []
    return [(text, about) for text, about in named if text.startswith(incomplete)]


def jobs_like(context: Context, incomplete: str) -> Offers:
    """Offer jobs, except those in buckets, which take too long to list."""
    try:
        from aboard.jobs.store import JobStore, find_job_roots
        from aboard.storage import is_remote

        roots = find_job_roots(context.params.get("root") or ())
        stores = [JobStore(root) for root in roots if not is_remote(root)]
        return [(job, "job") for one in stores for job in one.ids() if job.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def job_places_like(_: Context, incomplete: str) -> Offers:
    """Offer the places of jobs: engines, and profiles in the user's settings."""
    try:
        from aboard.executors import BATCHES, places, read_engines

        names = dict.fromkeys([*BATCHES, *places(read_engines())])
        return [(name, "engine") for name in names if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def places_like(context: Context, incomplete: str) -> Offers:
    """Offer the places of boards: the hub itself, and its engines."""
    from aboard.boards.model import INSTANT

    offers = [(INSTANT, "served by the hub itself")] if INSTANT.startswith(incomplete) else []
    return [*offers, *engines_like(context, incomplete)]


def engines_like(_: Context, incomplete: str) -> Offers:
    """Offer the engines of the hub; without a hub, all."""
    try:
        from aboard.sdk.client import Client

        client = Client(start=False, seconds=_TO_ANSWER_SECONDS)
        names = [one["name"] for one in client.engines(probe=False)]
    except Exception:  # noqa: BLE001 - completion must be silent
        from aboard.executors import EXECUTORS

        names = list(EXECUTORS)
    return [(name, "engine") for name in names if name.startswith(incomplete)]


def selectors_like(context: Context, incomplete: str) -> Offers:
    try:
        if named := _named_like(context, incomplete):
            return named
        return [*_offered_runs(context, incomplete), *_directories(incomplete)]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def _named_like(context: Context, incomplete: str) -> Offers:
    """Offer what may follow `tag:`, `state:` and `hparam:`, also after `not:`."""
    before, colon, _ = incomplete.rpartition(":")
    match before.removeprefix("not:"):
        case "tag":
            names = _names(context, "tags")
        case "state":
            from aboard.runs.manifest import State

            names = list(State)
        case "hparam":
            names = _names(context, "hparams")
        case _:
            return []
    texts = [text for name in names if (text := before + colon + name).startswith(incomplete)]
    if before.endswith("hparam") and len(texts) == 1:
        texts.append(f"{texts[0]}=")  # a comparison follows: with one offer, a space would
    return [(text, before) for text in texts]


def metrics_like(context: Context, incomplete: str) -> list[str]:
    """Offer metrics; after the name of one and a dot, its statistics."""
    try:
        from aboard.runs.naming import STATISTICS

        names = _names(context, "metrics")
        before, _, _ = incomplete.rpartition(".")
        if before in names:
            names += [f"{before}.{one}" for one in STATISTICS]
        return [one for one in names if one.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def choices_like(context: Context, _: str) -> Sequence[str]:
    return context.choices


def directories_like(context: Context, incomplete: str) -> list[str]:
    """Offer the runs of `ls` and `export`: directories with event files, with their sources."""
    try:
        with _index_of_runs(context) as (index, roots):
            if index is None:
                return []
            sources = context.params.get("source") or ()
            found = _directories_of(index, sources) or _directories_of(index, roots)
        return [one for one in found if one.startswith(incomplete)][:_MOST_OFFERED]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def _directories_of(index: Index, sources: Sequence[str]) -> list[str]:
    from aboard.index import Source

    parsed = [Source.parse(one) for one in sources]
    found = [sorted(run.name for run in index.runs(source)) for source in parsed]
    if len(parsed) == 1:
        return found[0]
    from aboard.cli.sources import distinct_labels, place_of, run_label

    labels = distinct_labels([place_of(source) for source in parsed])
    pairs = zip(labels, found, strict=True)
    return [run_label(label, run) for label, runs in pairs for run in runs]


def tags_like(context: Context, incomplete: str) -> list[str]:
    """Offer tags of the sources, or of all roots if the index does not have the sources."""
    try:
        with _index_of_runs(context) as (index, roots):
            if index is None:
                return []
            found = _tags(context, index, context.params.get("source") or ())
            found = found or _tags(context, index, roots)
        # Tags with a leading underscore are internal.
        return [one for one in found if one.startswith(incomplete) and one[:1] != "_"]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def _tags(context: Context, index: Index, sources: Sequence[str]) -> list[str]:
    from aboard.index import Source

    tags = [tag for one in sources for tag in index.tags(Source.parse(one), most=_MOST_TAGS)]
    only_scalars = context.command == "export"
    return sorted({tag.name for tag in tags if tag.is_scalar or not only_scalars})


def columns_like(context: Context, incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    given = set(before.split(","))
    values = [one for one in context.choices if one.startswith(last)]
    names = dict.fromkeys([*values, *_fields(context, last)])
    return [f"{before}{comma}{name}" for name in names if name not in given]


def fields_like(context: Context, incomplete: str) -> list[str]:
    """Offer fields to sort or group by, also after a comma."""
    before, comma, last = incomplete.rpartition(",")
    sign = "-" if comma and last.startswith("-") else ""
    offers = _fields_within(context, last.removeprefix(sign))
    return [f"{before}{comma}{sign}{name}" for name in offers]


def conditions_like(context: Context, incomplete: str) -> list[str]:
    """Offer fields for the last word of a condition."""
    before, last = _split_word(incomplete)
    return [before + one for one in _fields_within(context, last)]


def _split_word(text: str) -> tuple[str, str]:
    if found := _BRACKETED.search(text):
        return text[: found.start()], found[0]
    at = len(text)
    while at and (text[at - 1].isalnum() or text[at - 1] in "_./-:"):
        at -= 1
    return text[:at], text[at:]


def _fields_within(context: Context, incomplete: str) -> list[str]:
    """Offer fields; with the only group that matches, also its names.

    A shell completes a single offer with a space and a closing quote.
    """
    offers = _fields(context, incomplete)
    if len(offers) == 1 and offers[0].endswith("."):
        offers += _fields(context, offers[0])
    return offers


def _fields(context: Context, incomplete: str) -> list[str]:
    """Offer fields of runs; names in a group, such as hyperparameters, after the group."""
    try:
        from aboard.runs.naming import GROUPS, RUN_FIELDS, STATISTICS, field_text

        if found := _BRACKETED.fullmatch(incomplete):
            return _bracketed(context, *found.groups())
        group, dot, _ = incomplete.partition(".")
        if not dot or group not in GROUPS:
            offers = [*RUN_FIELDS, *(f"{one}." for one in GROUPS)]
            return [one for one in offers if one.startswith(incomplete)]
        offers = [field_text(group, name) for name in _names(context, group)]
        before, _, _ = incomplete.rpartition(".")
        if group == "metrics" and before in offers:
            offers += [f"{before}.{one}" for one in STATISTICS]
        return [one for one in offers if one.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - completion must be silent
        return []


def _bracketed(
    context: Context, group: str, quote: str, name: str, statistic: str | None
) -> list[str]:
    """Offer names for `metrics["eval/a`, and statistics for `metrics["eval/acc"].m`."""
    from aboard.runs.naming import STATISTICS

    if statistic is None:
        names = [one for one in _names(context, group) if one.startswith(name) and quote not in one]
        return [f"{group}[{quote}{one}{quote}]" for one in names]
    known = STATISTICS if group == "metrics" else ()
    return [f"{group}[{quote}{name}{quote}].{one}" for one in known if one.startswith(statistic)]


def _offered_runs(context: Context, incomplete: str) -> Offers:
    with _index_of_runs(context) as (index, roots):
        return [] if index is None else offered_runs(index, roots, incomplete)


def offered_runs(index: Index, roots: Sequence[str], incomplete: str) -> Offers:
    """Offer experiments, and runs if only one experiment matches."""
    experiment, slash, name = incomplete.partition("/")
    found = [one for one in index.experiments_like(experiment, roots) if one]
    found = [one for one in found if one == experiment] if slash else found
    offers = [(one, "experiment") for one in found if not slash]
    runs = index.labels_of("", incomplete, roots, _MOST_OFFERED)
    if len(found) == 1 and not runs:
        runs = index.labels_of(found[0], name, roots, _MOST_OFFERED)
    return [*offers, *((one, "run") for one in runs)]


def _names(context: Context, group: str) -> list[str]:
    with _index_of_runs(context) as (index, roots):
        if index is None:
            return []
        return index.column_names(group, roots)


@contextmanager
def _index_of_runs(context: Context) -> Iterator[tuple[Index | None, list[str]]]:
    """Open the index if it exists; also return the roots in which a command finds runs."""
    from aboard.index.schema import FILE_NAME
    from aboard.runs.catalog import find_roots
    from aboard.sdk.personal import last_hub
    from aboard.system import cache_place

    if not (cache_place().directory / FILE_NAME).exists():
        yield None, []
        return
    from aboard.index import Index

    roots = find_roots(context.params.get("root") or ())
    if "root" not in context.params:  # the command uses a hub, which has its own roots
        last = last_hub()
        roots += last.roots if last else ()
    with Index() as index:
        yield index, list(dict.fromkeys(roots))


def _directories(incomplete: str) -> Offers:
    head, slash, _ = incomplete.rpartition("/")
    place = Path(f"{head}{slash}" or ".").expanduser()
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:
        names = sorted(one.name for one in entries if one.is_dir() and one.name[0] != ".")
    return [(f"{head}{slash}{name}/", "directory") for name in names]
