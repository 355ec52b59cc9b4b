"""The UNet of the small models of the shapes world."""

from typing import Any

from diffusers import UNet2DConditionModel


def make_unet(in_channels: int, channels: tuple[int, ...], text_width: int, **more: Any) -> Any:
    """A diffusers `UNet2DConditionModel` for latents (4, 16, 16); levels below the first attend to text.

    Args:
        channels: channels of each level; multiples of 32 below the first.
        more: further arguments of the class.
    """
    deeper = len(channels) - 1
    return UNet2DConditionModel(
        sample_size=16,
        in_channels=in_channels,
        out_channels=4,
        down_block_types=("DownBlock2D", *("CrossAttnDownBlock2D",) * deeper),
        up_block_types=(*("CrossAttnUpBlock2D",) * deeper, "UpBlock2D"),
        block_out_channels=channels,
        layers_per_block=1,
        cross_attention_dim=text_width,
        attention_head_dim=tuple(max(1, c // 32) for c in channels),
        norm_num_groups=16,
        resnet_time_scale_shift="scale_shift",
        **more,
    )
