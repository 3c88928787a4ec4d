"""tireless: a bot that lets agents work on the issues of a Gitea or Forgejo instance."""

__version__ = "0.1.0"
