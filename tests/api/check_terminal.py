# SPDX-License-Identifier: Apache-2.0
"""hzpserve chat on a terminal; test_chat.py runs what is here."""
import contextlib
import os
import pathlib
import pty
import select
import tempfile
import time

import test_api as base
from test_api import Server


class Terminal:
    """hzpserve chat on a terminal; says() waits for a text on its screen, asks() for a prompt."""

    def __init__(self, *arguments, home, lang="C"):
        env = {**os.environ, "TERM": "xterm", "LC_ALL": lang, "HOME": home, "XDG_STATE_HOME": ""}
        self.seen = b""
        self.child, self.fd = pty.fork()
        if not self.child:
            os.execve(base.BINARY, [base.BINARY, "chat", *arguments], env)
        self.says("/help lists commands")
        self.asks()

    def says(self, text):
        end = time.monotonic() + base.HANG
        while text.encode() not in self.seen:
            assert time.monotonic() < end, (text, self.seen)
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.fd, 4096)
                except OSError as e:  # it has ended
                    raise AssertionError((text, self.seen)) from e
        self.seen = self.seen[self.seen.index(text.encode()) + len(text.encode()):]

    def asks(self):
        """Waits until a line can be typed: '> ' alone may also end an answer."""
        self.says("\033[?2004h")
        self.says("> ")

    def types(self, text):
        os.write(self.fd, text.encode())

    def ends(self):
        self.types("/quit\r")
        with contextlib.suppress(OSError):
            while os.read(self.fd, 4096):
                pass
        os.close(self.fd)
        status = os.waitpid(self.child, 0)[1]
        assert status == 0, status


def test_terminal():
    """On a terminal what is typed arrives whole, Ctrl-C clears the line, a pasted text is one, commands are completed,
    and the next run has the history."""
    if b"libedit" not in pathlib.Path(base.BINARY).read_bytes():
        return print("built without libedit: not tried")
    with tempfile.TemporaryDirectory() as home, tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        # The server answers with what it was asked.
        file.write("{% if messages[-1].content != '.' %}{{ raise_exception('asked <' ~ messages[-1].content | tojson"
                   " ~ '>') }}{% endif %}")
        file.flush()
        with Server("--no-train", "--chat-template", file.name) as server:
            for lang in ("C", "C.UTF-8"):
                on = Terminal(server.url, home=home, lang=lang)
                on.types("Köln, 東京 – ist's weit?\r")
                on.says('asked <"Köln, 東京 – ist')
                on.asks()
                on.types("not this\x03")
                on.asks()
                on.types("but this\r")
                on.says('asked <"but this">')
                on.asks()
                on.types("\033[200~one\rtwo\nthree\033[201~ and four\r")
                on.says('asked <"one\\ntwo\\nthree and four">')
                on.asks()
                on.types("/ver\t\r")
                on.says("version 1 serves")
                on.asks()
                on.ends()
            on = Terminal(server.url, home=home)
            for _ in range(4):  # /quit, /version, the pasted text, "but this"
                on.types("\033[A")
            on.types("!\r")
            on.says('asked <"but this!">')
            on.asks()
            on.ends()
            assert (pathlib.Path(home) / ".local/state/hzpserve/chat_history").stat().st_mode & 0o77 == 0
