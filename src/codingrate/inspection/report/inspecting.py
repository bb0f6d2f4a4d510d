"""Inspect models on the same samples; the report is one HTML page with every number and every figure beside it."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
from markupsafe import Markup
from PIL.Image import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..._chart import STYLE as CHART_STYLE
from ..._files import atomic_folder, to_plain, write_json, write_text
from ..._page import Picture, render, render_figure
from ..._report import Report, Table
from ...data import Augment, unnormalize
from ...errors import CrateError
from ...models import CrateForMaskedAutoencoding
from ...models.base import CratePreTrainedModel, eval_mode
from ..measure.rates import layerwise
from ..measure.tracing import TextBatch, trace
from .images import attention_panel, head_panel, pca_panel, token_panel
from .layers import Design, layer_panels, training_panels
from .panel import Panel
from .subspaces import subspace_panels
from .summary import Outcome, key_panels
from .text import text_panels

Batch = Tensor | TextBatch
Progress = Callable[[str, int], AbstractContextManager[Callable[..., None]]]
"""Progress bar: given a description and a total (0 if unknown), a context whose value advances it by a number."""

PICTURES = 32  # number of images among which each head finds those on which it is most focused
ROWS = 200  # largest number of rows of a table on the page; the CSV file has all of them
SHOWN = 6  # number of images that are shown in full


@dataclass(frozen=True)
class InspectionReport(Report):
    """Panels on a model and its layers, with the facts that are needed to reproduce them."""

    title: str
    panels: Sequence[Panel]
    facts: Mapping[str, Mapping[str, Any] | str] = field(default_factory=dict)
    """Sections at the end of the page by name, each a mapping or a text."""
    notes: Sequence[str] = ()  # sentences at the top of the page
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # table of `layerwise` by the name of the model
    outcome: Outcome | None = None  # how good the models are, with samples of the first

    def to_dict(self) -> dict[str, Any]:
        """Return every number and sentence as plain values."""
        panels = {
            panel.name: {key: getattr(panel, key) for key in ("title", "expected", "measured", "verdict", "findings")}
            | {"table": None if panel.table is None else panel.table.to_dict("records")}
            for panel in self.panels
        }
        summary = {
            **(self.outcome or Outcome()).to_dict(),
            "key_panels": {panel.name: panel.verdict for panel in key_panels(self.panels)},
        }
        layers = {name: table.to_dict("records") for name, table in self.tables.items()}
        about = {"title": self.title, "summary": summary, "notes": self.notes, "facts": self.facts}
        return dict(to_plain({**about, "layers": layers, "panels": panels}))

    def save(self, folder: str | Path, progress: Callable[[], None] | None = None) -> Path:
        """Write report.html, report.json, `tables/` (CSV) and `figures/` (PNG and SVG) to a folder; return the folder.

        The files of an earlier report in the folder are replaced. Every file is written atomically, and the page comes
        last, after all files that it links to. `progress` is called after each panel.
        """
        folder = Path(folder)
        twice = [name for name, count in Counter(panel.name for panel in self.panels).items() if count > 1]
        if twice:
            raise CrateError(f"two panels of the report have the name {twice[0]!r}; give each a name of its own")
        parts = (folder / "figures", folder / "tables")
        if not (folder / "report.json").exists() and any(part.exists() for part in parts):
            raise CrateError(f"{folder}: has figures or tables of something else than a report; give another folder")
        pictures: dict[str, Picture] = {}
        with atomic_folder(parts[0]) as figures, atomic_folder(parts[1]) as tables:
            for panel in self.panels:
                if panel.draw is not None:
                    pictures[panel.name] = picture = render_figure(panel.draw, panel.name)
                    picture.figure.savefig(figures / f"{panel.name}.png", dpi=150, facecolor="white")
                    (figures / f"{panel.name}.svg").write_text(picture.svg, encoding="utf-8")
                if panel.table is not None:
                    panel.table.to_csv(tables / f"{panel.name}.csv", index=False)
                if progress is not None:
                    progress()
        write_json(folder / "report.json", self.to_dict())
        write_text(folder / "report.html", self._page(pictures, files=True))
        return folder

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the layer-wise measures of each model, its scores, and what the paper predicts with the verdicts."""
        for name, table in self.tables.items():
            rows = [
                (f"{row.layer:.0f}", f"{row.compression_normalized:.1f}", f"{row.reduction_normalized:.1f}",
                 f"{row.alignment:.2f}", f"{row.nonzero:.1%}")
                for row in cast(Any, table).itertuples()
            ]  # fmt: skip
            yield Table(name, ("layer", "R^c", "ΔR", "alignment", "non-zero"), rows)
        data: Any = self.facts["Data"]
        part = "" if data["split"] == "all" else f"the {data['split']} split of "
        yield f"{data['samples']:,} samples of {part}{data['name']}"
        yield from (score.text for score in (self.outcome.scores if self.outcome else ()))
        if judged := [panel for panel in self.panels if panel.verdict is not None]:
            yield "Measured, what the paper predicts, and the verdict:"
            yield from (f"  {panel.name}: {line}" for panel in judged for line in panel.judgements())

    def _repr_html_(self) -> str:
        pictures = {panel.name: render_figure(panel.draw, panel.name) for panel in self.panels if panel.draw}
        return render("frame.html", page=self._page(pictures, files=False))

    def _page(self, pictures: Mapping[str, Picture], files: bool) -> str:
        """Return the page; with `files` it has links to the files of each panel beside it."""
        return render(
            "inspection.html",
            title=self.title,
            report=self,
            keys=key_panels(self.panels),
            tables={panel.name: _table_html(panel.table) for panel in self.panels if panel.table is not None},
            pictures=pictures,
            files=files,
            rows=ROWS,
            chart_style=Markup(CHART_STYLE),
        )


