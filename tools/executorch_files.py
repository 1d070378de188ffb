"""The files that `export_executorch.py` writes: their names, and which of them a folder has."""

SUFFIXES = {"f32": "", "f16": "_fp16", "int8": "_int8"}
# The file with all that comes after the picture, in both forms.
TEXT = "text"
FILES = {"vision": "vision", "encoder": "encoder", "decoder": "decoder", "cross": "cached", "step": "cached"}
FORMS = {"window": ["vision", "encoder", "decoder"], "cached": ["vision", "encoder", "cross", "step"]}


def located(folder, method, dtype):
    """The name of the file that has a method, by its name: None if there is none."""
    names = [f"{name}{SUFFIXES[dtype]}.pte" for name in (FILES[method], TEXT if method != "vision" else FILES[method])]
    return next((name for name in names if (folder / name).is_file()), None)


def networks(folder, dtypes=("f32", "int8")):
    """The whole networks in a folder, such as f32-cached, and for each the files of its methods."""
    found = {}
    for form in ("cached", "window"):
        for dtype in dtypes:
            files = {method: located(folder, method, dtype) for method in FORMS[form]}
            # Of a file with both forms, the program takes the cached one.
            shared = form == "window" and files["decoder"] == f"{TEXT}{SUFFIXES[dtype]}.pte"
            if all(files.values()) and not shared:
                found[f"{dtype}-{form}"] = files
    return found
