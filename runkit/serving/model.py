"""What our models of Triton's python backend share. Runs inside the server's processes only."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # of the server

from runkit.errors import UserError


class Arguments:
    """What `initialize` is given."""

    def __init__(self, args: dict[str, str]):
        self.config: dict[str, Any] = json.loads(args["model_config"])
        self.parameters = {key: value["string_value"] for key, value in self.config["parameters"].items()}
        self.folder = Path(args["model_repository"]) / args["model_version"]


def tensor(request: Any, name: str) -> np.ndarray | None:
    """An input of a request; None where it was not sent."""
    found = pb_utils.get_input_tensor_by_name(request, name)
    return None if found is None else found.as_numpy()


def strings(request: Any, name: str) -> list[str] | None:
    """A STRING input [B, 1] as texts. Raises UserError for what is not UTF-8."""
    values = tensor(request, name)
    if values is None:
        return None
    try:
        return [value.decode() for value in values.reshape(-1)]
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8: {error}") from error


def response(outputs: dict[str, np.ndarray]) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, values) for name, values in outputs.items()])


def failure(error: UserError) -> Any:
    """A request that the caller can put right; the server and the rest of the batch go on."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))


def call(model: str, inputs: dict[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
    """Another model of the same server. Raises UserError with what it says."""
    request = pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=list(outputs),
        inputs=[pb_utils.Tensor(name, np.ascontiguousarray(values)) for name, values in inputs.items()],
    )
    answer = request.exec()
    if answer.has_error():
        raise UserError(f"model {model}: {answer.error().message()}")
    return [pb_utils.get_output_tensor_by_name(answer, name).as_numpy() for name in outputs]


def respond(requests: Sequence[Any], read: Callable[[Any], Any], answer: Callable[[list], list[dict]]) -> list[Any]:
    """Reads each request, answers those that could be read at once, and gives every one its own response.

    read(request) -> what is asked; answer(asked) -> the outputs of each. Either may raise UserError: for a request, or
    for all of them; then each is answered alone, so that one cannot spoil the others.
    """
    responses: list[Any] = [None] * len(requests)
    asked = {}
    for index, request in enumerate(requests):
        try:
            asked[index] = read(request)
        except UserError as error:
            responses[index] = failure(error)
    try:
        answers = answer(list(asked.values())) if asked else []
    except UserError:
        answers = [_alone(one, answer) for one in asked.values()]
    for index, found in zip(asked, answers, strict=True):
        responses[index] = failure(found) if isinstance(found, UserError) else response(found)
    return responses


def _alone(asked: Any, answer: Callable[[list], list[dict]]) -> dict | UserError:
    try:
        return answer([asked])[0]
    except UserError as error:
        return error
