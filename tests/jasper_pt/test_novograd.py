"""NovoGrad against the published program's numbers and a NumPy twin; LAMB and AdamW against their formulas."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from jasper_pt.novograd import Lamb, NovoGrad, create_optimizer, global_norm, novograd_update
from runkit.errors import UserError

SHAPES = ((4, 3, 5), (7,), (2, 1, 3))


def arrays(seed, count=4):
    generator = np.random.default_rng(seed)
    params = [generator.standard_normal(shape) for shape in SHAPES]
    grads = [[generator.standard_normal(shape) * 10.0**i for i, shape in enumerate(SHAPES)] for _ in range(count)]
    return params, grads


def run(optimizer_of, params, grads, dtype=torch.float64):
    tensors = [torch.nn.Parameter(torch.tensor(p, dtype=dtype)) for p in params]
    optimizer = optimizer_of(tensors)
    for step in grads:
        for tensor, grad in zip(tensors, step, strict=True):
            tensor.grad = torch.tensor(grad, dtype=dtype)
        optimizer.step()
    return [t.detach().numpy() for t in tensors], optimizer


def novograd_numpy(params, grads, lr, beta1, beta2, eps, weight_decay):
    params = [p.copy() for p in params]
    moments, seconds = [np.zeros_like(p) for p in params], [None] * len(params)
    for step in grads:
        for i, grad in enumerate(step):
            norm = np.sum(grad * grad)
            seconds[i] = norm if seconds[i] is None else beta2 * seconds[i] + (1 - beta2) * norm
            moments[i] = beta1 * moments[i] + (grad / (np.sqrt(seconds[i]) + eps) + weight_decay * params[i])
            params[i] = params[i] - lr * moments[i]
    return params


@pytest.mark.parametrize("beta2", [0.0, 0.25])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-3])
def test_equals_numpy(beta2, weight_decay):
    params, grads = arrays(0)
    expected = novograd_numpy(params, grads, 0.01, 0.95, beta2, 1e-8, weight_decay)
    found, _ = run(lambda t: NovoGrad(t, 0.01, (0.95, beta2), weight_decay=weight_decay), params, grads)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("beta2", [0.0, 0.5])
def test_the_pure_update_is_the_optimizers_twin(beta2):
    params, grads = arrays(1)
    found, optimizer = run(lambda t: NovoGrad(t, 0.02, (0.9, beta2), weight_decay=0.1), params, grads)
    for i, param in enumerate(params):
        value, state = torch.tensor(param), None
        for step in grads:
            value, state = novograd_update(value, torch.tensor(step[i]), state, 0.02, (0.9, beta2), 1e-8, 0.1)
        np.testing.assert_allclose(found[i], value.numpy(), rtol=1e-12)
        saved = optimizer.state[optimizer.param_groups[0]["params"][i]]
        assert torch.allclose(saved["exp_avg"], state.exp_avg) and torch.allclose(saved["exp_avg_sq"], state.exp_avg_sq)
        assert saved["exp_avg_sq"].dim() == 0


def test_equals_the_published_program(shared):
    truth = load_file(shared / "data" / "truth_asr" / "novograd.safetensors")
    count, steps = 3, 5
    params = [torch.nn.Parameter(truth[f"p{i}.0"].clone()) for i in range(count)]
    optimizer = create_optimizer("fused_novograd", params, lr=0.01, weight_decay=1e-3)
    for step in range(1, steps + 1):
        for i, param in enumerate(params):
            param.grad = truth[f"g{i}.{step}"].clone()
        optimizer.step()
        for i, param in enumerate(params):
            torch.testing.assert_close(param.detach(), truth[f"p{i}.{step}"], rtol=1e-6, atol=1e-7)
    assert len(truth) == count * (1 + 2 * steps)  # every number was used


def test_gradients_survive_and_a_zero_or_missing_gradient_is_harmless():
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    params[0].grad, params[1].grad = torch.tensor([3.0, 4.0, 0.0]), torch.zeros(3)
    NovoGrad(params, lr=1.0).step()
    assert params[0].grad.tolist() == [3.0, 4.0, 0.0]
    assert params[0].tolist() == pytest.approx([0.4, 0.2, 1.0])  # gradient 3, 4, 0 has norm 5
    assert params[1].tolist() == [1.0] * 3 and params[2].tolist() == [1.0] * 3


def test_state_round_trip_goes_on_bit_for_bit():
    params, grads = arrays(2, count=6)
    straight, _ = run(lambda t: NovoGrad(t, 0.01, weight_decay=0.01), params, grads, torch.float32)
    half, first = run(lambda t: NovoGrad(t, 0.01, weight_decay=0.01), params, grads[:3], torch.float32)

    def resumed(tensors):
        optimizer = NovoGrad(tensors, 0.5)
        optimizer.load_state_dict(first.state_dict())
        return optimizer

    found, _ = run(resumed, half, grads[3:], torch.float32)
    assert all(np.array_equal(a, b) for a, b in zip(found, straight, strict=True))


def test_lamb_equals_numpy():
    params, grads = arrays(3)
    lr, beta1, beta2, eps, decay = 0.01, 0.9, 0.98, 1e-9, 0.1
    expected = [p.copy() for p in params]
    m, v = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    for t, step in enumerate(grads, 1):
        clip = min(1.0, 1.0 / np.sqrt(sum(np.sum(g * g) for g in step)))
        for i, grad in enumerate(step):
            m[i] = beta1 * m[i] + (1 - beta1) * clip * grad
            v[i] = beta2 * v[i] + (1 - beta2) * (clip * grad) ** 2
            update = m[i] / (1 - beta1**t) / (np.sqrt(v[i] / (1 - beta2**t)) + eps) + decay * expected[i]
            expected[i] = expected[i] - lr * np.linalg.norm(expected[i]) / np.linalg.norm(update) * update
    found, _ = run(lambda t: Lamb(t, lr, weight_decay=decay), params, grads)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_lamb_without_weight_decay_is_adam_on_clipped_gradients():
    params, grads = arrays(4)
    grads = [[g / np.sqrt(sum(np.sum(h * h) for h in step)) for g in step] for step in grads]  # norm 1: no clipping
    found, _ = run(lambda t: create_optimizer("lamb98", t, 0.01, 0.0), params, grads)
    expected, _ = run(lambda t: torch.optim.Adam(t, 0.01, (0.9, 0.98), 1e-9), params, grads)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_choice_by_name():
    tensors = [torch.nn.Parameter(torch.ones(2))]
    assert isinstance(create_optimizer("novograd", tensors, 0.1, 0.0), NovoGrad)
    assert isinstance(create_optimizer("adamw", tensors, 0.1, 0.0), torch.optim.AdamW)
    with pytest.raises(UserError, match="novograd, fused_novograd, adamw, lamb98"):
        create_optimizer("sgd", tensors, 0.1, 0.0)
    for lr, decay in ((-1.0, 0.0), (float("nan"), 0.0), (0.1, -1.0)):
        with pytest.raises(UserError, match="finite numbers"):
            create_optimizer("novograd", tensors, lr, decay)


def test_global_norm():
    assert global_norm([torch.tensor([3.0]), torch.tensor([[4.0, 12.0]])]) == 13
    assert not torch.isfinite(global_norm([torch.ones(2), torch.tensor([1.0, float("nan")])]))
