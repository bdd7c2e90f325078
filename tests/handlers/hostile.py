"""What strangers and agents write, and what becomes of it: the corpus of `test_sanitize`."""

from __future__ import annotations

PEM = ("-----BEGIN RSA " + "PRIVATE KEY-----", "-----END RSA " + "PRIVATE KEY-----")
BASE64 = "MIIEpAIBAAKCAQEA7bq0" * 3
TOKEN = "a1B2c3D4e5" * 4


SECRETS: dict[str, tuple[str, str]] = {
    "a private key": (f"key:\n{PEM[0]}\n{BASE64}\n{PEM[1]}\nrest", "key:\n[redacted]\nrest"),
    "a private key in a diff": (f"+{PEM[0]}\n+Proc-Type: 4\n+{BASE64}\n+{PEM[1]}\n+x", "+[redacted]\n+x"),
    "a private key in JSON": (f'"{PEM[0]}\\n{BASE64}\\n{PEM[1]}\\n"', '"[redacted]\\n"'),
    "a private key whose end was cut": (f"{PEM[0]}\n{BASE64}\n{BASE64}\n\nmore words", "[redacted]\n\nmore words"),
    "words about private keys": (f"it reads {PEM[0]} from a file", f"it reads {PEM[0]} from a file"),
    "a GitHub token": (
        f"ghp_{TOKEN[:36]} gho_{TOKEN[:36]} ghu_{TOKEN[:36]} ghr_{TOKEN[:36]}",
        "[redacted] " * 3 + "[redacted]",
    ),
    "a long installation token": (f"(ghs_{'12345_'}{'aB3.' * 120})", "([redacted])"),
    "a fine-grained token": (f"github_pat_{TOKEN[:22]}_{TOKEN}", "[redacted]"),
    "a GitHub name that is no token": ("ghs_short and ghp_name", "ghs_short and ghp_name"),
    "an API key": (f"sk-{TOKEN} sk-ant-api03-{TOKEN}-_x sk-proj-{TOKEN}", "[redacted] [redacted] [redacted]"),
    "words with dashes": (
        "sk-learn-is-a-library-with-estimators risk-1234567890123456789012",
        "sk-learn-is-a-library-with-estimators risk-1234567890123456789012",
    ),
    "a Hugging Face token": (f"hf_{TOKEN[:34]}", "[redacted]"),
    "a job's token": (f"ptq-0123456789-{'0a' * 20}", "[redacted]"),
    "an AWS key": ("AKIA" + "ABCDEFGHIJKLMNOP", "[redacted]"),
    "a longer word in capitals": ("XAKIAABCDEFGHIJKLMNOP", "XAKIAABCDEFGHIJKLMNOP"),
    "a Slack token": ("xoxb-" + "123456789012-abcdef", "[redacted]"),
    "a JSON web token": (f"eyJ{TOKEN}.eyJ{TOKEN}.{TOKEN}", "[redacted]"),
    "an authorization header": (f"Authorization: Bearer {TOKEN}", "Authorization: Bearer [redacted]"),
    "an authorization header in code": (f'"authorization": "token {TOKEN}"', '"authorization": "token [redacted]"'),
    "a header with a place for the token": ('f"Authorization: Bearer {token}"', 'f"Authorization: Bearer {token}"'),
    "a password in an address": ("https://user:hunter2@example.com/x", "https://[redacted]@example.com/x"),
    "a place for a password": ('f"https://{user}:{password}@host"', 'f"https://{user}:{password}@host"'),
    "an address with a port": ("http://example.com:8080/a@b", "http://example.com:8080/a@b"),
}

