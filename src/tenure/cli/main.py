"""The root of the `tenure` command. Subcommands live in modules of their own and are added here.

Data goes to stdout, talk to stderr. Nothing here knows a rule of the lifecycle.
"""

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tenure")
def main() -> None:
    """Tenure: a durable job queue and orchestrator whose history you can check."""


if __name__ == "__main__":
    main()
