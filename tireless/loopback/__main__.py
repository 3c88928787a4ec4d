"""`python -m tireless.loopback`: one loopback forge as a process of its own, ending with its input if asked."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tireless.loopback.server import ADMIN_LOGIN, ADMIN_PASSWORD, ADMIN_TOKEN, build, listen, server_for
from tireless.loopback.state import Rules, forgejo_rules


def main() -> int:
    """Serve until a signal comes; the first line of output is JSON with the address and the admin's token."""
    parser = argparse.ArgumentParser(prog="python -m tireless.loopback", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="loopback port; 0 (the default) takes a free one")
    parser.add_argument("--git-dir", type=Path, help="where the bare repositories go; default: a temporary directory")
    parser.add_argument("--page-limit", type=int, default=50, help="the page size the server clamps to")
    parser.add_argument("--forgejo", action="store_true", help="behave as a Forgejo 10 instead of a Gitea 1.26")
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input is closed")
    args = parser.parse_args()
    sock = listen(args.port)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    given: Path | None = args.git_dir
    directory = given or Path(tempfile.mkdtemp(prefix="tireless-loopback-"))
    try:
        forge = build(directory, url=url, rules=forgejo_rules() if args.forgejo else Rules())
        forge.world.rules.page_limit = args.page_limit
        server = server_for(forge)

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, server.handle_exit, number, None)
            if args.with_stdin:

                def readable() -> None:
                    if not os.read(sys.stdin.fileno(), 65536):
                        loop.remove_reader(sys.stdin.fileno())
                        server.should_exit = True

                loop.add_reader(sys.stdin.fileno(), readable)
            said = {"url": url, "login": ADMIN_LOGIN, "password": ADMIN_PASSWORD, "token": ADMIN_TOKEN}
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()
            await server.serve(sockets=[sock])

        asyncio.run(serve())
    finally:
        sock.close()
        if given is None:
            shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
