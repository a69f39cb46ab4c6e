"""mpirun's command line: how options are read, and how the user's replace ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdp.contract import mpi
from hdp.contract.errors import LaunchError
from hdp.contract.mpirun import identify
from hdp.runtime.launch.remote import read_command

PLACES = [mpi.Place("10.0.0.1", 2), mpi.Place("10.0.0.2", 3)]


def command(custom: str = "", flavour: mpi.Flavour = "openmpi", **more: object) -> str:
    return " ".join(mpi.command(flavour, "mpirun", PLACES, "/agent", custom, ["python", "x.py"], **more))


def test_every_host_gets_its_ranks() -> None:
    """Unequal hosts, in order; the total is their sum."""
    assert command().startswith("mpirun --host 10.0.0.1:2,10.0.0.2:3 -n 5 --map-by slot --bind-to none ")
    assert command(flavour="mpich").startswith("mpirun -hosts 10.0.0.1:2,10.0.0.2:3 -n 5 -launcher ssh ")


@pytest.mark.parametrize(
    ("custom", "gone", "there"),
    [
        ("-map-by node", "--map-by slot", "--map-by node"),
        ("--map-by=node", "--map-by slot", "--map-by node"),
        ("--bind-to core --report-bindings", "--bind-to none", "--bind-to core --report-bindings"),
        ("-np 4", "-n 5", "-n 4"),
        ("--mca btl_tcp_if_include eth9", "btl_tcp_if_include eth0", "--mca btl_tcp_if_include eth9"),
        ("-mca pml ob1", "nothing of ours", "--mca pml ob1 python"),
        ("-N 1", "--map-by slot", "-N 1"),
        ("--map-by ppr:1:node", "-n 5", "--map-by ppr:1:node"),
        ("-bynode", "--map-by slot", "--bynode"),
        ("--something-new 3 4 -v", "nothing of ours", "--something-new 3 4 --verbose python"),
    ],
)
def test_theirs_replace_ours_of_the_same_name(custom: str, gone: str, there: str) -> None:
    text = command(custom, interface="eth0")
    assert gone not in text
    assert there in text
    assert command("", interface="eth0").count("--mca btl_tcp_if_include eth0") == 1


def test_parameters_of_mca_are_options_of_their_own() -> None:
    """--mca a 1 doesn't replace --mca b 2."""
    assert "--mca btl_tcp_if_include eth0" in command("--mca btl_base_verbose 30", interface="eth0")


def test_variables_leave_the_command_line() -> None:
    """With a value they are set by the agents; without, ranks have them anyway. Also MPICH's -genv."""
    assert "-x" not in command("-x A=1 -x B").split()
    assert mpi.variables(mpi.parse("-x A=1 -x B -x C=x=y", "openmpi")) == {"A": "1", "C": "x=y"}
    assert mpi.variables(mpi.parse("-genv A 1 -env B 2", "mpich")) == {"A": "1", "B": "2"}
    assert "-genv" not in command("-genv A 1", "mpich").split()
    assert command("-envall -genvall", "mpich") == command("", "mpich")


def test_open_mpi_4_has_other_names() -> None:
    assert "--mca plm_rsh_agent /agent --mca plm_rsh_no_tree_spawn 1" in command(major=4)
    assert "--prtemca plm_ssh_agent /agent --prtemca plm_ssh_no_tree_spawn 1" in command(major=5)


