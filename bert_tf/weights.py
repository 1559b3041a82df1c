"""Float32 master weights and, for reduced precision, the copies that the matrix products read."""

import copy as copying
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.model import joined_place, variable_name


def stays_float32(name: str) -> bool:
    """Whether the variable of this checkpoint name has no copy in the compute dtype."""
    # gamma and beta enter float32 arithmetic (ops.layer_norm); bfloat16 would round gamma = 1 in steps of 0.008.
    return "LayerNorm" in name


class _Copy(NamedTuple):
    """Where a master's copy is: in a variable of its own, or in columns of one that is shared (model.joined_place)."""

    variable: tf.Variable
    columns: slice | None

    def assign(self, value: tf.Tensor) -> None:
        target = self.variable if self.columns is None else self.variable[..., self.columns]
        target.assign(tf.cast(value, self.variable.dtype))


class ComputeWeights:
    """Implements model.Weights.

    A copy in the compute dtype is made once an update (`refresh`), not once a micro-batch; embedding rows are looked up
    in the float32 master, whose gradient is a sparse sum in float32. Copies that one product reads lie side by side.
    In float32 there are no copies, and what one product reads is put side by side each time; join: those have copies
    all the same, for weights that do not change any more (the optimizer keeps no float32 copies).
    """

    def __init__(self, variables, dtype: tf.DType, join: bool = False):
        self.masters = list(variables)
        self.dtype = dtype
        self._copies: dict[Any, _Copy] = {}
        self._held: dict[Any, tf.Tensor] = {}  # see holding
        groups: dict[Any, dict[int, tf.Variable]] = {}
        for variable in self.masters:
            name = variable_name(variable)
            place = joined_place(name)
            if (dtype != tf.float32 and not stays_float32(name)) or (join and place):
                group, index = place or (variable.ref(), 0)
                groups.setdefault(group, {})[index] = variable
        for group in groups.values():
            self._copy_together([group[index] for index in sorted(group)])

    def _copy_together(self, group: list[tf.Variable]) -> None:
        name = f"copy/{variable_name(group[0])}"
        copy = tf.Variable(tf.cast(tf.concat(group, -1), self.dtype), trainable=False, name=name)
        start = 0
        for variable in group:
            end = start + variable.shape[-1]
            self._copies[variable.ref()] = _Copy(copy, slice(start, end) if len(group) > 1 else None)
            start = end

    def __call__(self, variable: tf.Variable) -> tf.Tensor:
        copy = self._copies.get(variable.ref())
        if copy is None:
            return self._read(variable)
        value = self._read(copy.variable)
        return value if copy.columns is None else value[..., copy.columns]

    def _read(self, source: tf.Variable) -> tf.Tensor:
        held = self._held.get(source.ref())
        return tf.convert_to_tensor(source) if held is None else held

    def joined(self, variables: Sequence[tf.Variable]) -> tf.Tensor:
        copies = [self._copies.get(variable.ref()) for variable in variables]
        if None in copies:
            return tf.concat([self._read(variable) for variable in variables], -1)
        ends = [0, *(copy.columns.stop for copy in copies)]
        if any(
            c.variable is not copies[0].variable or c.columns.start != e for c, e in zip(copies, ends, strict=False)
        ):
            raise ValueError(f"{[v.name for v in variables]} do not lie side by side in this order")
        return self._read(copies[0].variable)

    def lookup(self, variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(variable, ids)

    def sources(self, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
        """The variables that products with these masters read: copies where there are, each once."""
        copies = [self._copies.get(variable.ref()) for variable in variables]
        read = [v if copy is None else copy.variable for v, copy in zip(variables, copies, strict=True)]
        return list({id(source): source for source in read}.values())

    def holding(self, sources: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> "ComputeWeights":
        """The same weights, but products read `values` instead of these sources."""
        view = copying.copy(self)
        view._held = {source.ref(): value for source, value in zip(sources, values, strict=True)}
        return view

    def refresh(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Stores an updated master and its copy."""
        variable.assign(value)
        if variable.ref() in self._copies:
            self._copies[variable.ref()].assign(value)

    def copy_of(self, variable: tf.Variable) -> tuple[tf.Variable, int] | None:
        """Where a master's copy is, for code that renews it itself: the variable that holds it and its first column."""
        copy = self._copies.get(variable.ref())
        return copy and (copy.variable, copy.columns.start if copy.columns else 0)

    def refresh_all(self) -> None:
        """Makes every copy anew, after the masters were loaded or broadcast."""
        for variable in self.masters:
            if variable.ref() in self._copies:
                self._copies[variable.ref()].assign(variable)

    def _copy_variables(self) -> list[tf.Variable]:
        return list({id(copy.variable): copy.variable for copy in self._copies.values()}.values())

    def gradients(self, loss: tf.Tensor, tape: tf.GradientTape) -> list[tf.Tensor]:
        """d loss / d master, dense, in the order of `masters`.

        Gradients of copies keep the compute dtype; where a table was both looked up and multiplied the two are summed
        in float32.
        """
        copies = self._copy_variables()
        found = tape.gradient(loss, [*self.masters, *copies])
        of_copies = {id(copy): gradient for copy, gradient in zip(copies, found[len(self.masters) :], strict=True)}
        result = []
        for variable, direct in zip(self.masters, found, strict=False):
            copy = self._copies.get(variable.ref())
            of_copy = None if copy is None else of_copies[id(copy.variable)]
            if of_copy is not None and copy.columns is not None:
                of_copy = of_copy[..., copy.columns]
            result.append(_sum_gradients(variable, direct, of_copy))
        return result

    def watch(self, tape: tf.GradientTape) -> None:
        """Makes the tape follow the copies (it follows the masters by itself)."""
        for copy in self._copy_variables():
            tape.watch(copy)


def _sum_gradients(variable, direct, of_copy):
    if direct is None:
        if of_copy is None:
            raise ValueError(f"{variable.name} takes no part in the loss")
        return of_copy
    if isinstance(direct, tf.IndexedSlices):
        base = tf.zeros(variable.shape) if of_copy is None else tf.cast(of_copy, tf.float32)
        rows = tf.reshape(direct.values, [-1, variable.shape[1]])
        return tf.tensor_scatter_nd_add(base, tf.reshape(direct.indices, [-1, 1]), tf.cast(rows, tf.float32))
    return direct if of_copy is None else direct + tf.cast(of_copy, tf.float32)
