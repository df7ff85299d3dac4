"""Hides secrets in what a run records, by name and by shape.

A value is hidden if its name looks secret (`--password S`, `api_key=S`, `"token": "S"`,
`Authorization: Bearer S`, `?sig=S`) or if it has the shape of a secret (`user:S@host`, keys of
known services, JSON web tokens, private keys). In doubt it is hidden. Every step takes linear
time: no pattern matches a repetition in two ways, and no value is scanned twice.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aboard.runs.manifest import Tags, plain_tags, plain_values
from aboard.track import notify_once

if TYPE_CHECKING:
    from aboard.runs.manifest import HParams

HIDDEN = "***"
_KEPT = frozenset({"", "none", "null", "true", "false"})  # not secrets, whatever their name

# Names.

_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME = re.compile(
    r"(?i)secret|passw|passphrase|passcode|credential|(amz|goog|access)[-_.]?signature"
    r"|conn(ection)?[-_.]?str(ing)?(?![a-z])"
    r"|(api|access|account|anthropic|auth|comet|encryption|hf|kaggle|master|openai|private|shared"
    r"|signing|storage|subscription|wandb)[-_.]?key"
    r"|(auth|api|access|bearer|refresh|session)[-_.]?tokens$"
    r"|(^|[-_.])creds\.[^.]+$"  # a mapping of them
    r"|(^|[-_.])(auth|authorization|bearer|cookies?|creds|jwt|pat|pwd|sas|"
    r"(access|api|auth|bearer|bot|csrf|github|gitlab|hf|id|oauth|private|refresh|sas|security"
    r"|session|slack|wandb|xsrf)?[-_.]?token)$"
)
_VOCABULARY_TOKEN = re.compile(
    r"(?i)(^|[-_.])(additional|assistant|audio|bos|by|class|cls|end|eos|eot|extra|first|image|last"
    r"|mask|next|pad|per|placeholder|prefix|prompt|sep|special|start|stop|suffix|unk|video|word)"
    r"[-_]?token$"
)
_LONGEST_NAME = 128  # only the end of a longer name counts
_VARIABLE_KEY = re.compile(r"[A-Z0-9_]+_KEY")
_DIRECTORIES = frozenset({"PWD", "OLDPWD"})
_QUERY_NAMES = frozenset({"hmac", "key", "sig", "sign", "signature"})
_LOGIN_KEY = re.compile(r"[0-9a-f]{32,}")  # of `wandb login KEY`
# A password; or a port, a probability, a count.
_AMBIGUOUS_NAME = re.compile(r"p|(?i:(.*[-_]|.*db)?(pass|pw))")
_NUMBER_OR_PORTS = re.compile(
    r"[-+]?(\d{1,5}|\d{0,5}\.\d+|\d{1,5}(\.\d+)?e[-+]?\d{1,3})%?"
    r"|([\w.]{1,60}:)?\d{1,5}:\d{1,5}(/\w{1,4})?"
)
_USER_NAMES = frozenset({"u", "user", "proxy-user", "userpwd"})  # of `-u user:password`
_USER_IDS = re.compile(r"\d*:\d*")
_LONGEST_LOGIN = 256  # user and password; a longer value is checked in other ways


def looks_secret(name: str) -> bool:
    name = name.lstrip("-")[-_LONGEST_NAME:]
    if name in _DIRECTORIES:
        return False
    for form in (name, _CAMEL_CASE.sub("_", name)):
        if _SECRET_NAME.search(form):
            return not _VOCABULARY_TOKEN.search(form)
    return bool(_VARIABLE_KEY.fullmatch(name))


def _last_part(name: str) -> str:
    return name.lstrip("-").rpartition(".")[2][-_LONGEST_NAME:]


def _may_hide(name: str) -> bool:
    last = _last_part(name)
    is_other = last in _USER_NAMES or last == "login" or bool(_AMBIGUOUS_NAME.fullmatch(last))
    return is_other or looks_secret(name)


def hides(name: str, value: str) -> bool:
    """Return whether the name makes the entire value secret."""
    if value.strip().lower() in _KEPT:
        return False
    last = _last_part(name)
    if _AMBIGUOUS_NAME.fullmatch(last):
        return not _NUMBER_OR_PORTS.fullmatch(value)
    if last in _USER_NAMES:
        return ":" in value and "://" not in value and not _USER_IDS.fullmatch(value)
    if last == "login":
        return bool(_LOGIN_KEY.fullmatch(value))
    return looks_secret(name)


# Names and their values in a text.

_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>-{0,2}[^\W\d][\w.-]*+)"
    r"(?:(?P<sign>(?:\\*+['\"])?\]?\s*+(?::?=>?|:(?!//))[ \t]*+)|(?P<gap>['\"]?,?\s++))"
)
_OPENING = re.compile(r"[bBrRuUfF]{0,2}(\\*+['\"])")
_SCHEME = re.compile(r"(?i)(?:apikey|basic|bearer|digest|negotiate|ntlm|token)\s++")
_END_OF_QUERY = re.compile(r"[&#\s'\"<>]")
_END_OF_FIELD = re.compile(r"\n|, |\}")
_END_OF_LINE = re.compile(r"\n")
_SPACE = re.compile(r"\s")
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*+(?:=.*)?", re.DOTALL)
_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "set-cookie"})
_ATTACHED = re.compile(r"(?<!\S)-p(?![a-z_-]++(?!\S))(?P<value>[^\s=:'\"][^\s'\"]*)")


def _is_option(text: str) -> bool:
    # A token in base64 may begin with a dash.
    is_random = len(text) >= 16 and text[1] != "-" and any(map(str.isdigit, text))
    return bool(_OPTION.fullmatch(text)) and not is_random


def _without_named(text: str) -> str:
    shown: list[str] = []
    place = done = 0
    while found := _NAMED.search(text, place):
        place = found.end()
        name, before = found["name"], text[found.start() - 1 : found.start()]
        is_query = before in ("?", "&", "#") and name.lower() in _QUERY_NAMES
        if not is_query and not _may_hide(name):
            continue
        is_word = not before or before.isspace() or before in "'\""
        if found["gap"] and not (name[0] == "-" or (name == "login" and is_word)):
            continue
        if found["sign"] and (name == "login" or (name.lstrip("-") in _USER_NAMES and not is_word)):
            continue
        # A value without a password is shown, but searched for names: its length is limited.
        is_login = _last_part(name) in _USER_NAMES
        limit = min(place + _LONGEST_LOGIN, len(text)) if is_login else len(text)
        begin, end = _extent(text, found, before, limit)
        if found["gap"] and _is_option(text[begin:end]):
            continue
        if scheme := _SCHEME.match(text, begin, end):
            begin = scheme.end()
        if (is_query and begin < end) or hides(name, text[begin:end]):
            if end == limit:
                _, end = _extent(text, found, before, len(text))
            shown += [text[done:begin], HIDDEN]
            done = place = end
    return "".join([*shown, text[done:]])


def _extent(text: str, found: re.Match[str], before: str, limit: int) -> tuple[int, int]:
    """Return begin and end of the value of a name, at most up to the limit."""
    begin, sign = found.end(), found["sign"] or ""
    is_within_quotes = before in ("'", '"') and sign.strip()[:1] in (":", "=")
    quote = before if is_within_quotes else ""
    if opening := _OPENING.match(text, begin):
        begin, quote = opening.end(), opening[1]
    if quote:
        return begin, _closing(text, begin, quote, limit)
    if sign and before == ";" and (end := text.find(";", begin, limit)) >= 0:
        return begin, end
    is_spaced = sign[-1:].isspace()
    if is_spaced and sign[0] == "=" and text[begin : begin + 1] == "-":
        return begin, begin  # an option follows an empty value
    pattern = _END_OF_FIELD if is_spaced else _SPACE
    if sign and before and before in "?&#":
        pattern = _END_OF_QUERY
    elif sign and found["name"].lower() in _HEADERS:
        pattern = _END_OF_LINE
    ending = pattern.search(text, begin, limit)
    return begin, ending.start() if ending else limit


def _closing(text: str, begin: int, quote: str, limit: int) -> int:
    end = text.find(quote, begin, limit)
    while len(quote) == 1 and end > begin and text[end - 1] == "\\":
        end = text.find(quote, end + 1, limit)
    return end if end >= 0 else limit


def _without_attached(text: str) -> str:
    """Hide the password of `-pS`, which is neither a port nor a word such as `-pretrained`."""

    def check(found: re.Match[str]) -> str:
        return found[0] if _NUMBER_OR_PORTS.fullmatch(found["value"]) else f"-p{HIDDEN}"

    return _ATTACHED.sub(check, text) if "-p" in text else text


# Shapes.

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----|\Z)",
    re.DOTALL,
)
_BEARER = re.compile(r"(?i)(?<![\w-])(bearer:?\s++)[^\s'\"]+")
_MAY_HAVE_SHAPE = re.compile(r"[\w.~-]{13}|ATATT3|eyJ|==|webhooks/")


@cache
def _shapes() -> re.Pattern[str]:
    """Compiled when a text may have such a shape: few have, and it takes as long as an import."""
    return re.compile(
        r"(?<![A-Za-z0-9])(?:"
        r"(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA)[A-Z0-9]{12,}"
        r"|gh[pousr]_\w{16,}|github_pat_\w{16,}|gl[a-z]{2,6}-[\w.-]{16,}"
        r"|(?:api_org|dckr_pat|dop_v1|gsk|hf|lin_api|npm|ntn|r8|rk_live|rk_test|sk_live|sk_test"
        r"|shpat|wandb_v1|whsec|xai)_\w{16,}"
        r"|sk-(?:admin|ant|None|or|proj|svcacct)[\w-]{16,}|sk-[A-Za-z0-9]{16,}"
        r"|xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,}|pplx-\w{16,}|(?:nvapi|pypi|tskey)-[\w-]{16,}"
        r"|AIza[\w-]{30,}|ya29\.[\w.-]{16,}|GOCSPX-[\w-]{16,}|1//0[\w-]{20,}"
        r"|SG\.[\w-]{16,}\.[\w-]{16,}|hv[sbr]\.[\w-]{16,}|dapi[0-9a-f]{32}|key-[0-9a-f]{32}"
        r"|AGE-SECRET-KEY-1\w{20,}|ATATT3[\w=-]{16,}|[\w~.-]{3}8Q~[\w~.-]{30,}"
        r"|aboard_[a-z0-9]{12}_[\w-]{20,}|share_[\w-]{40,}|(?:bot)?\d{6,12}:AA[\w-]{30,}"
        r")"
        r"|(?<![\w-])eyJ[\w-]{6,}+(?:\.[\w=-]*+){2,4}"  # a JSON web token
        r"|(?<=hooks\.slack\.com/)(?:services|triggers|workflows)/[\w/-]+"
        r"|(?<=/api/webhooks/)\d+/[\w-]+"
        r"|(?<![\w+/-])[A-Za-z0-9+/]{86}==(?![\w+/=])"  # the key of an Azure account
    )


_AWS_SECRET = re.compile(r"(?<![\w+/.-])[A-Za-z0-9+/]{40}(?![\w+/=.-])")
_CHUNK = re.compile(r"[^\s'\"<>]+")
_AUTHORITY = re.compile(r"(?<=://)[^\s'\"<>/?#]+")
_PASSWORD_WITH_SLASH = re.compile(r"(?<=://)[^/?#:@\[]*+:(?!\d*+(?:[/?#]|\Z))")
_BEFORE_USER = re.compile(r".*[=,(\[{]", re.DOTALL)
_LONGEST_USER = 15  # more is a token


def _without_shapes(text: str) -> str:
    text = _BEARER.sub(rf"\g<1>{HIDDEN}", text)
    if _MAY_HAVE_SHAPE.search(text):
        text = _shapes().sub(HIDDEN, text)
    return _AWS_SECRET.sub(lambda found: HIDDEN if _is_random(found[0]) else found[0], text)


def _is_random(text: str) -> bool:
    """Return whether lower case, upper case and digits alternate as in random text."""
    kinds = ["aA0"[sign.isupper() + 2 * sign.isdigit()] for sign in text if sign.isalnum()]
    changes = sum(one != other for one, other in pairwise(kinds))
    return len(set(kinds)) == 3 and changes >= 14


def _without_passwords(text: str) -> str:
    """Hide the user and password before a host: in URLs, git remotes and `user:password@host`."""
    if "@" not in text:
        return text
    return _CHUNK.sub(lambda found: _without_password(found[0]), text)


def _without_password(chunk: str) -> str:
    if "@" not in chunk:
        return chunk
    if "://" in chunk:
        chunk = _AUTHORITY.sub(_without_user, chunk)
        head, _, host = chunk.rpartition("@")
        found = _PASSWORD_WITH_SLASH.search(head)
        return f"{head[: found.start()]}{HIDDEN}@{host}" if found else chunk
    head, _, host = chunk.rpartition("@")
    user, _, password = head.partition(":")
    is_image = host.startswith("sha256:") or "/" in user
    is_git_remote = "@" in user and "/" in password
    if not password or not host[:1].isalnum() or is_image or is_git_remote or user == "mailto":
        return chunk
    kept = _BEFORE_USER.match(user)
    return f"{kept[0] if kept else ''}{HIDDEN}@{host}"


def _without_user(found: re.Match[str]) -> str:
    user, at, host = found[0].rpartition("@")
    is_secret = at and (":" in user or len(user) > _LONGEST_USER)
    return f"{HIDDEN}@{host}" if is_secret else found[0]


# The redactor.

_ASSIGNED = re.compile(r"(?P<name>-{0,2}[^\W\d][\w.-]*+)(?P<sign>=|:(?!//)\s*+)")
_SETTING = re.compile(r"(?=.*[_.-])[^\W\d][\w.-]*")
_MOST_NESTED = 4  # levels of names in a value, as in `--env=TOKEN=S`


def without_secrets(text: str) -> str:
    """Hide the secrets in a text: a shell command, a message, a document."""
    text = _redact(text)
    if "%" not in text:
        return text

    def check(found: re.Match[str]) -> str:
        decoded = unquote(found[0])
        return found[0] if _redact(decoded) == decoded else HIDDEN

    return _CHUNK.sub(check, text)


def _redact(text: str) -> str:
    text = _without_passwords(_PRIVATE_KEY.sub(HIDDEN, text))
    return _without_shapes(_without_attached(_without_named(text)))


def without_secret_arguments(arguments: Sequence[str]) -> list[str]:
    """Hide the secrets in the arguments of a command."""
    shown: list[str] = []
    pending = ""  # the name whose value is the next argument
    for argument in arguments:
        if pending == "authorization" and _SCHEME.fullmatch(f"{argument} "):
            shown.append(argument)
        elif pending and not _is_option(argument) and hides(pending, argument):
            shown.append(HIDDEN)
            pending = ""
        else:
            shown.append(_without_assigned(argument))
            pending = _name_of_next(argument)
    return shown


def _name_of_next(argument: str) -> str:
    lowered = argument.lower().rstrip(":")
    if lowered.endswith(("bearer", "authorization")):
        return "authorization"
    is_name = bool(_OPTION.fullmatch(argument)) and "=" not in argument
    is_setting = bool(_SETTING.fullmatch(argument)) and looks_secret(argument)
    return argument if is_name or is_setting or argument == "login" else ""


def _without_assigned(text: str) -> str:
    """Hide the secrets in a text that may be one `name=value`, up to its end."""
    begin = 0
    for _ in range(_MOST_NESTED):
        found = _ASSIGNED.match(text, begin)
        if found is None:
            break
        begin = found.end()
        if _may_hide(found["name"]) and hides(found["name"], text[begin:]):
            scheme = _SCHEME.match(text, begin)
            return f"{text[: scheme.end() if scheme else begin]}{HIDDEN}"
        if found["sign"] != "=":
            break
    return without_secrets(text)


def without_secret_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Hide the secrets among hyperparameters or tags."""
    return {without_secrets(name): _without_value(name, one) for name, one in values.items()}


def _without_value(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return HIDDEN if hides(name, value) else _without_assigned(value)
    return HIDDEN if looks_secret(name) else value


# For the record of a run.


def command_to_record(arguments: list[str] | None = None) -> list[str]:
    return without_secret_arguments(sys.argv if arguments is None else arguments)


def hparams_to_record(hparams: HParams | None) -> dict[str, Any]:
    return _to_record({} if hparams is None else plain_values(hparams), "hyperparameters")


def tags_to_record(tags: Tags | None) -> dict[str, Any]:
    return _to_record(plain_tags(tags), "tags")


def _to_record(plain: dict[str, Any], what: str) -> dict[str, Any]:
    kept = without_secret_values(plain)
    changed = zip(kept.items(), plain.items(), strict=False)
    if hidden := [name for (name, value), given in changed if (name, value) != given]:
        notify_once(f"{what} that look secret are recorded as {HIDDEN}: {', '.join(hidden)}.")
    return kept
