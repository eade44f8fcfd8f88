"""JPEGs that `Image.open` gives before they are decoded. One call of ddlp's kernel decodes and transforms them later.

`install` makes Pillow give them instead of its own images in the calling process. Code that opens and transforms images need
not change, and its pixels stay the same. This package uses neither torch nor a loader: `ddlp.sources.host` calls `install` in
its workers.
"""

from ddlp.postponed.opening import install, installed, uninstall, why_not

__all__ = ["install", "installed", "uninstall", "why_not"]
