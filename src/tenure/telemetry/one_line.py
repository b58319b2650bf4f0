"""Text for people's logs and terminals, whoever wrote it: nothing in it can be obeyed."""


def one_line(text: str) -> str:
    """Without line breaks or escape codes of somebody else's making."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def indented(text: str) -> list[str]:
    """Its lines, each set in, so that none of them looks like one of the log's own."""
    return [f"  {one_line(line)}" for line in text.splitlines() if line]
