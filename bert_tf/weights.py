"""Float32 master weights and, for reduced precision, the copies that the matrix products read."""

import tensorflow as tf


def _stays_float32(variable: tf.Variable) -> bool:
    # gamma and beta enter float32 arithmetic (ops.layer_norm); bfloat16 would round gamma = 1 in steps of 0.008.
    return "LayerNorm" in variable.name


class ComputeWeights:
    """Implements model.Weights.

    A copy in the compute dtype is made once an update (`refresh`), not once a micro-batch; embedding rows are looked up
    in the float32 master, whose gradient is a sparse sum in float32.
    """

    def __init__(self, variables, dtype: tf.DType):
        self.masters = list(variables)
        self.dtype = dtype
        self._copies = {}
        if dtype != tf.float32:
            for variable in self.masters:
                if not _stays_float32(variable):
                    copy = tf.Variable(tf.cast(variable, dtype), trainable=False, name=f"copy/{variable.name[:-2]}")
                    self._copies[variable.ref()] = copy

    def __call__(self, variable: tf.Variable) -> tf.Tensor:
        return tf.convert_to_tensor(self._copies.get(variable.ref(), variable))

    def lookup(self, variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(variable, ids)

    def refresh(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Stores an updated master and its copy."""
        variable.assign(value)
        if variable.ref() in self._copies:
            self._copies[variable.ref()].assign(tf.cast(value, self.dtype))

    def refresh_all(self) -> None:
        """Makes every copy anew, after the masters were loaded or broadcast."""
        for variable in self.masters:
            if variable.ref() in self._copies:
                self._copies[variable.ref()].assign(tf.cast(variable, self.dtype))

    def gradients(self, loss: tf.Tensor, tape: tf.GradientTape) -> list[tf.Tensor]:
        """d loss / d master, dense, in the order of `masters`.

        Gradients of copies keep the compute dtype; where a table was both looked up and multiplied the two are summed
        in float32.
        """
        copies = [self._copies.get(variable.ref()) for variable in self.masters]
        sources = [*self.masters, *(copy for copy in copies if copy is not None)]
        found = tape.gradient(loss, sources)
        direct = found[: len(self.masters)]
        of_copies = iter(found[len(self.masters) :])
        result = []
        for variable, copy, sparse in zip(self.masters, copies, direct, strict=True):
            dense = next(of_copies) if copy is not None else None
            result.append(_sum_gradients(variable, sparse, dense))
        return result

    def watch(self, tape: tf.GradientTape) -> None:
        """Makes the tape follow the copies (it follows the masters by itself)."""
        for copy in self._copies.values():
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
