"""Reading the configuration: every fault in one report, secrets only from closed files, durations with their unit."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tireless.config import format_duration, load, parse_duration
from tireless.config.read import password_of
from tireless.domain.job import Kind
from tireless.domain.labels import LabelScheme
from tireless.errors import ConfigError

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TIRELESS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a configuration file (0600) and returns its path."""

    def writer(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text)
        path.chmod(0o600)
        return path

    return writer


def secret_file(folder: Path, name: str = "token", *, mode: int = 0o600, content: str = "s3cret-token\n") -> Path:
    """A secret as an operator would keep it."""
    path = folder / name
    path.write_text(content)
    path.chmod(mode)
    return path


def faults(path: Path | None) -> list[str]:
    """The lines of the report, without its head."""
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.exit_code == 3
    return [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:]]


def test_without_a_file_everything_has_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file and no environment: the defaults of design §13, no database, no forge, no lane."""
    monkeypatch.setattr("tireless.config.read.DEFAULT_FILE", Path("/nonexistent/config.toml"))
    settings = load()
    assert settings.database.address is None
    assert (settings.forges, settings.lanes) == ({}, {})
    assert settings.poll.interval == timedelta(seconds=60)
    assert settings.labels.scheme == LabelScheme()
    assert settings.installation_name == "tireless"
    assert settings.runner_root == settings.installation.state_dir / "work"


def test_every_fault_is_in_one_report(write: Write) -> None:
    """Eight faults of different kinds come as eight lines of one error, each with its key."""
    path = write(
        """
        [databse]
        url = "postgresql:///x"
        [forges.main]
        url = "ftp://git.example.org"
        token_file = "nowhere"
        repositories = ["only-a-name", "a/b", "A/B"]
        [lanes.claude]
        kinds = ["implment"]
        lease = 600
        [lanes."No Good"]
        [poll]
        intervl = "1m"
        """
    )
    found = faults(path)
    assert [line.partition(": ")[0] for line in found] == [
        "forges.main.url",
        "forges.main.token_file",
        "forges.main.repositories",
        "forges.main.repositories",
        "lanes.claude.kinds.0",
        "lanes.claude.lease",
        "lanes.No Good",
        "poll.intervl",
        "databse",
    ]
    with pytest.raises(ConfigError, match=r"config\.toml: 9 faults\n"):
        load(path)


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("[pol]\ninterval = '1m'", "pol", "poll"),
        ("[poll]\nintervall = '1m'", "poll.intervall", "interval"),
        ("[forges.main]\nurl='http://x'\ntokenfile = 'x'", "forges.main.tokenfile", "token_file"),
        ("[lanes.a]\ncomand = ['x']", "lanes.a.comand", "command"),
        ("[installation]\nstatedir = '/x'", "installation.statedir", "state_dir"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(write: Write, text: str, key: str, nearest: str) -> None:
    """A typo at any depth is a fault, and the report says what was probably meant."""
    assert faults(write(text)) == [f"{key}: there is no such key: did you mean {nearest}?"]


def test_an_unknown_key_like_nothing_lists_the_known_ones(write: Write) -> None:
    """Where no key is near, the keys of the section are named."""
    assert faults(write("[sweep]\nxyzzy = 1")) == ["sweep.xyzzy: there is no such key: known here are interval"]


@pytest.mark.parametrize("key", ["token", "webhook_secret", "git_token"])
def test_a_secret_in_the_file_is_refused_with_the_reason(write: Write, key: str) -> None:
    """An inline token is refused, the report says why and where it belongs, and never repeats it."""
    found = faults(write(f"[forges.main]\nurl = 'http://x'\n{key} = 'hunter22222'"))
    assert len(found) == 1
    assert found[0].startswith(f"forges.main.{key}: a secret is never written into the configuration")
    assert f"{key}_file" in found[0]
    assert "hunter2" not in found[0]


def test_a_secret_file_is_read_and_trimmed(write: Write, tmp_path: Path) -> None:
    """The path is taken from the configuration's directory, the newline at its end is no part of the secret."""
    secret_file(tmp_path)
    settings = load(write("[forges.main]\nurl = 'http://x'\ntoken_file = 'token'"))
    assert settings.forges["main"].token == "s3cret-token"
    assert settings.forges["main"].git_token == "s3cret-token"
    assert settings.secrets() == ("s3cret-token",)


