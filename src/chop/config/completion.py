"""Scripts that complete ``ch`` in bash, zsh and fish.

They are written from the tables that the parser is made of and hold all names themselves: pressing
the tabulator key starts no Python.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from chop.config.arguments import INFORMATION, opposite_of
from chop.config.commands import COMMANDS, OPTIONS, TOPICS, Name, flags_of
from chop.config.option import Setting

Names = Mapping[str, tuple[str, ...]]
"""What there is of each topic of ``ch info``."""


@dataclass(frozen=True)
class Offer:
    """What may be written in one place: some words, or a path."""

    words: tuple[str, ...] = ()
    path: str = ""
    """``file`` or ``folder``."""


@dataclass(frozen=True)
class Flag:
    """The spellings of one option."""

    flags: tuple[str, ...]
    help: str
    commands: tuple[str, ...]
    """Where it means something; empty for what stands alone."""
    value: Offer | None = None
    """What follows it; None where nothing does."""
    repeatable: bool = False


def all_flags() -> list[Flag]:
    """Every option of every command."""
    found = [flag for name, setting in OPTIONS.items() for flag in _flags(name, setting)]
    helped, version, info = INFORMATION.values()
    return [
        *found,
        Flag(("-h", "--help"), helped, tuple(COMMANDS)),
        Flag(("-V", "--version"), version, ()),
        Flag(("--info",), info, (), Offer(("all", *TOPICS))),
    ]


def _flags(name: str, setting: Setting) -> Iterator[Flag]:
    flags, option = flags_of(setting), setting.option
    if not flags:
        return
    commands = tuple(each for each, command in COMMANDS.items() if name in command.options)
    if not setting.is_flag:
        spellings = [each for each in option.spellings if isinstance(each, str)]
        offer = Offer((*setting.choices, *spellings), option.names)
        yield Flag(flags, option.help, commands, offer, option.repeatable)
        return
    yield Flag(flags, option.help, commands)
    with_files = tuple(each for each in commands if "config" in COMMANDS[each].options)
    yield Flag((opposite_of(flags),), f"overrule the file: {name} = false", with_files)


@dataclass(frozen=True)
class Place:
    """A word by position."""

    command: str
    number: int
    """Counted from 1, the command itself left aside."""
    name: Name
    offer: Offer
    first: str = ""
    """What the first word must be, if the offer depends on it."""


def places(names: Names) -> Iterator[Place]:
    """What may stand in each place of each command."""
    for command, known in COMMANDS.items():
        for number, name in enumerate(known.names, 1):
            if name.names == "entries":
                for topic in TOPICS:
                    yield Place(command, number, name, Offer(names[topic]), topic)
            else:
                words = name.values or names.get(name.names, ())
                yield Place(command, number, name, Offer(words, "" if words else name.names))


def bash(names: Names) -> str:
    """The script for bash."""
    flags = all_flags()
    values = [
        f"        {'|'.join(flag.flags)}) {_bash_offer(flag.value)}; return ;;"
        for flag in flags
        if flag.value
    ]
    options = [
        f"            '{command}') words='{' '.join(_spelt(flags, command))}' ;;"
        for command in ("", *COMMANDS)
    ]
    words = [
        f"        {each.command}:{each.number}:{each.first or '*'}) {_bash_offer(each.offer)} ;;"
        for each in places(names)
    ]
    return BASH.format(
        values="\n".join(values),
        with_value="|".join(each for flag in flags if flag.value for each in flag.flags),
        options="\n".join(options),
        commands=" ".join(COMMANDS),
        places="\n".join(words),
    )


def _bash_offer(offer: Offer) -> str:
    if offer.path:
        return f"_ch_paths {'-d' if offer.path == 'folder' else '-f'}"
    return f"_ch_words '{' '.join(offer.words)}'" if offer.words else ":"


def _spelt(flags: list[Flag], command: str) -> list[str]:
    """The options of a command; before any command, those that stand alone."""
    return [each for flag in _of(flags, command) for each in flag.flags]


def _of(flags: list[Flag], command: str) -> list[Flag]:
    alone = [flag for flag in flags if not flag.commands or "--help" in flag.flags]
    return [flag for flag in flags if command in flag.commands] if command else alone


def zsh(names: Names) -> str:
    """The script for zsh."""
    flags = all_flags()
    actions = " ".join(f'{name}\\:"{_zsh_text(each.help)}"' for name, each in COMMANDS.items())
    specs = {
        command: [spec for flag in _of(flags, command) for spec in _zsh_specs(flag)]
        for command in ("", *COMMANDS)
    }
    more = []
    for place in places(names):
        spec = f"'{place.number + 1}:{place.name.metavar}:{_zsh_offer(place.offer)}'"
        if place.first:
            more.append(f"        {place.command}:{place.first}) specs+=({spec}) ;;")
        else:
            specs[place.command].append(spec)
    cases = [
        f"        '{command}') specs=(\n" + "\n".join(f"            {each}" for each in listed)
        + "\n        ) ;;"
        for command, listed in specs.items()
    ]  # fmt: skip
    return ZSH.format(
        known="|".join(COMMANDS),
        actions=actions,
        cases="\n".join(cases),
        more="\n".join(more),
        topics="|".join(TOPICS),
    )


def _zsh_specs(flag: Flag) -> Iterator[str]:
    start = "*" if flag.repeatable else f"({' '.join(flag.flags)})"
    for name in flag.flags:
        said = f"[{_zsh_text(flag.help)}]"
        if flag.value is None:
            yield f"'{start}{name}{said}'"
        else:
            equals = "=" if name.startswith("--") else ""
            yield f"'{start}{name}{equals}{said}:value:{_zsh_offer(flag.value)}'"


def _zsh_offer(offer: Offer) -> str:
    if offer.path:
        return "_files -/" if offer.path == "folder" else "_files"
    return f"({' '.join(offer.words)})" if offer.words else " "


def _zsh_text(text: str) -> str:
    for mark in "\\[]:":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("'", "’")


def fish(names: Names) -> str:
    """The script for fish."""
    flags = all_flags()
    lines = [
        f"complete -c ch -f -n '__ch_at 0' -a {name} -d '{each.help}'"
        for name, each in COMMANDS.items()
    ]
    lines += [
        f"complete -c ch -f -n '__ch_at {place.number} {place.command}{_fish_first(place)}'"
        f" -a '{_fish_words(place.offer)}' -d {place.name.metavar}"
        for place in places(names)
    ]
    with_value = " ".join(each for flag in flags if flag.value for each in flag.flags)
    return FISH.format(with_value=with_value, lines="\n".join([*lines, *map(_fish_flag, flags)]))


def _fish_first(place: Place) -> str:
    return f"; and __ch_first {place.first}" if place.first else ""


def _fish_flag(flag: Flag) -> str:
    names = [f"-l {each[2:]}" if each.startswith("--") else f"-s {each[1:]}" for each in flag.flags]
    where = f"__ch_in {' '.join(flag.commands)}" if flag.commands else "__ch_at 0"
    said = flag.help.replace("'", "\\'")
    words = ["complete -c ch", f"-n '{where}'", *names, *_fish_value(flag.value), f"-d '{said}'"]
    return " ".join(words)


def _fish_value(offer: Offer | None) -> Iterator[str]:
    if offer is None:
        return
    yield "-r -F" if offer.path == "file" else "-x"
    if words := _fish_words(offer):
        yield f"-a '{words}'"


def _fish_words(offer: Offer) -> str:
    return "(__fish_complete_directories)" if offer.path == "folder" else " ".join(offer.words)


BASH = """\
# Completion of ch for bash. In ~/.bashrc: source <(ch completion bash)
_ch_words() {{ COMPREPLY=($(compgen -W "$1" -- "$current")); }}
_ch_paths() {{
    local IFS=$'\\n'
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen "$1" -- "$current"))
}}
_ch() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local command='' first='' place=0 i word words=''
    COMPREPLY=()
    # --option=value is three words to bash.
    if [[ $current == '=' ]]; then
        current=''
    elif [[ $previous == '=' ]]; then
        previous=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    case $previous in
{values}
    esac
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${{COMP_WORDS[i]}}
        case $word in
            {with_value}) if [[ ${{COMP_WORDS[i+1]}} == '=' ]]; then ((i += 2)); else ((i++)); fi ;;
            -*) ;;
            *)
                if ((place == 0)); then command=$word; elif ((place == 1)); then first=$word; fi
                ((place++)) ;;
        esac
    done
    if [[ $current == -* ]]; then
        case $command in
{options}
        esac
        _ch_words "$words"
        return
    fi
    case $command:$place:$first in
        :0:) _ch_words '{commands}' ;;
{places}
    esac
}}
complete -F _ch ch
"""

ZSH = """\
#compdef ch
# Completion of ch for zsh. In ~/.zshrc, after compinit: source <(ch completion zsh)
_ch() {{
    local word command='' first=''
    local -a specs
    for word in ${{words[2,CURRENT-1]}}; do
        case $word in
            {known}) command=${{command:-$word}} ;;
            {topics}) first=${{first:-$word}} ;;
        esac
    done
    case $command in
{cases}
    esac
    case $command:$first in
{more}
    esac
    _arguments -S '1:ACTION:(({actions}))' $specs
}}
if [[ $funcstack[1] == _ch ]]; then
    _ch "$@"
else
    compdef _ch ch
fi
"""

FISH = """\
# Completion of ch for fish. Once: ch completion fish > ~/.config/fish/completions/ch.fish
function __ch_words --description 'the words so far that are no options'
    set -l skip 0
    for word in (commandline -opc)[2..-1]
        if test $skip = 1
            set skip 0
        else if contains -- $word {with_value}
            set skip 1
        else if not string match -q -- '-*' $word
            echo $word
        end
    end
end
function __ch_at --description 'whether so many words are there, the first being one of these'
    set -l given (__ch_words)
    test (count $given) = $argv[1]
    and begin
        test $argv[1] = 0
        or contains -- $given[1] $argv[2..-1]
    end
end
function __ch_first --description 'whether this is the first word after the command'
    set -l given (__ch_words)
    test "$given[2]" = $argv[1]
end
function __ch_in --description 'whether the command is one of these'
    set -l given (__ch_words)
    contains -- "$given[1]" $argv
end
{lines}
"""

SCRIPTS: dict[str, Callable[[Names], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