PROSE: dict[str, tuple[str, str]] = {
    "a mention": ("Ask @octocat about it", "Ask @&#8203;octocat about it"),
    "a team": ("cc @octo/core-team", "cc @&#8203;octo/core-team"),
    "a mention in emphasis": ("_@octocat_ and **@octocat**", "_@&#8203;octocat_ and **@&#8203;octocat**"),
    "a mention behind an escape": ("\\@octocat", "\\@&#8203;octocat"),
    "a mention behind another at": ("@@octocat", "@@&#8203;octocat"),
    "a mention at the start": ("@octocat", "@&#8203;octocat"),
    "an address of mail": ("write to me@example.com", "write to me@example.com"),
    "a mention as an entity": (
        "&#64;octocat and &commat;octocat and &#x40;octocat",
        "&amp;#64;octocat and &amp;commat;octocat and &amp;#x40;octocat",
    ),
    "a mention in a link": ("[@octocat](https://example.com)", "[@&#8203;octocat](https://example.com)"),
    "a mention in a quote": ("> @octocat", "> @&#8203;octocat"),
    "a mention in a table": (
        "| `@a|b` | @octocat |\n|---|---|\n| `@octocat` | x |",
        "| `@&#8203;a|b` | @&#8203;octocat |\n|---|---|\n| `@&#8203;octocat` | x |",
    ),
    "a decorator in code": ("use `@property` here", "use `@property` here"),
    "a decorator in a fence": (
        "```python\n@property\ndef f(self) -> List<int>: ...\n```",
        "```python\n@property\ndef f(self) -> List<int>: ...\n```",
    ),
    "a fence in a list": (
        "- see\n  ```\n  @octocat <b>\n  ```\n- @octocat",
        "- see\n  ```\n  @octocat <b>\n  ```\n- @&#8203;octocat",
    ),
    "an open fence": ("```\n@octocat", "```\n@octocat\n```"),
    "an open fence of tildes": ("~~~~ text\n```\n<b>\n~~~", "~~~~ text\n```\n<b>\n~~~\n~~~~"),
    "an open fence that looks like a table": ("~~~ a | b\n|-|-|\n@octocat", "~~~ a | b\n|-|-|\n@octocat\n~~~"),
    "a closing keyword before an image": ("fixes ![#12](x)", "fixes !&#8203;[#&#8203;12](x)"),
    "a fence that code cannot open": ("``` a`b\n@octocat\n```\n", "``` a`b\n@&#8203;octocat\n```\n```"),
    "indented code": ("x\n\n    @octocat <b>", "x\n\n    @&#8203;octocat &lt;b>"),
    "a code span over two lines": ("`a\n<!-- b` @octocat", "`a\n&lt;!-- b` @&#8203;octocat"),
    "a stray backtick": ("` @octocat", "` @&#8203;octocat"),
    "an escaped backtick": ("\\`@octocat`", "\\`@&#8203;octocat`"),
    "backticks of unequal length": ("``@octocat` `<b>``", "``@octocat` `<b>``"),
    "more backticks than GitHub counts": ("`" * 81 + "@octocat" + "`" * 81, "`" * 81 + "@&#8203;octocat" + "`" * 81),
    "a backtick in the address of a link": ("[a](b`c) @octocat `d", "[a](b`c) @&#8203;octocat `d"),
    "a backtick in an address that is not allowed": (
        "[a](javascript:b`c) @octocat `d",
        "[a](javascript:b`c) @&#8203;octocat `d",
    ),
    "a backtick in angle brackets": ("[a](<b `c>) `@octocat`", "[a](&lt;b `c>) `@&#8203;octocat`"),
    "a backtick in a bare address": ("www.example.com/`x @octocat `y", "www.example.com/`x @&#8203;octocat `y"),
    "a backtick in mathematics": ("$`$ @octocat `x", "$`$ @&#8203;octocat `x"),
    "a backtick in a footnote's name": ("[^`]: x ` `@octocat`", "[^`]: x ` `@&#8203;octocat`"),
    "a backtick in a link's definition": ("[a]: b`c\n@octocat `d", "[a]: b`c\n@&#8203;octocat `d"),
    "a backtick in the name of a link": ("[a][b`c] `@octocat`\n\n[b`c]: x", "[a][b`c] `@&#8203;octocat`\n\n[b`c]: x"),
    "a backtick in a table that only GitHub sees": ("a `\n` `@octocat`\n:-", "a `\n` `@&#8203;octocat`\n:-"),
    "a closing keyword": (
        "This fixes #12 and closes: #13, Resolved #14",
        "This fixes #&#8203;12 and closes: #&#8203;13, Resolved #&#8203;14",
    ),
    "a closing keyword over a line": ("Fixes\n#12", "Fixes\n#&#8203;12"),
    "a closing keyword in emphasis": (
        "**Fixes** **#12** and fixes _#13_",
        "**Fixes** **#&#8203;12** and fixes _#&#8203;13_",
    ),
    "a closing keyword and a link": ("fixes [#12](https://example.com)", "fixes [#&#8203;12](https://example.com)"),
    "a closing keyword behind an escape": ("fixes \\#12", "fixes \\#&#8203;12"),
    "a closing keyword with an entity": (
        "fixes &#35;12 and f&#105;xes #12",
        "fixes &amp;#35;12 and f&amp;#105;xes #12",
    ),
    "a closing keyword for GH-": ("fix GH-12", "fix GH-&#8203;12"),
    "a reference without a keyword": (
        "like #12 and GH-12, not a fix for C#8",
        "like #12 and GH-12, not a fix for C#&#8203;8",
    ),
    "another repository": (
        "see octo/widgets#12 and octo/widgets\\#12",
        "see octo/widgets#&#8203;12 and octo/widgets\\#&#8203;12",
    ),
    "a link to an issue": (
        "fixes https://github.com/octo/widgets/issues/12",
        "fixes https://redirect.github.com/octo/widgets/issues/12",
    ),
    "a link to a pull request": (
        "[x](https://www.github.com/octo/widgets/pull/12#issue-1)",
        "[x](https://redirect.github.com/octo/widgets/pull/12#issue-1)",
    ),
    "a link to an issue elsewhere": (
        "https://github.example.com/octo/widgets/issues/12",
        "https://github.example.com/octo/widgets/issues/&#8203;12",
    ),
    "a link to a file": (
        "https://github.com/octo/widgets/blob/main/a.py",
        "https://github.com/octo/widgets/blob/main/a.py",
    ),
    "a forged marker": ("<!-- ptq:report=0123456789 -->", "&lt;!-- ptq:report=0123456789 -->"),
    "details": (
        "<details><summary>x</summary>\n\nhidden\n</details>",
        "&lt;details>&lt;summary>x&lt;/summary>\n\nhidden\n&lt;/details>",
    ),
    "an HTML image": ('<img src="https://evil.example/x.png">', '&lt;img src="https://evil.example/x.png">'),
    "an escaped angle bracket": ("a \\< b", "a &lt; b"),
    "an autolink": ("<https://example.com/@octocat>", "&lt;https://example.com/@&#8203;octocat>"),
    "an image": (
        "![alt](https://evil.example/x.png) and \\![a][b]",
        "!&#8203;[alt](https://evil.example/x.png) and \\!&#8203;[a][b]",
    ),
    "an image with a space in its code": ("[a](b![`c) @octocat `d", "[a](b!&#8203;[`c) @&#8203;octocat `d"),
    "a command": (
        "/ptq fix\n  /close\n- /lgtm\n> /ptq cancel\nsee /ptq help",
        "\\/ptq fix\n  \\/close\n- \\/lgtm\n> \\/ptq cancel\nsee /ptq help",
    ),
    "a path at the start of a line": ("/usr/lib is a path", "\\/usr/lib is a path"),
    "field labels": (
        "Summary: x\nTest Plan:\n  Reviewers: @a\n**Differential Revision:** D1\n- Tags: a",
        "Summary\\: x\nTest Plan\\:\n  Reviewers\\: @&#8203;a\n**Differential Revision\\:** D1\n- Tags\\: a",
    ),
    "trailers": (
        "Signed-off-by: x\nCo-authored-by: y\nReviewed By: z\nChange-Id: 1",
        "Signed-off-by\\: x\nCo-authored-by\\: y\nReviewed By\\: z\nChange-Id\\: 1",
    ),
    "no field label": ("In Summary: x\nSummary of it", "In Summary: x\nSummary of it"),
    "a bidirectional override": (
        "a\u202eb `c\u202ed`\n\n```\n\u2066\n```",
        "a\u27e8U+202E\u27e9b `c\u27e8U+202E\u27e9d`\n\n```\n\u27e8U+2066\u27e9\n```",
    ),
    "zero-width characters": ("@\u200boctocat fi\u200dxes #1", "@\u27e8U+200B\u27e9octocat fi\u27e8U+200D\u27e9xes #1"),
    "a tag character": ("x\U000e0041", "x\u27e8U+E0041\u27e9"),
    "control characters": ("a\x1b[31m\x00", "a\u27e8U+001B\u27e9[31m\u27e8U+0000\u27e9"),
    "CRLF": ("a\r\n/ptq fix\r/ptq fix", "a\n\\/ptq fix\n\\/ptq fix"),
    "an innocent report": (
        "### Done\n\nThe loop in `a.py` ended *early*; 3 < 4 & 5.\n\n1. One\n\n| a | b |\n|---|---|\n| 1 | 2 |",
        "### Done\n\nThe loop in `a.py` ended *early*; 3 &lt; 4 & 5.\n\n1. One\n\n| a | b |\n|---|---|\n| 1 | 2 |",
    ),
}

