from midreel import errors


def test_every_error_is_a_midreel_error_and_a_value_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 5
    for kind in kinds:
        assert issubclass(kind, errors.MidreelError)
        assert kind is errors.MidreelError or issubclass(kind, ValueError)
        assert kind.__name__ in (errors.__doc__ or "")


def test_an_unknown_name_lists_the_known_ones() -> None:
    error = errors.UnknownName.among("method", "gmm", ["clip_zero_shot", "msc"])
    assert str(error) == "no method 'gmm'; choose one of: clip_zero_shot, msc"
    error = errors.UnknownName.among("setting", "zzz", ["width", "epochs"], listed="docs/settings.md")
    assert str(error) == "no setting 'zzz'; all 2 are listed in docs/settings.md"


def test_an_unknown_name_that_is_near_a_known_one_is_taken_for_a_slip() -> None:
    error = errors.UnknownName.among("method", "MSCC", ["clip_zero_shot", "msc"])
    assert isinstance(error, errors.UnknownName)
    assert str(error) == "no method 'MSCC'; did you mean 'msc'? Choose one of: clip_zero_shot, msc"
    error = errors.UnknownName.among("kind", "file", ["FILES"])
    assert str(error) == "no kind 'file'; did you mean 'FILES'? Choose one of: FILES"
    error = errors.UnknownName.among("setting", "epoch", ["width", "epochs"], listed="docs/settings.md")
    assert str(error) == "no setting 'epoch'; did you mean 'epochs'? All 2 are listed in docs/settings.md"
