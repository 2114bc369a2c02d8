#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`meson install` into an empty folder: all files are there, pages parse, and the installed program
serves the bundled model.

    test_install.py BUILD_DIR PREFIX
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

HANG = 600  # seconds


def check(*command):
    """Runs a program, which must end with 0 and write nothing to standard error; absent: skipped."""
    if not shutil.which(command[0]):
        print(f"{command[0]} is not there: {command[-1]} is not checked by it")
        return
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0 and not done.stderr.strip(), f"{command}: {done.returncode}: {done.stderr}"
    print(" ".join(map(str, command[:-1])), pathlib.Path(command[-1]).name)


def complete_word(bash_file, *words):
    """The completions that bash offers for the last word of a command line."""
    script = f'source "{bash_file}"; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; ' \
             '_hzpserve; printf "%s\\n" "${COMPREPLY[@]}"'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()


def zsh_words(zsh_file, *words):
    """What the file gives to zsh's completion functions for a command line: one word a line."""
    script = f'_arguments() {{ print -rl -- "$@" }}; _describe() {{ print -rl -- $commands }}; ' \
             f'words=({" ".join(words)}); CURRENT={len(words)}; source "{zsh_file}"'
    done = subprocess.run(["zsh", "-fc", script], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0 and not done.stderr, f"{zsh_file}: {done.returncode}: {done.stderr}"
    return done.stdout.splitlines()


def check_zsh(zsh_file):
    """Every command is offered, and each of its options has a description and, if it needs one, a value."""
    commands = [line.split(":")[0] for line in zsh_words(zsh_file, "hzpserve", "''")]
    assert {"serve", "train", "bench"} <= set(commands), commands
    commands.remove("help")
    (topics,) = zsh_words(zsh_file, "hzpserve", "help", "''")
    assert re.fullmatch(r"1:topic:\(.*\bserve\b.*\btraining\b.*\)", topics), topics
    for command in commands:
        options = zsh_words(zsh_file, "hzpserve", command, "--")
        assert options.pop() == "*:file:_files" and options, (command, options)
        for option in options:
            # --name[text] or --name[text]:meta:action, brackets and colons of the text escaped
            assert re.fullmatch(r"--[a-z0-9-]+\[(\\.|[^][:\\])+\](:(\\.|[^:\\])+:.+)?", option), option
    assert any(option.startswith("--admission[") and option.endswith(":(predicted worst-case)")
               for option in zsh_words(zsh_file, "hzpserve", "serve", "--"))


def serve(program, model, state):
    process = subprocess.Popen([program, "serve", model, "--port", "0", "--state", state],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            found = re.search(r"at (http://127\.0\.0\.1:\d+)", line)
            if found:
                break
        else:
            raise AssertionError("it does not serve: " + process.stderr.read())
        body = b'{"prompt": "Where does", "max_tokens": 4, "temperature": 0}'
        request = urllib.request.Request(found[1] + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            assert b'"text"' in answer.read()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANG)
    assert process.returncode == 0, f"SIGTERM: status {process.returncode}"


def main():
    build, prefix = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet"], check=True, timeout=HANG,
                       env=dict(os.environ, DESTDIR=folder + "/root"), stdout=subprocess.DEVNULL)
        root = pathlib.Path(folder + "/root" + prefix)
        program, share = root / "bin/hzpserve", root / "share"
        unit = root / "lib/systemd/system/hzpserve.service"
        pages = [share / "man/man1/hzpserve.1", share / "bash-completion/completions/hzpserve",
                 share / "zsh/site-functions/_hzpserve"]
        model = share / "hzpserve/models/world"
        for path in [program, unit, *pages, model / "model.safetensors", model / "serve.options",
                     *(share / "doc/hzpserve" / name for name in ("LICENSE", "README.md", "docs/API.md"))]:
            assert path.is_file() and path.stat().st_size > 0, f"{path} is not installed"

        check("man", "--warnings", "-l", pages[0])
        check("groff", "-man", "-ww", "-z", pages[0])
        check("bash", "-n", pages[1])
        check("zsh", "-n", pages[2])
        if shutil.which("zsh"):
            check_zsh(pages[2])
        if shutil.which("bash"):
            assert "serve" in complete_word(pages[1], "hzpserve", "s")
            assert complete_word(pages[1], "hzpserve", "serve", "--admis") == ["--admission"]
            assert complete_word(pages[1], "hzpserve", "help", "trainin") == ["training"]
            assert complete_word(pages[1], "hzpserve", "serve", "--admission", "p") == ["predicted"]
        text = unit.read_text()
        assert f"ExecStart={prefix}/bin/hzpserve serve" in text and "@" not in \
            text.replace("@system-service", ""), "the unit names no installed program"

        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        assert re.match(r"hzpserve \S+\ncommit (unknown|[0-9a-f]+)\nbackends .*\bcpu\b.*\n$", version), version
        serve(program, model, folder + "/state")
    print("installed, and served from there")


if __name__ == "__main__":
    main()
