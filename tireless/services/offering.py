"""The pull request of one delivery: its ref checked, found or created, twins and predecessors closed. Ends no job."""

from __future__ import annotations

from tireless.domain import delivery as texts
from tireless.domain.delivery import Text
from tireless.domain.issue import IssueState, PullRequest
from tireless.domain.text import branch_prefix
from tireless.errors import ForgeDenied, ForgeRejected, NotFound
from tireless.forge.base import NewPull
from tireless.services.carrying import Carrying, UnpublishableError, WaitError, WorkNotPushedError
from tireless.services.patience import STAY_S
from tireless.store import publish


class Offering(Carrying):
    """Offers the settled branch."""

    async def carry_out(self) -> int:
        """The number of the job's pull request, found or made; its predecessors are closed then."""
        try:
            number = await self._pull()
        except NotFound:  # also where pull requests are switched off
            if (await self._forge.repository(self._delivery.forge_repo_id)).has_pulls:
                raise
            raise WaitError(STAY_S, "pulls_off") from None
        await self._close_predecessors(number)
        return number

    async def _pull(self) -> int:
        delivery = self._delivery
        if delivery.pull_request is not None:
            return delivery.pull_request
        branch = delivery.branch or ""  # never empty beside a commit: CHECK commit_has_a_branch
        # A closed one counts only after a create that was not answered: then it is ours, merged or closed meanwhile.
        found = await self._find_pull(branch, closed=delivery.pr_unanswered)
        if found is None:
            head = await self._forge.branch_head(self._repo, branch)
            if head != delivery.commit_sha:
                raise WorkNotPushedError(head)
            created = await self._create_pull(branch)
            # The forge looks for a double and inserts in two steps: of two creates at once both are answered 201.
            found = await self._find_pull(branch, closed=False) or created
        await self._fenced(lambda conn: publish.pull_made(conn, delivery, found))
        return found

    async def _find_pull(self, branch: str, *, closed: bool) -> int | None:
        """The bot's pull request from our branch, an open one before a closed one; other open ones are closed.

        Only the bot's: on some forges a stranger may open one from any branch, with words of his own.
        """
        bot = await self._means.whom.bot(self._forge)
        pulls = sorted(
            await self._forge.pulls(self._repo, head=branch, include_closed=closed), key=lambda each: each.number
        )
        ours = [each for each in pulls if each.author.id == bot.id]
        still_open = [each for each in ours if each.state is IssueState.OPEN]
        for double in still_open[1:]:
            await self._close_twin(still_open[0].number, double.number, pull=True)
        kept = still_open or ours
        return kept[0].number if kept else None

    async def _create_pull(self, branch: str) -> int:
        delivery = self._delivery

        def text(plain: bool) -> Text:
            return texts.pull_text(
                title=delivery.pr_title or delivery.issue_title,
                body=delivery.pr_body or delivery.summary or "",
                kind=delivery.kind,
                number=delivery.number,
                lane=delivery.lane,
                job_id=delivery.job_id,
                voice=self._voice,
                plain=plain,
            )

        async def create(made: Text) -> PullRequest:
            new = NewPull(made.title, made.body, head=branch, base=await self._base(), draft=delivery.pr_draft)
            await self._sending(lambda conn: publish.pull_sent(conn, delivery, take_s=self._take_s))
            return await self._forge.create_pull(self._repo, new)

        try:
            return (await self._worded(create, text)).number
        except ForgeRejected as error:
            await self._fenced(lambda conn: publish.pull_refused(conn, delivery))
            if error.status != 409:
                raise
            found = await self._find_pull(branch, closed=False)
            if found is not None:
                return found
            if not await self._close_strangers(branch):
                raise
            return (await self._worded(create, text)).number
        except (ForgeDenied, NotFound, UnpublishableError):
            await self._fenced(lambda conn: publish.pull_refused(conn, delivery))
            raise

    async def _close_strangers(self, branch: str) -> bool:
        """Close what others opened from our branch, since it keeps ours from being made; False: there is none.

        WaitError where one may not be closed: nothing can be offered then until a person acts.
        """
        theirs = [each for each in await self._forge.pulls(self._repo, head=branch) if each.state is IssueState.OPEN]
        for each in theirs:
            if not await self._say_and_close(each.number, texts.STRANGERS_PULL, texts.STRANGERS_MARK):
                raise WaitError(STAY_S, "pull_in_the_way")
        return bool(theirs)

    async def _base(self) -> str:
        """The branch to merge into: the repository's default one as of now."""
        return (await self._forge.repository(self._delivery.forge_repo_id)).default_branch

    async def _close_predecessors(self, number: int) -> None:
        """Close the open pull requests that earlier jobs of the issue made, with a link.

        Also what an attempt made of which the database knows nothing any more, since it was restored from a backup.
        Only the bot's own: in a forge that was restored a number may be somebody else's by now.
        """
        async with self._pool.connection() as conn:
            earlier = await publish.predecessors(conn, self._delivery, number)
            forgotten = await publish.forgotten(conn, self._delivery)
        if not earlier and not forgotten:
            return
        bot = await self._means.whom.bot(self._forge)
        prefix = branch_prefix(self._delivery.number)
        for pull in await self._forge.pulls(self._repo):
            if pull.author.id != bot.id or pull.number == number:
                continue
            if pull.number in earlier or (pull.head.startswith(prefix) and pull.head[-8:] in forgotten):
                said = texts.superseded(self._address(number, pull=True), number)
                if not await self._say_and_close(pull.number, said, texts.SUPERSEDED):
                    await self._leave_open(pull.number, pull=True)
