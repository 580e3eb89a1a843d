"""Write every reference page again that is generated from the code: ``python -m tests.documentation.reference``."""

from __future__ import annotations

from tests.documentation import test_commands_reference, test_runtime_reference, test_settings_reference
from tests.storage.results import test_documentation
from tests.tasks.workload import test_reference

PAGES = (test_commands_reference, test_settings_reference, test_reference, test_documentation, test_runtime_reference)

if __name__ == "__main__":
    for page in PAGES:
        page.write()