@pytest.mark.parametrize(
    ("custom", "message"),
    [
        ("-H a,b", "--host: the job's hosts are known only when it starts; leave it out"),
        ("--hostfile f", "--hostfile: the job's hosts are known only when it starts; leave it out"),
        (
            "--mca plm_rsh_agent ssh",
            "--mca plm_rsh_agent: the job's own agents start the hosts' processes; leave it out",
        ),
        ("--wdir /tmp", "--wdir: ranks run in the folder of the job's code; leave it out"),
        ("-output-filename x", "--output-filename: each rank's output is in the job's log; leave it out"),
        ("train.py", "'train.py' stands where an option was expected"),
        ("--mca pml", "--mca needs 2 value(s), and 1 follow(s)"),
    ],
)
def test_what_is_refused(custom: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        command(custom)
    assert message in str(raised.value)


PRTED = (
    "PRTE_PREFIX={0};export PRTE_PREFIX;PMIX_PREFIX={0};export PMIX_PREFIX;"
    "LD_LIBRARY_PATH={0}/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;"
    '{0}/bin/prted --prtemca ess "env" --prtemca prte_hnp_uri "prterun-a@0.0;tcp://10.0.0.1:5:64,24" '
    "--prtemca ess_base_vpid 2"
)


def test_a_daemon_and_its_variables_are_read_without_a_shell(tmp_path: Path) -> None:
    """Open MPI's line: assignments, exports, $LD_LIBRARY_PATH, a semicolon inside quotes."""
    argv, assigned = read_command(PRTED.format(tmp_path), tmp_path / "bin", {"LD_LIBRARY_PATH": "/mine"})
    assert argv == [
        f"{tmp_path}/bin/prted", "--prtemca", "ess", "env", "--prtemca", "prte_hnp_uri",
        "prterun-a@0.0;tcp://10.0.0.1:5:64,24", "--prtemca", "ess_base_vpid", "2",
    ]  # fmt: skip
    assert assigned == {
        "PRTE_PREFIX": str(tmp_path),
        "PMIX_PREFIX": str(tmp_path),
        "LD_LIBRARY_PATH": f"{tmp_path}/lib:/mine",
    }


def test_the_line_for_a_plain_login_shell(tmp_path: Path) -> None:
    """A user whose shell is `sh`: the same in parentheses, after a look at the profile, which is passed over."""
    bare = PRTED.format(tmp_path)
    wrapped = f"( test ! -r ./.profile || . ./.profile; {bare} )"
    assert read_command(wrapped, tmp_path / "bin", {}) == read_command(bare, tmp_path / "bin", {})


def test_the_daemon_of_open_mpi_4(tmp_path: Path) -> None:
    """Its line has spaces, and ${NAME:-}, which is empty where there is no such variable."""
    line = (
        "          PATH={0}/bin:$PATH ; export PATH ; LD_LIBRARY_PATH={0}/lib:${{LD_LIBRARY_PATH:-}} ; "
        'export LD_LIBRARY_PATH ;   {0}/bin/orted -mca ess "env" -mca orte_hnp_uri "1;tcp://10.0.0.1:5"'
    )
    argv, assigned = read_command(line.format(tmp_path), tmp_path / "bin", {"PATH": "/usr/bin"})
    assert argv == [f"{tmp_path}/bin/orted", "-mca", "ess", "env", "-mca", "orte_hnp_uri", "1;tcp://10.0.0.1:5"]
    assert assigned == {"PATH": f"{tmp_path}/bin:/usr/bin", "LD_LIBRARY_PATH": f"{tmp_path}/lib"}


def test_the_daemon_of_mpich(tmp_path: Path) -> None:
    argv, assigned = read_command(f'"{tmp_path}/hydra_pmi_proxy" --proxy-id 1', tmp_path, {})
    assert (argv, assigned) == ([f"{tmp_path}/hydra_pmi_proxy", "--proxy-id", "1"], {})


@pytest.mark.parametrize(
    "line",
    [
        "/bin/sh -c true",
        "{0}/bin/prted; /bin/true",
        "/elsewhere/bin/prted --x 1",
        "prted --x 1",
        "LD_PRELOAD=/evil.so; {0}/bin/prted",
        "export HOME; {0}/bin/prted",
        "cd /tmp; {0}/bin/prted",
        "{0}/bin/prted $(touch /tmp/x)",
        "{0}/bin/prted `touch /tmp/x`",
        "{0}/bin/prted > /tmp/x",
        "{0}/bin/prted & touch x",
        "{0}/bin/prted | cat",
        '{0}/bin/prted "$(touch x)"',
        "{0}/bin/prted ${{X:-$(touch x)}}",
        "{0}/bin/prted ${{X:=y}}",
        "{0}/bin/prted\ntouch x",
        "{0}/bin/prted 'unclosed",
        "{0}/bin/../bin/sh",
        "( test ! -r ./.profile || . ./.profile; {0}/bin/prted; touch x )",
        "( test ! -r ./.profile || . ./other; {0}/bin/prted )",
        "",
    ],
)
def test_anything_else_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"this host doesn't start .* for mpirun: "):
        read_command(line.format(tmp_path), tmp_path / "bin", {})


def test_a_program_that_is_no_mpirun_is_named(tmp_path: Path) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho Intel MPI\n")
    program.chmod(0o755)
    with pytest.raises(
        LaunchError, match="is neither Open MPI's nor MPICH's: asked for its version, it said 'Intel MPI'"
    ):
        identify(program)
