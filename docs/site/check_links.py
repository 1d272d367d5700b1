# SPDX-License-Identifier: BSL-1.0
"""check_links.py FOLDER: names each link of the pages in FOLDER that leads to no file there, or to no place on its
page."""
import pathlib
import sys
import urllib.parse
from html.parser import HTMLParser


class Page(HTMLParser):
    """The places of a page, and where its links lead."""

    def __init__(self, text):
        super().__init__()
        self.places, self.links = {""}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag, name) == ("a", "name"):
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


folder = pathlib.Path(sys.argv[1]).resolve()
pages = {
    path: Page(path.read_text())
    for path in folder.rglob("*.html")
    if "reference" not in path.relative_to(folder).parts
}
n_links = 0
broken = []
for path, page in pages.items():
    for link in page.links:
        url = urllib.parse.urlsplit(link)
        if url.scheme or url.netloc:
            continue
        n_links += 1
        target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
        place = urllib.parse.unquote(url.fragment)
        if not target.exists() or (target in pages and place not in pages[target].places):
            broken.append(f"{path.relative_to(folder)}: {link}")
print(f"{len(pages)} pages, {n_links} links, {len(broken)} of them broken")
print("\n".join(sorted(set(broken))))
sys.exit(bool(broken) or not n_links)
