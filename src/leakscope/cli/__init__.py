"""The command line: thin. Nothing heavy is imported before it is needed."""

from leakscope.cli import audits, claims, guards, results
from leakscope.cli.app import app, main

__all__ = ["app", "audits", "claims", "guards", "main", "results"]
