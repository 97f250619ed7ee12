"""Takes secrets out of text: those that this installation has, by value, and others by how they look."""

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus, urlsplit

REMOVED = "(removed)"
#: Shorter values would take ordinary words with them; no secret of healer's own is that short.
_SHORTEST = 6

#: Names of secrets, but for names of files that hold one.
_NAME = (
    r"(?i:[\w.-]*(?:passw(?:or)?d|passwd|pwd|passphrase|passcode|secret|token|api[_-]?key|access[_-]?key"
    r"|routing[_-]?key|integration[_-]?key|priv(?:ate)?[_-]?key|credential|cookie|session[_-]?id|jwt|bind[_-]?pw"
    r"|community)[\w-]*(?<!_file)(?<!_dir))"
)
_KEY = "PRIVATE KEY-----"
#: What each looks like, and what stays of it.
_LOOKS: tuple[tuple[str, str], ...] = (
    (rf"(?s)-----BEGIN [A-Z ]*{_KEY}.*?(?:-----END [A-Z ]*{_KEY}|\Z)", REMOVED),
    (r"(?i)\b((?:proxy-)?authorization\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\r\n\"'\\]+", rf"\1{REMOVED}"),
    (r"(?i)\b((?:set-)?cookie\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\r\n\"'\\]+", rf"\1{REMOVED}"),
    (r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}", rf"\1 {REMOVED}"),
    (r"\bheal[a-z]*_\w+_[\w-]{16,}", REMOVED),
    (r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*", REMOVED),
    (r"\b(?:xox[a-z]-|xapp-|gh[pousr]_|github_pat_|glpat-|AKIA)[\w-]{10,}", REMOVED),
    (r"\b(?:hf_|sk-|npm_|pypi-|dckr_pat_|AIza)[\w-]{16,}", REMOVED),
    (r"\bMUNGE:[\w+/=-]{16,}:?", REMOVED),
    (r"\$(?:[1567]|2[abxy]|y|argon2\w+)\$[\w./$=,+-]{8,}", REMOVED),
    (r"(https://hooks\.slack\.com/services/)[\w/-]+", rf"\1{REMOVED}"),
    (r"(?i)(https?://[^\s\"'<>]*?webhooks?\w*/)[^\s\"'<>\\]+", rf"\1{REMOVED}"),
    (r"(https://api\.telegram\.org/bot)[\w:-]+", rf"\1{REMOVED}"),
    # Of command lines and statements: a value that follows a space.
    (rf"(--?{_NAME}[ =])[^\s\"']+", rf"\1{REMOVED}"),
    (r"(\s(?:-u|--user)[ =][^\s:\"']+:)[^\s\"']+", rf"\1{REMOVED}"),
    (r"\b((?:ipmitool|sshpass|mysql)\b[^\r\n;|]*?\s-[pP]\s?)[^\s\"']+", rf"\1{REMOVED}"),
    (r"(?i)\b(pass(?:word|phrase|code)\s+(?:is\s+|was\s+)?')[^'\r\n]*'", rf"\1{REMOVED}'"),
    (r"(?i)\b(pass(?:word|phrase|code)\s+(?:is|was)\s+)[^\s'\"]+", rf"\1{REMOVED}"),
    (r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/\"'<>]*@", rf"\1{REMOVED}@"),
    (r"(\bhttps?://[^\s\"'<>?#]+\?)[^\s\"'<>#\\]+", rf"\1{REMOVED}"),
    (
        rf"(?m)^([ \t]*)((?:- )?{_NAME}[ \t]*:[ \t]*[|>][\d+-]*[ \t]*\n)(?:\1[ \t]+\S.*(?:\n|\Z))+",
        rf"\1\2\1  {REMOVED}\n",
    ),
    # In quotes, also where the whole text is quoted once more; then a line of YAML; then a word.
    (rf"\b({_NAME}\\*[\"']?\s*[:=]\s*(?P<q>\\*[\"']))(?:(?!(?P=q)).)*(?P=q)", rf"\1{REMOVED}\g<q>"),
    (rf"(?m)^([\s-]*{_NAME}\s*:[ \t]+)(?![\"'|>&*{{\[(])\S.*$", rf"\1{REMOVED}"),
    (rf"\b({_NAME}\\*[\"']?\s*[:=]\s*)(?!\\*[\"'(])[^\s,;&\"'\\}}\])]+", rf"\1{REMOVED}"),
)
_IS_NAME = re.compile(_NAME)
_PATTERNS = tuple((re.compile(look), kept) for look, kept in _LOOKS)


class Scrubber:
    """`values`: secrets in plain text; each is found as it is, in JSON, and as a part of a URL."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST}
        # The longest first: one may be the beginning of another.
        words = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        self._values = re.compile(words) if words else None

    def __call__(self, text: str) -> str:
        if self._values is not None:
            text = self._values.sub(REMOVED, text)
        for pattern, kept in _PATTERNS:
            text = pattern.sub(kept, text)
        return text

    def document(self, value: object) -> object:
        """The same for what JSON has: it stays valid."""
        if isinstance(value, dict):
            return {str(key): self._field(str(key), each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.document(each) for each in value]
        return self(value) if isinstance(value, str) else value

    def _field(self, key: str, value: object) -> object:
        is_plain = value is None or isinstance(value, bool | dict | list | tuple)
        return self.document(value) if is_plain or not _IS_NAME.fullmatch(key) else REMOVED


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
