"""Takes secrets out of text: those that this installation has, by value, and others by how they look."""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from urllib.parse import quote, quote_plus, urlsplit

REMOVED = "(removed)"
#: Shorter values would take ordinary words with them; no secret of healer's own is that short.
_SHORTEST = 6

#: Names of secrets, except names of files that hold one: by a part that is long enough to mean nothing else,
#: by how they end, and by a short word of its own (`db.pin`, `rootPin`).
_LONG = (
    r"passw(?:or)?[dt]|kennwort|mot[ _]de[ _]passe|contrase|密码|口令|密钥|令牌|pwd|passphrase|passcode"
    r"|passkey|secret|token|authtok|credential|cookie|session[_-]?id|jwt|community|signature|masterauth"
    r"|(?:api|access|private)key"
    r"|(?<!public)(?<!primary)(?<!foreign)(?<!sort)(?<!dedup)(?<!group)[_.-]key(?![A-Za-z])"
)
_SHORT = ("key", "psk", "otp", "pin", "creds?")
#: What makes a name one of a secret. A prefix (`db_` of `db_password`) needs no search.
_SECRET_PART = (
    rf"(?:(?i:{_LONG})|(?i:pass|pw)(?![A-Za-z])|(?<![A-Za-z])(?i:{'|'.join(_SHORT[1:])})(?![A-Za-z])"
    rf"|(?<=[a-z])(?:{'|'.join(word.capitalize() for word in _SHORT)})(?![a-z]))"
    r"[\w-]{0,60}(?<!_file)(?<!_FILE)(?<!_dir)(?<!_DIR)"
)
_NAME = rf"(?:[\w.-]{{0,60}}{_SECRET_PART})"
#: Between a name and its value.
_IS = r"\s*(?:=>|:=|->|[:=|：]|%3[AaDd])\s*(?:\w+\()?"
#: A word that is no word of a sentence.
_ODD = r"(?=[^\s\"']{8})(?:[^\s\"']{20,}|[^\s\"']*(?:\d|[a-z][A-Z]|[!@#$%^&*+~])[^\s\"']*)"
_KEY = "PRIVATE KEY-----"
#: What each looks like, and what stays of it.
_LOOKS: tuple[tuple[str, str], ...] = (
    (rf"(?s)-----BEGIN [A-Z ]*{_KEY}.*?(?:-----END [A-Z ]*{_KEY}|\Z)", REMOVED),
    (r"(?i)\b(digest\s+)\w+\s*=[^\r\n]*", rf"\1{REMOVED}"),
    (r"(?i)\b((?:proxy-)?authorization\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\r\n\"'\\]+", rf"\1{REMOVED}"),
    (r"(?i)\b((?:set-)?cookie\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\r\n\"'\\]+", rf"\1{REMOVED}"),
    (r"(?i)\b(bearer|basic|auth\s+(?:plain|login))\s+[\w.~+/=-]{8,}", rf"\1 {REMOVED}"),
    (r"\bheal[a-z]*_\w+_[\w-]{16,}", REMOVED),
    (r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*", REMOVED),
    (r"\b(?:xox[a-z]-|xapp-|gh[pousr]_|github_pat_|glpat-|AKIA)[\w-]{10,}", REMOVED),
    (r"\b(?:hf_|sk-|hvs\.|npm_|pypi-|dckr_pat_|AIza)[\w-]{16,}", REMOVED),
    (r"\bMUNGE:[\w+/=-]{16,}:?", REMOVED),
    (r"\$(?:[1567]|apr1|2[abxy]|y|argon2\w+)\$[\w./$=,+-]{8,}", REMOVED),
    (r"(https://hooks\.slack\.com/services/)[\w/-]+", rf"\1{REMOVED}"),
    # Bounded: each `https://` of a long text without blanks would search to its end.
    (r"(?i)(https?://[^\s\"'<>]{0,200}?(?:web)?hooks?\w*/)[^\s\"'<>\\]+", rf"\1{REMOVED}"),
    (r"(https://api\.telegram\.org/bot)[\w:-]+", rf"\1{REMOVED}"),
    # Before options: a secret may look like one.
    (r"\b(createUser\s+\S+\s+\w+\s+)\S+(\s+\w+\s+)\S+", rf"\1{REMOVED}\2{REMOVED}"),
    # Of command lines and statements.
    (r"((?:\s|[\"'])(?:-[uU]|--user)(?:[ =]|[\"'],\s*[\"'])[^\s:%\"']+[:%])[^\s\"']+", rf"\1{REMOVED}"),
    (r"\b(htpasswd\s+-\w*b\w*\s+\S+\s+\S+\s+)\S+", rf"\1{REMOVED}"),
    (
        r"\b((?:echo|printf)\s+)[^|\r\n]+(?=\|[^|\r\n]*(?:passw|--stdin|sudo\s+-S|password-stdin))",
        rf"\1{REMOVED} ",
    ),
    (r"([?&](?:auth|code|hmac|key|sig|state)=)[^\s&\"'#]+", rf"\1{REMOVED}"),
    (r"(?i)\b((?:recovery|backup|one-time|verification)\s+codes?\s*[:=]?\s+)\S+", rf"\1{REMOVED}"),
    (r"(?i)\b((?:tacacs|radius)\S*\s[^\r\n]*?\bkey\s+(?:\d\s+)?)\S+", rf"\1{REMOVED}"),
    (rf"(?m)^(\s*{_NAME}[ \t]+)(?![(|>=:&]|->)\S+(?=[ \t]*$)", rf"\1{REMOVED}"),
    (r"(?m)^([\w.*-]+:(?:\d+|\*):[\w.*-]+:[\w.*-]+:)\S+$", rf"\1{REMOVED}"),
    (r"(?i)\b(pass(?:word|phrase|code)?\s+(?:is\s+|was\s+)?')[^'\r\n]*'", rf"\1{REMOVED}'"),
    (r"(?i)\b(pass(?:word|phrase|code)\s+(?:is|was)\s+|login\s+\S+\s+password\s+)[^\s'\"]+", rf"\1{REMOVED}"),
    (rf"({_SECRET_PART}\s+(?:(?:is|was|to|=|\d+)\s+)*[\"']?)(?!\(){_ODD}", rf"\1{REMOVED}"),
    (r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/\"'<>]*@", rf"\1{REMOVED}@"),
    (r"(\bhttps?://[^\s\"'<>?#]{1,4000}+\?)[^\s\"'<>#\\]+", rf"\1{REMOVED}"),
    (
        rf"(?m)^([ \t]*)((?:- )?{_NAME}[ \t]*:[ \t]*[|>][\d+-]*[ \t]*\n)(?:\1[ \t]+\S.*(?:\n|\Z))+",
        rf"\1\2\1  {REMOVED}\n",
    ),
    (rf"(?m)^([ \t]*)((?:- )?{_NAME}[ \t]*:[ \t]*\n)(?:\1[ \t]*- .*(?:\n|\Z))+", rf"\1\2\1  - {REMOVED}\n"),
    # In quotes, also where the whole text is quoted again; then a line of YAML; then a word.
    (rf"({_SECRET_PART}\\*[\"']?{_IS}(?P<q>\\*[\"']))(?:(?!(?P=q)).)*(?P=q)", rf"\1{REMOVED}\g<q>"),
    (rf"({_SECRET_PART}\\*[\"']?{_IS}\[)[^\]\r\n]*", rf"\1{REMOVED}"),
    (rf"(?m)^([\s-]*{_NAME}\s*:[ \t]+)(?![\"'|>&*{{\[(])\S.*$", rf"\1{REMOVED}"),
    (rf"({_SECRET_PART}\\*[\"']?{_IS})(?!\\*[\"'(])[^\s,;&\"'\\}}\])<]+", rf"\1{REMOVED}"),
    # A pair of a name and a value, as environments of containers and tuples have them.
    (
        rf"((?:[(\[]\s*|\b(?:name|key|header)\\*[\"']?\s*[:=]\s*)\\*[\"']{_NAME}\\*[\"']\s*,?\s*"
        r"(?:\\*[\"']?(?:value|content)\\*[\"']?\s*[:=]\s*)?(?P<q>\\*[\"']))(?:(?!(?P=q)).)+(?P=q)",
        rf"\1{REMOVED}\g<q>",
    ),
    (rf"(<(?:\w+:)?{_NAME}(?:\s[^<>]*)?>)[^<>]+", rf"\1{REMOVED}"),
    # A value that follows an option, or is the next of a list. A secret may look like an option: what then
    # follows it may be another option, or, next in a list, the name of another field.
    (rf"(?<![\w-])(--?{_NAME}[ =])(?!-\w[\s\"'])[^\s\"']+", rf"\1{REMOVED}"),
    (
        rf"(?<![\w-])(--?{_NAME}[\"'],\s*[\"'])(?!-\w[\s\"'])[^\s\"']++(?![\"']\s*:)",
        rf"\1{REMOVED}",
    ),
)
_IS_NAME = re.compile(_NAME)
_PATTERNS = tuple((re.compile(look), kept) for look, kept in _LOOKS)
#: An option of one letter, with its value attached or after it, or as the next of a list.
_OPTION = re.compile(
    r"(?<=[\s\"'])-(?P<letter>[A-Za-z])(?P<apart>[ =]|[\"'],\s*(?=[\"'])|)[\"']?(?P<value>[^\s\"']+)"
)
#: The program before it, and its letters that are secrets. Any other program's `-p VALUE` may be a password,
#: except Slurm's, where it is a partition, and a port or a path.
_PROGRAMS = tuple(
    (re.compile(rf"(?<![\w-])(?:{programs})\b[^|;&]*\Z"), letters)
    for programs, letters in (
        (r"s(?:batch|run|alloc|info|queue|acct|cancel|control|prio|stat|report)", ""),
        (r"ipmi[\w-]*|bmc-\w+", "PpKky"), (r"sshpass|mysql\w*|mariadb\w*", "p"), (r"ldap\w+", "w"),
        (r"redis-cli", "a"), (r"snmp\w+", "cAX"),
    )
)  # fmt: skip
_COMMAND_CHARS = 1000
_PORT_OR_PATH = re.compile(r"[./~].*|\d{1,5}(?::\d+)?")
#: Text that does not look like a name: long, with frequent changes of letters and digits, or only hexadecimal
#: digits.
_RUN = re.compile(r"(?<![\w+/=~-])[\w+/=~-]{24,}")
_HEX = re.compile(r"(?<![A-Za-z0-9])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{32,}(?![A-Za-z0-9])", re.I)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
#: Minimum number of letters and digits, and how often neighbours must be of different kinds (digit, capital,
#: small letter). A long run needs fewer changes, and no digit.
_RANDOM_CHARS, _RANDOM_SHARE = 24, 0.35
_LONG_CHARS, _LONG_SHARE, _LETTERS_SHARE = 40, 0.25, 0.4


class Scrubber:
    """`values`: secrets in plain text; each is found as it is, in JSON, and as a part of a URL."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST}
        # The longest first: one may be the beginning of another.
        words = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        self._values = re.compile(words) if words else None
        self._random: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        if self._values is not None:
            text = self._values.sub(REMOVED, text)
        for pattern, kept in _PATTERNS:
            text = pattern.sub(kept, text)
        return _RUN.sub(self._numbered, _without_options(text))

    def _numbered(self, found: re.Match[str]) -> str:
        """Equal ones get the same number, so that one sees where one comes again."""
        if not _looks_random(found[0]):
            return found[0]
        return self._random.setdefault(found[0], f"(removed-{len(self._random) + 1})")

    def document(self, value: object) -> object:
        """The same for what JSON has: it stays valid."""
        if isinstance(value, dict):
            named = next(
                (value[key] for key in ("name", "key", "header") if isinstance(value.get(key), str)), ""
            )
            return {
                str(key): self._field(str(named) if key in ("value", "content") and named else str(key), each)
                for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._element(value[:place], each) for place, each in enumerate(value)]
        return self(value) if isinstance(value, str) else value

    def _field(self, key: str, value: object) -> object:
        """Below the name of a secret each text is one; numbers of a table of that name are none."""
        if value is None or isinstance(value, bool) or not _IS_NAME.fullmatch(key):
            return self.document(value)
        return _without_text(value) if isinstance(value, dict | list | tuple) else REMOVED

    def _element(self, before: Sequence[object], value: object) -> object:
        """Of a list, which may be a command: `before` is what comes earlier in it."""
        if not (isinstance(value, str) and before and str(before[-1])[:1] == "-"):
            return self.document(value)
        if _IS_NAME.fullmatch(str(before[-1]).lstrip("-")):
            return REMOVED
        letter = str(before[-1])[1:]
        start = " ".join(map(str, before[:-1]))
        return REMOVED if _is_secret(letter, value, start) else self.document(value)


def _without_text(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _without_text(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_text(each) for each in value]
    return REMOVED if isinstance(value, str) else value


def _without_options(text: str) -> str:
    made, kept_to, place = "", 0, 0
    while found := _OPTION.search(text, place):
        begin = max(text.rfind("\n", 0, found.start()) + 1, found.start() - _COMMAND_CHARS)
        value = found["value"] if found["apart"] else ""
        if _is_secret(found["letter"], value, text[begin : found.start()]):
            made += text[kept_to : found.start("value")] + REMOVED
            kept_to = place = found.end()
        else:
            place = found.end("letter")  # what seems to be its value may be an option
    return made + text[kept_to:]


def _is_secret(letter: str, value: str, start: str) -> bool:
    """`start`: of the command. An attached value (`-pass`), here none, is one of known programs only."""
    for program, letters in _PROGRAMS:
        if program.search(start):
            return letter in letters
    return letter in ("p", "P") and bool(value) and not _PORT_OR_PATH.fullmatch(value)


def _looks_random(word: str) -> bool:
    word = _UUID.sub("", word)
    if _HEX.search(word):
        return True
    kinds = [(char.isdigit(), char.isupper()) for char in word if char.isalnum()]
    digits, long = sum(is_digit for is_digit, _ in kinds), len(kinds) >= _LONG_CHARS
    if len(kinds) < _RANDOM_CHARS or digits == len(kinds) or not (digits or long):
        return False
    share = (_LONG_SHARE if long else _RANDOM_SHARE) if digits else _LETTERS_SHARE
    return sum(before != after for before, after in pairwise(kinds)) >= share * len(kinds)


def _forms(value: str) -> set[str]:
    """How a secret may be written: also its lines, and what of a URL is secret."""
    lines = (line.strip() for line in value.splitlines())
    # Not the first line of a key: by it, keys of others are recognised.
    parts = {value.strip(), *(line for line in lines if not line.startswith("-----"))}
    if "://" in value:
        parts |= _secret_parts(value.strip())
    encoded = {form for part in parts for form in (quote(part), quote(part, safe=""), quote_plus(part))}
    quoted = {json.dumps(part)[1:-1] for part in parts}
    plain = {json.dumps(part, ensure_ascii=False)[1:-1] for part in parts}
    twice = {json.dumps(part)[1:-1] for part in quoted}
    return parts | encoded | quoted | plain | twice


def _secret_parts(url: str) -> set[str]:
    """The password, the query, its values, and long segments of the path, as webhooks have them."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return set()
    values = {word.partition("=")[2] for word in parts.query.split("&")}
    segments = {segment for segment in parts.path.split("/") if len(segment) >= 16}
    return {parts.password or "", parts.query} | values | segments
