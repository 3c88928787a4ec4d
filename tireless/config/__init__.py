"""Settings: the only reader of environment and TOML. Nobody below `app` imports it: others are handed plain values."""

from tireless.config.read import Settings, config_path, load
from tireless.config.settings import AskingSection, ForgeSection, LaneSection, RunnerSection
from tireless.config.values import format_duration, parse_duration

__all__ = [
    "AskingSection",
    "ForgeSection",
    "LaneSection",
    "RunnerSection",
    "Settings",
    "config_path",
    "format_duration",
    "load",
    "parse_duration",
]
