"""libjpeg's structures as our libjpeg.h and layout.h describe them, compared with its own header, if that is installed."""

import re
import subprocess
from pathlib import Path

import pytest

from csd_engine.kernels.build import SOURCES
from tests.needs import need

HEADERS = [Path(SOURCES, "jpeg", name) for name in ("libjpeg.h", "layout.h")]
STRUCTURES = {  # our name: libjpeg's name
    "jpeg_errors": "struct jpeg_error_mgr",
    "jpeg_source": "struct jpeg_source_mgr",
    "jpeg_component": "jpeg_component_info",
    "jpeg_decompress": "struct jpeg_decompress_struct",
}
# Instead of jconfig.h, whose contents depend on processor and distribution.
CONFIG = """
#define JCONFIG_INCLUDED
#define BITS_IN_JSAMPLE 8
#define MEM_SRCDST_SUPPORTED 1
"""


def fields(structure: str, abi: int) -> list[str]:
    """The names of the structure's fields, from our header."""
    text = re.sub(r"/\*.*?\*/", "", "".join(header.read_text() for header in HEADERS), flags=re.S)
    text = re.sub(r"#if LIBJPEG_ABI >= (\d+)\n(.*?)(?:#else\n(.*?))?#endif",
                  lambda m: m[2] if abi >= int(m[1]) else m[3] or "", text, flags=re.S)  # fmt: skip
    body = re.search(rf"typedef struct \{{((?:(?!typedef).)*?)\}} {structure};", text, flags=re.S) or re.search(
        rf"struct {structure} \{{(.*?)\n\}};", text, flags=re.S
    )
    assert body
    flat = re.sub(r"union \{.*?\}", "int", body[1], flags=re.S)
    flat = re.sub(r"\(\*(\w+)\)(\([^)]*\)|\[\d+\])", r"\1", flat)
    return [
        re.search(r"(\w+)\s*(\[\d+\])?$", part.strip())[1]  # type: ignore[index]
        for line in flat.split(";")
        for part in line.split(",")
        if part.strip()
    ]


@pytest.mark.parametrize("abi", [62, 80])
def test_every_field_lies_where_libjpeg_has_it(tmp_path, abi):
    need("cc", "/usr/include/jpeglib.h")
    probe = "#include <stddef.h>\n#include <stdio.h>\n#include <jpeglib.h>\n"
    printed = {}
    for whose in (0, 1):
        lines = []
        for ours, theirs in STRUCTURES.items():
            name = theirs if whose else ours
            names = fields(ours, abi)
            assert len(names) > 5
            lines.append(f'printf("{ours} %zu\\n", sizeof({name}));')
            lines += [f'printf("{ours}.{f} %zu %zu\\n", offsetof({name}, {f}), sizeof((({name} *)0)->{f}));' for f in names]
        head = CONFIG + f"#define JPEG_LIB_VERSION {abi}\n" + probe
        if not whose:
            head = f'#include <stdio.h>\n#define LIBJPEG_ABI {abi}\n#define JPEG_LAYOUT layout\n#include "jpeg/layout.h"\n'
        source = tmp_path / f"{whose}.c"
        source.write_text(head + "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
        subprocess.run(["cc", "-I", SOURCES, "-o", str(tmp_path / str(whose)), str(source)], check=True)
        printed[whose] = subprocess.run([str(tmp_path / str(whose))], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert printed[0].splitlines() == printed[1].splitlines()
    assert len(printed[0].splitlines()) > 100
