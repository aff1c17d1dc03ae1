"""Text that may stand in a page, whatever it holds, and numbers as pages and terminals write them."""

import html


def escaped(text: str) -> str:
    """Text for an element or a quoted attribute.

    Markup is escaped; characters that no page may hold, and those that would not show as themselves (controls, marks
    that turn the direction of writing), become U+FFFD.

    Example:
        >>> escaped("a < b")
        'a &lt; b'
    """
    allowed = (c if c in "\t\n" or c.isprintable() or c == "\u00a0" else "\ufffd" for c in text)
    return html.escape("".join(allowed))


def capital(text: str) -> str:
    """A clause as the beginning of a sentence.

    Example:
        >>> capital("a whole row is one document")
        'A whole row is one document'
    """
    return f"{text[:1].upper()}{text[1:]}"


def counted(count: int, thing: str) -> str:
    """A count with its noun.

    Example:
        >>> counted(1, "document"), counted(1234, "document")
        ('1 document', '1,234 documents')
    """
    return f"{count:,} {thing}{'s' * (count != 1)}"


def number(value: float) -> str:
    """Two digits, and ``0`` for an exact zero alone: ``0``, ``3.7e+00``."""
    return "0" if value == 0.0 else f"{value:.1e}"