def test_a_secret_never_shows_in_a_printed_configuration(write: Write, tmp_path: Path) -> None:
    """repr and str of Settings, and its dump, hold stars in the place of token and database URL."""
    secret_file(tmp_path)
    text = "[database]\nurl='postgresql://u:dbpassword@h/d'\n[forges.main]\nurl = 'http://x'\ntoken_file = 'token'"
    settings = load(write(text))
    for shown in (repr(settings), str(settings), str(settings.model_dump())):
        assert "s3cret-token" not in shown
        assert "dbpassword" not in shown
    assert settings.database.address == "postgresql://u:dbpassword@h/d"


def test_all_that_is_secret_is_known_to_the_redactor(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens, the database's password as it really is, and the keys a lane hands to its agent; not its LANG."""
    secret_file(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-the-agent")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    text = "[database]\nurl='postgresql://u:p%40ss:word@h/d'\n[forges.main]\nurl = 'http://x'\ntoken_file = 'token'\n"
    settings = load(write(text + "[lanes.a]\nenv = ['ANTHROPIC_API_KEY', 'LC_ALL', 'NOT_SET_KEY']"))
    assert settings.secrets() == ("p@ss:word", "s3cret-token", "sk-of-the-agent")


@pytest.mark.parametrize(
    ("address", "password"),
    [
        ("postgresql://u:secret@h/d", "secret"),
        ("postgresql://u@h/d", None),
        ("postgresql:///d?host=/run", None),
        ("host=h password=secret dbname=d", "secret"),
        ("host=h password = 'se cret' dbname=d", "se cret"),
        ("postgresql://h/d?user=u&password=secret&x=1", "secret"),
    ],
)
def test_a_password_is_found_in_every_form_of_address(address: str, password: str | None) -> None:
    """URL, query and keyword form: what would make a file a secret, and what the redactor has to know."""
    assert password_of(address) == password


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o622, 0o610])
def test_a_secret_file_open_to_others_is_refused(write: Write, tmp_path: Path, mode: int) -> None:
    """Any right of group or others is a fault that names the mode and the chmod to run."""
    path = secret_file(tmp_path, mode=mode)
    (found,) = faults(write("[forges.main]\nurl = 'http://x'\ntoken_file = 'token'"))
    assert found == (
        f"forges.main.token_file: {path} can be read or changed by others (mode {mode:03o}); run `chmod 600 {path}`"
    )


def test_a_systemd_credential_may_show_the_group_bit(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode 0440 below $CREDENTIALS_DIRECTORY is systemd's ACL; the same mode elsewhere is refused."""
    path = secret_file(tmp_path, mode=0o440)
    config = write("[forges.main]\nurl = 'http://x'\ntoken_file = 'token'")
    assert "chmod" in faults(config)[0]
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert load(config).forges["main"].token == "s3cret-token"
    path.chmod(0o444)
    assert "chmod" in faults(config)[0]


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "is empty"), (" \n\n", "is empty"), ("two\nlines", "more than one line"), ("ab\n", "fewer than 6")],
)
def test_a_secret_file_must_hold_one_secret(write: Write, tmp_path: Path, content: str, says: str) -> None:
    """Empty files, several lines and secrets too short to be kept out of logs are faults."""
    secret_file(tmp_path, content=content)
    (found,) = faults(write("[forges.main]\nurl = 'http://x'\ntoken_file = 'token'"))
    assert says in found


def test_a_secret_file_that_is_no_file_does_not_hang(write: Write, tmp_path: Path) -> None:
    """A fifo, a directory and a missing path are faults, at once."""
    os.mkfifo(tmp_path / "token", 0o600)
    config = write("[forges.main]\nurl = 'http://x'\ntoken_file = 'token'")
    assert "not a regular file" in faults(config)[0]
    (tmp_path / "token").unlink()
    assert "does not exist" in faults(config)[0]
    (tmp_path / "token").mkdir()
    assert "not a regular file" in faults(config)[0] or "cannot be read" in faults(config)[0]


