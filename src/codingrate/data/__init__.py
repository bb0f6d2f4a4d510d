"""Data: one way to name a dataset. Images are decoded and cropped in loader workers and augmented in batches on the
device; text is tokenised once into a file of ids, from which blocks are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .augment import Augment
    from .batches import ImageBatch, image_batches, split_samples
    from .blocks import Blocks, RandomBlocks
    from .catalogue import dataset_names
    from .coco import load_coco
    from .decode import CorruptImages, UnreadableImageError, decode_image
    from .documents import Documents, TextDocuments
    from .files import read_image
    from .glue import GLUE, GlueTask
    from .loading import ImageDataset, ImageExample, ImageStream, collate, torch_dataset
    from .masking import Masking, mask_own_tokens, mask_tokens
    from .packing import TokenFile, pack_text, read_tokens, token_cache
    from .photographs import sample_photographs
    from .pictures import read_picture
    from .sentence_rows import SentenceDataset, SentenceExample, sentence_collator
    from .sentences import SentenceData, load_sentences
    from .sources import ImageData, load_images
    from .splits import stratified_split
    from .text import TextData, load_text
    from .text_sources import text_names
    from .tokenizers import check_tokenizer, id_count, load_tokenizer
    from .transforms import BatchAugment, ViewAugment
    from .views import Views, view_augments
    from .voc import load_voc

__all__ = [
    "GLUE",
    "Augment",
    "BatchAugment",
    "Blocks",
    "CorruptImages",
    "Documents",
    "GlueTask",
    "ImageBatch",
    "ImageData",
    "ImageDataset",
    "ImageExample",
    "ImageStream",
    "Masking",
    "RandomBlocks",
    "SentenceData",
    "SentenceDataset",
    "SentenceExample",
    "TextData",
    "TextDocuments",
    "TokenFile",
    "UnreadableImageError",
    "ViewAugment",
    "Views",
    "check_tokenizer",
    "collate",
    "dataset_names",
    "decode_image",
    "id_count",
    "image_batches",
    "load_coco",
    "load_images",
    "load_sentences",
    "load_text",
    "load_tokenizer",
    "load_voc",
    "mask_own_tokens",
    "mask_tokens",
    "pack_text",
    "read_image",
    "read_picture",
    "read_tokens",
    "sample_photographs",
    "sentence_collator",
    "split_samples",
    "stratified_split",
    "text_names",
    "token_cache",
    "torch_dataset",
    "view_augments",
]

_HOMES = {
    "pictures": ("read_picture",),
    "coco": ("load_coco",),
    "voc": ("load_voc",),
    "augment": ("Augment",),
    "batches": ("ImageBatch", "image_batches", "split_samples"),
    "blocks": ("Blocks", "RandomBlocks"),
    "catalogue": ("dataset_names",),
    "decode": ("CorruptImages", "UnreadableImageError", "decode_image"),
    "documents": ("Documents", "TextDocuments"),
    "files": ("read_image",),
    "glue": ("GLUE", "GlueTask"),
    "loading": ("ImageDataset", "ImageExample", "ImageStream", "collate", "torch_dataset"),
    "masking": ("Masking", "mask_own_tokens", "mask_tokens"),
    "packing": ("TokenFile", "pack_text", "read_tokens", "token_cache"),
    "photographs": ("sample_photographs",),
    "sentence_rows": ("SentenceExample", "SentenceDataset", "sentence_collator"),
    "sentences": ("SentenceData", "load_sentences"),
    "sources": ("ImageData", "load_images"),
    "splits": ("stratified_split",),
    "text": ("TextData", "load_text"),
    "text_sources": ("text_names",),
    "tokenizers": ("check_tokenizer", "id_count", "load_tokenizer"),
    "transforms": ("BatchAugment", "ViewAugment"),
    "views": ("Views", "view_augments"),
}
__getattr__, __dir__ = _lazy.attach(__name__, {name: home for home, names in _HOMES.items() for name in names})
