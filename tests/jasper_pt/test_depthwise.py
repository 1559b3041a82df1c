"""ops/depthwise.py: our kernel, its reference, and nn.Conv1d in float64; ops/native.py: when there is no kernel."""

import platform
import shutil
import warnings

import pytest
import torch
import torch.nn.functional as F

from jasper_pt.ops import native
from jasper_pt.ops.depthwise import depthwise
from runkit.errors import UserError

# batch, channels, frames, taps, stride, dilation, lengths
SHAPES = [
    (2, 16, 40, 33, 1, 1, None),
    (3, 20, 41, 5, 1, 1, [41, 17, 0]),
    (1, 1, 1, 1, 1, 1, None),
    (2, 7, 3, 33, 1, 1, [1, 3]),
    (4, 33, 100, 39, 1, 1, [100, 99, 1, 50]),
    (2, 64, 77, 33, 2, 1, [77, 40]),
    (2, 24, 64, 11, 2, 1, [1, 0]),
    (2, 32, 120, 87, 1, 2, [120, 64]),
    (1, 256, 30, 51, 1, 1, None),
    (1, 48, 130, 63, 1, 1, [129]),
    (1, 32, 200, 75, 1, 1, None),
]


@pytest.fixture(params=["kernel", "reference"])
def path(request, monkeypatch):
    """Runs a test on our kernel and on the reference."""
    if request.param == "reference":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("no C++ compiler here")
    return request.param


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """native.library without what it remembers, with a folder of its own."""
    monkeypatch.delenv("JASPER_KERNELS", raising=False)
    monkeypatch.setattr(native, "_folder", lambda: tmp_path)
    native.library.cache_clear()
    yield monkeypatch
    native.library.cache_clear()


def masked(x, lengths):
    """x [B,C,T] with zeros from lengths[b] on."""
    x = x.detach().clone()
    for utterance, length in zip(x, lengths or [x.shape[2]] * len(x), strict=True):
        utterance[:, length:] = 0
    return x


def expected(x, weight, grad, stride, dilation, lengths, out_lengths):
    """Output and both gradients in float64, by nn.functional.conv1d between two masks."""
    x, weight, grad = (tensor.double() for tensor in (x, weight, grad))
    x, weight = masked(x, lengths).requires_grad_(), weight.clone().requires_grad_()
    padding = weight.shape[2] // 2 * dilation
    y = F.conv1d(x, weight, None, stride, padding, dilation, x.shape[1])
    y.backward(masked(grad, out_lengths))
    return masked(y.detach(), out_lengths), masked(x.grad, lengths), weight.grad


def error(ours, theirs):
    return ((ours.double() - theirs).norm() / theirs.norm().clamp(min=1e-9)).item()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(path, shape, dtype, tolerance):
    batch, channels, frames, taps, stride, dilation, lengths = shape
    generator = torch.manual_seed(0)
    x = torch.randn(batch, channels, frames, generator=generator).to(dtype)
    weight = torch.randn(channels, 1, taps, generator=generator)
    out_frames = -(-frames // stride)
    grad = torch.randn(batch, channels, out_frames, generator=generator).to(dtype)
    out_lengths = lengths and [-(-length // stride) for length in lengths]
    wanted = expected(x, weight, grad, stride, dilation, lengths, out_lengths)

    last = x.unsqueeze(2).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight.requires_grad_()
    y = depthwise(last, weight, stride, dilation, lengths, out_lengths)
    assert y.shape == (batch, channels, 1, out_frames) and y.dtype == dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.backward(grad.unsqueeze(2))
    for ours, theirs in zip((y.squeeze(2), last.grad.squeeze(2), weight.grad), wanted, strict=True):
        assert error(ours, theirs) < tolerance
    # padding: exactly zero, forward and backward
    assert torch.equal(y.squeeze(2), masked(y.squeeze(2), out_lengths))
    assert torch.equal(last.grad.squeeze(2), masked(last.grad.squeeze(2), lengths))


@pytest.mark.parametrize("instructions", ["x86-64", "x86-64-v3"])
def test_processors_without_avx512(fresh, instructions):
    """The kernels built for older processors give the same."""
    if platform.machine() != "x86_64" or shutil.which("g++") is None:
        pytest.skip("needs g++ on x86-64")
    fresh.setattr(native, "COMPILE", [f"-march={instructions}" if "march" in f else f for f in native.COMPILE])
    x = torch.randn(2, 27, 1, 60).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(27, 1, 33, requires_grad=True)
    results = []
    for choice in ("cpu", "reference"):
        fresh.setenv("JASPER_KERNELS", choice)
        native.library.cache_clear()
        y = depthwise(x, weight, 1, 1, [60, 31], [60, 31])
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, weight))))
    for kernel, plain in zip(*results, strict=True):
        torch.testing.assert_close(kernel, plain, rtol=1e-4, atol=1e-4)


