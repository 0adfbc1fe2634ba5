"""MkDocs' hooks: pages that lie outside docs/, and links to source files."""

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "pages"))  # MkDocs loads this file by its path

from site_parts import source_address  # noqa: E402

FROM_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
"""Files of the repository that are pages of the site, too."""

_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that lie in the repository's root."""
    for name, page in FROM_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links to files outside docs/ lead somewhere."""
    path = page.file.src_uri
    written = "." if path in FROM_ROOT.values() else posixpath.dirname(posixpath.join("docs", path))
    return _LINK.sub(lambda link: link[1] + _target(link[2], written, path) + link[3], markdown)


def _target(link: str, written: str, page: str) -> str:
    """Return where a link leads on the site; ``written`` is the folder from which it counts in the repository."""
    target = posixpath.normpath(posixpath.join(written, link))
    if target in FROM_ROOT:
        target = posixpath.join("docs", FROM_ROOT[target])
    if target.startswith("docs/"):
        return posixpath.relpath(target.removeprefix("docs/"), posixpath.dirname(page) or ".")
    return source_address(target) if (ROOT / target).exists() else link
