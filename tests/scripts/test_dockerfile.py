"""The reader of Dockerfiles: what holds at each line, and what it refuses."""

from __future__ import annotations

import pytest

from scripts.dockerfile import Copy, DockerfileError, Run, parse


def test_each_step_has_what_holds_at_its_line():
    first, last = parse(
        """# a comment
FROM debian:bookworm-slim AS made
WORKDIR /made
COPY one two there

FROM debian:bookworm-slim
RUN echo one \\
    # between
    && echo two
ENV A=1 B="2 3"
USER 5:6
RUN touch $A
COPY --from=made /made/there .
STOPSIGNAL SIGINT
ENTRYPOINT ["a", "--b"]
CMD ["c d"]
"""
    )
    assert (first.base, first.name) == ("debian:bookworm-slim", "made")
    assert first.steps == [Copy("", ("one", "two"), "there", "/made")]
    assert last.steps == [
        Run("echo one      && echo two", "0:0", "/", {}),
        Run("touch $A", "5:6", "/", {"A": "1", "B": "2 3"}),
        Copy("made", ("/made/there",), ".", "/"),
    ]
    assert (last.entrypoint, last.command, last.stop_signal, last.user) == (("a", "--b"), ("c d",), "SIGINT", "5:6")


@pytest.mark.parametrize(
    "text, said",
    (
        ("", "no FROM"),
        ("RUN true", "before the first FROM"),
        ("FROM a as b", "only FROM IMAGE"),
        ("FROM a\nADD b c", "ADD is not known"),
        ("FROM a\nWORKDIR b", "WORKDIR is not known"),
        ("FROM a\nCOPY --chown=1 b c", "only COPY"),
        ("FROM a\nCOPY b", "only COPY"),
        ("FROM a\nENV A 1", "only ENV NAME=VALUE"),
        ("FROM a\nENTRYPOINT python3 -m csd_engine", r'write it as \["program"'),
        ("FROM a\nCMD [1]", r'write it as \["program"'),
    ),
)
def test_what_is_not_known_is_refused(text, said):
    with pytest.raises(DockerfileError, match=said):
        parse(text)
