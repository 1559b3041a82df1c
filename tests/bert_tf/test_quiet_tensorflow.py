"""TensorFlow's import: without Keras, which is there when it is asked for."""

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
import bert_tf.quiet_tensorflow
import tensorflow as tf
assert "keras" not in sys.modules
assert tf.keras.layers.Dense(3)(tf.ones([1, 2])).shape == (1, 3)
"""


def test_keras_comes_with_its_first_use():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", CODE], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
