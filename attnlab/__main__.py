"""``attnlab`` and ``python -m attnlab``: run a command; a user's mistake is one line and exit status 2."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from attnlab.text import one_line, wrapped

#: of a mistake that is told: some name all backends
_MOST_LETTERS = 2000


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exits with 0, 1 for a failed check, 2 for a user's mistake, 130 for Ctrl-C."""
    try:
        status, mistake = _ended(arguments)
        if mistake:
            said = "attnlab: " + one_line(mistake, _MOST_LETTERS)
            if sys.stderr.isatty():
                said = wrapped(said, shutil.get_terminal_size().columns)
            print(said, file=sys.stderr)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has had enough, as `| head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


def _ended(arguments: Sequence[str] | None) -> tuple[int, str]:
    """The exit status of a command, and what there is to tell of its end."""
    import click

    from attnlab.cli import app
    from attnlab.errors import Declined, NotStored, Unavailable

    if "_ATTNLAB_COMPLETE" in os.environ:  # a shell asks what a word may become
        app.main(prog_name="attnlab")
    try:  # as `app.main` does, which makes a failure of a pipe that nobody reads any more
        with app.make_context("attnlab", list(sys.argv[1:] if arguments is None else arguments)) as context:
            return int(app.invoke(context) or 0), ""
    except click.exceptions.Exit as end:
        return int(end.exit_code), ""
    except SystemExit as end:  # rich's answer to such a pipe
        raise (end.__context__ if isinstance(end.__context__, BrokenPipeError) else end) from None
    except (click.Abort, KeyboardInterrupt):
        return 130, "interrupted"
    except click.exceptions.NoArgsIsHelpError as help_:
        print(help_.format_message())
        return 2, ""
    except click.UsageError as mistake:
        where = mistake.ctx.command_path if mistake.ctx else "attnlab"
        return 2, f"{mistake.format_message().rstrip('.')}; see {where} --help"
    except click.ClickException as mistake:
        return 2, mistake.format_message()
    except (ValueError, Declined, Unavailable) as mistake:
        return 2, str(mistake)
    except NotStored as fault:
        return 1, str(fault)


if __name__ == "__main__":
    main()
