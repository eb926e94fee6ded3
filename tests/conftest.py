from __future__ import annotations

from hypothesis import settings

# Examples that take long on a busy machine are no failures.
settings.register_profile("taot", deadline=None)
settings.load_profile("taot")
