"""What --precision means, the loss scale of fp16, and the watch over updates that are not finite."""

import contextlib
import dataclasses
from typing import Any

import torch

from runkit.errors import UserError

INITIAL_LOSS_SCALE = 2.0**16
MINIMUM_LOSS_SCALE = 1.0
GROWTH_INTERVAL = 2000  # good updates in a row before the scale doubles; torch.amp.GradScaler's, as published


@dataclasses.dataclass(frozen=True)
class Precision:
    """How convolutions and matrix products are computed. Weights, statistics, losses and sums are float32 always."""

    name: str
    dtype: torch.dtype  # of the products, by torch.autocast
    loss_scaling: bool = False  # float16 flushes gradients below 6e-8 to zero; the others have float32's range
    tensor_float_32: bool = False  # whether float32 products on a GPU may drop to 10 mantissa bits

    def activate(self) -> None:
        """Sets PyTorch's process-wide TF32 switches (of effect on NVIDIA GPUs from Ampere on)."""
        torch.set_float32_matmul_precision("high" if self.tensor_float_32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.tensor_float_32

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager:
        """The region in which the model runs forward."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=self.dtype)


PRECISIONS = {
    "fp32": Precision("fp32", torch.float32),
    "tf32": Precision("tf32", torch.float32, tensor_float_32=True),
    "bf16": Precision("bf16", torch.bfloat16, tensor_float_32=True),
    "fp16": Precision("fp16", torch.float16, loss_scaling=True, tensor_float_32=True),
}


def choose_precision(name: str | None, amp: bool, device: torch.device) -> Precision:
    """--precision, or else what --amp means on this device: fp16 on a GPU, bf16 on a CPU; without it tf32 or fp32.

    Raises UserError for an unknown name, and for fp16 on a CPU, where it is slow and bf16 is not.
    """
    gpu = device.type == "cuda"
    if name is None:
        name = ("fp16" if gpu else "bf16") if amp else ("tf32" if gpu else "fp32")
    if name not in PRECISIONS:
        raise UserError(f"precision {name!r} is unknown; choose one of {', '.join(PRECISIONS)}")
    if name == "fp16" and not gpu:
        raise UserError("--precision fp16 needs a GPU; on a CPU take bf16 or fp32")
    return PRECISIONS[name]


class LossScale:
    """Dynamic loss scale (arXiv 1710.03740, section 3.2), and a limit to updates skipped in a row.

    The loss is multiplied by `scale` before the gradient is taken, the gradient divided by it after. An update whose
    loss or gradient is not finite is skipped. Where loss scaling is on, a finite loss with an infinite gradient is an
    overflow: it halves the scale, down to 1, and is no reason to worry. Any other skipped update counts; after
    `patience` of them in a row training is to stop (`verdict`). Without loss scaling the scale is 1 for ever.
    """

    def __init__(self, enabled: bool, patience: int = 10, initial: float = INITIAL_LOSS_SCALE):
        if patience < 1:
            raise UserError(f"nonfinite_patience is {patience}; it must be 1 or more")
        self.enabled, self.patience = enabled, patience
        self.scale = initial if enabled else 1.0
        self.good_updates = 0  # since the scale last changed
        self.bad_updates = 0  # in a row, overflows that lowered the scale left out
        self.skipped_updates = 0  # in the whole run

    def update(self, loss_finite: bool, gradient_finite: bool) -> bool:
        """Counts one update, adjusts the scale, and says whether the update is to be applied."""
        if loss_finite and gradient_finite:
            self.bad_updates = 0
            self.good_updates += 1
            if self.enabled and self.good_updates >= GROWTH_INTERVAL:
                self.scale, self.good_updates = self.scale * 2, 0
            return True
        self.skipped_updates += 1
        self.good_updates = 0
        if loss_finite and self.scale > MINIMUM_LOSS_SCALE:
            self.scale = max(self.scale / 2, MINIMUM_LOSS_SCALE)
        else:
            self.bad_updates += 1
        return False

    def verdict(self) -> str | None:
        """Why training should stop, if it should: the patience is spent. To be asked after each update."""
        if self.bad_updates < self.patience:
            return None
        scale = f" at loss scale {self.scale:g}" if self.enabled else ""
        return (
            f"loss or gradient of the last {self.bad_updates} updates were not finite{scale}. They were skipped, so "
            "the weights are as they were"
        )

    def state_dict(self) -> dict[str, Any]:
        """The state to save; `scale` and `_growth_tracker` have the names and meaning of torch.amp.GradScaler's."""
        counters = {"bad_updates": self.bad_updates, "skipped_updates": self.skipped_updates}
        return counters | ({"scale": self.scale, "_growth_tracker": self.good_updates} if self.enabled else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state, also a GradScaler's; a run that only now turns to fp16 starts with a fresh scale."""
        if self.enabled and "scale" in state:
            self.scale, self.good_updates = float(state["scale"]), int(state["_growth_tracker"])
        self.bad_updates = int(state.get("bad_updates", 0))
        self.skipped_updates = int(state.get("skipped_updates", 0))
