"""``attnlab`` and ``python -m attnlab``: run a command; a user's mistake is one line and exit status 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Exits with 0, 1 for a failed check, 2 for a user's mistake, 130 for Ctrl-C."""
    try:
        status = _status(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has had enough, as `| head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


def _status(arguments: Sequence[str] | None) -> int:
    import click

    from attnlab.cli.app import app
    from attnlab.errors import Declined, NotStored, Unavailable

    try:
        status = app.main(
            args=None if arguments is None else list(arguments), prog_name="attnlab", standalone_mode=False
        )
        return int(status or 0)
    except click.exceptions.Exit as end:
        return int(end.exit_code)
    except (click.Abort, KeyboardInterrupt):
        print("attnlab: interrupted", file=sys.stderr)
        return 130
    except click.exceptions.NoArgsIsHelpError as help_:
        print(help_.format_message())
        return 2
    except click.UsageError as mistake:
        where = mistake.ctx.command_path if mistake.ctx else "attnlab"
        return _mistake(f"{mistake.format_message().rstrip('.')}; see {where} --help")
    except click.ClickException as mistake:
        return _mistake(mistake.format_message())
    except (ValueError, Declined, Unavailable) as mistake:
        return _mistake(str(mistake))
    except NotStored as fault:
        _mistake(str(fault))
        return 1


def _mistake(text: str) -> int:
    print("attnlab: " + " ".join(text.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
