"""Record `make demo` as a picture for the README: docs/demo.svg. Run it with the project's own Python."""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 128


def record() -> bytes:
    """The demo's output as a terminal shows it."""
    shown = bytearray()

    def read(handle: int) -> bytes:
        data = os.read(handle, 65536)
        shown.extend(data)
        return data

    status = pty.spawn([sys.executable, str(ROOT / "examples" / "demo.py")], read)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit("the demo failed; nothing was recorded")
    return bytes(shown)


def main() -> None:
    text = Text.from_ansi(record().decode().replace("\r\n", "\n").strip("\n"))
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(text, soft_wrap=False, overflow="ellipsis", no_wrap=True)
        picture = console.export_svg(title="make demo")
    # A browser that shows the picture must not fetch fonts from anywhere.
    (ROOT / "docs" / "demo.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))


if __name__ == "__main__":
    main()
