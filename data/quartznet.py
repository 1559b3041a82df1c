"""The published QuartzNet 15x5 models (NGC, NVIDIA), one a language.

    python -m data.quartznet [LANGUAGE] [--model_dir DIR] [--mirror URL_OR_FOLDER]

English is a checkpoint of the published recipe (.pt), the other languages are NeMo archives (.nemo). A mirror holds
the same paths below it: <model>/versions/<version>/zip. NGC tells no digest; the zip archive has one of its own for
each file.
"""

import argparse
import os
from pathlib import Path
from typing import NamedTuple

from data.archives import unpacked
from data.download import fetch
from runkit.errors import UserError, run_main
from runkit.files import remove_abandoned

NGC = "https://api.ngc.nvidia.com/v2/models/nvidia"


class Model(NamedTuple):
    path: str  # below NGC
    version: str
    file: str  # in the zip archive

    @property
    def archive(self) -> str:
        return f"{Path(self.path).name}_{self.version}.zip"


MODELS = {"en": Model("quartznet_pyt_ckpt_amp", "21.03.0", "nvidia_quartznet_210504.pt")} | {
    language: Model(f"nemo/stt_{language}_quartznet15x5", "1.0.0rc1", f"stt_{language}_quartznet15x5.nemo")
    for language in ("ca", "de", "es", "fr", "it", "pl", "ru", "zh")
}


def download_model(language: str, model_dir: Path, mirror: str = NGC) -> Path:
    """Leaves the model of a language in model_dir; returns its path. One that is there is kept.

    Raises UserError for an unknown language, an archive without the model, and as fetch and unpacked do.
    """
    if language not in MODELS:
        raise UserError(f"there is no published QuartzNet for {language!r}; there is one for {', '.join(MODELS)}")
    model = MODELS[language]
    target = model_dir / model.file
    archive = model_dir / model.archive
    if target.is_file():
        if archive.is_file():  # of a run that was killed between its last two steps
            remove_abandoned(model_dir, archive.name)
            archive.unlink()
        print(f"{target}: in place")
        return target
    fetch(f"{mirror.rstrip('/')}/{model.path}/versions/{model.version}/zip", archive)
    with unpacked(archive, model_dir) as tree:
        found = sorted(tree.rglob(model.file))
        if not found:
            there = ", ".join(sorted(path.name for path in tree.rglob("*") if path.is_file())[:10])
            raise UserError(
                f"{archive}: {model.file} is not in it, but {there or 'nothing'}; remove it to fetch it anew"
            )
        os.replace(found[0], target)
    archive.unlink()
    print(f"{target}: {target.stat().st_size} bytes")
    return target


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("language", nargs="?", default="en", help=f"one of {', '.join(MODELS)} (default: en)")
    parser.add_argument("--model_dir", type=Path, help="default: pretrained_models/quartznet_<language>")
    parser.add_argument("--mirror", default=NGC, help="URL or folder")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    model_dir = arguments.model_dir or Path(f"pretrained_models/quartznet_{arguments.language}")
    download_model(arguments.language, model_dir, arguments.mirror)


if __name__ == "__main__":
    run_main(main)
