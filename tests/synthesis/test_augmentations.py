import pytest
import torch

from rewardedit.synthesis.augmentations import AUGMENTATIONS, FLIPS, allowed_augmentations, augment, says


@pytest.mark.parametrize(
    "text",
    [
        "move the cup to the left",
        "add a bird at the TOP of the tree",
        "put a hat above his head",
        "a cat below the table",
        "turn the clock hands clockwise",
        "rotated by 90 degrees",
        "remove the rightmost car",
        "the lower corner",
        "mirrors the image",
        "change the letters on the sign",
        "flipping the picture",
    ],
)
def test_a_direction_in_any_text_forbids_flips(text):
    assert not set(allowed_augmentations(text)) & set(FLIPS)
    assert not set(allowed_augmentations("make it red", text)) & set(FLIPS)
    assert not set(allowed_augmentations("make it red", None, text)) & set(FLIPS)


@pytest.mark.parametrize(
    "word",
    ["left", "right", "top", "bottom", "above", "below", "clockwise", "up", "down", "under", "rotation"],
)
def test_each_direction_alone_forbids_flips(word):
    assert not set(allowed_augmentations(f"a cup {word} there")) & set(FLIPS)


@pytest.mark.parametrize(
    "text", ["make it red", "add a topping of cream", "brighten the picture", "a supper", "copyright notice"]
)
def test_words_that_only_contain_a_direction_do_not(text):
    assert set(allowed_augmentations(text)) >= set(FLIPS)


@pytest.mark.parametrize("text", ["zoom in", "crop the picture", "a close-up of the cat", "zooming out"])
def test_a_change_of_view_forbids_the_cut(text):
    assert "zoom" not in allowed_augmentations(text)


def test_no_text_forbids_nothing():
    assert allowed_augmentations("make it red", None) == AUGMENTATIONS
    assert not says([None, ""], ("left",))


def test_augmentations_do_what_they_say():
    """The image 0 1 / 2 3, by hand."""
    image = torch.arange(4.0).reshape(1, 2, 2).expand(3, 2, 2) / 4
    expected = {
        "flip_horizontal": [1, 0, 3, 2],
        "flip_vertical": [2, 3, 0, 1],
        "rotate_90": [1, 3, 0, 2],
        "rotate_180": [3, 2, 1, 0],
        "rotate_270": [2, 0, 3, 1],
    }
    for name, values in expected.items():
        assert (augment(image, name)[0] * 4).flatten().tolist() == values


def test_zoom_keeps_the_middle_and_loses_the_rim():
    image = torch.zeros(3, 64, 64)
    image[:, :4] = 1
    image[:, 32, 32] = 1
    zoomed = augment(image, "zoom")
    assert zoomed.shape == image.shape
    assert zoomed[0, 0].max() < 0.01
    assert zoomed[0, 28:36, 28:36].max() > 0.3


def test_what_is_not_there_or_not_square_is_refused():
    with pytest.raises(ValueError, match="expected one of"):
        augment(torch.zeros(3, 8, 8), "blur")
    with pytest.raises(ValueError, match="square"):
        augment(torch.zeros(3, 8, 9), "zoom")