def _table_html(table: pd.DataFrame) -> Markup:
    """Return the first rows as HTML; numbers are aligned right if all columns after the first have them."""
    numeric = table.iloc[:, 1:].select_dtypes("number").shape[1] == table.shape[1] - 1
    style: Any = {"index": False, "border": 0, "na_rep": "–", "classes": "numbers" if numeric else None}
    return Markup(table.head(ROWS).to_html(float_format="{:.4g}".format, **style))


@dataclass(frozen=True)
class Subject:
    """A model to inspect, with the samples it reads."""

    name: str  # name of the model in the report
    model: CratePreTrainedModel
    """Model on its device. Only the encoder of an autoencoder is inspected, and it reads whole images."""
    batches: Callable[[], Iterable[Batch]]
    """Function that returns the samples as the model reads them, from the start on every call.

    Images are pixel values (batch, channels, height, width), texts are mappings with `input_ids` (batch, n).
    """
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts for the report, such as the source; class, number of parameters and config are added."""
    recipe_text: str | None = None  # recipe of the run, as a YAML text
    augment: Augment | None = None  # normalization of the images, for a vision model
    tokenizer: PreTrainedTokenizerBase | None = None  # tokenizer of a text model
    history: Path | None = None  # the run's metrics.jsonl, for the panel on training
    trained: bool = True  # whether the weights are not random; the paper's predictions are for trained models
    outcome: Callable[[Sequence[Image]], Outcome] | None = None
    """Function that measures how good the model is at its task, given the first images of the samples."""

    @property
    def design(self) -> Design:
        """Parts of the model that decide what the paper predicts."""
        return Design.of(self.model.config, self.trained)

    @property
    def body(self) -> CratePreTrainedModel:
        """The part of the model that is inspected."""
        autoencoder = isinstance(self.model, CrateForMaskedAutoencoding)
        return cast(CratePreTrainedModel, self.model.base_model) if autoencoder else self.model


def inspect_models(
    subjects: Sequence[Subject],
    *,
    data: Mapping[str, Any],
    layers: Sequence[int] | None = None,
    eps: float | None = None,
    measure: str = "paper",
    controls: bool = False,
    untrained: Subject | None = None,
    token_samples: int = 1,
    notes: Iterable[str] = (),
    command: str | None = None,
    progress: Progress | None = None,
) -> InspectionReport:
    """Measure the layers of all models and look closely at the first; see `layerwise` for `layers`, `eps`, `measure`
    and `controls`. `untrained` is the first model with random weights, one more control.

    `layers` are indices, from 0 or, if negative, from the end. The report numbers layers from 1. `token_samples` is the
    number of images whose tokens are drawn, each in a panel of its own, at most six.
    `data` describes the samples in the report (name and split); an entry `samples` is their expected number, which is
    replaced by the number of samples read. `notes` are read after the samples, so a generator can report what was
    left out. `command` is the command that reproduces the report.
    """
    start = time.perf_counter()
    if not subjects:
        raise CrateError("inspect_models got no models; give at least one")
    show = progress or (lambda description, total: nullcontext(lambda amount=1: None))
    tables: dict[str, pd.DataFrame] = {}
    for subject in [*subjects, *([] if untrained is None else [untrained])]:
        with show(f"measure {subject.name}", data.get("samples", 0)) as advance:
            options: Any = {"layers": layers, "measure": measure, "progress": advance}
            options["controls"] = controls and subject.trained
            tables[subject.name] = layerwise(subject.body, subject.batches(), eps, **options)
    reference = None if untrained is None else tables.pop(untrained.name)
    pixels = _first_images(subjects[0])
    designs = {subject.name: subject.design for subject in subjects}
    with show("look inside", 0):
        panels, missing = subject_panels(subjects[0], tables, pixels, layers, designs, token_samples, reference)
    with show("summarize", 0):
        outcome, failed = _measure_outcomes(subjects, pixels)
    facts: dict[str, Any] = {f"Model {subject.name}": _model_facts(subject) for subject in subjects}
    facts["Data"] = {**data, "samples": int(tables[subjects[0].name]["samples"].iloc[0])}
    if command is not None:
        facts["Command"] = command
    cuda = torch.cuda.is_available()
    facts["Environment"] = {
        "codingrate": version("codingrate"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads",
        "seconds": round(time.perf_counter() - start, 1),
    }
    facts |= {f"Recipe of {one.name}": one.recipe_text for one in subjects if one.recipe_text is not None}
    encoders = [
        f"{subject.name} is an autoencoder. Its encoder was inspected, on whole images."
        for subject in subjects
        if subject.body is not subject.model
    ]
    title = f"Inspection of {' and '.join(tables)}"
    return InspectionReport(title, panels, facts, [*notes, *failed, *missing, *encoders], tables, outcome)


def _model_facts(subject: Subject) -> dict[str, Any]:
    """Return facts on a model, with its config but for long lists of class names."""
    config = subject.model.config
    shown = set(type(config).field_names()) - {"id2label", "label2id"}
    return {
        **subject.facts,
        "class": type(subject.model).__name__,
        "parameters": subject.model.num_parameters(),
        "config": {key: value for key, value in config.to_dict().items() if key in shown},
    }


def _first_images(subject: Subject) -> list[Tensor]:
    """Return the first images that a vision model reads."""
    if subject.model.config.modality != "vision":
        return []
    batches = cast(Iterable[Tensor], subject.batches())
    return list(islice((image for batch in batches for image in batch), PICTURES))


def _measure_outcomes(subjects: Sequence[Subject], pixels: list[Tensor]) -> tuple[Outcome | None, list[str]]:
    """Measure the subjects at their tasks; return all scores with samples of the first, and notes on missing ones."""
    outcomes: dict[str, Outcome] = {}
    augment, notes = subjects[0].augment, []
    images = unnormalize(torch.stack(pixels), augment) if pixels and augment else []
    for subject in subjects:
        try:
            if subject.outcome is not None:
                outcomes[subject.name] = subject.outcome([] if outcomes else images)
        except CrateError as error:
            notes.append(f"No accuracy or loss of {subject.name}: {error}.")
    if len(subjects) == 1 or not outcomes:
        return next(iter(outcomes.values()), None), notes
    scores = [replace(score, model=name) for name, one in outcomes.items() for score in one.scores]
    return replace(outcomes.get(subjects[0].name, Outcome()), scores=scores), notes


def subject_panels(
    subject: Subject,
    tables: Mapping[str, pd.DataFrame],
    pixels: list[Tensor],
    layers: Sequence[int] | None,
    designs: Mapping[str, Design],
    token_samples: int = 1,
    untrained: pd.DataFrame | None = None,
) -> tuple[list[Panel], list[str]]:
    """Build the panels of a vision or a text model, and notes on those that do not apply to it.

    `tables` come from `layerwise` by the name of the model; `pixels` are a few images as the model reads them. The
    panels on text come first, because a reader of a language model looks for its predictions.
    """
    model, augment, tokenizer, trained = subject.body, subject.augment, subject.tokenizer, subject.trained
    layer = layers[-1] if layers else None
    history = subject.history if trained else None
    parts: dict[str, Callable[[], list[Panel]]] = {
        "layers": lambda: layer_panels(tables, designs, untrained),
        "training": lambda: [] if history is None else training_panels(history, subject.design),
        "subspaces": lambda: subspace_panels(model, trained),
        "tokens": lambda: [token_panel(passed, sample) for sample in range(min(token_samples, count))],
    }
    inputs: Batch
    if model.config.modality == "vision":
        if augment is None:
            raise CrateError(f"{subject.name}: a vision model needs `augment`, the normalization of its images")
        stacked = torch.stack(pixels)
        inputs, images = stacked[:SHOWN], unnormalize(stacked, augment)
        rows, columns = (side // model.config.patch_size for side in stacked.shape[-2:])
        parts["colors of patches"] = lambda: [pca_panel(passed, images[:SHOWN], (rows, columns))]
        parts["attention maps"] = lambda: [
            attention_panel(model, images[:SHOWN], augment, layer),
            head_panel(model, stacked, images, layer),
        ]
    else:
        if tokenizer is None:
            raise CrateError(f"{subject.name}: a text model needs its `tokenizer`")
        batches = cast(list[TextBatch], list(subject.batches()))
        inputs = {name: value[:1] for name, value in batches[0].items()}
        ids, mask = inputs["input_ids"][0], inputs.get("attention_mask")
        text = str(tokenizer.decode(ids if mask is None else ids[mask[0].bool()], skip_special_tokens=True))
        parts = {"text": lambda: text_panels(model, tokenizer, batches, text, layer=layer, trained=trained), **parts}
    count = len(inputs if isinstance(inputs, Tensor) else inputs["input_ids"])
    with eval_mode(model):
        passed = trace(model, inputs, layers)
    panels: list[Panel] = []
    notes = []
    for name, build in parts.items():
        try:
            panels += build()
        except CrateError as error:
            notes.append(f"No {name}: {error}.")
    return panels, notes
