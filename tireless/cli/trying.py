"""`tireless exec`: one agent on one issue, to try a lane; prints what it would have come to, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import click

from tireless.app.trying import Tried, Wanted, try_once
from tireless.cli.frame import Frame, pass_frame, printable, printing, run
from tireless.cli.words import chosen_forge, issue
from tireless.domain.issue import IssueRef, RepoRef
from tireless.domain.job import Kind
from tireless.domain.outcome import Outcome
from tireless.errors import UsageError

FAILED = 1
_FILE_MAX = 1024 * 1024


@click.command("exec")
@click.argument("text", metavar="OWNER/REPO#N")
@click.option("--lane", help="The lane whose command is run; else the one the issue would go to.")
@click.option("--kind", type=click.Choice([kind.value for kind in Kind]), help="What is asked; else as its labels say.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take title (its first line) and body from this file instead of the issue.",
)
@click.option("--keep", is_flag=True, help="Leave the work tree, and say where it is.")
@printing
@pass_frame
def exec_command(frame: Frame, text: str, lane: str | None, kind: str | None, path: Path | None, keep: bool) -> int:
    """Run a lane's agent once on one issue, here and now, and print what came of it.

    The issue is read from the forge, the work tree lies below a temporary directory. No row is written, nothing is
    pushed, commented or labelled, and no database is asked. The agent gets the issue's text as it is now: nobody's
    approval is asked but yours. Its output goes to standard error. Exit code 1 when it came to nothing.
    """
    forge, owner, name, number = issue(text)
    settings = frame.settings
    wanted = Wanted(
        issue=IssueRef(RepoRef(chosen_forge(settings, forge), owner, name), number),
        lane=lane,
        kind=Kind(kind) if kind else None,
        text=_read(path) if path else None,
        keep=keep,
    )
    tried = run(try_once(settings, frame.redactor, wanted, on_output=_show))
    frame.show(_data(tried), lambda: _told(tried))
    return 0 if tried.verdict.outcome in (Outcome.DONE, Outcome.NO_CHANGE) else FAILED


def _show(text: str) -> None:
    click.echo(printable(text), nl=False, err=True)


def _read(path: Path) -> tuple[str, str]:
    with path.open("rb") as file:
        raw = file.read(_FILE_MAX + 1)
    if len(raw) > _FILE_MAX:
        raise UsageError(f"{path} holds more than {_FILE_MAX} bytes: too much for an issue")
    try:
        title, _, body = raw.decode("utf-8").partition("\n")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text") from None
    if not title.strip("# \t\r"):
        raise UsageError(f"{path} begins with an empty line: its first line is the issue's title")
    return title.strip("# \t\r"), body.strip()


def _data(tried: Tried) -> dict[str, object]:
    verdict = tried.verdict
    return {
        "lane": tried.lane,
        "kind": tried.kind,
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "notes": verdict.notes,
        "summary": verdict.summary,
        "question": verdict.question,
        "pull_request": verdict.pr,
        "children": verdict.children,
        "usage": verdict.usage,
        "session": verdict.session,
        "exit_code": tried.ended.exit_code,
        "seconds": round(tried.ended.seconds, 1),
        "base": tried.base_sha,
        "commit": verdict.commit,
        "diff_stat": tried.diff_stat,
        "tree": tried.tree,
    }


def _told(tried: Tried) -> str:
    verdict = tried.verdict
    notes = "".join(f" [{note}]" for note in verdict.notes)
    lines = [f"{verdict.outcome}: {verdict.reason}{notes}"]
    lines += [f"  {text}" for text in (verdict.summary, verdict.question) if text and text != verdict.reason]
    lines += [f"  child {child.key} ({child.kind}): {child.title}" for child in verdict.children]
    usage = verdict.usage
    if usage.usd is not None or usage.input_tokens is not None:
        lines.append(f"  {usage.input_tokens or 0} tokens in, {usage.output_tokens or 0} out, {usage.usd or 0:g} USD")
    lines.append(f"  lane {tried.lane}, {tried.kind}, {tried.ended.seconds:.0f} s, on {tried.base_sha[:12]}")
    if tried.diff_stat:
        lines += ["", tried.diff_stat.rstrip("\n")]
    if tried.tree is not None:
        lines += ["", f"the work tree is kept in {tried.tree}"]
    return "\n".join(lines)
