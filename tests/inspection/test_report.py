"""The report of an inspection: the page, its files, and what is refused."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from codingrate.inspection import Finding, InspectionReport, Outcome, Panel, Sample, Score, Verdict
from codingrate.inspection.report import inspecting
from codingrate.inspection.report.panel import Plots, curve
from tests.pages import FrameReader, Reader
from tests.refusals import refused


def draw(figure):
    figure.set_size_inches(3, 2)
    figure.subplots().plot([0, 1], [1, 0])


TABLE = pd.DataFrame({"layer": [1, 2], "share <%>": [0.123456789, np.nan], "name": ["a & b", "c"]})
FINDINGS = [Finding("R^c", "R^c falls", Verdict.agrees), Finding("x", "x rises", Verdict.differs)]
PANELS = [
    Panel("rates", "Rates <first>", "Z^{ℓ+½} & R^c fall (4.2).", "U_1 and below_0.1 rise.", draw, TABLE, FINDINGS),
    Panel("words", "Only words", "", "Nothing to draw."),
    Panel("numbers", "Only numbers", "Some.", "Others.", None, pd.DataFrame({"x": np.arange(3, dtype=np.int64)})),
]
FACTS = {"Model": {"parameters": 1234567, "config": {"hidden_size": 5}}, "Recipe of a": "task: <x>\nrun: y\n"}
NOTES = ["A note < here."]
OUTCOME = Outcome(
    [Score("Top-1 accuracy", 0.89, True, 0.1, "most frequent class", True)],
    [Sample("日本語 (true: 猫)", False, [Image.new("L", (8, 8))])],
    "Predictions",
)
REPORT = InspectionReport("In & out", PANELS, FACTS, NOTES, outcome=OUTCOME)


@pytest.mark.parametrize("higher", [False, True])
def test_a_score_equal_to_its_baseline_is_not_called_better(higher):
    def comparison(value):
        return re.sub(
            r"[\d.]+", "", Score("loss", value, baseline=0.5, baseline_name="x", higher_is_better=higher).text
        )

    lower, equal, above = comparison(0.25), comparison(0.5), comparison(0.75)
    better, worse = (above, lower) if higher else (lower, above)
    assert better not in (equal, worse)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "out"
    calls = []
    assert REPORT.save(str(folder), lambda: calls.append(1)) == folder
    assert len(calls) == 3
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


def test_every_reference_is_on_the_page_or_a_file_beside_it(folder, page):
    read = Reader.of(page)
    assert len(read.ids) == len(set(read.ids))
    for reference in read.references:
        if reference.startswith("#"):
            assert reference[1:] in read.ids
        elif not reference.startswith("data:image/"):
            assert (folder / reference).is_file()
    assert {"rates", "words", "numbers", "fact-model", "fact-recipe-of-a"} <= set(read.ids)
    assert "<script" not in page


def test_contents_sentences_facts_and_notes_are_there(page):
    text = Reader.of(page).text
    for words in (
        "In & out",
        "A note < here.",
        "The paper: Zℓ+½ & Rc fall (4.2).",
        "Measured: U1 and below_0.1 rise.",
        "Measured: Nothing to draw.",
        "Verdict: agrees in part.",
        "Top-1 accuracy: 89.00%, better than the baseline (most frequent class: 10.00%).",
        "日本語 (true: 猫)",
        "1,234,567",
        "hidden_size: 5",
        "task: <x> run: y",
        "0.1235",
        "–",
    ):
        assert words in text
    assert text.count("Rates <first>") - 1 == text.count("Only words") == 2  # in the contents and above the section
    assert text.index("Summary") < text.index("A note < here.") < text.index("Only words")
    assert text.count("The paper:") == 2
    assert "Z<sup>ℓ+½</sup>" in page
    assert "U<sub>1</sub>" in page
    assert page.count("<img") == page.count("<figure>") == 3  # a sample, and a panel in the summary and below
    assert 'alt="Rates &lt;first&gt;"' in page
    assert page.count("<details>") == 3  # two tables and a config


def test_files_hold_all_numbers_and_figures(folder):
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    tables = ["tables/numbers.csv", "tables/rates.csv"]
    assert files == ["figures/rates.png", "figures/rates.svg", "report.html", "report.json", *tables]
    pd.testing.assert_frame_equal(pd.read_csv(folder / "tables/rates.csv"), TABLE)
    with Image.open(folder / "figures/rates.png") as image:
        assert image.size == (450, 300)
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert (folder / "figures/rates.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_json_holds_every_number_and_null_for_what_is_none(folder):
    found = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert found == REPORT.to_dict()
    assert found["title"] == "In & out"
    assert found["notes"] == NOTES
    assert found["facts"]["Model"] == FACTS["Model"]
    assert list(found["panels"]) == ["rates", "words", "numbers"]
    assert found["panels"]["rates"]["expected"] == PANELS[0].expected
    assert found["panels"]["rates"]["verdict"] == "agrees in part"
    assert [finding["verdict"] for finding in found["panels"]["rates"]["findings"]] == ["agrees", "does not agree"]
    assert found["summary"]["scores"][0]["baseline"] == 0.1
    assert found["summary"]["samples"][0]["caption"] == "日本語 (true: 猫)"
    assert found["summary"]["key_panels"] == {"rates": "agrees in part"}
    assert found["panels"]["rates"]["table"][0] == {"layer": 1, "share <%>": 0.123456789, "name": "a & b"}
    assert found["panels"]["rates"]["table"][1]["share <%>"] is None
    assert found["panels"]["words"]["table"] is None
    infinite = [Panel("p", "", "", "", None, pd.DataFrame({"x": [np.float32(0.5), np.inf]}))]
    assert InspectionReport("", infinite).to_dict()["panels"]["p"]["table"] == [{"x": 0.5}, {"x": None}]


def test_a_long_table_is_cut_on_the_page_only(tmp_path, monkeypatch):
    monkeypatch.setattr(inspecting, "ROWS", 4)
    panel = Panel("long", "Long", "", "", None, pd.DataFrame({"x": range(1000, 1011)}))
    page = (InspectionReport("Long", [panel]).save(tmp_path) / "report.html").read_text(encoding="utf-8")
    text = Reader.of(page).text
    assert "Numbers: 11 rows, of which the first 4 are shown" in text
    assert "1003" in text
    assert "1004" not in text
    assert len(pd.read_csv(tmp_path / "tables/long.csv")) == 11


def test_a_report_takes_the_place_of_another_and_of_nothing_else(tmp_path):
    folder = tmp_path / "out"
    REPORT.save(folder)
    (folder / "own.txt").write_text("mine")
    InspectionReport("Second", PANELS[1:2]).save(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "figures", "own.txt", "report.html", "report.json", "tables",
    ]  # fmt: skip
    assert not list((folder / "figures").iterdir())
    (tmp_path / "paper" / "figures").mkdir(parents=True)
    message = "has figures or tables of something else than a report; give another folder"
    refused(message, REPORT.save, tmp_path / "paper")
    assert [path.name for path in (tmp_path / "paper").iterdir()] == ["figures"]


def test_a_figure_that_fails_leaves_what_was_there(tmp_path):
    def broken(figure):
        raise RuntimeError("no ink")

    REPORT.save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RuntimeError, match="no ink"):
        InspectionReport("Second", [*PANELS, Panel("broken", "", "", "", broken)]).save(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_two_panels_of_one_name_are_refused(tmp_path):
    message = "two panels of the report have the name 'words'"
    refused(message, InspectionReport("Twice", [PANELS[1], PANELS[1]]).save, tmp_path)


def test_a_notebook_shows_the_page_in_a_frame_of_its_own():
    html = REPORT._repr_html_()
    assert html.strip().startswith("<iframe")
    page = dict(FrameReader.of(html).frame)["srcdoc"]
    read = Reader.of(page)
    assert "Measured: U1 and below_0.1 rise." in read.text
    assert all(reference.startswith(("#", "data:")) for reference in read.references), "no file lies beside a notebook"


def test_tables_are_aligned_by_what_they_hold(page):
    assert page.count('class="dataframe numbers"') == 1  # the other table has a column of words
    assert "a &amp; b" in page


# Names that would be markup

HOSTILE = [
    'x" onmouseover="alert(1)',
    "x' onfocus='alert(1)' autofocus='",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "&quot; onclick=&quot;alert(1)",
    "]]><!--",
    "R^{<b onclick=alert(1)>}",
    "Z_<",
    "\u202e\x07",
]
TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "section", "div", "figure", "img",
    "figcaption", "span", "strong", "br", "nav", "ul", "li", "a", "details", "summary", "table", "thead", "tbody",
    "tr", "th", "td", "pre", "sup", "sub",
}  # fmt: skip
ATTRIBUTES = {
    "lang",
    "charset",
    "http-equiv",
    "content",
    "name",
    "id",
    "href",
    "src",
    "alt",
    "class",
    "style",
    "border",
}


class Markup(Reader):
    """Keeps every tag with its attributes."""

    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attrs):
        super().handle_starttag(tag, attrs)
        self.tags.append((tag, dict(attrs)))


def hostile_report(name, plot=None):
    """Return a report with a name wherever one can come from a file, a folder, a class or a token."""
    table = pd.DataFrame({"layer": [1], name: [name]})
    panel = Panel("rates", f"Rates of {name}", name, name, plot, table, [Finding(name, name, Verdict.agrees)])
    outcome = Outcome(
        [Score(name, 0.5, True, 0.1, name, True)],
        [Sample(name, True, [Image.new("L", (4, 4))]), Sample(name, None, (), name, name)],
        name,
    )
    facts = {f"Model {name}": {name: name, "config": {name: name}}, f"Recipe of {name}": name}
    return InspectionReport(name, [panel], facts, [name], outcome=outcome)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_and_never_markup(tmp_path, name):
    folder = hostile_report(name).save(tmp_path / "out")
    page = (folder / "report.html").read_text(encoding="utf-8")
    read = Markup.of(page)
    for tag, attributes in read.tags:
        assert tag in TAGS
        assert attributes.keys() <= ATTRIBUTES
    assert all(reference.startswith(("#", "data:image/png;", "tables/rates.csv")) for reference in read.references)
    assert name in read.text or "^" in name


def test_a_notebook_shows_a_hostile_report_in_its_frame_only():
    read = Markup.of(hostile_report(HOSTILE[3])._repr_html_())
    assert [tag for tag, _ in read.tags] == ["iframe"]
    assert read.tags[0][1].keys() == {"srcdoc", "style"}


def test_plots_over_layers_show_their_values_under_the_pointer(tmp_path):
    table = pd.DataFrame({"layer": [1, 2, 3], "cost": [3.0, 2.5, 1.25], "cost_std": [0.1] * 3, "samples": [4] * 3})
    plots = Plots({"R^c(Z^{ℓ+½} | U^ℓ)": [curve(table, "cost", "a <model>")]})
    panel = Panel("cost", "Cost", "", "It falls.", plots, table)
    page = (InspectionReport("Costs", [panel]).save(tmp_path / "out") / "report.html").read_text(encoding="utf-8")
    Reader.of(page)
    assert page.count('<svg class="chart"') == 1
    assert page.count('class="slot"') == 3
    assert "a &lt;model&gt;: 1.25" in page
    assert 'font-size="70%">ℓ+½</tspan>' in page
    assert "<script" not in page
    assert "a <model>" not in page
