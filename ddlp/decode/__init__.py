"""JPEGs that `Image.open` gives before they are decoded. One call of ddlp's kernel decodes and transforms them later.

`install` makes Pillow give them instead of its own images in the calling process, `Here` in one thread for a time. Code that
opens and transforms images need not change, and its pixels stay the same. This room imports neither torch nor a loader: any
process can have it in a few milliseconds.
"""

from ddlp.decode.opening import Here, in_forks, install, installed, not_here, uninstall, why_not
from ddlp.decode.savings import Savings, count_in, total

__all__ = [
    "Here", "Savings", "count_in", "in_forks", "install", "installed", "not_here", "total", "uninstall", "why_not",
]  # fmt: skip
