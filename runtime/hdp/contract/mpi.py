"""mpirun's command line: ours, merged with the user's ``custom_mpi_options`` by the name of each option. Pure.

The client shows it in the plan; the agent on the first host runs it. Open MPI's and MPICH's launchers (hydra) spell
most options differently, so the flavour must be known.

Environment variables never travel in the command line, where any user of the machine can read them: the agents give
them to the ranks. So ``-x NAME=VALUE`` (hydra: ``-env NAME VALUE``) is taken out of the user's options (`variables`).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Flavour = Literal["openmpi", "mpich"]

#: Options with other than one value. What isn't listed takes the words up to the next option.
_VALUES: dict[Flavour, dict[str, int]] = {
    "openmpi": {
        **dict.fromkeys(("mca", "gmca", "prtemca", "pmixmca", "omca", "gpmixmca", "gprtemca"), 2),
        **dict.fromkeys(("x", "n", "map-by", "bind-to", "rank-by", "output", "display", "wdir", "prefix"), 1),
        **dict.fromkeys(
            ("host", "hostfile", "timeout", "personality", "cpus-per-proc", "npernode", "N", "launch-agent"), 1
        ),
        **dict.fromkeys(("report-bindings", "allow-run-as-root", "oversubscribe", "nooversubscribe", "tag-output"), 0),
        **dict.fromkeys(("display-map", "display-allocation", "timestamp-output", "bynode", "byslot", "quiet"), 0),
        **dict.fromkeys(("leave-session-attached", "debug-daemons", "verbose", "use-hwthread-cpus", "pernode"), 0),
    },
    "mpich": {
        **dict.fromkeys(("env", "genv"), 2),
        **dict.fromkeys(("n", "hosts", "f", "ppn", "launcher", "launcher-exec", "bind-to", "map-by", "iface"), 1),
        **dict.fromkeys(("envlist", "genvlist", "localhost", "wdir", "rmk", "demux", "pmi-port", "order-nodes"), 1),
        **dict.fromkeys(
            ("genvnone", "genvall", "envnone", "envall", "prepend-rank", "verbose", "print-all-exitcodes"), 0
        ),
    },
}
_ALIASES: dict[Flavour, dict[str, str]] = {
    "openmpi": {
        "np": "n",
        "c": "n",
        "H": "host",
        "machinefile": "hostfile",
        "default-hostfile": "hostfile",
        "v": "verbose",
    },
    "mpich": {"np": "n", "host": "hosts", "machinefile": "f", "perhost": "ppn", "hostfile": "f"},
}
#: Options that say the same in other words: one of a kind replaces ours of that kind.
_KIND: dict[str, str] = {
    **dict.fromkeys(("N", "npernode", "pernode", "ppr", "bynode", "byslot", "npersocket", "cpus-per-rank"), "map-by"),
    **dict.fromkeys(("bind-to-core", "bind-to-socket", "bind-to-none"), "bind-to"),
}
#: Options by which mpirun would pass on its own environment. The agents give the ranks theirs.
_ENVIRONMENT = frozenset({"x", "env", "genv", "envlist", "genvlist", "envall", "genvall", "envnone", "genvnone"})
#: With these, mpirun counts the ranks itself.
_COUNTING = ("N", "npernode", "pernode", "npersocket")
#: Options named by their first value too: each parameter, each variable, is an option of its own.
_NAMED_BY_VALUE = {"mca", "gmca", "prtemca", "pmixmca", "omca", "x", "env", "genv"}
#: Options that only the launcher can know.
_OURS: dict[str, str] = {
    **dict.fromkeys(("host", "hosts", "hostfile", "f", "localhost"), "the job's hosts are known only when it starts"),
    **dict.fromkeys(("wdir", "wd", "set-cwd-to-session-dir"), "ranks run in the folder of the job's code"),
    **dict.fromkeys(
        ("output-filename", "output-directory", "outfile-pattern"), "each rank's output is in the job's log"
    ),
    **dict.fromkeys(
        ("launcher", "launcher-exec", "launch-agent", "rmk"), "the job's own agents start the hosts' processes"
    ),
    **dict.fromkeys(
        ("mca plm", "prtemca plm", "mca plm_ssh_agent", "mca plm_rsh_agent", "prtemca plm_ssh_agent", "mca ras"),
        "the job's own agents start the hosts' processes",
    ),
}


@dataclass(frozen=True)
class Option:
    """One option of mpirun, without its dashes."""

    name: str
    values: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What two options must share for one to replace the other."""
        if self.name in _NAMED_BY_VALUE and self.values:
            return f"{self.name} {self.values[0].partition('=')[0]}"
        return _KIND.get(self.name, self.name)

    @property
    def counts(self) -> bool:
        """Whether it says how many ranks a host gets, so that their total isn't ours to say."""
        ppr = self.name == "map-by" and bool(self.values) and self.values[0].lower().startswith("ppr:")
        return ppr or self.name in _COUNTING

    def words(self, flavour: Flavour) -> list[str]:
        """The option as mpirun wants it."""
        dashes = "-" if flavour == "mpich" or len(self.name) == 1 else "--"
        return [dashes + self.name, *self.values]


