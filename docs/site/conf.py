# SPDX-License-Identifier: BSL-1.0
"""The site of ./run docs: the pages as they stand in the repository, whose links lead from file to file, by Sphinx and
MyST."""
import pathlib
import re

root = pathlib.Path(__file__).resolve().parents[2]
numbers = re.findall(r"define ESPALIER_VERSION_\w+ (\d+)", (root / "include/espalier/version.hpp").read_text())

project = "Espalier"
author = "The Espalier developers"
version = release = ".".join(numbers)
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", ".github/S*.md", ".github/C*.md", "docs/**.md", "examples/**.md", "tests/**.md"]
exclude_patterns = ["build", "build-*"]
myst_heading_anchors = 6
# Code stays as it is where a lexer does not know all of it. Pages that are read from other pages alone are in no
# table of contents.
suppress_warnings = ["misc.highlighting_failure", "toc.not_included", "myst.header"]

html_theme = "furo"
html_title = f"Espalier {release}"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False


def add_contents(app, docname, source):
    """Adds a table of contents: to the README the pages that it ends with; to a page with a folder of its name, and to
    the README of a folder of docs, the pages there that it links to, but for those that a benchmark recorded."""
    entries = []
    if docname == root_doc:
        more = source[0].split("## Read more")[1]
        if app.tags.has("reference"):
            source[0] = source[0].replace("- Reference of all", '- <a href="reference/index.html">Reference</a> of all')
        entries = list(dict.fromkeys(re.findall(r"\]\(([^)#]+)\.md(?:#[^)]*)?\)", more))) + ["CHANGELOG"]
    elif docname.startswith("docs/") and (docname.endswith("/README") or (root / docname).is_dir()):
        inside = "" if docname.endswith("/README") else docname.split("/")[-1] + "/"
        links = dict.fromkeys(re.findall(rf"\]\(({inside}[^)#/:]+)\.md", source[0]))
        pages = {link: (root / docname).parent / f"{link}.md" for link in links}
        entries = [link for link, page in pages.items() if not page.read_text().startswith("<!--")]
    if entries:
        source[0] += "\n\n```{toctree}\n:hidden:\n:maxdepth: 2\n\n" + "\n".join(entries) + "\n```\n"


def unlink_folders(app, docname, source):
    """Makes a link to a folder, which is no page, a link to its README, or plain text."""

    def changed(link):
        folder = (root / docname).parent / link[2]
        if not folder.is_dir():
            return link[0]
        return f"[{link[1]}]({link[2]}/README.md)" if (folder / "README.md").exists() else link[1]

    source[0] = re.sub(r"\[([^]]+)\]\(([^)#:]+)\)", changed, source[0])


def setup(app):
    app.connect("source-read", add_contents)
    app.connect("source-read", unlink_folders)
