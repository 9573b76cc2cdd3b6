"""``attnlab`` and ``python -m attnlab``: run a command. A user's mistake gives one line and exit status 2."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from attnlab.text import one_line


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exits with 0, 1 for a failed check, 2 for a user's mistake, 130 for Ctrl-C."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, for example by `>&-`
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (until the end)
    # as for standard error: the name of a folder need not be UTF-8
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    status = 0
    try:
        status, mistake = _ended(list(sys.argv[1:] if arguments is None else arguments))
        if mistake:
            print("attnlab: " + one_line(mistake, 2000), file=sys.stderr)  # some messages list all backends
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has ended, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:  # Ctrl-C while click is imported
        status = 130
    sys.exit(status)


def _ended(arguments: list[str]) -> tuple[int, str]:
    """Run a command. Returns its exit status, and the line to print if it failed, else ""."""
    import click

    from attnlab.cli import REMOVED, app
    from attnlab.errors import Declined, NotStored, Unavailable

    if "_ATTNLAB_COMPLETE" in os.environ:  # a shell asks for completions
        app.main(prog_name="attnlab")
    try:  # not `app.main`, which turns a closed pipe into a failure
        with app.make_context("attnlab", arguments) as context:
            return int(app.invoke(context) or 0), ""
    except click.exceptions.Exit as end:
        return int(end.exit_code), ""
    except SystemExit as end:  # rich exits if the reader of the pipe has ended
        raise (end.__context__ if isinstance(end.__context__, BrokenPipeError) else end) from None
    except (click.Abort, KeyboardInterrupt) as end:
        return 130, ": ".join(("interrupted", *map(str, end.args)))
    except click.UsageError as mistake:
        command = mistake.ctx.command_path if mistake.ctx else "attnlab"
        option = getattr(mistake, "option_name", "")
        if instead := REMOVED.get(f"{command.removeprefix('attnlab ')} {option}"):
            return 2, f"{command} {option} is gone; {instead}"
        return 2, f"{mistake.format_message().rstrip('.')}; see {command} --help"
    except click.ClickException as mistake:
        return 2, mistake.format_message()
    except BrokenPipeError:
        raise
    except (ValueError, OSError, Declined, Unavailable) as mistake:  # OSError: a full disk, a name too long
        return 2, str(mistake)
    except NotStored as fault:
        return 1, str(fault)


if __name__ == "__main__":
    main()
