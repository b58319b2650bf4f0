"""The ledger as a Django model. Importing it sets Django up for the database of `LEDGER_URL`.

Imported in a handler's child only: Django's settings belong to the whole process.
"""

import os

import django  # type: ignore[import-untyped]  # it has no type hints
from django.conf import settings  # type: ignore[import-untyped]  # it has no type hints

from tests.support.databases import django_database

settings.configure(DATABASES={"default": django_database(os.environ["LEDGER_URL"])}, USE_TZ=True)
django.setup()

from django.db import connection, models  # type: ignore[import-untyped]  # noqa: E402 - needs settings

__all__ = ["Entry", "connection"]


class Entry(models.Model):  # type: ignore[misc]  # it has no type hints
    """A line of the ledger."""

    entry = models.TextField(primary_key=True)
    attempt = models.IntegerField()

    class Meta:
        """The table exists; Django only writes to it."""

        app_label = "ledger"
        db_table = "ledger"
        managed = False
