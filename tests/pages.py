"""Read the pages of reports: check that they are valid, and find what they contain."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "hr", "input", "source"}


class Reader(HTMLParser):
    """Checks that tags close in order, and keeps ids, references and text."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.references, self.texts = [], [], [], []

    @classmethod
    def of(cls, page):
        """What a page holds, once it was read to its end."""
        reader = cls()
        reader.feed(page)
        assert not reader.open
        return reader

    @property
    def text(self):
        """All that is written, with single spaces."""
        return " ".join("".join(self.texts).split())

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self._keep(attrs)

    def handle_startendtag(self, tag, attrs):
        self._keep(attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def _keep(self, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "srcset", "xlink:href"):
                self.references.append(value)
            self.references += re.findall(r"url\(([^)]*)\)", value or "")


class FrameReader(Reader):
    """Keeps the attributes of the frame that a notebook shows."""

    frame = ()

    def handle_starttag(self, tag, attrs):
        super().handle_starttag(tag, attrs)
        if tag == "iframe":
            self.frame = attrs
