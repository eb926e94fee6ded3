from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from taot_client.transfers.expert_layout import ExpertLayout


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def fused_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random bit patterns: infinities, denormals, NaNs with payloads and negative zeros among them."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    generator = torch.Generator().manual_seed(num_bytes)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


def filled(layout: ExpertLayout, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A buffer with these tensors, in memory that held something else before."""
    buffer = torch.full((layout.buffer_bytes,), 0xA5, dtype=torch.uint8)
    layout.fill(buffer, tensors)
    return buffer


MIXTURES = {
    "fp32": [((3, 8, 16), torch.float32), ((3, 16, 8), torch.float32)],
    "fp64": [((2, 3, 5), torch.float64)],
    "bf16 of odd size": [((4, 3, 1), torch.bfloat16), ((4, 7), torch.bfloat16), ((4, 1), torch.bfloat16)],
    "fp64, fp32 and bf16": [
        ((2, 5, 3), torch.bfloat16),
        ((2, 3, 3), torch.float64),
        ((2, 1), torch.float32),
        ((2, 13), torch.float64),
    ],
    "scalars": [((3,), torch.bfloat16), ((3,), torch.float64)],
    "nothing in one tensor": [((3, 0, 4), torch.float32), ((3, 2), torch.float64)],
}


@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES.keys())
def test_an_expert_comes_out_as_it_went_in(mixture: list[tuple[tuple[int, ...], torch.dtype]]) -> None:
    fused = [fused_tensor(shape, dtype) for shape, dtype in mixture]
    layout = ExpertLayout.of(fused)
    for local in range(fused[0].shape[0]):
        views = layout.views(filled(layout, [tensor[local] for tensor in fused]))
        for view, tensor in zip(views, fused, strict=True):
            assert (view.shape, view.dtype) == (tensor.shape[1:], tensor.dtype)
            assert bits(view) == bits(tensor[local])


def test_transposed_and_sliced_weights_are_packed_in_logical_order() -> None:
    base = fused_tensor((3, 10, 12), torch.float32)
    transposed, sliced = base.transpose(1, 2), base[:, 1::3, 2:9:2]
    assert not transposed.is_contiguous()
    assert not sliced.is_contiguous()
    layout = ExpertLayout.of([transposed, sliced])
    buffer = filled(layout, [transposed[1], sliced[1]])
    for view, original in zip(layout.views(buffer), (transposed[1], sliced[1]), strict=True):
        assert view.is_contiguous()
        assert view.shape == original.shape
        for index in range(original.shape[0]):
            assert bits(view[index]) == b"".join(bits(each[None]) for each in original[index])


def test_views_write_through_to_the_buffer_and_do_not_overlap() -> None:
    fused = [fused_tensor((1, 3), torch.bfloat16), fused_tensor((1, 5), torch.float64)]
    layout = ExpertLayout.of(fused)
    buffer = torch.zeros(layout.buffer_bytes, dtype=torch.uint8)
    first, second = layout.views(buffer)
    first.fill_(1.0)
    second.fill_(2.0)
    layout.label(buffer).copy_(torch.tensor([7, 8, 9, 10]))
    assert first.tolist() == [1.0] * 3
    assert second.tolist() == [2.0] * 5
    assert layout.label(buffer).tolist() == [7, 8, 9, 10]


def test_views_of_a_buffer_inside_a_larger_one_stay_in_it() -> None:
    layout = ExpertLayout.of([fused_tensor((2, 3, 5), torch.float32), fused_tensor((2, 5, 3), torch.float32)])
    whole = torch.zeros(2 * layout.buffer_bytes, dtype=torch.uint8)
    for view in layout.views(whole[layout.buffer_bytes :]):
        view.fill_(1.0)
    assert not whole[: layout.buffer_bytes].any()
    assert int((whole != 0).sum()) == 2 * 2 * 15, "a one in float32 has two bytes that are not zero"


def test_every_tensor_and_the_label_begin_where_wide_loads_may() -> None:
    fused = [fused_tensor(shape, dtype) for shape, dtype in MIXTURES["fp64, fp32 and bf16"]]
    layout = ExpertLayout.of(fused)
    buffer = filled(layout, [tensor[0] for tensor in fused])
    for view in (*layout.views(buffer), layout.label(buffer)):
        assert (view.data_ptr() - buffer.data_ptr()) % 16 == 0


def test_the_size_counts_the_content_and_the_buffer_the_label_too() -> None:
    layout = ExpertLayout.of([torch.zeros(4, 16, 8), torch.zeros(4, 8, 16)])
    assert layout.size_bytes == 2 * 16 * 8 * 4
    assert layout.buffer_bytes == layout.size_bytes + 4 * 8


def test_filling_leaves_the_label_alone() -> None:
    layout = ExpertLayout.of([torch.zeros(1, 3)])
    buffer = torch.zeros(layout.buffer_bytes, dtype=torch.uint8)
    layout.label(buffer).copy_(torch.tensor([12, 2**40, -1, 7]))
    layout.fill(buffer, [torch.ones(3)])
    assert layout.views(buffer)[0].tolist() == [1.0] * 3
    assert layout.label(buffer).tolist() == [12, 2**40, -1, 7]


def test_filling_with_too_few_tensors_is_refused() -> None:
    layout = ExpertLayout.of([torch.zeros(1, 3), torch.zeros(1, 2)])
    with pytest.raises(ValueError, match="zip"):
        filled(layout, [torch.ones(3)])


def test_filling_leaves_the_weights_and_their_graph_alone() -> None:
    weight = torch.nn.Parameter(fused_tensor((2, 3, 4), torch.float32))
    before = bits(weight.detach())
    buffer = filled(ExpertLayout.of([weight]), [weight[1]])
    buffer.fill_(0)
    assert bits(weight.detach()) == before
    assert not buffer.requires_grad


def test_the_checksum_notices_any_flipped_bit() -> None:
    layout = ExpertLayout.of([fused_tensor((1, 3), torch.bfloat16), fused_tensor((1, 2), torch.float64)])
    buffer = filled(layout, [fused_tensor((3,), torch.bfloat16), torch.zeros(2).double()])
    taken = layout.checksum(buffer)
    for position in range(layout.size_bytes):
        for bit in range(8):
            buffer[position] ^= 1 << bit
            assert layout.checksum(buffer) != taken, f"bit {bit} of byte {position}"
            buffer[position] ^= 1 << bit
    assert layout.checksum(buffer) == taken


def test_the_checksum_is_never_zero_and_leaves_the_label_out() -> None:
    layout = ExpertLayout.of([torch.zeros(1, 4)])
    zeros = torch.zeros(layout.buffer_bytes, dtype=torch.uint8)
    assert layout.checksum(zeros) != 0, "zero says that none was taken"
    ones = filled(layout, [torch.ones(4)])
    taken = layout.checksum(ones)
    layout.label(ones).fill_(5)
    assert layout.checksum(ones) == taken
