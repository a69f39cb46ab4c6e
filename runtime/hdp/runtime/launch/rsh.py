"""``python -I -S rsh.py SOCKET [options] HOST COMMAND...``: what mpirun runs in place of ssh.

It asks the agent of its own host, through that agent's socket, to have COMMAND started on HOST, and ends as that does.
It stands alone (no import but the standard library's), so that it costs some 10 ms.
"""

import json
import socket
import sys


def main(path: str, *arguments: str) -> int:
    """Ask, wait, and return the command's exit code."""
    words = list(arguments)
    while words and words[0].startswith("-"):  # ssh's own options: hydra's -x
        words.pop(0)
    if not words:
        print("rsh: no host was given", file=sys.stderr)
        return 2
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.connect(path)
        agent.send(json.dumps({"host": words[0], "command": " ".join(words[1:])}).encode())
        answer = json.loads(agent.recv(1 << 16) or '{"code": 1, "error": "the host\'s agent has ended"}')
    if answer.get("error"):
        print(answer["error"], file=sys.stderr)
    return int(answer["code"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
