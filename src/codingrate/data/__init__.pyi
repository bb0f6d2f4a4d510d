from .augment import Augment, Views
from .blocks import Blocks, Masking, RandomBlocks, mask_own_tokens, mask_tokens
from .catalog import GLUE, dataset_names, text_names
from .classes import balanced_indices
from .documents import Documents, TextDocuments
from .image_batches import EvaluationBatches, collate, torch_dataset
from .image_files import CorruptImages, UnreadableImageError, decode_image, read_image, read_picture
from .images import load_images, sample_photographs
from .objects import load_coco, load_voc
from .opened import OpenedData
from .sentences import load_sentences
from .sources import open_splits
from .text import load_text
from .tokens import byte_characters, load_tokenizer, pack_text
from .transforms import BatchAugment, ViewAugment, crop_for_evaluation, unnormalize

__all__ = [
    "GLUE", "Augment", "BatchAugment", "Blocks", "CorruptImages", "Documents", "EvaluationBatches", "Masking",
    "OpenedData", "RandomBlocks", "TextDocuments", "UnreadableImageError", "ViewAugment", "Views",
    "balanced_indices", "byte_characters", "collate", "crop_for_evaluation", "dataset_names", "decode_image",
    "load_coco", "load_images", "load_sentences", "load_text", "load_tokenizer", "load_voc", "mask_own_tokens",
    "mask_tokens", "open_splits", "pack_text", "read_image", "read_picture", "sample_photographs", "text_names",
    "torch_dataset", "unnormalize",
]  # fmt: skip
