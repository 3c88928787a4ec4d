"""Turns what changed between two looks into lines of the story; decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tireless.demo.sides import JobRow, Rows, Side
from tireless.demo.story import Scene


class Watch:
    """Says each thing once: what was taken in and why not, who claimed what, what came of it."""

    def __init__(self, say: Callable[[str], None], cast: Mapping[int, Scene]) -> None:
        self._say = say
        self._cast = cast
        self._told: set[tuple[object, ...]] = set()

    def look(self, rows: Rows) -> None:
        """The rows as they are now."""
        for number, (_, reason) in sorted(rows.issues.items()):
            if reason and not any(job.number == number for job in rows.jobs):
                self._once(("reason", number), f"#{number} {self._title(number)}: no job, {reason}")
        for job in rows.jobs:
            self._job(job)
        for child in rows.children:
            if child.number is not None:
                after = f", after {', '.join(f'#{each}' for each in child.depends_on)}" if child.depends_on else ""
                self._once(
                    ("child", child.plan, child.key),
                    f"#{child.plan} got the child #{child.number} ({child.key}){after}",
                )

    def see(self, side: Side) -> None:
        """The forge as it is now."""
        for pull in side.pulls:
            self._once(("pull", pull.number), f"pull request {pull.number} from {pull.branch} closes #{pull.closes}")

    def _job(self, job: JobRow) -> None:
        about = f"#{job.number} {self._title(job.number)}"
        self._once(("job", job.id), f"{about}: job {job.id}, {job.kind} in lane {job.lane}")
        for claim in range(1, job.claims + 1):
            again = f" again (claim {claim})" if claim > 1 else ""
            self._once(("claim", job.id, claim), f"{about}: claimed{again} by a runner of lane {job.lane}")
        if job.reason is not None or job.state in ("publishing", "delivered", "failed", "cancelled"):
            why = f", {job.reason}" if job.reason else ""
            self._once(("state", job.id, job.state, job.reason, job.claims), f"{about}: {job.state}{why}")

    def _title(self, number: int) -> str:
        scene = self._cast.get(number)
        return f"“{scene.title}”" if scene else "(a child)"

    def _once(self, key: tuple[object, ...], line: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self._say(line)
