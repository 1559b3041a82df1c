import pytest

from runkit.errors import UserError, run_main


def exit_code(main, *args):
    with pytest.raises(SystemExit) as caught:
        run_main(main, *args)
    return caught.value.code


def test_return_value_is_the_exit_code():
    assert exit_code(lambda: None) in (0, None)
    assert exit_code(lambda code: code, 3) == 3


def test_user_error_is_one_line_and_exit_2(capsys):
    def main():
        raise UserError("vocab.txt:7: empty line; remove it")

    assert exit_code(main) == 2
    assert capsys.readouterr() == ("", "error: vocab.txt:7: empty line; remove it\n")


def test_interrupt_is_130():
    def main():
        raise KeyboardInterrupt

    assert exit_code(main) == 130


def test_defects_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run_main(lambda: 1 // 0)