def test_a_secret_by_environment_name(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """token_env names a variable; unset is a fault that does not repeat what was written, it could be the token."""
    config = write("[forges.main]\nurl = 'http://x'\ntoken_env = 'MY_FORGE_TOKEN'")
    (found,) = faults(config)
    assert "is not set" in found
    assert "MY_FORGE_TOKEN" not in found
    monkeypatch.setenv("MY_FORGE_TOKEN", "from-the-environment")
    assert load(config).forges["main"].token == "from-the-environment"


@pytest.mark.parametrize("key", ["token_file", "token_env"])
def test_a_token_in_the_place_of_a_name_is_not_repeated(write: Write, key: str) -> None:
    """Forty hex digits where a path or a name belongs are told apart before anything quotes them."""
    token = "abcdef0123456789abcdef0123456789abcdef01"
    (found,) = faults(write(f"[forges.main]\nurl = 'http://x'\n{key} = '{token}'"))
    assert "looks like a token itself" in found
    assert token not in found


def test_both_ways_of_one_secret_are_refused(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token by file and by name at once: which one counts would be a guess."""
    secret_file(tmp_path)
    monkeypatch.setenv("T", "another-token")
    (found,) = faults(write("[forges.main]\nurl = 'http://x'\ntoken_file = 'token'\ntoken_env = 'T'"))
    assert found == "forges.main: token_file and token_env are both set; keep one"


def test_a_database_password_in_an_open_file_is_refused(write: Write) -> None:
    """A URL with a password makes the configuration itself a secret; without one its mode does not matter."""
    path = write("[database]\nurl = 'postgresql://u:pw@h/d'")
    load(path)
    path.chmod(0o644)
    (found,) = faults(path)
    assert "it holds a password" in found
    assert "chmod 600" in found
    path.write_text("[database]\nurl = 'postgresql://u@h/d?host=/run/pg'")
    path.chmod(0o644)
    assert load(path).database.address == "postgresql://u@h/d?host=/run/pg"


def test_environment_wins_over_the_file(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TIRELESS_SECTION__KEY sets a key, also one of a named table and a list, and leaves the rest of the file alone."""
    secret_file(tmp_path)
    path = write("[poll]\ninterval='5m'\noverlap='3m'\n[forges.main]\nurl='http://x'\n[lanes.b]\n[lanes.a]\n")
    monkeypatch.setenv("TIRELESS_POLL__INTERVAL", "7m")
    monkeypatch.setenv("TIRELESS_DATABASE__URL", "postgresql:///d")
    monkeypatch.setenv("TIRELESS_FORGES__MAIN__TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("TIRELESS_LANES__A__COMMAND", '["agent", "--quiet"]')
    monkeypatch.setenv("TIRELESS_WEB__PORT", "0")
    settings = load(path)
    assert settings.poll.interval == timedelta(minutes=7)
    assert settings.poll.overlap == timedelta(minutes=3)
    assert settings.database.address == "postgresql:///d"
    assert settings.forges["main"].token == "s3cret-token"
    assert settings.lanes["a"].command == ("agent", "--quiet")
    assert settings.web.port == 0
    assert list(settings.lanes) == ["b", "a"]


def test_an_environment_variable_that_sets_nothing_is_a_fault(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo in a variable's name is told like one in the file; an agent's own TIRELESS_ names are left alone."""
    monkeypatch.setenv("TIRELESS_JOB_ID", "17")
    path = write("")
    load(path)
    monkeypatch.setenv("TIRELESS_DATABSE__URL", "x")
    monkeypatch.setenv("TIRELESS_POLL__INTERVL", "x")
    assert faults(path) == [
        "poll.intervl: there is no such key: did you mean interval?",
        "the environment variable TIRELESS_DATABSE__URL sets nothing: did you mean database?",
    ]


def test_an_empty_environment_variable_counts_as_not_set(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it would set: numbers, words, lists and whole sections; the file holds, else the default."""
    names = ("LIMITS__MAX_REQUESTS_PER_ISSUE_PER_HOUR", "POLL__INTERVAL", "LANES__A__COMMAND", "DATABASE", "CONFIG")
    for name in (*names, "POLL__INTERVL", "DATABSE__URL"):
        monkeypatch.setenv(f"TIRELESS_{name}", "")
    path = write("[poll]\ninterval='5m'\n[limits]\nmax_requests_per_issue_per_hour=3\n[lanes.a]\ncommand=['agent']\n")
    settings = load(path)
    assert settings.limits.max_requests_per_issue_per_hour == 3
    assert settings.poll.interval == timedelta(minutes=5)
    assert settings.lanes["a"].command == ("agent",)
    assert load(None).poll.interval == timedelta(seconds=60)


def test_environment_that_is_no_json_is_a_fault(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list given as plain words is a fault of the report, not a traceback."""
    monkeypatch.setenv("TIRELESS_LANES__A__COMMAND", "agent --quiet")
    assert any("lanes" in line.lower() for line in faults(write("[lanes.a]")))


def test_lanes_keep_the_order_of_the_file(write: Write) -> None:
    """The order of [lanes.NAME] tables is the order in which lanes are asked."""
    settings = load(write("[lanes.zeta]\nkinds=['plan']\n[lanes.alpha]\n[lanes.mid]\nmax_running = 2\nlease='2m'"))
    lanes = settings.lane_values
    assert [lane.name for lane in lanes] == ["zeta", "alpha", "mid"]
    assert lanes[0].kinds == (Kind.PLAN,)
    assert (lanes[2].max_running, lanes[2].lease_s) == (2, 120.0)


def test_lanes_must_fit_together(write: Write) -> None:
    """Two defaults and a lane for children that does not exist are both told."""
    found = faults(write("[lanes.a]\ndefault=true\nchildren_of_plan='nope'\n[lanes.b]\ndefault=true"))
    assert found == [
        "lanes: a and b are all marked default; at most one lane is",
        "lanes: a.children_of_plan names the lane nope, which is not configured",
    ]


def test_rules_over_several_keys_are_told_beside_faults_of_single_ones(write: Write) -> None:
    """Whatever else is wrong in the same section or another: all of it at once."""
    text = """
    [labels]
    prefix = "bot"
    opt_in = "a,b"
    [forges.main]
    url = "git.example.org"
    topics = ["x"]
    [lanes.a]
    default = true
    children_of_plan = "nope"
    lease = "30s"
    backoff = "1h"
    backoff_max = "1m"
    run_timeout = 5
    [lanes.b]
    default = true
    """
    told = "\n".join(faults(write(text)))
    for words in (
        "labels.prefix: ",
        "labels.opt_in: ",
        "forges.main.url: ",
        "forges.main: topics choose among",
        "lanes: a and b are all marked default",
        "lanes: a.children_of_plan names",
        "lanes.a.lease (30s) is too short",
        "lanes.a: backoff_max (1m) is shorter",
        "lanes.a.run_timeout: ",
    ):
        assert words in told, (words, told)
        assert told.count(words) == 1


@pytest.mark.parametrize(
    ("lane", "says"),
    [
        ("command = 'agent --quiet'", "no shell reads it: write a list"),
        ("command = ['']", "the program, is empty"),
        ("backoff = '1h'\nbackoff_max = '1m'", "backoff_max (1m) is shorter than backoff (1h)"),
        ("run_timeout = '5m'", "stall_timeout (10m) is longer than run_timeout (5m)"),
        ("env = ['KEY=value']", '"KEY" is not the name'),
        ("env = ['TIRELESS_X']", "belongs to tireless"),
        ("attempts = 0", "greater than or equal to 1"),
        ("max_running = 0", "greater than or equal to 1"),
        ("max_usd = 0", "greater than 0"),
        ("max_usd = 2000000", "less than or equal to 1000000"),
        ("max_running = 3000000000", "less than or equal to 10000"),
        ("max_usd = nan", "finite number"),
        ("max_usd = 1\nreserve_usd = 2", "reserve_usd (2) is more than max_usd (1)"),
        ("reserve_usd = 2", "reserve_usd (2) is kept back from max_usd, which is not set"),
        ("max_usd = 1\nreserve_usd = -1", "greater than or equal to 0"),
        ("lease = '0s'", "longer than nothing"),
    ],
)
def test_a_lane_that_makes_no_sense_is_refused(write: Write, lane: str, says: str) -> None:
    """Each rule of a lane has its own sentence, and a value that could be a secret is not repeated."""
    (found,) = faults(write(f"[lanes.a]\n{lane}"))
    assert says in found
    assert "value" not in found.replace("is not the name", "")


def test_attempts_are_bounded_whatever_a_lane_says(write: Write) -> None:
    """A lane that says nothing of it tries three times, and none can be told to try without end."""
    assert load(write("[lanes.a]")).lanes["a"].attempts == 3
    (found,) = faults(write("[lanes.a]\nattempts = 101"))
    assert "less than or equal to 100" in found


@pytest.mark.parametrize("key", ["finished", "delivered", "failed", "cancelled"])
def test_what_limits_count_is_kept_for_a_day(write: Write, key: str) -> None:
    """A retention below a day would let the runs of the day be forgotten, and with them the limit on them."""
    (found,) = faults(write(f"[retention]\n{key} = '23h59m'"))
    assert found.startswith(f"retention.{key}: ")
    assert "runs_per_repository_per_day" in found
    assert 'write "1d" or more' in found
    assert getattr(load(write(f"[retention]\n{key} = '1d'")).retention, key) == timedelta(days=1)


@pytest.mark.parametrize(
    ("lease", "grace", "margin", "fits"),
    [
        ("10m", "10s", "30s", True),
        ("60s", "10s", "30s", False),
        ("61s", "10s", "30s", True),
        ("6s", "1s", "2s", True),
        ("4500ms", "1s", "2s", False),
    ],
)
def test_a_lease_must_leave_room_for_its_order(write: Write, lease: str, grace: str, margin: str, fits: bool) -> None:
    """Renewed every third, stopped, gone, margin: a lease at or below one and a half times the rest is refused."""
    text = f"[lanes.a]\nlease='{lease}'\n[runner]\nstop_grace='{grace}'\nlease_margin='{margin}'"
    if fits:
        load(write(text))
    else:
        (found,) = faults(write(text))
        assert found.startswith(f"lanes.a.lease ({format_duration(parse_duration(lease))}) is too short")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("git.example.org", "write the address"),
        ("https://", "write the address"),
        ("https://bot:token@git.example.org", "put the token into a file"),
        ("https://git.example.org/?x=1", "ends before any ?"),
        ("https://git.example.org:99999", "port"),
    ],
)
def test_a_forge_address_is_checked(write: Write, url: str, says: str) -> None:
    """What is no web address, or carries a credential, is refused."""
    (found,) = faults(write(f"[forges.main]\nurl = '{url}'"))
    assert says in found


def test_a_forge_address_loses_its_slash(write: Write) -> None:
    """A trailing slash means nothing; a path prefix stays."""
    assert load(write("[forges.m]\nurl='https://x.example/git/'")).forges["m"].url == "https://x.example/git"


@pytest.mark.parametrize("prefix", ["tireless", "/", "a//", "a b,c/", ""])
def test_a_label_prefix_ends_in_a_slash(write: Write, prefix: str) -> None:
    """The exclusive scope of labels is what stands before the last slash, so the prefix needs one."""
    assert "ends in a slash" in faults(write(f"[labels]\nprefix = '{prefix}'"))[0]


@pytest.mark.parametrize("name", ["tireless/plan", "Tireless/HOLD", "tireless/status/queued", "tireless/agent:x"])
def test_the_opt_in_cannot_be_another_label(write: Write, name: str) -> None:
    """A label that would both allow and mean something else is refused."""
    assert "means something else already" in faults(write(f"[labels]\nopt_in = '{name}'"))[0]
    assert load(write("[labels]\nopt_in = 'ready'\nprefix = 'bot/'")).labels.scheme.opt_in == "ready"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[poll\n", "is not TOML"),
        (b"a = 1\na = 2\n", "is not TOML"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_a_file_that_is_no_configuration_says_so(tmp_path: Path, content: bytes, says: str) -> None:
    """Broken TOML and foreign encodings are one sentence with the file's name."""
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        load(path)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    """A file that was named and is not there is a fault, never "then without"."""
    with pytest.raises(ConfigError, match="generate-config"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


def test_the_file_can_be_named_by_the_environment(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """TIRELESS_CONFIG names the file; --config wins over it."""
    monkeypatch.setenv("TIRELESS_CONFIG", str(write("[poll]\ninterval='9m'")))
    assert load().poll.interval == timedelta(minutes=9)


def test_settings_cannot_be_changed(write: Write) -> None:
    """What was read stays: nobody turns a knob at run time."""
    settings = load(write(""))
    with pytest.raises(ValueError, match="frozen"):
        settings.poll.interval = timedelta(1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("7d", 604800), ("1.5h", 5400), ("1h 30m", 5400)],
)
def test_a_duration_carries_its_unit(text: str, seconds: float) -> None:
    """Numbers with units, added up."""
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("value", [600, 1.5, "600", "10 min", "ten", "", "-5m", "1h-", True, None, "9999999d", "m"])
def test_what_has_no_unit_is_no_duration(value: object) -> None:
    """Bare numbers, foreign units and nonsense are refused with an example of what to write."""
    with pytest.raises(ValueError, match="write a number with its unit"):
        parse_duration(value)


@given(st.integers(min_value=0, max_value=3650 * 86_400_000))
def test_a_duration_reads_back_as_it_is_shown(milliseconds: int) -> None:
    """What messages and the example show is what the file takes."""
    value = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(value)) == value


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12) | st.integers() | st.booleans(), max_size=6))
def test_no_value_makes_a_traceback(values: dict[str, object]) -> None:
    """Whatever stands in a lane's table: Settings, or a ConfigError, and nothing else."""
    keys = [key for key in values if key.isascii() and key.isalnum()]
    lines = [f"{key} = {_toml(values[key])}" for key in keys]
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8", errors="replace") as file:
        file.write("\n".join(["[lanes.a]", *lines]))
        file.flush()
        assert stat.S_IMODE(os.stat(file.name).st_mode) == 0o600
        with contextlib.suppress(ConfigError):
            assert load(Path(file.name)).lanes["a"] is not None


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value % 2**62)
    text = "".join(c for c in str(value) if c.isprintable() and c not in "\"\\'")
    return f'"{text}"'


def test_topics_choose_among_named_owners(tmp_path: Path) -> None:
    """A topic alone would let anybody have the bot work in a repository of his own."""
    path = tmp_path / "config.toml"
    path.write_text('[forges.main]\nurl = "https://git.example.org"\ntopics = ["agents"]\n')
    with pytest.raises(ConfigError, match="name those as well"):
        load(path)
    path.write_text('[forges.main]\nurl = "https://git.example.org"\ntopics = ["agents"]\nowners = ["acme"]\n')
    assert load(path).forges["main"].topics == ("agents",)
    path.write_text('[forges.main]\nurl = "https://git.example.org"\nowners = ["acme", "Acme", "a/b"]\n')
    with pytest.raises(ConfigError, match=r'(?s)"a/b" is not one word.*"acme" is named twice'):
        load(path)


def test_a_team_that_may_ask_is_named_whole(tmp_path: Path) -> None:
    """`team:ORGANISATION/TEAM`; anything else is told what can be written."""
    path = tmp_path / "config.toml"
    path.write_text('[asking]\nwho_may_ask = "team:acme/Core team"\n')
    with pytest.raises(ConfigError, match="team:ORGANISATION/TEAM"):
        load(path)
    path.write_text('[asking]\nwho_may_ask = "team:acme/core"\n')
    assert load(path).asking.who_may_ask == "team:acme/core"
    path.write_text('[asking]\nwho_may_ask = "team:core"\n')
    with pytest.raises(ConfigError, match="team:ORGANISATION/TEAM"):
        load(path)
