"""Settings: the only reader of environment and TOML. Nobody below `app` imports it: others are handed plain values."""

from tireless.config.example import example_text
from tireless.config.lanes import LaneSection, RunnerSection
from tireless.config.read import DEFAULT_FILE, ENV_FILE, Settings, load
from tireless.config.settings import AskingSection, ForgeSection
from tireless.config.values import format_duration, format_size, parse_duration

__all__ = [
    "DEFAULT_FILE",
    "ENV_FILE",
    "AskingSection",
    "ForgeSection",
    "LaneSection",
    "RunnerSection",
    "Settings",
    "example_text",
    "format_duration",
    "format_size",
    "load",
    "parse_duration",
]
