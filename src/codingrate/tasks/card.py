"""The model card: a README.md beside saved weights that says what they are and how to use them."""

from __future__ import annotations

from typing import Any

import yaml

from ..models.base import CratePreTrainedModel
from ..recipes.schema import Recipe

_AUTO = {
    "CrateForImageClassification": ("AutoModelForImageClassification", "image-classification"),
    "CrateForMaskedAutoencoding": ("AutoModelForPreTraining", "image-feature-extraction"),
    "CrateForSelfDistillation": ("AutoModelForPreTraining", "image-feature-extraction"),
    "CrateForCausalLM": ("AutoModelForCausalLM", "text-generation"),
    "CrateForMaskedLM": ("AutoModelForMaskedLM", "fill-mask"),
    "CrateForSequenceClassification": ("AutoModelForSequenceClassification", "text-classification"),
}
"""Auto class and hub pipeline of each model class."""

_CARD = """\
---
library_name: transformers
pipeline_tag: {pipeline}
tags: [codingrate, crate, {kind}]
---
# {name}, trained on {data}

A {kind} transformer of the package `codingrate`: {layers} layers, width {width}, {heads} heads, {parameters:,}
parameters, attention `{attention}`, sparsifier `{sparsifier}`.{classes}

## Use

```python
import codingrate

run = codingrate.Run("{source}")
print(run.predict({example}))
run.inspect().save("report")
```
{about}
The model is also one of transformers. Its Auto classes know it after `import codingrate`:

```python
import codingrate
from transformers import {auto}

model = {auto}.from_pretrained("{folder}")
```

## Recipe

The keys that differ from their defaults; recipe.yaml of the run has all of them.

```yaml
{recipe}```
"""


def model_card(
    model: CratePreTrainedModel, recipe: Recipe, source: str = "FOLDER", folder: str = "FOLDER", about: str = ""
) -> str:
    """Return the text of the model card.

    `source` is what `Run` opens and `folder` what `from_pretrained` reads; by default they stand for this folder.
    `about` are further paragraphs: results, license and limits.
    """
    config, name = model.config, type(model).__name__.removeprefix("FSDP")  # PyTorch's prefix of a sharded class
    auto, pipeline = _AUTO[name]
    labels = list((config.id2label or {}).values()) if name.endswith("Classification") else []
    shown = ", ".join(map(str, labels[:20])) + (", …" if len(labels) > 20 else "")
    return _CARD.format(
        pipeline=pipeline,
        kind="black-box" if (config.attention, config.sparsifier) == ("mhsa", "mlp") else "white-box",
        name=name,
        data=recipe.data.name,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        parameters=model.num_parameters(),
        attention=config.attention,
        sparsifier=config.sparsifier,
        classes=f" Classes: {shown}." if labels else "",
        example='"photo.jpg"' if config.modality == "vision" else '"a text"',
        auto=auto,
        source=source,
        folder=folder,
        about=f"\n{about.strip()}\n" if about else "",
        recipe=yaml.safe_dump(_changed(recipe.to_dict(), Recipe().to_dict()), sort_keys=False, allow_unicode=True),
    )


def _changed(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the values that differ from the defaults, in sections."""
    changed = {}
    for key, value in values.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            value, default = _changed(value, default), {}
        if value != default:
            changed[key] = value
    return changed
