"""The evaluation crops of a split, batch by batch, for whoever looks at what a model makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from ..data import Augment, CorruptImages, ImageData
from ._images import batches, check_input, check_numbers, empty, split_rows
from .inputs import match_dtype, move_to_device


def image_batches(
    model: nn.Module,
    data: ImageData,
    augment: Augment,
    *,
    split: str = "test",
    batch_size: int = 64,
    workers: int = 0,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
    max_corrupt: float = 0.01,
    unreadable: list[str] | None = None,
) -> Iterator[Tensor]:
    """Pixels (batch, channels, side, side) as a model reads them: normalised, in its precision, where it is.

    The arguments are those of `classify`; `unreadable` takes the names of images that could not be read, too many of
    which are an error. Batches of such images alone are left out.
    """
    check_input(model, augment)
    check_numbers(batch_size, workers, limit)
    rows, chosen = split_rows(data, split, limit)
    rows = rows if chosen is None else rows.select(chosen)
    corrupt, seen = CorruptImages(max_corrupt), 0
    place = move_to_device(model, None)
    for pixels, _, good in batches(data, rows, augment, corrupt, place=place, batch_size=batch_size, workers=workers):
        if any(good):
            yield match_dtype(model, pixels)
        seen += len(good)
        if progress is not None:
            progress(len(good))
    if not seen:
        raise empty(data, split)
    names = corrupt.finish()
    if unreadable is not None:
        unreadable.extend(names)
