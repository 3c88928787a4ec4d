"""Makes labels and the one comment of an issue look like its rows: level-triggered, sends only differences.

It never reads a label to decide about a job, touches no label but the seven status ones, and never wakes itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tireless import log
from tireless.domain.comments import TWIN, Picture, Voice, status_of_job, tell
from tireless.domain.delivery import read_child_line
from tireless.domain.issue import Comment, IssueState, Person, Snapshot
from tireless.domain.job import State, Status
from tireless.domain.labels import label_specs, read, status_diff, status_label
from tireless.domain.marker import Marker, comment_hash, own_comments
from tireless.errors import ForgeDenied, ForgeError, ForgeRejected, ForgeUnavailable, Moved, NotFound
from tireless.forge.base import Forge
from tireless.services.labelling import LabelBook
from tireless.services.patience import MOVED_S, Patience, is_doubtful, is_outage
from tireless.services.whom import Whom
from tireless.store import polls
from tireless.store import tell as rows
from tireless.store.comparing import recheck
from tireless.store.db import Connection, Pool
from tireless.store.lanes import lane_marks, mark_lane
from tireless.store.tell import Telling

_log = log.get(__name__)

ROUNDS = 4
"""How often labels are read and set before the issue is left for later: somebody else is setting them."""

RECHECKS = 36
"""How often within `recheck_s` it is asked what was told that long ago."""

LANES_S = 1.0
"""Between two looks at what keeps lanes waiting."""

COMMENTS_PER_HOUR = 6
"""How often the comment of an issue is made anew at most, when somebody deletes it."""
ENOUGH_S = 900.0
"""How long it is let be then."""

GONE_S = 3600.0
"""Between two tries of an issue that is not there."""


class Mirror:
    """`tick` tells the forge of one issue. Any number of mirrors may run."""

    name = "mirror"

    def __init__(
        self,
        pool: Pool,
        forges: Mapping[str, Forge],
        *,
        voice: Voice,
        by: str = "mirror",
        request_timeout_s: float = 20.0,
        take_s: float = 180.0,
        repairs_per_hour: int = 6,
        edit_every_s: float = 30.0,
        first_comment_after_s: float = 10.0,
        recheck_s: float = 6 * 3600.0,
        backoff_base_s: float = 10.0,
        backoff_cap_s: float = 900.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._pool = pool
        self._forges = forges
        self._voice = voice
        self._by = by
        self._take_s = take_s
        self._unanswered_s = 3 * request_timeout_s
        self._repairs_per_hour = repairs_per_hour
        self._edit_every_s = edit_every_s
        self._first_comment_after_s = first_comment_after_s
        self._recheck_s = recheck_s
        self._patience = Patience(forges, base_s=backoff_base_s, cap_s=backoff_cap_s, jitter=jitter)
        self._labels = LabelBook(pool)
        self._whom = Whom()
        self._recheck_at = 0.0
        self._lanes_at = 0.0
        self._marks: dict[str, str] = {}

    async def tick(self) -> bool:
        """Tell the forge of one due issue; False when none is due."""
        forges = self._patience.ready()
        async with self._pool.connection() as conn:
            await self._tell_lanes(conn)
            telling = await rows.take_due(
                conn, forges, by=self._by, take_s=self._take_s, unanswered_s=self._unanswered_s
            )
            if telling is None:
                return await self._recheck(conn)
        await self._one(telling)
        return True

    async def _tell_lanes(self, conn: Connection) -> None:
        """Make pending issues due where their lane was held, released, or is without runner since; some at a time."""
        if time.monotonic() < self._lanes_at:
            return
        self._lanes_at = time.monotonic() + LANES_S
        for lane, mark in (await lane_marks(conn)).items():
            if self._marks.get(lane) != mark:
                _, left = await mark_lane(conn, lane, mark)
                if not left:
                    self._marks[lane] = mark

    async def _recheck(self, conn: Connection) -> bool:
        """Now and then, not on every wake: it walks the live jobs."""
        if time.monotonic() < self._recheck_at:
            return False
        found = await recheck(conn, after_s=self._recheck_s)
        self._recheck_at = 0.0 if found else time.monotonic() + self._recheck_s / RECHECKS
        return found > 0

    async def _one(self, telling: Telling) -> None:
        forge = self._forges[telling.picture.repo.forge]
        about = {"forge": forge.name, "issue": f"{telling.picture.repo}#{telling.picture.number}"}
        try:
            await _Showing(self, forge, telling).show()
            self._patience.answered(forge.name)
        except _TakeLostError:
            _log.info("mirror take lost", **about)
        except ForgeError as error:
            if is_outage(error):
                self._patience.failed(forge.name, error)
            failures = telling.failures + 1
            wait_s = self._wait_s(error, failures)
            async with self._pool.connection() as conn:
                said = self._voice.redactor.text(str(error))
                await rows.put_off(conn, telling, wait_s=wait_s, failures=failures, error=said)
                if is_doubtful(error):
                    await polls.doubt(conn, [telling.repository_id])
            _log.warning("issue not mirrored", **about, error=str(error), again_s=round(wait_s), failures=failures)

    def _wait_s(self, error: ForgeError, failures: int) -> float:
        match error:
            case NotFound():
                return GONE_S
            case Moved():
                return MOVED_S
            case _:
                return self._patience.wait_s(error, failures)


class _TakeLostError(Exception):
    """Another mirror has the issue; nothing more is to be written."""


class _Showing:
    """One telling, step by step."""

    def __init__(self, mirror: Mirror, forge: Forge, telling: Telling) -> None:
        self._mirror = mirror
        self._pool = mirror._pool
        self._voice = mirror._voice
        self._forge = forge
        self._telling = telling
        self._repo = telling.picture.repo
        self._number = telling.picture.number
        self._wrote = False

    async def show(self) -> None:
        telling = self._telling
        bot = await self._mirror._whom.bot(self._forge)
        snapshot = await self._forge.issue(self._repo, self._number)
        comments = await self._forge.comments(self._repo, self._number)
        own = own_comments(comments, bot.id, self._number)
        if others := {marker.installation for _, marker in own} - {self._voice.installation}:
            said = f"the installation {', '.join(sorted(others))} keeps the comment of this issue; this one stays away"
            await self._record(telling.told_status, telling.told_comment, error=said)
            about = {"forge": self._repo.forge, "issue": f"{self._repo}#{self._number}"}
            _log.info("issue left to another installation", **about, by=sorted(others))
            return
        # The bot's own comment of this number, found by id: it may have lost its marker to an editor.
        stored = [each for each in comments if each.id == telling.comment_id and each.author.id == bot.id]
        copies = [each for each, _ in own if each not in stored]
        comment = stored[0] if stored else copies.pop(0) if copies else None
        wanted = tell(_with_marks(telling.picture, [marker for _, marker in own]), self._voice)
        text: str | None = wanted.comment
        if (
            telling.picture.job is None
            and comment is None
            and not _worth_a_comment(telling.picture, snapshot, bot, self._voice)
        ):
            text = None
        if _forgotten(telling, comment):
            await self._record(None, None)
            return
        status = wanted.status.value if wanted.status else None
        told_before = (telling.told_status, telling.told_comment) == (status, _hash(text))
        differs = _differs(snapshot, wanted.status, self._voice) or (text is not None and not _says(comment, text))
        if told_before and differs and telling.repairs >= self._mirror._repairs_per_hour:
            said = f"repaired {telling.repairs} times within an hour and changed again each time; left alone for now"
            await self._record(status, _hash(text), contested=True, error=said)
            _log.warning(
                "mirror contested",
                forge=self._repo.forge,
                issue=f"{self._repo}#{self._number}",
                repairs=telling.repairs,
            )
            return
        await self._set_labels(snapshot, wanted.status)
        if text is not None and (wait_s := self._pace_s(comment, text)) > 0:
            async with self._pool.connection() as conn:
                await rows.pace(conn, telling, wait_s=wait_s)
            return
        if text is not None and not await self._write(comment, text):
            return
        for copy in copies:
            await self._edit(copy, TWIN)
        await self._record(status, _hash(text), repaired=told_before and self._wrote)

    def _pace_s(self, comment: Comment | None, text: str) -> float:
        """Seconds the comment has to wait: not edited again too soon, and no refusal while somebody is still at it.

        What ends a job, or makes it wait for a person, is told at once. So is a change after this one.
        """
        job, telling = self._telling.picture.job, self._telling
        if comment is None:
            # a mode label first and the opt-in seconds later is one act of a person
            return 0.0 if job is not None else self._mirror._first_comment_after_s - telling.triage_age_s
        rests = job is not None and (job.state.is_terminal or status_of_job(job) is Status.PARKED)
        if rests or telling.comment_age_s is None or _says(comment, text):
            return 0.0
        return self._mirror._edit_every_s - telling.comment_age_s

    async def _set_labels(self, snapshot: Snapshot, wanted: Status | None) -> None:
        """Add what is missing, look again (an exclusive label takes the old one off), remove what is too much."""
        scheme = self._voice.scheme
        for _ in range(ROUNDS):
            diff = status_diff(snapshot.labels, wanted, scheme)
            if diff.add is None and not diff.remove:
                return
            await self._renew()
            if diff.add is not None and wanted is not None:
                await self._add(wanted)
            else:
                for label_id in diff.remove:
                    await self._forge.set_label(self._repo, self._number, label_id, on=False)
            self._wrote = True
            snapshot = await self._forge.issue(self._repo, self._number)
        raise ForgeUnavailable(
            f"setting the status label of {self._repo}#{self._number}: somebody changes the labels at the same time"
        )

    async def _add(self, wanted: Status) -> None:
        name = status_label(self._voice.scheme, wanted)
        specs = [spec for spec in label_specs(self._voice.scheme, ()) if spec.name == name]
        book = self._mirror._labels
        (label_id,) = await book.ids(self._forge, self._repo, specs)
        try:
            await self._forge.set_label(self._repo, self._number, label_id, on=True)
        except ForgeRejected:
            book.forget(self._repo)  # deleted and made again since: another id
            (label_id,) = await book.ids(self._forge, self._repo, specs)
            await self._forge.set_label(self._repo, self._number, label_id, on=True)

    async def _write(self, comment: Comment | None, text: str) -> bool:
        """Bring the comment to `text`; False when an unanswered create has to be waited for first."""
        telling = self._telling
        if comment is not None:
            if comment.id != telling.comment_id:
                await self._made(comment.id)
            if comment.body == text or await self._edit(comment, text, telling=True):
                return True
            await self._made(None)  # deleted while we looked
        elif telling.comment_id is not None:
            await self._made(None)  # deleted by somebody: made once more
        elif telling.comment_unanswered and telling.comment_wait_s > 0:
            async with self._pool.connection() as conn:
                wait_s = telling.comment_wait_s
                await rows.put_off(conn, telling, wait_s=wait_s, failures=telling.failures, error=None)
            return False
        async with self._pool.connection() as conn:
            if telling.creates >= COMMENTS_PER_HOUR:
                said = f"its comment was made {telling.creates} times within an hour, and deleted; let be for now"
                await rows.put_off(conn, telling, wait_s=ENOUGH_S, failures=telling.failures, error=said)
                return False
            if not await rows.comment_sent(conn, telling, take_s=self._mirror._take_s):
                raise _TakeLostError
        try:
            made = await self._forge.write_comment(self._repo, self._number, text)
        except (ForgeDenied, NotFound, ForgeRejected):
            async with self._pool.connection() as conn:
                await rows.comment_refused(conn, telling)
            raise
        await self._made(made.id)
        self._wrote = True
        return True

    async def _edit(self, comment: Comment, text: str, *, telling: bool = False) -> bool:
        """Edit a comment of ours; False when it is gone. `telling`: the one that tells, not a copy of it."""
        await self._renew(editing=telling)
        try:
            await self._forge.write_comment(self._repo, self._number, text, comment_id=comment.id)
        except NotFound:
            return False
        self._wrote = True
        return True

    async def _made(self, comment_id: int | None) -> None:
        async with self._pool.connection() as conn:
            if not await rows.comment_made(conn, self._telling, comment_id):
                raise _TakeLostError

    async def _renew(self, *, editing: bool = False) -> None:
        async with self._pool.connection() as conn:
            if not await rows.renew_telling(conn, self._telling, take_s=self._mirror._take_s, editing=editing):
                raise _TakeLostError

    async def _record(
        self,
        status: str | None,
        comment: str | None,
        *,
        repaired: bool = False,
        contested: bool = False,
        error: str | None = None,
    ) -> None:
        async with self._pool.connection() as conn:
            done = await rows.told(
                conn,
                self._telling,
                status=status,
                comment=comment,
                repaired=repaired,
                contested=contested,
                error=error,
            )
        if not done:
            raise _TakeLostError


def _with_marks(picture: Picture, markers: list[Marker]) -> Picture:
    """The picture with answered marks not below those on the forge: a fresh database takes them from there.

    While its job waits or runs, no request of this issue is answered for good: a fresh database must make it again.
    """
    rests = picture.job is not None and picture.job.state in (State.PENDING, State.WAITING, State.CLAIMED)
    event = max([0 if rests else picture.answered_event, *(marker.answered_event for marker in markers)])
    times = [None if rests else picture.answered_time, *(marker.answered_time for marker in markers)]
    return replace(
        picture, answered_event=event, answered_time=max((each for each in times if each is not None), default=None)
    )


def _forgotten(telling: Telling, comment: Comment | None) -> bool:
    """The forge remembers a job that this database does not know: what stands there is not ours to unsay."""
    return (
        comment is not None
        and telling.picture.job is None
        and telling.picture.triage_code is None
        and telling.told_status is None
        and telling.told_comment is None
    )


def _worth_a_comment(picture: Picture, snapshot: Snapshot, bot: Person, voice: Voice) -> bool:
    """Whether an issue without a job gets a first comment: a refusal, where a person put a label of ours on it."""
    view = read(snapshot.labels, voice.scheme)
    labelled = view.asks or view.agents or view.hold or view.priorities or view.unknown
    # A fresh database knows no plans. The bot's own line tells its children; anybody may copy it into an issue of his.
    bots_own = snapshot.author.id == bot.id and read_child_line(snapshot.body) is not None
    if (picture.plan_number is not None or bots_own) and picture.triage_code in ("is_child_waiting", "no_opt_in"):
        return False  # its body says so
    return picture.triage_code is not None and snapshot.state is IssueState.OPEN and bool(labelled)


def _differs(snapshot: Snapshot, wanted: Status | None, voice: Voice) -> bool:
    diff = status_diff(snapshot.labels, wanted, voice.scheme)
    return diff.add is not None or bool(diff.remove)


def _says(comment: Comment | None, text: str) -> bool:
    return comment is not None and comment.body == text


def _hash(text: str | None) -> str | None:
    return None if text is None else comment_hash(text)
