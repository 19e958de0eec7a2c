"""The sentence a user reads when a library of the ``data`` extra is not installed."""


def missing(error: ModuleNotFoundError) -> ImportError:
    """Turn the failed import of an optional library into advice."""
    return ImportError(
        f"fedlada.data needs {error.name}, which is not installed: "
        'run pip install "fedlada[data]".',
        name=error.name,
    )
