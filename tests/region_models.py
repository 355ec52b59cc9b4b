"""Tiny random detectors and segmenters of the real classes, saved as checkpoints are."""

import json
from pathlib import Path

import torch
import transformers as t

from tests.models import small_tokenizer

DETECTORS = ("owlvit", "owlv2", "grounding-dino")
SEGMENTERS = ("sam", "sam2")
HALF = [0.5, 0.5, 0.5]


def clip_order_tokenizer() -> t.CLIPTokenizer:
    """The small CLIP's tokenizer with its two special tokens at the end, as CLIP's own has them."""
    from rewardedit.shapes.trainers.detector import ends_last

    return ends_last(small_tokenizer())[0]


def save_detector(folder: str, kind: str) -> None:
    """Saves a random detector of a kind in `DETECTORS`."""
    torch.manual_seed(0)
    tokenizer = clip_order_tokenizer()
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "grounding-dino":
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", *"abcdefghijklmnopqrstuvwxyz"]
        words = [*names, *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
        tokenizer = t.BertTokenizer(vocab={word: i for i, word in enumerate(words)})
        config = t.GroundingDinoConfig(
            backbone_config=t.SwinConfig(
                embed_dim=8,
                depths=[1, 1, 1],
                num_heads=[1, 2, 2],
                window_size=4,
                image_size=64,
                patch_size=4,
                out_indices=[2, 3],
            ),
            text_config=t.BertConfig(**small, vocab_size=len(words), max_position_embeddings=64),
            num_queries=12,
            encoder_layers=1,
            decoder_layers=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            d_model=32,
            num_feature_levels=3,
            disable_custom_kernels=True,
        )
        model = t.GroundingDinoForObjectDetection(config)
        images = t.GroundingDinoImageProcessorPil(size={"shortest_edge": 48, "longest_edge": 80})
    else:
        owlvit = kind == "owlvit"
        text = t.OwlViTTextConfig if owlvit else t.Owlv2TextConfig
        vision = t.OwlViTVisionConfig if owlvit else t.Owlv2VisionConfig
        whole = t.OwlViTConfig if owlvit else t.Owlv2Config
        config = whole(
            text_config=text(**small, vocab_size=len(tokenizer)).to_dict(),
            vision_config=vision(**small, image_size=48, patch_size=8).to_dict(),
            projection_dim=16,
        )
        model = (t.OwlViTForObjectDetection if owlvit else t.Owlv2ForObjectDetection)(config)
        processor = t.OwlViTImageProcessorPil if owlvit else t.Owlv2ImageProcessorPil
        images = processor(size={"height": 48, "width": 48})
    for parameter in model.parameters():  # so that images matter to an untrained model
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    images.save_pretrained(folder)


def save_segmenter(folder: str, kind: str) -> None:
    """Saves a random segmenter of a kind in `SEGMENTERS`."""
    torch.manual_seed(0)
    prompts = {"hidden_size": 16, "image_size": 64, "patch_size": 8}
    masks = {"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16}
    if kind == "sam":
        config = t.SamConfig(
            vision_config=t.SamVisionConfig(
                hidden_size=16,
                output_channels=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                image_size=64,
                patch_size=8,
                window_size=0,
                global_attn_indexes=[0],
                num_pos_feats=8,
                initializer_range=0.3,
            ),
            prompt_encoder_config=t.SamPromptEncoderConfig(**prompts),
            mask_decoder_config=t.SamMaskDecoderConfig(**masks),
        )
        model = t.SamModel(config)
        pad = {"height": 64, "width": 64}
        t.SamImageProcessorPil(size={"longest_edge": 64}, pad_size=pad).save_pretrained(folder)
    else:
        backbone = t.Sam2HieraDetConfig(
            hidden_size=8,
            num_attention_heads=1,
            image_size=[64, 64],
            blocks_per_stage=[1, 1, 2, 1],
            embed_dim_per_stage=[8, 16, 32, 64],
            num_attention_heads_per_stage=[1, 1, 2, 2],
            window_size_per_stage=[4, 4, 4, 4],
            global_attention_blocks=[3],
            window_positional_embedding_background_size=[4, 4],
        )
        config = t.Sam2Config(
            vision_config=t.Sam2VisionConfig(
                backbone_config=backbone,
                backbone_channel_list=[64, 32, 16, 8],
                backbone_feature_sizes=[[16, 16], [8, 8], [4, 4]],
                fpn_hidden_size=16,
            ),
            prompt_encoder_config=t.Sam2PromptEncoderConfig(**{**prompts, "patch_size": 16}),
            mask_decoder_config=t.Sam2MaskDecoderConfig(**masks),
        )
        model = t.Sam2Model(config)
        write_processor(folder, "Sam2ImageProcessor", 64)
    model.save_pretrained(folder)


def save_sam3(folder: str) -> None:
    """Saves a random SAM 3."""
    torch.manual_seed(0)
    tokenizer = clip_order_tokenizer()
    part = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = t.Sam3Config(
        vision_config=t.Sam3VisionConfig(
            backbone_config=t.Sam3ViTConfig(
                **part,
                num_hidden_layers=1,
                image_size=56,
                patch_size=7,
                window_size=4,
                global_attn_indexes=[0],
                pretrain_image_size=56,
            ),
            fpn_hidden_size=16,
            backbone_feature_sizes=[[32, 32], [16, 16], [8, 8]],
        ),
        text_config=t.CLIPTextConfig(
            **part,
            num_hidden_layers=1,
            vocab_size=len(tokenizer),
            projection_dim=16,
            max_position_embeddings=32,
        ),
        geometry_encoder_config=t.Sam3GeometryEncoderConfig(**part, num_layers=1),
        detr_encoder_config=t.Sam3DETREncoderConfig(**part, num_layers=1),
        detr_decoder_config=t.Sam3DETRDecoderConfig(**part, num_layers=1, num_queries=6),
        mask_decoder_config=t.Sam3MaskDecoderConfig(hidden_size=16, num_attention_heads=2),
    )
    model = t.Sam3Model(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_processor(folder, "Sam3ImageProcessor", 56)


def write_processor(folder: str, kind: str, side: int) -> None:
    """The file of an image processor that needs torchvision to be made."""
    settings = {
        "image_processor_type": kind,
        "size": {"height": side, "width": side},
        "resample": 2,
        "image_mean": HALF,
        "image_std": HALF,
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "preprocessor_config.json").write_text(json.dumps(settings))
