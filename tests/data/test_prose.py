import pytest

from data import prose

NUMPY_STYLE = """
    Return the range of values.

    The range is the largest value minus the smallest one. It never is below zero.

    Parameters
    ----------
    a : array_like
        The values whose range is wanted, in any order.
    axis : int, optional
        The axis along which the range is taken. By default the array is flattened.

    See Also
    --------
    max : The name of this function is not part of the text.

    Examples
    --------
    This sentence belongs to the examples and it is left out.

    >>> ptp([1, 2])
    1

    Notes
    -----
    The name comes from the words 'peak to peak' in the literature [1]_.

    References
    ----------
    .. [1] This is a reference and not a sentence of the text.
    """
GOOGLE_STYLE = """Computes the mean of elements across dimensions of a tensor.

    Reduces `input_tensor` along the dimensions that are given in **axis**.

    ```python
    This is code within a fence, and it is not a sentence.
    x = mean(y)
    ```

    Args:
      input_tensor: The tensor to reduce, which should have a numeric type.
      axis (int): The dimensions to reduce,
        and if it is not given then all are.
      keep: bool

    Returns:
      The reduced tensor, of the same type as the input of the function.

    For example:
      mean(x, 0)  # this is a comment of the code
    """
RST_STYLE = """Open a file for reading or for writing.

    See :func:`io.open` and `the manual <https://example.org>`_ for all of the details.

    .. code-block:: python

       This sentence is inside of a block of code.

    .. note::

       The file must be closed by the caller when it is not needed.

    :param name: The name of the file that is to be opened.
    :type name: str

    Write it like this::

        This is a literal block and it is not a sentence.

    After the block the text goes on as it was before.

    ====  =====
    one   two
    ====  =====

    * It can be a bullet point that
      is continued on the next line.
    """


def sentences(docstring):
    return [s for p in prose.paragraphs(docstring) for s in prose.sentences_of(p)]


def test_numpy_style():
    assert sentences(NUMPY_STYLE) == [
        "Return the range of values.",
        "The range is the largest value minus the smallest one.",
        "It never is below zero.",
        "The values whose range is wanted, in any order.",
        "The axis along which the range is taken.",
        "By default the array is flattened.",
        "The name comes from the words 'peak to peak' in the literature.",
    ]


def test_google_style():
    assert sentences(GOOGLE_STYLE) == [
        "Computes the mean of elements across dimensions of a tensor.",
        "Reduces input_tensor along the dimensions that are given in axis.",
        "The tensor to reduce, which should have a numeric type.",
        "The dimensions to reduce, and if it is not given then all are.",
        "The reduced tensor, of the same type as the input of the function.",
    ]


def test_restructured_text():
    assert sentences(RST_STYLE) == [
        "Open a file for reading or for writing.",
        "See io.open and the manual for all of the details.",
        "The file must be closed by the caller when it is not needed.",
        "The name of the file that is to be opened.",
        "After the block the text goes on as it was before.",
        "It can be a bullet point that is continued on the next line.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "x = f(a) and the result of it is y.",
        "this one does not begin like a sentence.",
        "This one does not end like a sentence",
        "Too short it is.",
        "Foo bar baz qux quux corge grault garply waldo.",  # no function words
        "The values a_1, b_2, c_3, d_4, e_5 and f_6 are the_names of all.",
        "See https://example.org for more of the same.",
        "Copyright by the authors of this file, and all rights reserved.",
    ],
)
def test_what_is_not_prose(text):
    assert prose.sentences_of(text) == []
