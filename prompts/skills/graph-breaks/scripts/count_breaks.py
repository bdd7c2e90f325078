"""Count the graph breaks and recompiles of a script: `python count_breaks.py SCRIPT [ARGUMENT ...]`.

It runs the script with `TORCH_LOGS=graph_breaks,recompiles` and sums up what that prints: a line for each place and
reason, how often (a break cuts each caller that inlined the place), and whether a whole function fell back to eager.
Exit status 3 when the script itself failed.
"""

import collections
import os
import re
import subprocess
import sys

PREFIX = re.compile(r"^.*\[__(graph_breaks|recompiles)\] ?")
PLACE = re.compile(r"Graph break (?:\(.*\) )?in user code at (.+)$")
RECOMPILE = re.compile(r"Recompiling function (.+)$")
GUARD = re.compile(r"- \d+/\d+: (.+?)(\s+#.*)?$")
WRAPPERS = ("Encountered graph break when", "Failed to handle graph break gracefully")
EAGER = "falling back to eager"


def main(arguments):
    """Run the script, and print what its log amounts to."""
    if not arguments:
        sys.exit(__doc__)
    env = {**os.environ, "TORCH_LOGS": "graph_breaks,recompiles"}
    done = subprocess.run([sys.executable, *arguments], env=env, stderr=subprocess.PIPE, text=True, errors="replace")
    counts = collections.Counter(describe(message) for message in split_messages(done.stderr))
    for what, count in sorted(counts.items()):
        print(f"{count:4}  {what}")
    breaks = [count for what, count in counts.items() if what.startswith("break")]
    print(f"{sum(breaks)} graph breaks in {len(breaks)} places")
    if done.returncode:
        sys.stderr.write(done.stderr[-2000:])
        sys.exit(3)


def split_messages(text):
    """The messages of the log, each as its lines without what the logger puts in front."""
    message = []
    for line in text.splitlines():
        if not PREFIX.match(line):
            continue
        line = PREFIX.sub("", line)
        if (PLACE.search(line) or RECOMPILE.search(line)) and message:
            yield message
            message = []
        message.append(line)
    if message:
        yield message


def describe(message):
    """One message as one line."""
    if found := RECOMPILE.search(message[0]):
        guards = (GUARD.search(line) for line in message)
        return f"recompile {found[1]}: {next((guard[1] for guard in guards if guard), '?')}"
    place = PLACE.search(message[0])
    said = [line.replace("Graph Break Reason:", "").strip() for line in message[1:]]
    reason = next((line for line in said if line and not line.startswith(WRAPPERS)), "?")
    eager = " [whole function in eager]" if any(EAGER in line for line in said) else ""
    return f"break {place[1] if place else '?'}: {reason}{eager}"


if __name__ == "__main__":
    main(sys.argv[1:])
