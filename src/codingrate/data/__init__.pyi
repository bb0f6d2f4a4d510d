from .augment import Augment, Views, view_augments
from .blocks import Blocks, Masking, RandomBlocks, mask_own_tokens, mask_tokens
from .catalog import GLUE, dataset_names, text_names
from .classes import ClassMap, balanced_indices, match_classes
from .columns import stratified_split
from .documents import Documents, TextDocuments, check_text
from .fingerprint import Fingerprint, describe_change
from .image_batches import EvaluationBatches, ImageDataset, ImageStream, collate, load_batches

# isort: split
from .image_batches import loader_errors, torch_dataset
from .image_files import CorruptImages, UnreadableImageError, decode_image, read_image, read_picture
from .images import load_images, sample_photographs
from .objects import BACKGROUND, VOID, CocoData, CocoImage, CocoObject, VocImage, load_coco, load_voc
from .opened import OpenedData
from .sentences import SentenceDataset, load_sentences, sentence_collator
from .sources import open_splits
from .text import load_text
from .tokens import TokenFile, byte_characters, check_tokenizer, id_count, load_tokenizer

# isort: split
from .tokens import pack_text, read_tokens, token_cache
from .transforms import BatchAugment, ViewAugment, crop_for_evaluation, unnormalize

__all__ = [
    "BACKGROUND", "GLUE", "VOID", "Augment", "BatchAugment", "Blocks", "ClassMap", "CocoData", "CocoImage",
    "CocoObject", "CorruptImages", "Documents", "EvaluationBatches", "Fingerprint", "ImageDataset", "ImageStream",
    "Masking", "OpenedData", "RandomBlocks", "SentenceDataset", "TextDocuments", "TokenFile",
    "UnreadableImageError", "ViewAugment", "Views", "VocImage", "balanced_indices", "byte_characters", "check_text",
    "check_tokenizer", "collate", "crop_for_evaluation", "dataset_names", "decode_image", "describe_change",
    "id_count", "load_batches", "load_coco", "load_images", "load_sentences", "load_text", "load_tokenizer",
    "load_voc", "loader_errors", "mask_own_tokens", "mask_tokens", "match_classes", "open_splits", "pack_text",
    "read_image", "read_picture", "read_tokens", "sample_photographs", "sentence_collator", "stratified_split",
    "text_names", "token_cache", "torch_dataset", "unnormalize", "view_augments",
]  # fmt: skip
