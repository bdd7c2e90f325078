"""What GitHub's own Markdown parser (cmark-gfm) makes of a text."""

from __future__ import annotations

from cmarkgfm import cmark

_OPTIONS = cmark.Options.CMARK_OPT_UNSAFE | cmark.Options.CMARK_OPT_FOOTNOTES
"""Without UNSAFE the parser drops raw HTML, and without FOOTNOTES it reads `[^1]:` as a link's definition: either would
hide what a test looks for. For the same reason no `tagfilter`, which escapes `<script>` and its like."""

_EXTENSIONS = ("table", "strikethrough", "autolink", "tasklist")


def render_github(text: str, *, hard_breaks: bool = True) -> str:
    """The HTML of the text: with `hard_breaks` as in a comment, without as in a file. The parser leaks some kilobytes a
    text, because its bindings never free a document."""
    options = _OPTIONS | (cmark.Options.CMARK_OPT_HARDBREAKS if hard_breaks else 0)
    rendered = cmark.markdown_to_html_with_extensions(text, options=options, extensions=list(_EXTENSIONS))
    assert isinstance(rendered, str)
    return rendered
