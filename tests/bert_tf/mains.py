"""Calls a main of bert_tf in this process, with flags of its own."""

from collections.abc import Mapping
from types import ModuleType

from absl import flags


def run_here(main: ModuleType, values: Mapping[str, object]) -> None:
    """main.main() with --key=value for each of the values that is not None."""
    for name in [name for name in flags.FLAGS if flags.FLAGS.find_module_defining_flag(name).startswith("bert_tf.")]:
        delattr(flags.FLAGS, name)
    main.define_flags()
    flags.FLAGS([main.__name__, *(f"--{key}={value}" for key, value in values.items() if value is not None)])
    try:
        main.main([main.__name__])
    finally:
        flags.FLAGS.unparse_flags()
