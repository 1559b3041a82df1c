"""model.onnx of the version's folder, run by ONNX Runtime on the CPU: the python backend's stand-in for onnxruntime's.

Requests that Triton puts into one batch have equal shapes; they run at once.
"""

from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from runkit.errors import UserError
from runkit.serving.model import Arguments, respond, tensor

ERRORS = (Fail, InvalidArgument, RuntimeException)


class TritonPythonModel:
    """Triton's name for it."""

    def initialize(self, args: dict[str, str]) -> None:
        arguments = Arguments(args)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(arguments.parameters.get("threads", 0))
        # A server with idle moments between requests must not spin through them: other processes need the cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = arguments.folder / "model.onnx"
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = [one.name for one in self.session.get_inputs()]
        self.outputs = [one["name"] for one in arguments.config["output"]]

    def execute(self, requests: list[Any]) -> list[Any]:
        return respond(requests, self.read, self.answer)

    def read(self, request: Any) -> dict[str, np.ndarray]:
        return {name: tensor(request, name) for name in self.inputs}

    def answer(self, asked: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        feed = {name: np.concatenate([one[name] for one in asked]) for name in self.inputs}
        try:
            values = self.session.run(self.outputs, feed)
        except ERRORS as error:
            raise UserError(f"the model refuses its inputs: {str(error).strip().splitlines()[-1]}") from error
        ends = np.cumsum([len(one[self.inputs[0]]) for one in asked])[:-1]
        parts = [np.split(value, ends) for value in values]
        return [dict(zip(self.outputs, part, strict=True)) for part in zip(*parts, strict=True)]
