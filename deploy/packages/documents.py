"""What the packages bring beside the programs, made from programs and docs: `healer.toml` and `hook.conf`
with all settings as comments, what slurm.conf calls on a node, manual pages, completion for three shells.

Run with the `healer` of the packaged commit on PYTHONPATH: documents.py DOCS FOLDER VERSION DATE
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from healer.commands.cli import build
from healer.commands.hook_install import programs
from healer.settings import secret_names, setting_names

# --- healer.toml -----------------------------------------------------------------------------------------

HEAD = """\
# healer's settings. Every part reads this file, so no secret belongs here: give the path of a file of its own
# in a setting that ends with _FILE. A line that begins with # is not set; an empty value is not set either.
# After a change: systemctl restart healer.service (or healer.target). More: /usr/share/doc/healer/docs.
"""
#: What the package sets; everything else is the program's own default.
SET = {"HEALER_RULES_DIR": "/etc/healer/rules"}
#: Given by the units, or what cannot stand in the file itself.
LEFT_OUT = {"HEALER_CONFIG"}
_ROW = re.compile(r"^\| (`HEALER_.*?) \| (.*) \| (.*) \|$")


def toml(settings_page: str) -> str:
    """From the page's tables with three columns; the one with two is for clients."""
    known, written = set(setting_names()), {*LEFT_OUT}
    lines, heading = [HEAD], ""
    for line in settings_page.splitlines():
        if line.startswith("## "):
            heading = f"\n# --- {line[3:]} ---\n"
        elif row := _ROW.match(line):
            names = [name for name in re.findall(r"`(HEALER_\w+)`", row[1]) if name in known - written]
            if names:
                several = row[3].split(", ") if len(names) > 1 else [row[3]]
                defaults = several if len(several) == len(names) else ["none"] * len(names)
                lines += [heading, *_explained(row[2], row[3]), *map(_assignment, names, defaults)]
                heading = ""
                written |= set(names)
    return "".join(lines)


def _explained(meaning: str, default: str) -> Iterator[str]:
    yield "\n"
    text = f"{_plain(meaning)}. Default: {_plain(default)}."
    while text:
        cut = len(text) if len(text) < 106 else text.rfind(" ", 0, 106)
        yield f"# {text[:cut]}\n"
        text = text[cut:].lstrip()


def _plain(markdown: str) -> str:
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("**worker**", "(the worker alone)")
    return re.sub(r"; also `\w+_FILE`", "", text).replace("`", "").rstrip(".")


def _assignment(name: str, default: str) -> str:
    if name in SET:
        return f'{name} = "{SET[name]}"\n'
    if name in secret_names():
        return f'#{name}_FILE = ""\n'
    if re.fullmatch(r"\d+(\.\d+)?", default):
        return f"#{name} = {default}\n"
    plain = re.fullmatch(r"`([^`]*)`", default)
    return f'#{name} = "{plain[1] if plain else ""}"\n'


# --- a node ----------------------------------------------------------------------------------------------

NODE_HEAD = """\
# Settings of healer-hook, healer-follow and healer-ship on this node: KEY=VALUE, %n is the node's name.
# After a change: systemctl restart healer-follow. Explained in docs/nodes.md.

# healer's address, like https://healer.example: needed.
HEALER_URL=
"""
_NODE_LIB, _NODE_CONF = Path("/usr/lib/healer"), Path("/etc/healer/hook.conf")


def node_files(page: str) -> dict[str, bytes]:
    """`hook.conf` by the tables of docs/nodes.md, and what slurm.conf calls."""
    lines, written = [NODE_HEAD], {"HEALER_URL", "HEALER_HOOK_ROOT"}
    for row in filter(None, map(_ROW.match, page.splitlines())):
        names = [name for name in re.findall(r"`(HEALER_\w+)`", row[1]) if name not in written]
        if names:
            lines += [*_explained(row[2], row[3]), *(f"#{name}=\n" for name in names)]
            written |= set(names)
    called = programs(None, _NODE_LIB, _NODE_CONF)
    return {"hook.conf": "".join(lines).encode()} | {path.name: text for path, text in called.items()}


# --- the commands ----------------------------------------------------------------------------------------


def commands() -> dict[tuple[str, ...], Any]:
    """Every command and group by its words, `()` for healer itself; what is hidden is left out."""

    def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        yield path, command
        for name, one in getattr(command, "commands", {}).items():
            if not one.hidden:
                yield from below(one, (*path, name))

    return dict(below(typer.main.get_command(build()), ()))


def context(path: tuple[str, ...], command: Any) -> Any:
    return typer.Context(command, info_name=" ".join(("healer", *path)))


# --- manual pages ----------------------------------------------------------------------------------------


def roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def manual(path: tuple[str, ...], command: Any, inner: list[tuple[str, ...]], version: str, date: str) -> str:
    """A page of section 1, with what `--help` says."""
    name, words = "-".join(("healer", *path)), " ".join(("healer", *path))
    given = context(path, command)
    help_text = (command.help or "").split("\f")[0].strip()
    summary = re.split(r"\.(?:\s|$)", help_text, maxsplit=1)[0].replace("\n", " ")
    usage = " ".join(command.collect_usage_pieces(given))
    lines = [
        f'.TH "{name.upper()}" 1 "{date}" "healer {version}" "healer"',
        ".SH NAME", f"{roff(name)} \\- {roff(summary)}",
        ".SH SYNOPSIS", f".B {roff(words)}", roff(usage),
        ".SH DESCRIPTION", roff(help_text).replace("\n\n", "\n.PP\n"),
    ]  # fmt: skip
    records = [param.get_help_record(given) for param in command.get_params(given)]
    if shown := [record for record in records if record]:
        lines += [".SH OPTIONS"]
        for option, text in shown:
            lines += [".TP", f".B {roff(option)}", roff(text) or "\\&"]
    if inner:
        lines += [".SH COMMANDS"]
        lines += [f".TP\n.BR {roff('-'.join(('healer', *each)))} (1)\n\\&" for each in inner]
    if command.epilog:
        lines += [".SH EXAMPLES", ".nf", roff(_examples(command.epilog)), ".fi"]
    lines += [
        ".SH FILES", ".I /etc/healer/healer.toml", ".SH EXIT STATUS",
        "0 done, 1 failed, 2 wrong use or wrong settings.",
    ]  # fmt: skip
    if path:
        lines += [".SH SEE ALSO", f".BR {roff('-'.join(('healer', *path[:-1])))} (1)"]
    return "\n".join(lines) + "\n"


def _examples(epilog: str) -> str:
    rows = [row.strip() for row in epilog.replace("\b", "").splitlines()]
    return "\n".join(row for row in rows if row and not row.lower().startswith("example"))


# --- completion ------------------------------------------------------------------------------------------


def words_of(path: tuple[str, ...], command: Any) -> list[str]:
    """What may follow: commands, then long options."""
    inner = [name for name, one in getattr(command, "commands", {}).items() if not one.hidden]
    options = (
        option
        for param in command.get_params(context(path, command))
        for option in (*param.opts, *param.secondary_opts)
        if option.startswith("--")
    )
    return [*inner, *options]


def cases(tree: dict[tuple[str, ...], Any], indent: str) -> str:
    rows = ((" ".join(path), " ".join(words_of(path, one))) for path, one in tree.items())
    return "".join(f"{indent}'{path}') words='{words}' ;;\n" for path, words in rows)


def known(tree: dict[tuple[str, ...], Any]) -> str:
    return "|".join(f"'{' '.join(path)}'" for path in tree if path)


BASH = """\
# Completion of healer for bash.
_healer() {
    local at= next word words=
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        next=${at:+$at }$word
        case $next in @KNOWN@) at=$next ;; esac
    done
    case $at in
@CASES@    esac
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _healer healer
"""
ZSH = """\
#compdef healer
# Completion of healer for zsh.
_healer_words() {
    local at= next word
    for word in "$@"; do
        next=${at:+$at }$word
        case $next in @KNOWN@) at=$next ;; esac
    done
    local words=
    case $at in
@CASES@    esac
    print -r -- $words
}
_healer() {
    compadd -- ${=$(_healer_words ${words[2,CURRENT-1]})}
    _files
}
if [ "$funcstack[1]" = _healer ]; then _healer "$@"; fi
"""
FISH = """\
# Completion of healer for fish.
function __healer_words
    set -l at
    for word in (commandline -opc)[2..-1]
        switch (string join ' ' $at $word)
            case @KNOWN@
                set at $at $word
        end
    end
    switch (string join ' ' -- $at)
@CASES@    end
end
complete -c healer -a '(__healer_words)'
"""


def completions() -> dict[str, str]:
    tree = commands()
    row = "        case '{}'\n            string split ' ' -- '{}'\n"
    fish = "".join(row.format(" ".join(path), " ".join(words_of(path, one))) for path, one in tree.items())
    made = {
        "healer.bash": BASH.replace("@KNOWN@", known(tree)).replace("@CASES@", cases(tree, "    ")),
        "_healer": ZSH.replace("@KNOWN@", known(tree)).replace("@CASES@", cases(tree, "    ")),
    }
    every = " ".join(f"'{' '.join(path)}'" for path in tree if path)
    return made | {"healer.fish": FISH.replace("@KNOWN@", every).replace("@CASES@", fish)}


def main(docs: Path, folder: Path, version: str, date: str) -> None:
    tree = commands()
    (folder / "man").mkdir(parents=True)
    (folder / "node").mkdir()
    for path, command in tree.items():
        inner = [each for each in tree if len(each) == len(path) + 1 and each[: len(path)] == path]
        text = manual(path, command, inner, version, date)
        (folder / "man" / f"{'-'.join(('healer', *path))}.1").write_text(text, "utf-8")
    for name, text in completions().items():
        (folder / name).write_text(text, "utf-8")
    (folder / "healer.toml").write_text(toml((docs / "settings.md").read_text("utf-8")), "utf-8")
    for name, data in node_files((docs / "nodes.md").read_text("utf-8")).items():
        (folder / "node" / name).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
