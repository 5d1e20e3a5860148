"""The scripts that make docs/errors.md and docs/run_errors.md, and how a message that was printed is found on a page."""

import importlib
import sys

from runs import ROOT

sys.path.append(str(ROOT / "scripts"))
error_messages, error_page = map(importlib.import_module, ("error_messages", "error_page"))


def nearest(message: str, catalogue) -> str:
    """Of a page's messages that the line may be, the one that leaves the least to its placeholders."""
    matches = {template: error_messages.pattern(template).match(message) for template in catalogue.messages()}
    found = {template: len("".join(match.groups())) for template, match in matches.items() if match}
    assert found, f"not on the page: {message}"
    return min(found, key=found.__getitem__)
