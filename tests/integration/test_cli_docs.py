"""What the documents tell people to type is typed here, in order, on one installation: nothing shown is untried."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli import inside
from tests.support.documents import tireless_commands
from tests.support.place import a_place, ask_for, config

STAYS = {"up", "serve", "run", "demo"}
"""Tried as processes of their own elsewhere: test_app_up.py, test_app_run.py, the demo's tests."""

MAY_END_WITH = {"doctor": {0, 6}, "explain": {0, 4}}


async def test_every_command_shown_works(tmp_path: Path, dsn: str) -> None:
    """Each command of README and docs/ ends well on a fresh installation that was polled once."""
    shown = list(dict.fromkeys(each.words for each in tireless_commands() if each.words[0] not in STAYS))
    assert len(shown) > 6
    async with a_place() as place:
        path = config(tmp_path, place.url, token=place.bot.token, dsn=dsn)
        number = await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
        assert (await inside("poll", "--config", path, home=tmp_path)).code == 0
        for words in shown:
            real = [word.replace("example/project#7", f"alice/project#{number}") for word in words]
            said = await inside(*real, "--config", path, home=tmp_path)
            assert said.code in MAY_END_WITH.get(words[0], {0}), (words, said)
            assert said.out, words