def test_gradcheck_of_the_reference():
    x = torch.randn(2, 3, 1, 9, dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(3, 1, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: depthwise(x, w, 1, 2, [9, 4], [9, 4]), (x, weight))
    assert torch.autograd.gradcheck(lambda x, w: depthwise(x, w, 2, 1, [9, 4], [5, 2]), (x, weight))


def test_autocast_decides_the_type(path):
    x = torch.randn(1, 16, 1, 20).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(16, 1, 5, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = depthwise(x, weight)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert weight.grad.dtype == torch.float32


def test_special_values_survive(path):
    x = torch.zeros(1, 16, 1, 5).contiguous(memory_format=torch.channels_last)
    x[0, 0, 0, 2], x[0, 1, 0, 2], x[0, 2, 0, 2] = float("nan"), float("inf"), -float("inf")
    y = depthwise(x.bfloat16(), torch.ones(16, 1, 1))
    torch.testing.assert_close(y, x.bfloat16(), equal_nan=True)


def test_the_result_does_not_depend_on_threads(path):
    x = torch.randn(3, 48, 1, 50).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(48, 1, 11, requires_grad=True)
    threads, results = torch.get_num_threads(), []
    for count in (1, 2, 1):
        torch.set_num_threads(count)
        y = depthwise(x, weight, lengths=[50, 20, 7], out_lengths=[50, 20, 7])
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, weight))))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[2], strict=True))
    for a, b in zip(results[0], results[1], strict=True):
        torch.testing.assert_close(a, b) if path == "reference" else torch.testing.assert_close(a, b, rtol=0, atol=0)


# --------------------------------------------------------------------------------------------- building the kernels
def test_no_compiler_is_one_warning_and_the_reference(fresh):
    fresh.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match=r"no C\+\+ kernels .*no-such-compiler.*Install g\+\+"):
        assert native.library() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native.library() is None  # said once


def test_a_compiler_that_fails_is_quoted(fresh):
    fresh.setenv("CXX", "false")
    with pytest.warns(UserWarning, match="no C\\+\\+ kernels"):
        assert native.library() is None
    native.library.cache_clear()
    fresh.setenv("JASPER_KERNELS", "cpu")
    with pytest.raises(UserError, match="JASPER_KERNELS=cpu, but the C\\+\\+ kernels cannot be built"):
        native.library()


def test_the_choice_of_the_environment(fresh):
    fresh.setenv("JASPER_KERNELS", "reference")
    assert native.library() is None
    native.library.cache_clear()
    fresh.setenv("JASPER_KERNELS", "fast")
    with pytest.raises(UserError, match="JASPER_KERNELS is 'fast'; choose reference, cpu or cuda"):
        native.library()


def test_kernels_are_kept_and_leave_nothing_else(fresh, tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    assert native.library() is not None
    (built,) = tmp_path.iterdir()
    native.library.cache_clear()
    time = built.stat().st_mtime_ns
    assert native.library() is not None and built.stat().st_mtime_ns == time
