"""Data: images, running text, labeled sentences and annotated objects, opened by name, path or hub id.

Images are decoded and cropped in loader workers and augmented in batches on the device. Text is tokenized once into a
file of ids, from which blocks are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .augment import Augment, Views, view_augments
    from .blocks import Blocks, Masking, RandomBlocks, mask_own_tokens, mask_tokens
    from .catalog import GLUE, GlueTask, dataset_names, text_names
    from .columns import stratified_split
    from .documents import Documents, TextDocuments
    from .image_files import CorruptImages, UnreadableImageError, decode_image, read_image, read_picture
    from .images import ImageData, load_images, sample_photographs
    from .loading import EvaluationBatches, ImageDataset, ImageExample, ImageStream, collate, torch_dataset
    from .objects import BACKGROUND, VOID, CocoData, CocoImage, CocoObject, VocImage, load_coco, load_voc
    from .packing import TokenFile, pack_text, read_tokens, token_cache
    from .sentences import SentenceData, SentenceDataset, SentenceExample, load_sentences, sentence_collator
    from .sources import Splits, open_splits
    from .text import TextData, load_text
    from .tokenizers import byte_characters, check_tokenizer, id_count, load_tokenizer
    from .transforms import BatchAugment, ViewAugment, crop_for_evaluation, unnormalize

_HOMES = {
    "augment": ("Augment", "Views", "view_augments"),
    "blocks": ("Blocks", "Masking", "RandomBlocks", "mask_own_tokens", "mask_tokens"),
    "catalog": ("GLUE", "GlueTask", "dataset_names", "text_names"),
    "columns": ("stratified_split",),
    "documents": ("Documents", "TextDocuments"),
    "image_files": ("CorruptImages", "UnreadableImageError", "decode_image", "read_image", "read_picture"),
    "images": ("ImageData", "load_images", "sample_photographs"),
    "loading": ("EvaluationBatches", "ImageDataset", "ImageExample", "ImageStream", "collate", "torch_dataset"),
    "objects": ("BACKGROUND", "VOID", "CocoData", "CocoImage", "CocoObject", "VocImage", "load_coco", "load_voc"),
    "packing": ("TokenFile", "pack_text", "read_tokens", "token_cache"),
    "sentences": ("SentenceData", "SentenceDataset", "SentenceExample", "load_sentences", "sentence_collator"),
    "sources": ("Splits", "open_splits"),
    "text": ("TextData", "load_text"),
    "tokenizers": ("byte_characters", "check_tokenizer", "id_count", "load_tokenizer"),
    "transforms": ("BatchAugment", "ViewAugment", "crop_for_evaluation", "unnormalize"),
}

__all__ = [
    "BACKGROUND", "GLUE", "VOID", "Augment", "BatchAugment", "Blocks", "CocoData", "CocoImage", "CocoObject",
    "CorruptImages", "Documents", "EvaluationBatches", "GlueTask", "ImageData", "ImageDataset", "ImageExample",
    "ImageStream", "Masking", "RandomBlocks", "SentenceData", "SentenceDataset", "SentenceExample", "Splits",
    "TextData", "TextDocuments", "TokenFile", "UnreadableImageError", "ViewAugment", "Views", "VocImage",
    "byte_characters", "check_tokenizer", "collate", "crop_for_evaluation", "dataset_names", "decode_image", "id_count",
    "load_coco", "load_images", "load_sentences", "load_text", "load_tokenizer", "load_voc", "mask_own_tokens",
    "mask_tokens", "open_splits", "pack_text", "read_image", "read_picture", "read_tokens", "sample_photographs",
    "sentence_collator", "stratified_split", "text_names", "token_cache", "torch_dataset", "unnormalize",
    "view_augments",
]  # fmt: skip
__getattr__, __dir__ = _lazy.attach(__name__, {name: home for home, names in _HOMES.items() for name in names})