TITLES: dict[str, tuple[str, str]] = {
    "words that switch CI off": ("Keep it [skip ci]", "Keep it (skip ci)"),
    "two lines": ("Fix\r\nthe\tloop\n\n now", "Fix the loop now"),
    "a mention": ("Ask @octocat and @@octocat, not me@example.com", "Ask octocat and octocat, not me@example.com"),
    "a closing keyword": (
        "Fix #12: crash, resolves octo/widgets#3, closes GH-4",
        "Fix 12: crash, resolves octo/widgets 3, closes GH 4",
    ),
    "no closing keyword": ("Crash (#12) after fix 3", "Crash (#12) after fix 3"),
    "a link to an issue": (
        "fixes https://github.com/octo/widgets/issues/12",
        "fixes https://github.com/octo/widgets/issues/ 12",
    ),
    "a command": ("/ptq fix this", "ptq fix this"),
    "a command behind a mention": ("/@ptq fix", "ptq fix"),
    "a path": ("/usr/lib is missing", "/usr/lib is missing"),
    "a bidirectional override": ("a\u202eb\x1b", "a\u27e8U+202E\u27e9b\u27e8U+001B\u27e9"),
    "line separators": ("a\u2028b\x0bc", "a b c"),
    "a long one": (
        "word word word word word word word word word word word word word word word word word word word word ",
        "word word word word word word word word word word word word\u2026",
    ),
    "nothing": (" \n ", ""),
}
