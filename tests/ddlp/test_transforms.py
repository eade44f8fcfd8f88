import pytest
import torch

from ddlp.transforms import Cutout


def test_squares_are_clipped_and_the_input_is_kept():
    torch.manual_seed(0)
    image = torch.ones(3, 20, 30)
    shapes = set()
    for _ in range(200):
        holes = Cutout(9, fill=-2.0)(image)
        rows, columns = (holes[0] == -2.0).nonzero().unbind(1)
        shapes.add((int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1))
        assert torch.equal(holes[0], holes[1]) and (image == 1).all()
    assert max(shapes) == (8, 8)  # as the authors do it: length // 2 on each side
    assert min(h for h, _ in shapes) < 8


@pytest.mark.parametrize(
    "kwargs", [{"length": 0}, {"length": 2.5}, {"length": 4, "n_holes": 0}, {"length": 4, "fill": "x"}]
)
def test_wrong_parameters_are_quoted(kwargs):
    with pytest.raises(ValueError, match="Cutout: "):
        Cutout(**kwargs)


def test_pil_images_are_refused():
    with pytest.raises(TypeError, match="after ToTensor"):
        Cutout(4)("image")
