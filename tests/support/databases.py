"""The database of a URL, in the words of libraries that tests use beside Tenure."""

from psycopg.conninfo import conninfo_to_dict


def django_database(url: str) -> dict[str, object]:
    """An entry of Django's DATABASES."""
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    given = conninfo_to_dict(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": given["dbname"],
        "USER": given.get("user", ""),
        "PASSWORD": given.get("password", ""),
        "HOST": given.get("host", ""),
        "PORT": given.get("port", ""),
    }
