from midreel import errors


def test_every_error_is_a_midreel_error_and_a_value_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 5
    for kind in kinds:
        assert issubclass(kind, errors.MidreelError)
        assert kind is errors.MidreelError or issubclass(kind, ValueError)
        assert kind.__name__ in (errors.__doc__ or "")


def test_unknown_name_lists_the_known_names() -> None:
    error = errors.UnknownName.among("method", "gmm", ["clip_zero_shot", "msc"])
    assert "method 'gmm'" in str(error)
    assert "clip_zero_shot, msc" in str(error)
    error = errors.UnknownName.among("setting", "zzz", ["width", "epochs"], listed="docs/settings.md")
    assert "docs/settings.md" in str(error)
    assert "width" not in str(error)


def test_unknown_name_suggests_the_nearest_name() -> None:
    error = errors.UnknownName.among("method", "MSCC", ["clip_zero_shot", "msc"])
    assert isinstance(error, errors.UnknownName)
    assert "did you mean 'msc'?" in str(error)
    assert "did you mean 'FILES'?" in str(errors.UnknownName.among("kind", "file", ["FILES"]))
    error = errors.UnknownName.among("setting", "epoch", ["width", "epochs"], listed="docs/settings.md")
    assert "did you mean 'epochs'?" in str(error)
    assert "docs/settings.md" in str(error)