@dataclass(frozen=True)
class Place:
    """A host and how many ranks it gets."""

    address: str
    ranks: int


def parse(text: str, flavour: Flavour) -> list[Option]:
    """The options in `text`, which a shell's rules split into words. Raises ValueError that says what is wrong."""
    words, found = shlex.split(text), []
    while words:
        word = words.pop(0)
        if not word.startswith("-") or not word.strip("-"):
            raise ValueError(
                f"{word!r} stands where an option was expected; the program is the script, given elsewhere"
            )
        bare, equals, value = word.lstrip("-").partition("=")
        name = _ALIASES[flavour].get(bare, bare)
        if equals and name not in _NAMED_BY_VALUE:
            found.append(Option(name, (value,)))
            continue
        count = _VALUES[flavour].get(name, _until_option(words))
        if len(words) < count:
            raise ValueError(f"{word} needs {count} value(s), and {len(words)} follow(s)")
        found.append(Option(name, tuple(words[:count])))
        del words[:count]
    return found


def _until_option(words: Sequence[str]) -> int:
    return next((i for i, word in enumerate(words) if word.startswith("-")), len(words))


def refused(options: Sequence[Option]) -> list[str]:
    """Why options can't be the user's, a line each."""
    return [f"--{key}: {_OURS[key]}; leave it out" for key in (_refused_key(o) for o in options) if key in _OURS]


def _refused_key(option: Option) -> str:
    return option.key if option.name in _NAMED_BY_VALUE else option.name


def variables(options: Sequence[Option]) -> dict[str, str]:
    """What the options set in the ranks' environment. A variable without a value is one that ranks have anyway."""
    found = {}
    for option in options:
        if option.name == "x" and option.values and "=" in option.values[0]:
            name, _, value = option.values[0].partition("=")
            found[name] = value
        elif option.name in ("env", "genv") and len(option.values) == 2:
            found[option.values[0]] = option.values[1]
    return found


def merge(ours: Sequence[Option], theirs: Sequence[Option]) -> list[Option]:
    """`ours` without those that `theirs` name, then `theirs` without environment variables."""
    kept = [option for option in theirs if option.name not in _ENVIRONMENT]
    named = {option.key for option in kept} | ({"n"} if any(option.counts for option in kept) else set())
    return [option for option in ours if option.key not in named] + kept


def command(
    flavour: Flavour,
    mpirun: str,
    places: Sequence[Place],
    agent: str,
    custom: str,
    program: Sequence[str],
    *,
    interface: str = "",
    major: int = 5,
) -> list[str]:
    """mpirun's whole command line.

    places: the hosts, in order. agent: the program that stands in for ssh. custom: the user's options. program: what a
    rank is. interface: the network interface between the hosts; empty: MPI chooses. major: of Open MPI's version.
    Raises ValueError: the user's options can't be used.
    """
    theirs = parse(custom, flavour)
    if wrong := refused(theirs):
        raise ValueError("; ".join(wrong))
    make = _hydra if flavour == "mpich" else _open_mpi
    ours = make(places, agent, interface, major)
    return [mpirun, *(word for option in merge(ours, theirs) for word in option.words(flavour)), *program]


def _open_mpi(places: Sequence[Place], agent: str, interface: str, major: int) -> list[Option]:
    """Ranks fill host after host. Nothing is bound: hosts may share processors. Daemons stay the agents' children."""
    daemons, ssh = ("prtemca", "plm_ssh") if major >= 5 else ("mca", "plm_rsh")
    options = [
        Option("host", (",".join(f"{p.address}:{p.ranks}" for p in places),)),
        Option("n", (str(sum(p.ranks for p in places)),)),
        Option("map-by", ("slot",)),
        Option("bind-to", ("none",)),
        Option("allow-run-as-root"),
        Option(daemons, (f"{ssh}_agent", agent)),
        Option(daemons, (f"{ssh}_no_tree_spawn", "1")),
        Option("leave-session-attached"),
    ]
    if interface:
        options.append(Option("mca", ("btl_tcp_if_include", interface)))
    if interface not in ("", "lo"):  # where there are others, Open MPI's daemons refuse the loopback interface
        options.append(Option(daemons, ("prte_if_include" if major >= 5 else "oob_tcp_if_include", interface)))
    return options


def _hydra(places: Sequence[Place], agent: str, interface: str, major: int) -> list[Option]:  # noqa: ARG001
    """Ranks fill host after host. The environment comes from each host's own agent, not from the first host's."""
    return [
        Option("hosts", (",".join(f"{p.address}:{p.ranks}" for p in places),)),
        Option("n", (str(sum(p.ranks for p in places)),)),
        Option("launcher", ("ssh",)),
        Option("launcher-exec", (agent,)),
        Option("localhost", (places[0].address,)),
        Option("genvnone"),
    ]
