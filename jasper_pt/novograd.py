"""NovoGrad and LAMB: gradient descent with one step size a layer. And the choice of an optimizer by its flag.

NovoGrad (arXiv 1905.11286) in the form of the published recipe, for each parameter tensor p with gradient g:

    n = sum(g^2)                                   one number a tensor
    v = n at the first step, then b2 v + (1 - b2) n
    m = b1 m + g / (sqrt(v) + eps) + wd p          m starts at 0; weight decay inside the moment
    p = p - lr m

With b2 = 0 this is momentum SGD on gradients of unit norm: one step moves a tensor by up to lr / (1 - b1) = 20 lr. All
tensors are decayed alike, BatchNorm weights and biases included, as published.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from runkit.errors import UserError

OPTIMIZERS = ("novograd", "fused_novograd", "adamw", "lamb98")


class NovoGradState(NamedTuple):
    """What NovoGrad remembers of one parameter tensor."""

    exp_avg: Tensor  # m, shaped like the parameter
    exp_avg_sq: Tensor  # v, a scalar


def novograd_update(
    param: Tensor,
    grad: Tensor,
    state: NovoGradState | None,
    lr: float,
    betas: tuple[float, float] = (0.95, 0.0),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[Tensor, NovoGradState]:
    """One step for one tensor, as a pure function: (parameter, state) after it. state is None at the first step.

    The plain twin of the class NovoGrad, which does the same for all tensors at once.
    """
    beta1, beta2 = betas
    norm = grad.square().sum()
    exp_avg_sq = norm if state is None else beta2 * state.exp_avg_sq + (1 - beta2) * norm
    exp_avg = torch.zeros_like(param) if state is None else state.exp_avg
    exp_avg = beta1 * exp_avg + grad / (exp_avg_sq.sqrt() + eps) + weight_decay * param
    return param - lr * exp_avg, NovoGradState(exp_avg, exp_avg_sq)


class NovoGrad(torch.optim.Optimizer):
    """NovoGrad over lists of tensors (torch._foreach_*). Gradients are left as they are.

    State of each parameter: exp_avg (m) and exp_avg_sq (v), the names of the published checkpoints.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.95, 0.0),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        _check(lr, betas, weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad for p in params]
            norms = torch._foreach_norm(grads)
            for param, norm in zip(params, norms, strict=True):
                state = self.state[param]
                if "exp_avg_sq" not in state:
                    state["exp_avg"] = torch.zeros_like(param)
                    state["exp_avg_sq"] = norm.square()
                elif beta2 == 0:
                    state["exp_avg_sq"] = norm.square()
                else:
                    state["exp_avg_sq"].mul_(beta2).add_(norm.square(), alpha=1 - beta2)
            moments = [self.state[p]["exp_avg"] for p in params]
            scales = torch._foreach_sqrt([self.state[p]["exp_avg_sq"] for p in params])
            torch._foreach_add_(scales, group["eps"])
            torch._foreach_mul_(moments, beta1)
            torch._foreach_add_(moments, torch._foreach_div(grads, scales))
            torch._foreach_add_(moments, params, alpha=group["weight_decay"])
            torch._foreach_add_(params, moments, alpha=-group["lr"])


class Lamb(torch.optim.Optimizer):
    """LAMB (arXiv 1904.00962): Adam's step, scaled to the norm of the tensor it moves.

    As the published option lamb98: bias correction, and gradients first clipped to a global norm of 1. For each tensor

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + wd p
        p = p - lr |p| / |u| u                     the ratio is 1 where |p| or |u| is 0, and without weight decay
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
    ):
        _check(lr, betas, weight_decay)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            clip = (group["max_grad_norm"] / global_norm([p.grad for p in params])).clamp(max=1.0)
            for param in params:
                self._update(param, param.grad * clip, group)

    def _update(self, param: Tensor, grad: Tensor, group: dict) -> None:
        state = self.state[param]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        moment = state["exp_avg"].lerp_(grad, 1 - beta1) / (1 - beta1 ** state["step"])
        variance = state["exp_avg_sq"].lerp_(grad.square(), 1 - beta2) / (1 - beta2 ** state["step"])
        update = moment / (variance.sqrt() + group["eps"]) + group["weight_decay"] * param
        if group["weight_decay"]:
            norm, update_norm = param.norm(), update.norm()
            update *= torch.where((norm > 0) & (update_norm > 0), norm / update_norm, 1.0)
        param.add_(update, alpha=-group["lr"])


def create_optimizer(name: str, params: Iterable, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """The optimizer of a flag: novograd and fused_novograd (one and the same here), adamw or lamb98.

    Raises UserError for another name, or settings no run can use.
    """
    if name not in OPTIMIZERS:
        raise UserError(f"optimizer {name!r} is unknown; choose one of {', '.join(OPTIMIZERS)}")
    if name == "adamw":
        _check(lr, (0.9, 0.999), weight_decay)
        return torch.optim.AdamW(params, lr=lr, weight_decay=weight_decay)
    return (Lamb if name == "lamb98" else NovoGrad)(params, lr=lr, weight_decay=weight_decay)


def global_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Euclidean norm of all elements of all tensors, a scalar tensor; not finite where any element is not."""
    return torch.stack(torch._foreach_norm(list(tensors))).norm()


def _check(lr: float, betas: tuple[float, float], weight_decay: float) -> None:
    if not 0 <= lr < math.inf or not 0 <= weight_decay < math.inf:
        raise UserError(f"learning rate {lr} and weight decay {weight_decay} must be finite numbers, 0 or more")
    if not all(0 <= beta < 1 for beta in betas):
        raise UserError(f"betas {betas} must lie in [0, 1)")
